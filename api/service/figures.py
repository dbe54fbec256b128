"""Takes the figures of the service once a second, whether anyone looks or not, so that charts begin full.

They are in memory only: a restart begins with none. While there is no engine, none are taken.
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
from timerwheel.clock import Clock
from timerwheel.engine import Engine
from timerwheel.errors import NotReadyError
from timerwheel.model.figures import Figures, Point, columns
from timerwheel.runtime.counters import LATENESS_BOUNDS_MS
from timerwheel.runtime.queue_reader import SYSTEM_TOPICS
from timerwheel.wire.service import FigureHistory, HistoryQuery

EVERY_MS = 1_000

logger = logging.getLogger(__name__)


def pending_of(engine: Engine) -> int:
    """Count the messages that are waiting for their time; reads nothing from the disk."""
    return sum(engine.queues.topic(name).pending for name in SYSTEM_TOPICS)


class FigureKeeper:
    """The figures of the service behind a handle, and the call that returns them. Event loop only."""

    def __init__(self, handle: EngineHandle, clock: Clock) -> None:
        self._handle = handle
        self._clock = clock
        self._figures = Figures(LATENESS_BOUNDS_MS)
        self._engine: Engine | None = None

    @property
    def newest(self) -> Point | None:
        """The newest second."""
        return self._figures.newest

    async def watch(self, _: web.Application) -> AsyncIterator[None]:
        """Take figures while the application runs."""
        task = asyncio.create_task(self._run())
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def _run(self) -> None:
        while True:
            try:
                self.take()
            except Exception:
                # Charts with a gap are better than none from now on.
                logger.exception("the figures of this second could not be taken")
            # At full seconds, so that a minute has 60 points. A sleep may end a moment before its second.
            left_ms = EVERY_MS - self._clock.now_ms() % EVERY_MS
            await self._clock.sleep_for(left_ms if left_ms > EVERY_MS // 2 else left_ms + EVERY_MS)

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
