"""Time, read in one place: wall milliseconds for what is due, monotonic ones for how long things take."""

import asyncio
import contextlib
import time
from typing import Protocol

from timerwheel.alarm import alarm


class Clock(Protocol):
    """What the engine knows of time. `tests/harness/clock.py` has the manual one."""

    def now_ms(self) -> int:
        """Wall clock, milliseconds since the epoch. May step back or forward."""

    def monotonic_ms(self) -> int:
        """Milliseconds that never step; the origin means nothing."""

    async def wait_until(self, due_ms: int | None, wake: asyncio.Event) -> None:
        """Return when the wall clock reads `due_ms`, when `wake` is set, or early after a step.

        Clear `wake` before: it may be set when the time has come.
        """

    async def sleep_for(self, duration_ms: int) -> None:
        """Return after `duration_ms` of monotonic time."""

    async def wait_for(self, arrived: asyncio.Future[None], duration_ms: int) -> None:
        """Return when the future is done or after `duration_ms` of monotonic time."""

    async def breathe(self) -> None:
        """Let every other task that is ready run once."""


class SystemClock:
    """The machine's clocks."""

    LONGEST_SLEEP_MS = 500  # so that a stepped wall clock is noticed within this time
    LOOP_TIMER_MS = 1  # so coarse are timers of event loops; the alarm rings before they do

    def now_ms(self) -> int:
        """Wall milliseconds, rounded down: a message is never seen as due before its time."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Monotonic milliseconds."""
        return time.monotonic_ns() // 1_000_000

    async def wait_until(self, due_ms: int | None, wake: asyncio.Event) -> None:
        """Wait for the event, until the due time, at most `LONGEST_SLEEP_MS` at once."""
        longest_s = self.LONGEST_SLEEP_MS / 1000
        wait_s = longest_s if due_ms is None else min(longest_s, due_ms / 1000 - time.time())
        if wait_s <= 0 or wake.is_set():
            return
        # Not `wait_for`: in Python 3.11 it swallows a cancellation that comes together with the event.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s + self.LOOP_TIMER_MS / 1000):
                with alarm(due_ms, wake.set) if due_ms is not None else contextlib.nullcontext():
                    await wake.wait()

    async def sleep_for(self, duration_ms: int) -> None:
        """Sleep a duration."""
        await asyncio.sleep(duration_ms / 1000)

    async def wait_for(self, arrived: asyncio.Future[None], duration_ms: int) -> None:
        """Wait on the future, at most the duration."""
        await asyncio.wait((arrived,), timeout=duration_ms / 1000)

    async def breathe(self) -> None:
        """Yield to the loop."""
        await asyncio.sleep(0)
