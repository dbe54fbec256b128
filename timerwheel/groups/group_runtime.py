"""The runtime of one group: its parts, and its work in the background: dead letters.

A message that is ready again after its last attempt is *exhausted*: nobody receives it any more, and it
becomes a dead letter in the background. If that cannot be stored now, it is retried. After a restart the
runtime looks for exhausted messages again.
"""

import asyncio
import itertools
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from timerwheel.errors import NotReadyError, OutcomeUnknownError
from timerwheel.groups.acknowledging import Acknowledging
from timerwheel.groups.dead_lettering import DeadLettering
from timerwheel.groups.leasing import Leasing
from timerwheel.groups.parts import GroupParts
from timerwheel.state.groups import GroupState
from timerwheel.store.errors import NoSpaceError

logger = logging.getLogger("timerwheel")

RETRY_MS = 1_000


class Look:
    """One consumer that looks for messages, and waits for them when there are none.

    What arrives while it looks has it look again. If it is woken and leaves without looking, the next who
    waits is woken in its place.
    """

    def __init__(self, runtime: "GroupRuntime") -> None:
        self._runtime = runtime
        self._arrivals = 0
        self.woken = False

    def begin(self) -> None:
        """It looks now."""
        self._arrivals = self._runtime.arrivals

    def end(self, *, found: bool) -> None:
        """It has looked. If it found something and left something, another who waits shall have that."""
        self.woken = False
        if found and self._runtime.waiting and self._runtime.leasing.left:
            self._runtime.rouse(1)

    async def wait(self, wait_ms: int) -> None:
        """Return when something arrived since `begin`, at the latest after `wait_ms`."""
        if self._runtime.arrivals != self._arrivals:
            return
        arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._runtime.waiting[arrived] = None
        try:
            await self._runtime.clock.wait_for(arrived, wait_ms)
        finally:
            self._runtime.waiting.pop(arrived, None)
            self.woken = arrived.done()


class GroupRuntime:
    """Belongs to the event loop."""

    def __init__(self, state: GroupState, parts: GroupParts) -> None:
        self.state = state
        self._parts = parts
        self.leasing = Leasing(state, parts)
        self.dead_lettering = DeadLettering(state, parts, self.leasing)
        self.acknowledging = Acknowledging(state, parts, self.leasing, self.dead_lettering)
        self.clock = parts.core.clock
        self.waiting: dict[asyncio.Future[None], None] = {}
        self.arrivals = 0
        self._exhausted: set[int] = set()
        self._burying: asyncio.Task[None] | None = None
        self.leasing.released = self._begin_to_bury

    @contextmanager
    def looking(self) -> Iterator[Look]:
        """For one receive. A caller that leaves it has looked since it was woken, or wakes another."""
        look = Look(self)
        try:
            yield look
        finally:
            if look.woken:
                self.rouse(1)

    def wake(self, count: int | None = None) -> None:
        """So many messages arrived, None for any number: who looks looks again, and who waits is roused."""
        self.arrivals += 1
        self.rouse(len(self.waiting) if count is None else count)

    def rouse(self, count: int) -> None:
        """Let so many of those who wait look again, who waits longest first."""
        for waiting in list(itertools.islice(self.waiting, count)):
            del self.waiting[waiting]
            if not waiting.done():
                waiting.set_result(None)

    @property
    def busy(self) -> bool:
        """Whether it gives up messages right now."""
        return self._burying is not None

    def came_back(self, roots: Iterable[int]) -> None:
        """The leases with these roots have come back: see which of them was the last attempt."""
        items = (self.state.by_root.get(root) for root in roots)
        self._note(item.key for item in items if item is not None)

    def look_over(self) -> None:
        """Find the exhausted messages among those ready again: after a start, or a change of the limit."""
        self._note(self.state.ready)

    def _note(self, keys: Iterable[int]) -> None:
        attempts_max = self._parts.config(self.state).max_attempts
        self._exhausted.update(key for key in keys if self._is_exhausted(key, attempts_max))
        self._begin_to_bury()

    def _is_exhausted(self, key: int, attempts_max: int) -> bool:
        item = self.state.items.get(key)
        return item is not None and key in self.state.ready and item.attempt >= attempts_max

    def _begin_to_bury(self) -> None:
        if self._exhausted and self._burying is None and self._parts.is_kept(self.state):
            self._burying = asyncio.create_task(self._bury())
            self._burying.add_done_callback(self._buried)

    def _buried(self, task: asyncio.Task[None]) -> None:
        self._burying = None
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("dead-lettering for %s failed", self.state.name, exc_info=error)
        elif not task.cancelled() and self._exhausted - self.leasing.claimed:
            self._begin_to_bury()  # one was released just as the task ended

    async def _bury(self) -> None:
        """Give up what is exhausted and nobody is changing; who is changing the others tells when done."""
        while self._parts.is_kept(self.state):
            attempts_max = self._parts.config(self.state).max_attempts
            self._exhausted = {key for key in self._exhausted if self._is_exhausted(key, attempts_max)}
            free = [self.state.items[key].root for key in sorted(self._exhausted - self.leasing.claimed)]
            if not free:
                return
            try:
                await self.dead_lettering.bury(free, None)
            except (NoSpaceError, NotReadyError, OutcomeUnknownError) as error:
                logger.warning("dead-lettering for %s is delayed: %s", self.state.name, error)
                await self._parts.core.clock.sleep_for(RETRY_MS)

    async def close(self) -> None:
        """Stop what runs in the background; the next start goes on with it."""
        if self._burying is not None:
            self._burying.cancel()
            await asyncio.gather(self._burying, return_exceptions=True)
