"""A leased message, and the keeper that extends its lease while the consumer works on it.

    waiting in the group -> leased -> ack: done for good
                                   -> nack: ready again after a delay, or a dead letter
                                   -> neither, and not extended: redelivered when the lease ends

1. The keeper extends leases that are neither finished nor lost, three times as often as needed.
2. A lease without references is not extended, so a message that a worker forgot is redelivered.
3. A lease that was held for `hold_ms_max` is not extended, so a hanging worker does not keep it forever.
4. Of many leases, those that end soonest are extended first. So under a limited rate all get their turn.
5. Nobody waits for a limited rate to settle a message whose lease has ended, see `Patience`.
"""

import asyncio
import datetime as dt
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar
from weakref import WeakSet

from timerwheel.client.connection import keep_forever
from timerwheel.client.errors import ClientError, LeaseEndedError, UnreachableError
from timerwheel.client.retries import PAUSE_MS
from timerwheel.clock import Clock
from timerwheel.groups.config import RECEIVE_MAX
from timerwheel.wire.groups import Held, Settled
from timerwheel.wire.messages import Kind

EXTENSIONS_PER_LEASE = 3
REASON_CHARACTERS_MAX = 500
SETTLE_MS_MAX = 10_000
"""How long a worker that stops waits in all for a limited rate to acknowledge or return a message."""
_SERVER_FAULT = 500
_TOO_MANY = 429
_Answer = TypeVar("_Answer")

logger = logging.getLogger(__name__)


class Leasing(Protocol):
    """What a lease needs of its group: the calls of `Group` with these names."""

    @property
    def path(self) -> str:
        """The group's path below the service's URL."""

    @property
    def clock(self) -> Clock:
        """The clock of waits."""

    async def ack(self, receipts: Sequence[str]) -> list[Settled]:
        """Acknowledge messages."""

    async def nack(
        self,
        receipts: Sequence[str],
        *,
        delay: str | dt.timedelta | None = None,
        delay_ms: int | None = None,
        reason: str | None = None,
        dead_letter: bool = False,
    ) -> list[Settled]:
        """Return messages."""

    async def extend(self, receipts: Sequence[str], invisible_ms: int) -> list[Settled]:
        """Extend leases."""


class LeasedMessage:
    """What a lease has of its message."""

    message: Held

    @property
    def body(self) -> bytes:
        """The body's bytes."""
        return self.message.body

    def json(self) -> Any:  # noqa: ANN401 - any JSON value
        """Return the body as the JSON value that it holds; raises ValueError if it is not JSON."""
        return self.message.json()

    def as_(self, kind: type[Kind]) -> Kind:
        """Return the body's JSON as a value of this type; see `Message.as_`."""
        return self.message.as_(kind)

    @property
    def text(self) -> str:
        """The body as UTF-8; raises UnicodeDecodeError if it is not."""
        return self.message.text

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self.message.attempt


class Lease(LeasedMessage):
    """One leased message, to be finished with `ack` or `nack`.

    As a context manager it is acknowledged at the end of the block, or returned with the error that ended the
    block. After a cancellation it is left to expire.
    """

    def __init__(self, group: Leasing, message: Held, invisible_ms: int, hold_until_ms: int) -> None:
        """`hold_until_ms` is monotonic."""
        self.message = message
        self.settled = False
        """Acknowledged or returned by this consumer."""
        self.lost = False
        """The lease ended before it was finished: the message is, or will be, leased to another consumer."""
        self.ack_unanswered = False
        """An acknowledgement was sent, and no answer came: it may have been stored."""
        self.group = group
        self.invisible_ms = invisible_ms
        self.hold_until_ms = hold_until_ms
        self.ends_ms = group.clock.monotonic_ms() + invisible_ms
        """When it ends unless it is extended; monotonic."""
        self._stopping: asyncio.Future[Any] | None = None

    def handled_until(self, stopping: "asyncio.Future[Any]") -> None:
        """A worker handles the message, and stops once this is done."""
        self._stopping = stopping

    @property
    def patience(self) -> "Patience":
        """How long to wait for a limited rate to finish this message."""
        return Patience(self.group.clock, self._stopping)

    async def ack(self) -> None:
        """Acknowledge the message durably. Raises LeaseEndedError if it is too late."""
        [result] = await self.group.ack([self.message.receipt])
        self.acknowledged(result)

    def acknowledged(self, result: Settled) -> None:
        """Apply the service's response to an acknowledgement. Raises LeaseEndedError if it was too late."""
        self._take_in(result)
        self._mark_finished()

    async def nack(
        self,
        *,
        delay: str | dt.timedelta | None = None,
        delay_ms: int | None = None,
        reason: str | None = None,
        dead_letter: bool = False,
    ) -> None:
        """Return the message: it is redelivered after the delay, by default the group's backoff.

        After its last attempt, or at once with `dead_letter`, it is a dead letter with this reason. Raises
        LeaseEndedError.
        """
        receipts = [self.message.receipt]
        [result] = await self.group.nack(
            receipts, delay=delay, delay_ms=delay_ms, reason=reason, dead_letter=dead_letter
        )
        self._take_in(result)
        self._mark_finished()

    async def extend(self, invisible_ms: int | None = None) -> None:
        """Extend the lease to this long from now, by default its first length. Raises LeaseEndedError."""
        length_ms = self.invisible_ms if invisible_ms is None else invisible_ms
        begun_ms = self.group.clock.monotonic_ms()
        [result] = await self.group.extend([self.message.receipt], length_ms)
        self._take_in(result)
        self.ends_ms = begun_ms + length_ms

    def _mark_finished(self) -> None:
        # An extension that arrives after the acknowledgement finds the receipt ended; nothing is lost.
        self.settled, self.lost = True, False

    def _take_in(self, result: Settled) -> None:
        if not result.ok:
            self.lost = True
            code = result.code or "receipt_ended"
            detail = f"the receipt of message {self.message.id} is no longer valid ({code})"
            raise LeaseEndedError(None, code, detail)

    async def __aenter__(self) -> Self:
        """Enter the block; calls nothing."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Acknowledge or return the message, unless the block did."""
        if self.settled or self.lost:
            return
        if error is None:
            await self.ack()
        else:
            await self.failed(error)

    async def failed(self, error: BaseException) -> None:
        """Return the message with this error as the reason; after a cancellation, release it silently."""
        if isinstance(error, Exception):
            await give_back(self, reason=f"{type(error).__name__}: {error}")
        else:
            self.lost = True


async def give_back(
    lease: Lease, *, reason: str, delay: str | dt.timedelta | None = None, dead_letter: bool = False
) -> None:
    """Return a message as `Lease.nack` does, as soon as a limited rate allows; see `Patience`.

    Of the reason, the service gets the beginning, since it refuses longer ones.
    """
    shown = reason[:REASON_CHARACTERS_MAX]
    nack = partial(lease.nack, delay=delay, reason=shown, dead_letter=dead_letter)
    await as_let(nack, [lease], lease.patience)


class Patience:
    """How long to wait for a limited rate to settle messages.

    Until their leases have ended, and once their worker stops, for no more than `SETTLE_MS_MAX`.
    """

    def __init__(self, clock: Clock, stopping: "asyncio.Future[Any] | None" = None) -> None:
        self._clock = clock
        self._stopping = stopping
        self._left_ms = SETTLE_MS_MAX

    async def wait(self, wait_ms: int, leases: Sequence[Lease]) -> bool:
        """Wait so long for the rate; returns False, as soon as that is certain, if it is in vain."""
        end_ms = self._clock.monotonic_ms() + wait_ms
        while (wait_ms := end_ms - (now_ms := self._clock.monotonic_ms())) > 0:
            held_ms = max((lease.ends_ms for lease in leases), default=now_ms) - now_ms
            is_stopping = self._stopping is not None and self._stopping.done()
            if held_ms <= 0 or (is_stopping and wait_ms > self._left_ms):
                return False
            step_ms = min(wait_ms, held_ms)  # the lease may have been extended by then
            if self._stopping is None or is_stopping:
                self._left_ms -= step_ms if is_stopping else 0
                await self._clock.sleep_for(step_ms)
            else:
                await self._clock.wait_for(self._stopping, step_ms)
        return True


async def as_let(
    call: Callable[[], Awaitable[_Answer]], leases: Sequence[Lease], patience: Patience
) -> _Answer:
    """Make a call about these leases as soon as a limited rate allows, if the patience is enough for that."""
    while True:
        try:
            return await call()
        except ClientError as error:
            if not is_rate_limited(error):
                raise
            logger.info("trying again later: %s", error)
            if not await patience.wait(pause_after(error), leases):
                raise


class Keeper:
    """Extends the leases of a client. Belongs to the event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._held: dict[tuple[str, int], WeakSet[Lease]] = {}
        self._tasks: dict[tuple[str, int], asyncio.Task[None]] = {}

    def hold(self, lease: Lease) -> None:
        """Extend the lease from now on, until it is finished, lost, dropped or held for too long."""
        key = (lease.group.path, lease.invisible_ms)
        if key not in self._held:
            self._held[key] = WeakSet()
            self._tasks[key] = asyncio.create_task(self._keep(key, lease.group))
        self._held[key].add(lease)

    async def close(self) -> None:
        """Stop extending."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # A task that never began does not clean up after itself.
        self._held.clear()
        self._tasks.clear()

    def forget(self) -> None:
        """Forget the leases, which a forked parent extends."""
        for task in self._tasks.values():
            keep_forever(task)
        self._held, self._tasks = {}, {}

    async def _keep(self, key: tuple[str, int], group: Leasing) -> None:
        """Extend all leases of one group and length together."""
        path, invisible_ms = key
        period_ms = max(invisible_ms // EXTENSIONS_PER_LEASE, 1)
        try:
            while self._held[key]:
                await self._clock.sleep_for(period_ms)
                turn = _Turn(path, invisible_ms, period_ms, self._clock.monotonic_ms())
                while (pause_ms := await self._extend(self._held[key], group, turn)) is not None:
                    await self._clock.sleep_for(pause_ms)
        finally:
            self._held.pop(key, None)
            self._tasks.pop(key, None)

    async def _extend(self, held: "WeakSet[Lease]", group: Leasing, turn: "_Turn") -> int | None:
        """Extend what is due, in parts; returns for how long to pause before the rest, None if all is done.

        A separate function, so that the keeper refers to no lease while it sleeps.
        """
        due = self._due(held, turn)
        for at in range(0, len(due), RECEIVE_MAX):
            part = due[at : at + RECEIVE_MAX]
            begun_ms = self._clock.monotonic_ms()
            receipts = [lease.message.receipt for lease in part]
            try:
                results = await group.extend(receipts, turn.invisible_ms)
            except ClientError as error:
                logger.warning("cannot extend leases at %s: %s", turn.path, error)
                if is_rate_limited(error):
                    return min(turn.period_ms, pause_after(error))
                turn.failed.update(receipts)  # the others have their turn all the same
                if not is_passing(error):
                    for lease in part:
                        lease.lost = not lease.settled
                continue
            for lease, result in zip(part, results, strict=True):
                lease.lost = not result.ok and not lease.settled
                lease.ends_ms = begun_ms + turn.invisible_ms if result.ok else begun_ms
        return None

    def _due(self, held: "WeakSet[Lease]", turn: "_Turn") -> list[Lease]:
        """Return the leases to extend: those that end soonest first, and those that have ended last."""
        now_ms = self._clock.monotonic_ms()
        over = [lease for lease in held if lease.settled or lease.lost or lease.hold_until_ms <= now_ms]
        for lease in over:
            held.discard(lease)
        # A turn that a limited rate makes long goes on to those that it extended a period ago.
        until_ms = max(turn.begun_ms, now_ms - turn.period_ms) + turn.invisible_ms
        due = [one for one in held if one.ends_ms < until_ms and one.message.receipt not in turn.failed]
        return sorted(due, key=lambda one: (one.ends_ms <= now_ms, one.ends_ms))


class _Turn:
    """One turn of the keeper, in which each lease of a group is extended."""

    def __init__(self, path: str, invisible_ms: int, period_ms: int, begun_ms: int) -> None:
        self.path = path
        self.invisible_ms = invisible_ms
        self.period_ms = period_ms
        self.begun_ms = begun_ms
        self.failed: set[str] = set()
        """Receipts that could not be extended in this turn."""


def is_passing(error: ClientError) -> bool:
    """Whether the same call may succeed later: no response, a failure of the service, or a limited rate."""
    if isinstance(error, UnreachableError):
        return not error.final
    return (error.status or 0) >= _SERVER_FAULT or is_rate_limited(error)


def is_rate_limited(error: ClientError) -> bool:
    """Whether the token made too many calls: this one had no effect, and may be made later."""
    return error.status == _TOO_MANY and error.retry_after_ms is not None


def pause_after(error: ClientError, least_ms: int = PAUSE_MS) -> int:
    """Return how many ms to wait before the next try: as the service says, and at least so long."""
    return max(error.retry_after_ms or 0, least_ms)
