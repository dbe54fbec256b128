"""The tasks of one host that wait for their turn, and how fast it is called.

1. A host has a pace of its own, as a subscription has: at most `width` requests at once, a pause after
   failures. So a host that is down or hangs holds few requests, and none of other hosts waits for it.
2. Requests of all hosts share the places of their queue, if it limits them, and of the service. Hosts whose
   last request failed have at most half of these: so the others get a place as soon as one of their own is
   free, however many hosts hang.

Belongs to the event loop.
"""

import asyncio
from collections import deque
from collections.abc import Callable

import msgspec

from timerwheel.clock import Clock
from timerwheel.push.outcome import Outcome
from timerwheel.push.pace import Pace
from timerwheel.push.stats import FAILURES_IN_ROW


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """A task that was leased and waits for its turn."""

    receipt: str
    attempt: int
    place: tuple[int, int]


class Places:
    """A limit of requests in progress, None for no limit; those who wait are served in order."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._taken = 0
        self._failing = 0
        self._waiting: tuple[deque[asyncio.Future[None]], deque[asyncio.Future[None]]] = (deque(), deque())

    def change(self, limit: int | None) -> None:
        """Have another limit from now on."""
        self._limit = limit
        self._wake()

    async def take(self, *, failing: bool) -> None:
        """Wait for a place and take it."""
        while not self._fits(failing=failing):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting[failing].append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                self._wake()
                raise
        self._taken += 1
        self._failing += failing
        self._wake()

    def give(self, *, failing: bool) -> None:
        """Give a place back, as it was taken."""
        self._taken -= 1
        self._failing -= failing
        self._wake()

    def _fits(self, *, failing: bool) -> bool:
        if self._limit is None:
            return True
        if failing and self._failing >= max(self._limit // 2, 1):
            return False
        return self._taken < self._limit

    def _wake(self) -> None:
        for failing, waiting in enumerate(self._waiting):
            while waiting and waiting[0].done():
                waiting.popleft()
            if waiting and self._fits(failing=bool(failing)):
                waiting.popleft().set_result(None)


class Lane:
    """The tasks of one host in one queue. Its requests begin in turn.

    It works while it has tasks; `failures_in_row` outlives them.
    """

    def __init__(self, clock: Clock, width_max: Callable[[], int]) -> None:
        self._clock = clock
        self._width_max = width_max
        self.waiting: deque[Waiting] = deque()
        self.under_way = 0
        self.failures_in_row = 0
        self._pace = Pace()
        self._changed: asyncio.Future[None] | None = None

    @property
    def idle(self) -> bool:
        """Whether it has nothing to do, and nothing to remember."""
        return self.has_no_task and not self.failures_in_row

    @property
    def has_no_task(self) -> bool:
        """Whether no task waits for it or is being called."""
        return not self.waiting and not self.under_way

    @property
    def is_failing(self) -> bool:
        """Whether its host failed so often in a row that it is called less."""
        return self.failures_in_row >= FAILURES_IN_ROW

    async def turn(self) -> None:
        """Wait until the next request may begin, for all that the host itself says."""
        while True:
            pause_ms = self._pace.resume_ms - self._clock.monotonic_ms()
            if self.under_way >= min(self._pace.width, self._width_max()):
                await self._change()
            elif pause_ms > 0:
                await self._clock.wait_for(self._change(), pause_ms)
            else:
                return

    def began(self) -> None:
        """Note that a request begins."""
        self.under_way += 1

    def ended(self, outcome: Outcome | None) -> None:
        """Note how a request ended; None if it was not made."""
        self.under_way -= 1
        if outcome is not None:
            # An answer 410 is about the one task, not about the host.
            good = outcome.is_delivered or outcome.is_gone
            self.failures_in_row = 0 if good else self.failures_in_row + 1
            judged = msgspec.structs.replace(outcome, kind="delivered") if good else outcome
            self._pace.steer(judged, self.failures_in_row, self._width_max(), self._clock.monotonic_ms())
        self.notify()

    def notify(self) -> None:
        """Have `turn` look again."""
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    def _change(self) -> "asyncio.Future[None]":
        self._changed = asyncio.get_running_loop().create_future()
        return self._changed
