"""Time, read in one place: wall milliseconds for what is due, monotonic ones for how long things take."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """What the engine knows of time. `tests/harness/clock.py` has the manual one."""

    def now_ms(self) -> int:
        """Wall clock, milliseconds since the epoch. May step back or forward."""

    def monotonic_ms(self) -> int:
        """Milliseconds that never step; the origin means nothing."""

    async def sleep_until(self, due_ms: int) -> None:
        """Return when the wall clock reads `due_ms` or later; may return early after a step."""

    async def sleep_for(self, duration_ms: int) -> None:
        """Return after `duration_ms` of monotonic time."""


class SystemClock:
    """The machine's clocks."""

    LONGEST_SLEEP_MS = 500  # so that a stepped wall clock is noticed within this time

    def now_ms(self) -> int:
        """Wall milliseconds, rounded down: a message is never seen as due before its time."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Monotonic milliseconds."""
        return time.monotonic_ns() // 1_000_000

    async def sleep_until(self, due_ms: int) -> None:
        """Sleep to the due time, at most `LONGEST_SLEEP_MS` at once."""
        wait_s = due_ms / 1000 - time.time()
        if wait_s > 0:
            await asyncio.sleep(min(wait_s, self.LONGEST_SLEEP_MS / 1000))

    async def sleep_for(self, duration_ms: int) -> None:
        """Sleep a duration."""
        await asyncio.sleep(duration_ms / 1000)
