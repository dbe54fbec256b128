"""Later acknowledgements: what a receiver says by URL of a message or a task that it took.

It comes to the same as the calls of a consumer with the receipt; of a task, it also stores the outcome and
the callback, as an answer would. Belongs to the event loop.
"""

from collections.abc import Awaitable, Callable, Mapping

from timerwheel.engine import Engine
from timerwheel.errors import TimerwheelError
from timerwheel.groups.config import UnknownGroupError, checked_invisible
from timerwheel.model.messages import ReceiptResult
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
        one = await self._say(token, self._tasks.acknowledge, self._engine.groups.ack)
        self._settled(one)

    async def give_back(self, token: str, delay_ms: int | None, reason: str | None) -> None:
        """The attempt failed: the next one comes after the delay, or the backoff; AdmissionError."""
        tasks, groups, why = self._tasks, self._engine.groups, reason or RETURNED
        self._settled(await self._say(token, tasks.give_back, groups.nack, delay_ms, why))

    async def extend(self, token: str, invisible_ms: int) -> int:
        """Have that long from now to acknowledge; returns until when. GroupFieldError."""
        wanted_ms = checked_invisible(invisible_ms)
        one = await self._say(token, self._tasks.extend, self._extend, wanted_ms)
        for dispatcher in self._of(one):
            dispatcher.extended(one.receipt, invisible_ms)
        return self._engine.clock.now_ms() + invisible_ms

    async def _extend(
        self, topic: str, group: str, receipts: list[str], invisible_ms: int
    ) -> list[ReceiptResult]:
        """Extend the lease of a message, which a request in progress needs, however little is asked for."""
        (receipt,) = receipts
        left_ms = [one.left_ms(receipt) for one in self._of(Attempted(topic, group, receipt))]
        return await self._engine.groups.extend(topic, group, receipts, max(invisible_ms, *left_ms, 0))

    async def _say(
        self,
        token: str,
        of_task: Callable[..., Awaitable[bool]],
        of_message: Callable[..., Awaitable[list[ReceiptResult]]],
        *more: object,
    ) -> Attempted:
        """Say something of the attempt: `of_task` to its queue, or `of_message` to its group."""
        one = self._read(token)
        try:
            if one.group == GROUP and (queue := queue_in(one.topic)) is not None:
                ok = await of_task(queue, one.receipt, *more)
            else:
                (result,) = await of_message(one.topic, one.group, [one.receipt], *more)
                ok = result.ok
        except (UnknownGroupError, UnknownTaskQueueError):
            raise AckEndedError from None
        if not ok:
            raise AckEndedError
        return one

    def _read(self, token: str) -> Attempted:
        found = self._urls.read(token)
        if found is None:
            raise UnknownAckError
        return found

    def _settled(self, one: Attempted) -> None:
        for dispatcher in self._of(one):
            dispatcher.settled(one.receipt)

    def _of(self, one: Attempted) -> list[Dispatcher]:
        place = (one.topic, one.group)
        every = self._dispatchers.values()
        return [each for each in every if (each.subscription.topic, each.subscription.group) == place]


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
