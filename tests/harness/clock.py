"""The manual clock of `timerwheel.testing`, under the name that the tests of this project use."""

import asyncio

from timerwheel.testing.manual_clock import ManualClock

__all__ = ["LeapingClock", "ManualClock"]


class LeapingClock(ManualClock):
    """Time passes only while somebody sleeps."""

    async def sleep_for(self, duration_ms: int) -> None:
        self.advance(duration_ms)
        await asyncio.sleep(0)
