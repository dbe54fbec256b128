"""The calls on dead letters: list them, send them back to their group, or drop them.

They are named as groups are, by topic and group. By the group's name alone they are those of the groups of
this name on every topic; there, a call for all of them has to say of which topics.
"""

from collections.abc import Container
from functools import partial

from aiohttp import web
from msgspec import UNSET

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.groups.handlers import GROUP
from timerwheel.api.http import responses
from timerwheel.api.http.problems import RequestError
from timerwheel.api.http.route import STORE, Need, call
from timerwheel.groups.config import UnknownGroupError
from timerwheel.groups.dead_letter_filter import DeadLetterFilter
from timerwheel.groups.dead_letters import DeadLetterStore
from timerwheel.model.messages import DeadPage
from timerwheel.state.config_table import ConfigTable
from timerwheel.state.groups import SEPARATOR
from timerwheel.wire.fields import given
from timerwheel.wire.groups import (
    Chosen,
    ChosenOfTopics,
    DeadPath,
    DeadQuery,
    DroppedCount,
    GroupPath,
    Letter,
    LetterConditions,
    Letters,
    RedrivenCount,
)

DEAD = f"{GROUP}/dead-letters"
DEAD_OF_NAME = "/v1/groups/{group}/dead-letters"
UNKNOWN = ("illegal_group", "unknown_group", "illegal_filter")
TOPICS_NAMED = 10

_lists = partial(call, "GET", needs=Need.RECEIVE, answer=Letters, problems=(*UNKNOWN, "illegal_cursor"))
_changes = partial(call, "POST", needs=Need.ADMIN, audited=True, problems=(*UNKNOWN, *STORE))


class DeadLetterCalls:
    """Handlers under `.../groups/{group}/dead-letters`. Event loop only."""

    def __init__(self, handle: EngineHandle) -> None:
        self._handle = handle

    @property
    def _dead(self) -> DeadLetterStore:
        return self._handle.engine.groups.dead

    # ------------------------------------------------------------------ of one topic's group

    @_lists(DEAD, "listGroupDeadLetters")
    async def page(self, request: web.Request, path: GroupPath, params: DeadQuery) -> web.StreamResponse:
        """List the dead letters of a group that meet the conditions, oldest first, in pages."""
        wanted = _wanted(params, {path.topic})
        await self._check(path)
        page = await self._dead.page(path.group, params.begin, params.limit, wanted)
        return await _letters(request, page)

    @_changes(f"{DEAD}/redrive", "redriveGroupDeadLetters", answer=RedrivenCount)
    async def redrive(self, _: web.Request, path: GroupPath, body: Chosen) -> web.Response:
        """Redrive dead letters: deliver them to their group again."""
        offsets, wanted = _offsets(body), _wanted(body, {path.topic})
        await self._check(path)
        count = await self._dead.redrive(path.group, offsets, wanted)
        return responses.json(RedrivenCount(count.redriven, count.left))

    @_changes(f"{DEAD}/drop", "dropGroupDeadLetters", answer=DroppedCount)
    async def drop(self, _: web.Request, path: GroupPath, body: Chosen) -> web.Response:
        """Drop dead letters of a group."""
        offsets, wanted = _offsets(body), _wanted(body, {path.topic})
        await self._check(path)
        return responses.json(DroppedCount(await self._dead.drop(path.group, offsets, wanted)))

    async def _check(self, path: GroupPath) -> None:
        """Raise UnknownGroupError if the topic has no such group and no dead letters of one."""
        try:
            self._handle.engine.groups.info(path.topic, path.group)
        except UnknownGroupError:
            if path.topic not in await self._dead.counts(path.group):
                raise

    # ------------------------------------------------------------------ of a group's name

    @_lists(DEAD_OF_NAME, "listDeadLetters")
    async def page_of_name(
        self, request: web.Request, path: DeadPath, params: DeadQuery
    ) -> web.StreamResponse:
        """List the dead letters of all groups with this name, on every topic, that meet the conditions."""
        wanted = _wanted(params, None)
        await self._check_name(path.group)
        return await _letters(request, await self._dead.page(path.group, params.begin, params.limit, wanted))

    @_changes(f"{DEAD_OF_NAME}/redrive", "redriveDeadLetters", answer=RedrivenCount)
    async def redrive_of_name(self, _: web.Request, path: DeadPath, body: ChosenOfTopics) -> web.Response:
        """Redrive the dead letters of all groups with this name."""
        await self._check_name(path.group)
        wanted = _wanted(body, await self._topics(path.group, body))
        count = await self._dead.redrive(path.group, _offsets(body), wanted)
        return responses.json(RedrivenCount(count.redriven, count.left))

    @_changes(f"{DEAD_OF_NAME}/drop", "dropDeadLetters", answer=DroppedCount)
    async def drop_of_name(self, _: web.Request, path: DeadPath, body: ChosenOfTopics) -> web.Response:
        """Drop dead letters of all groups with this name."""
        await self._check_name(path.group)
        wanted = _wanted(body, await self._topics(path.group, body))
        return responses.json(DroppedCount(await self._dead.drop(path.group, _offsets(body), wanted)))

    async def _check_name(self, group: str) -> None:
        """Raise UnknownGroupError if no topic has such a group or its dead letters."""
        control = self._handle.engine.control
        if any(name.partition(SEPARATOR)[2] == group for name in control.items(ConfigTable.GROUP)):
            return
        if not (await self._dead.page(group, 0, 1)).letters:
            raise UnknownGroupError(f"no topic has a group {group!r}, and there are no dead letters of one")

    async def _topics(self, group: str, wanted: ChosenOfTopics) -> set[str] | None:
        """Return the given topics; `RequestError` if none is given and all letters are asked for."""
        offsets = _offsets(wanted)
        if wanted.topics is not UNSET:
            return set(wanted.topics)
        if offsets is not None:
            return None
        counts = await self._dead.counts(group)
        has = ", ".join(f"{topic!r} ({count})" for topic, count in sorted(counts.items())[:TOPICS_NAMED])
        raise RequestError(
            "invalid_field",
            f"all: groups named {group!r} of different topics share this path; name the topics, or call "
            f"/v1/topics/TOPIC/groups/{group}/dead-letters. It has letters of: {has or 'no topic'}",
        )


async def _letters(request: web.Request, page: DeadPage) -> web.StreamResponse:
    after = page.next_offset
    letters = Letters([], after, None if after is None else str(after))
    return await responses.page(request, letters, "letters", Letter.of, page.letters)


def _wanted(conditions: LetterConditions, topics: Container[str] | None) -> DeadLetterFilter:
    """Return the filter of a call; IllegalFilterError, `RequestError` for an end before the beginning."""
    from_ms, until_ms = conditions.from_ms, conditions.until_ms
    if from_ms is not UNSET and until_ms is not UNSET and from_ms > until_ms:
        code = "invalid_parameter" if isinstance(conditions, DeadQuery) else "invalid_field"
        raise RequestError(code, f"from_ms = {from_ms} is after until_ms = {until_ms}")
    return conditions.wanted(topics)


def _offsets(wanted: Chosen) -> list[int] | None:
    """Return the offsets, or None for all; raises `RequestError` unless exactly one of the two is given."""
    if (wanted.offsets is UNSET) == (wanted.all is UNSET):
        raise RequestError("invalid_field", "give offsets, or all: true")
    return given(wanted.offsets)
