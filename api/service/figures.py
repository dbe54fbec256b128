"""Takes the figures of the service once a second, whether anyone looks or not, so that charts begin full.

They are kept in a file, which is written every minute and at the end, and read when the first engine is open:
only then does the data directory belong to this process. While there is no engine, none are taken.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import msgspec
from aiohttp import web

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.http import responses
from timerwheel.api.http.route import Need, call
from timerwheel.api.service import figure_file
from timerwheel.clock import Clock
from timerwheel.engine import Engine
from timerwheel.errors import NotReadyError
from timerwheel.model.figures import Figures, Point, columns
from timerwheel.runtime.counters import LATENESS_BOUNDS_MS
from timerwheel.runtime.queue_reader import SYSTEM_TOPICS
from timerwheel.wire.service import FigureHistory, HistoryQuery

EVERY_MS = 1_000
KEEP_MS = 60_000

logger = logging.getLogger(__name__)


def pending_of(engine: Engine) -> int:
    """Count the scheduled messages; reads nothing from the disk."""
    return sum(engine.queues.topic(name).pending for name in SYSTEM_TOPICS)


class FigureKeeper:
    """The figures of the service behind a handle, and the call that returns them. Event loop only."""

    def __init__(self, handle: EngineHandle, clock: Clock) -> None:
        self._handle = handle
        self._clock = clock
        self._figures = Figures(LATENESS_BOUNDS_MS)
        self._engine: Engine | None = None
        self._kept_at_ms: int | None = None  # by the monotonic clock; None before the file was read
        self._writing: asyncio.Task[None] | None = None

    @property
    def newest(self) -> Point | None:
        """The newest second."""
        return self._figures.newest

    async def watch(self, _: web.Application) -> AsyncIterator[None]:
        """Take figures while the application runs; the engine is still open when it ends."""
        task = asyncio.create_task(self._run())
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        if self._writing is not None:
            await self._writing
        if self._engine is not None and self._kept_at_ms is not None:
            await self.keep()

    async def _run(self) -> None:
        while True:
            try:
                await self.bring_back()
                self.take()
                if self._should_keep():
                    await self.keep()
            except Exception:
                # Charts with a gap are better than none from now on.
                logger.exception("the figures of this second could not be taken")
            # At full seconds, so that a minute has 60 points. A sleep may end a moment before its second.
            left_ms = EVERY_MS - self._clock.now_ms() % EVERY_MS
            await self._clock.sleep_for(left_ms if left_ms > EVERY_MS // 2 else left_ms + EVERY_MS)

    async def bring_back(self) -> None:
        """Read what an earlier process kept, once the data directory is ours; later calls do nothing."""
        if self._kept_at_ms is not None:
            return
        try:
            engine = self._handle.engine
        except NotReadyError:
            return
        self._kept_at_ms = self._clock.monotonic_ms()
        seconds, minutes = await asyncio.to_thread(figure_file.read, self._handle.settings.data)
        self._figures.bring_back(seconds, minutes, engine.clock.now_ms())

    def _should_keep(self) -> bool:
        """Whether the file is a minute old; between two engines the directory may be another process's."""
        if self._engine is None or self._kept_at_ms is None:
            return False
        return self._clock.monotonic_ms() >= self._kept_at_ms + KEEP_MS

    async def keep(self) -> None:
        """Write the file; a disk that refuses it costs only the charts after a restart."""
        self._kept_at_ms = self._clock.monotonic_ms()
        # Finished even if this call is cancelled: two threads must not write one file.
        self._writing = asyncio.create_task(self._write())
        await asyncio.shield(self._writing)

    async def _write(self) -> None:
        points = (list(self._figures.seconds), list(self._figures.minutes))
        try:
            await asyncio.to_thread(figure_file.write, self._handle.settings.data, *points)
        except OSError as error:
            logger.warning("the figures for the charts were not kept: %s", error)

    def take(self) -> None:
        """Take the figures of what happened since the last time."""
        try:
            engine = self._handle.engine
        except NotReadyError:
            engine = None
        if engine is not self._engine:
            self._engine = engine
            self._figures.restart()
        if engine is not None:
            self._figures.take(engine.clock.now_ms(), engine.counters.totals(), pending_of(engine))

    @call("GET", "/v1/live/history", "getLiveHistory", needs=Need.TOKEN, answer=FigureHistory)
    async def history(self, _: web.Request, params: HistoryQuery) -> web.Response:
        """Get the figures of the last 15 minutes by second, or of the last 24 hours by minute."""
        now_ms = self._handle.engine.clock.now_ms()
        points = self._figures.seconds if params.step == "second" else self._figures.minutes
        found = msgspec.convert({"now_ms": now_ms, **columns(points)}, FigureHistory)
        return responses.json(found)
