"""Later acknowledgements: what a receiver says by URL of a message or a task that it took.

It comes to the same as the calls of a consumer with the receipt; of a task, it also stores the outcome and
the callback, as an answer would. Belongs to the event loop.
"""

from collections.abc import Mapping

from timerwheel.engine import Engine
from timerwheel.errors import TimerwheelError
from timerwheel.groups.config import UnknownGroupError
from timerwheel.push.ack_urls import AckUrls, Attempted
from timerwheel.push.dispatcher import Dispatcher
from timerwheel.push.tasks.task import GROUP, queue_in
from timerwheel.push.tasks.task_queue import UnknownTaskQueueError
from timerwheel.push.tasks.tasks import Tasks

RETURNED = "given back by its receiver"


class Acks:
    """See the module.

    Each call raises UnknownAckError for a token that the service did not make, AckEndedError for one that is
    over.
    """

    def __init__(
        self, engine: Engine, urls: AckUrls, tasks: Tasks, dispatchers: Mapping[str, Dispatcher]
    ) -> None:
        self._engine = engine
        self._urls = urls
        self._tasks = tasks
        self._dispatchers = dispatchers

    def check(self, token: str) -> None:
        """Raise UnknownAckError for a token that the service did not make."""
        self._read(token)

    async def acknowledge(self, token: str) -> None:
        """The message is done, durably; a repetition is fine."""
        one = self._read(token)
        queue = _queue_of(one)
        try:
            if queue is not None:
                ok = await self._tasks.acknowledge(queue, one.receipt)
            else:
                (result,) = await self._engine.groups.ack(one.topic, one.group, [one.receipt])
                ok = result.ok
        except (UnknownGroupError, UnknownTaskQueueError):
            raise AckEndedError from None
        self._settled(one, ok=ok)

    async def give_back(self, token: str, delay_ms: int | None, reason: str | None) -> None:
        """The attempt failed: the next one comes after the delay, or the backoff; AdmissionError."""
        one = self._read(token)
        queue = _queue_of(one)
        why = reason or RETURNED
        try:
            if queue is not None:
                ok = await self._tasks.give_back(queue, one.receipt, delay_ms, why)
            else:
                groups = self._engine.groups
                (result,) = await groups.nack(one.topic, one.group, [one.receipt], delay_ms, why)
                ok = result.ok
        except (UnknownGroupError, UnknownTaskQueueError):
            raise AckEndedError from None
        self._settled(one, ok=ok)

    async def extend(self, token: str, invisible_ms: int) -> int:
        """Have that long from now to acknowledge; returns until when. GroupFieldError."""
        one = self._read(token)
        queue = _queue_of(one)
        try:
            if queue is not None:
                ok = await self._tasks.extend(queue, one.receipt, invisible_ms)
            else:
                groups = self._engine.groups
                (result,) = await groups.extend(one.topic, one.group, [one.receipt], invisible_ms)
                ok = result.ok
        except (UnknownGroupError, UnknownTaskQueueError):
            raise AckEndedError from None
        if not ok:
            raise AckEndedError
        for dispatcher in self._of(one):
            dispatcher.extended(one.receipt, invisible_ms)
        return self._engine.clock.now_ms() + invisible_ms

    def _read(self, token: str) -> Attempted:
        found = self._urls.read(token)
        if found is None:
            raise UnknownAckError
        return found

    def _settled(self, one: Attempted, *, ok: bool) -> None:
        if not ok:
            raise AckEndedError
        for dispatcher in self._of(one):
            dispatcher.settled(one.receipt)

    def _of(self, one: Attempted) -> list[Dispatcher]:
        place = (one.topic, one.group)
        every = self._dispatchers.values()
        return [each for each in every if (each.subscription.topic, each.subscription.group) == place]


def _queue_of(one: Attempted) -> str | None:
    return queue_in(one.topic) if one.group == GROUP else None


class UnknownAckError(TimerwheelError):
    """The service did not make this token."""

    code = "unknown_ack"

    def __init__(self) -> None:
        super().__init__("no attempt has this token: send it as the header timerwheel-ack-url gave it")


class AckEndedError(TimerwheelError):
    """The attempt of this token is over."""

    code = "ack_ended"

    def __init__(self) -> None:
        super().__init__(
            "this attempt is over: it was acknowledged or given back before, its time ended, or the message "
            "was delivered again"
        )
