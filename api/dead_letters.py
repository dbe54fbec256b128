"""The calls on dead letters: list them, send them back to their group, or drop them."""

from aiohttp import web
from msgspec import UNSET

from api import answers, bodies, query
from api.gate import Gate
from api.group_wire import Chosen, DeadPath, DeadQuery, DroppedCount, Letters, RedrivenCount
from api.problems import RequestError
from api.wire import NoQuery
from timerwheel.groups.config import UnknownGroupError
from timerwheel.groups.tables import SEPARATOR


class DeadLetterCalls:
    """Handlers under `/v1/groups/{group}/dead-letters`. Event loop only."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def page(self, request: web.Request) -> web.Response:
        """GET .../dead-letters: a page, oldest first."""
        wanted = query.read(request, DeadQuery)
        group = await self._group(request)
        page = await self._gate.engine.groups.dead.page(group, wanted.first, wanted.limit)
        return answers.json(Letters.of(page))

    async def redrive(self, request: web.Request) -> web.Response:
        """POST .../redrive: they are messages of their group again."""
        query.read(request, NoQuery)
        query.path(request, DeadPath)  # before the body: a name that nothing can have is said first
        offsets = _offsets(await bodies.read(request, Chosen))
        group = await self._group(request)
        count = await self._gate.engine.groups.dead.redrive(group, offsets)
        return answers.json(RedrivenCount(count.redriven, count.left))

    async def drop(self, request: web.Request) -> web.Response:
        """POST .../drop: they are forgotten."""
        query.read(request, NoQuery)
        query.path(request, DeadPath)  # before the body: a name that nothing can have is said first
        offsets = _offsets(await bodies.read(request, Chosen))
        group = await self._group(request)
        return answers.json(DroppedCount(await self._gate.engine.groups.dead.drop(group, offsets)))

    async def _group(self, request: web.Request) -> str:
        """The group's name; UnknownGroupError if no topic has it and it left no dead letters."""
        group = query.path(request, DeadPath).group
        engine = self._gate.engine
        if not any(name.partition(SEPARATOR)[2] == group for name in engine.control.items("group")):
            left = await engine.groups.dead.page(group, 0, 1)
            if not left.letters:
                raise UnknownGroupError(f"no topic has a group {group!r}, and it left no dead letters")
        return group


def _offsets(wanted: Chosen) -> list[int] | None:
    """The offsets, or None for all; raises `RequestError` unless exactly one of the two is given."""
    if (wanted.offsets is UNSET) == (wanted.all is UNSET):
        raise RequestError("invalid_field", "give offsets, or all: true")
    return None if wanted.offsets is UNSET else wanted.offsets
