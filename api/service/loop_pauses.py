"""Pauses of the event loop, measured as the delay of a timer that should fire soon.

During a pause everything waits, due messages too. A pause that begins between two timers is measured from the
next one on, so up to INTERVAL_S of it is missed.
"""

import asyncio
from collections.abc import AsyncIterator
from time import perf_counter

from aiohttp import web

from timerwheel.runtime.counters import Histogram

INTERVAL_S = 0.02
BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class LoopPauses:
    """The pauses of one application's loop; any thread may read them."""

    def __init__(self) -> None:
        self.seconds = Histogram(BOUNDS_S)
        self.longest_s = 0.0
        self._rings_s = 0.0
        self._handle: asyncio.TimerHandle | None = None

    async def watch(self, _: web.Application) -> AsyncIterator[None]:
        """Measure while the application runs."""
        self._wind()
        yield
        if self._handle is not None:
            self._handle.cancel()

    def _wind(self) -> None:
        self._rings_s = perf_counter() + INTERVAL_S
        self._handle = asyncio.get_running_loop().call_later(INTERVAL_S, self._ring)

    def _ring(self) -> None:
        late_s = max(perf_counter() - self._rings_s, 0.0)
        self.seconds.observe(late_s)
        self.longest_s = max(self.longest_s, late_s)
        self._wind()
