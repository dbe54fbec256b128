"""The calls on dead letters: list them, send them back to their group, or drop them.

They are named as groups are, by topic and group. By the group's name alone they are those of the groups of
this name on every topic; there, a call for all of them has to say of which topics.
"""

from functools import partial

from aiohttp import web
from msgspec import UNSET

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.groups.handlers import GROUP
from timerwheel.api.http import bodies, query, responses
from timerwheel.api.http.problems import RequestError
from timerwheel.api.http.route import STORE, Need, call
from timerwheel.groups.config import UnknownGroupError
from timerwheel.state.config_table import ConfigTable
from timerwheel.state.groups import SEPARATOR
from timerwheel.wire.groups import (
    Chosen,
    ChosenOfTopics,
    DeadPath,
    DeadQuery,
    DroppedCount,
    GroupPath,
    Letter,
    Letters,
    RedrivenCount,
)

DEAD = f"{GROUP}/dead-letters"
DEAD_OF_NAME = "/v1/groups/{group}/dead-letters"
UNKNOWN = ("illegal_group", "unknown_group")

_lists = partial(call, "GET", needs=Need.RECEIVE, answer=Letters, query_type=DeadQuery, problems=UNKNOWN)
_changes = partial(call, "POST", needs=Need.ADMIN, audited=True, problems=(*UNKNOWN, *STORE))


class DeadLetterCalls:
    """Handlers under `.../groups/{group}/dead-letters`. Event loop only."""

    def __init__(self, handle: EngineHandle) -> None:
        self._handle = handle

    # ------------------------------------------------------------------ of one topic's group

    @_lists(DEAD, "listGroupDeadLetters", path_type=GroupPath)
    async def page(self, request: web.Request) -> web.StreamResponse:
        """List the dead letters of a group, oldest first, in pages."""
        wanted = query.read(request, DeadQuery)
        place = await self._place(request)
        dead = self._handle.engine.groups.dead
        page = await dead.page(place.group, wanted.first, wanted.limit, {place.topic})
        letters = Letters([], page.next_offset)
        return await responses.page(request, letters, "letters", Letter.of, page.letters)

    @_changes(
        f"{DEAD}/redrive", "redriveGroupDeadLetters", answer=RedrivenCount, path_type=GroupPath, body=Chosen
    )
    async def redrive(self, request: web.Request) -> web.Response:
        """Redrive dead letters: deliver them to their group again."""
        query.path(request, GroupPath)  # before the body: a name that nothing can have is said first
        offsets = _offsets(await bodies.read(request, Chosen))
        place = await self._place(request)
        count = await self._handle.engine.groups.dead.redrive(place.group, offsets, {place.topic})
        return responses.json(RedrivenCount(count.redriven, count.left))

    @_changes(f"{DEAD}/drop", "dropGroupDeadLetters", answer=DroppedCount, path_type=GroupPath, body=Chosen)
    async def drop(self, request: web.Request) -> web.Response:
        """Drop dead letters of a group."""
        query.path(request, GroupPath)  # before the body: a name that nothing can have is said first
        offsets = _offsets(await bodies.read(request, Chosen))
        place = await self._place(request)
        count = await self._handle.engine.groups.dead.drop(place.group, offsets, {place.topic})
        return responses.json(DroppedCount(count))

    async def _place(self, request: web.Request) -> GroupPath:
        """Return the group; UnknownGroupError if the topic has no such group and no dead letters of one."""
        place = query.path(request, GroupPath)
        groups = self._handle.engine.groups
        try:
            groups.info(place.topic, place.group)
        except UnknownGroupError:
            if place.topic not in await groups.dead.counts(place.group):
                raise
        return place

    # ------------------------------------------------------------------ of a group's name

    @_lists(DEAD_OF_NAME, "listDeadLetters", path_type=DeadPath)
    async def page_of_name(self, request: web.Request) -> web.StreamResponse:
        """List the dead letters of all groups with this name, on every topic."""
        wanted = query.read(request, DeadQuery)
        group = await self._name(request)
        page = await self._handle.engine.groups.dead.page(group, wanted.first, wanted.limit)
        letters = Letters([], page.next_offset)
        return await responses.page(request, letters, "letters", Letter.of, page.letters)

    @_changes(
        f"{DEAD_OF_NAME}/redrive",
        "redriveDeadLetters",
        answer=RedrivenCount,
        path_type=DeadPath,
        body=ChosenOfTopics,
    )
    async def redrive_of_name(self, request: web.Request) -> web.Response:
        """Redrive the dead letters of all groups with this name."""
        query.path(request, DeadPath)  # before the body: a name that nothing can have is said first
        wanted = await bodies.read(request, ChosenOfTopics)
        group = await self._name(request)
        topics = await self._topics(group, wanted)
        count = await self._handle.engine.groups.dead.redrive(group, _offsets(wanted), topics)
        return responses.json(RedrivenCount(count.redriven, count.left))

    @_changes(
        f"{DEAD_OF_NAME}/drop",
        "dropDeadLetters",
        answer=DroppedCount,
        path_type=DeadPath,
        body=ChosenOfTopics,
    )
    async def drop_of_name(self, request: web.Request) -> web.Response:
        """Drop dead letters of all groups with this name."""
        query.path(request, DeadPath)  # before the body: a name that nothing can have is said first
        wanted = await bodies.read(request, ChosenOfTopics)
        group = await self._name(request)
        topics = await self._topics(group, wanted)
        return responses.json(
            DroppedCount(await self._handle.engine.groups.dead.drop(group, _offsets(wanted), topics))
        )

    async def _name(self, request: web.Request) -> str:
        """Return the group's name; UnknownGroupError if no topic has such a group or its dead letters."""
        group = query.path(request, DeadPath).group
        engine = self._handle.engine
        if not any(name.partition(SEPARATOR)[2] == group for name in engine.control.items(ConfigTable.GROUP)):
            left = await engine.groups.dead.page(group, 0, 1)
            if not left.letters:
                raise UnknownGroupError(
                    f"no topic has a group {group!r}, and there are no dead letters of one"
                )
        return group

    async def _topics(self, group: str, wanted: ChosenOfTopics) -> set[str] | None:
        """Return the given topics; `RequestError` if none is given and all letters are asked for."""
        offsets = _offsets(wanted)
        if wanted.topics is not UNSET:
            return set(wanted.topics)
        if offsets is not None:
            return None
        counts = await self._handle.engine.groups.dead.counts(group)
        has = ", ".join(f"{topic!r} ({count})" for topic, count in sorted(counts.items())[:TOPICS_NAMED])
        raise RequestError(
            "invalid_field",
            f"all: groups named {group!r} of different topics share this path; name the topics, or call "
            f"/v1/topics/TOPIC/groups/{group}/dead-letters. It has letters of: {has or 'no topic'}",
        )


TOPICS_NAMED = 10


def _offsets(wanted: Chosen) -> list[int] | None:
    """Return the offsets, or None for all; raises `RequestError` unless exactly one of the two is given."""
    if (wanted.offsets is UNSET) == (wanted.all is UNSET):
        raise RequestError("invalid_field", "give offsets, or all: true")
    return None if wanted.offsets is UNSET else wanted.offsets
