"""The calls that show what waits: the wheel, its slots and the delay levels."""

from aiohttp import web
from msgspec import UNSET

from timerwheel.api import answers, query
from timerwheel.api.gate import Gate
from timerwheel.api.wire import Levels, NoQuery, Slots, SlotsQuery


class WheelCalls:
    """Handlers for `/v1/wheel` and `/v1/levels`. Event loop only."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def wheel(self, request: web.Request) -> web.Response:
        """GET /v1/wheel: counts per level, the next due time, what is overdue or set aside."""
        query.read(request, NoQuery)
        return answers.json(await self._gate.engine.wheel())

    async def slots(self, request: web.Request) -> web.Response:
        """GET /v1/wheel/slots: counts per slot."""
        wanted = query.read(request, SlotsQuery)
        query.check_range("from_ms", wanted.from_ms, "to_ms", wanted.to_ms)
        level = None if wanted.level is UNSET else wanted.level
        slots = await self._gate.engine.slots(level, wanted.from_ms, wanted.to_ms)
        return answers.json(Slots(slots))

    async def levels(self, request: web.Request) -> web.Response:
        """GET /v1/levels: the delay levels with what waits in each."""
        query.read(request, NoQuery)
        return answers.json(Levels(await self._gate.engine.levels()))
