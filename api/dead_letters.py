"""The calls on dead letters: list them, send them back to their group, or drop them."""

from aiohttp import web
from msgspec import UNSET

from api import answers, bodies, query
from api.gate import Gate
from api.group_wire import Chosen, DeadPath, DeadQuery, DroppedCount, Letters, RedrivenCount
from api.problems import RequestError
from api.wire import NoQuery
from timerwheel.groups.config import check_group


class DeadLetterCalls:
    """Handlers under `/v1/groups/{group}/dead-letters`. Event loop only."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def page(self, request: web.Request) -> web.Response:
        """GET .../dead-letters: a page, oldest first."""
        group = _group(request)
        wanted = query.read(request, DeadQuery)
        page = await self._gate.engine.groups.dead.page(group, wanted.first, wanted.limit)
        return answers.json(Letters.of(page))

    async def redrive(self, request: web.Request) -> web.Response:
        """POST .../redrive: they are messages of their group again."""
        query.read(request, NoQuery)
        group = _group(request)
        offsets = _offsets(await bodies.read(request, Chosen))
        count = await self._gate.engine.groups.dead.redrive(group, offsets)
        return answers.json(RedrivenCount(count.redriven, count.left))

    async def drop(self, request: web.Request) -> web.Response:
        """POST .../drop: they are forgotten."""
        query.read(request, NoQuery)
        group = _group(request)
        offsets = _offsets(await bodies.read(request, Chosen))
        return answers.json(DroppedCount(await self._gate.engine.groups.dead.drop(group, offsets)))


def _group(request: web.Request) -> str:
    return check_group(query.path(request, DeadPath).group)


def _offsets(wanted: Chosen) -> list[int] | None:
    """The offsets, or None for all; raises `RequestError` unless exactly one of the two is given."""
    if (wanted.offsets is UNSET) == (wanted.all is UNSET):
        raise RequestError("invalid_field", "give offsets, or all: true")
    return None if wanted.offsets is UNSET else wanted.offsets
