"""A clock that stands still until a test moves it."""

import asyncio
from typing import Any


class ManualClock:
    """`timerwheel.clock.Clock` in the hand of a test: `advance` moves both clocks, `step` only one.

    Belongs to the event loop of its users.
    """

    def __init__(self, now_ms: int = 1_800_000_000_000) -> None:
        self.wall_ms = now_ms
        self.mono_ms = 0
        self._waiting: dict[asyncio.Future[None], None] = {}  # in the order in which they came

    def now_ms(self) -> int:
        """Return the wall clock's milliseconds since the epoch."""
        return self.wall_ms

    def monotonic_ms(self) -> int:
        """Return the milliseconds by which the clock was advanced."""
        return self.mono_ms

    def uptime_ms(self) -> int:
        """Return the milliseconds by which the clock was advanced."""
        return self.mono_ms

    def advance(self, duration_ms: int) -> None:
        """Let this much time pass."""
        self.wall_ms += duration_ms
        self.mono_ms += duration_ms
        self._wake()

    def step(self, by_ms: int) -> None:
        """Set the wall clock forward or back, without time passing."""
        self.wall_ms += by_ms
        self._wake()

    def _wake(self) -> None:
        for waiting in list(self._waiting):
            if not waiting.done():
                waiting.set_result(None)

    def _moved(self) -> asyncio.Future[None]:
        """Done at the next move; registered at once, so that none is missed."""
        moved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[moved] = None
        moved.add_done_callback(self._waiting.pop)
        return moved

    async def wait_until(self, due_ms: int | None, wake: asyncio.Event) -> None:
        """Return when the wall clock reads `due_ms`, when `wake` is set, or after a move."""
        if wake.is_set() or (due_ms is not None and due_ms <= self.wall_ms):
            return
        tasks: list[asyncio.Future[Any]] = [asyncio.ensure_future(wake.wait()), self._moved()]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def sleep_for(self, duration_ms: int) -> None:
        """Return once the clock was advanced by this much."""
        until = self.mono_ms + duration_ms
        while self.mono_ms < until:
            await self._moved()

    async def wait_for(self, arrived: asyncio.Future[None], duration_ms: int) -> None:
        """Return when the future is done, or once the clock was advanced by this much."""
        until = self.mono_ms + duration_ms
        while not arrived.done() and self.mono_ms < until:
            moved = self._moved()
            try:
                await asyncio.wait((arrived, moved), return_when=asyncio.FIRST_COMPLETED)
            finally:
                moved.cancel()
                await asyncio.gather(moved, return_exceptions=True)

    async def breathe(self) -> None:
        """Let every other task that is ready run once."""
        await asyncio.sleep(0)
