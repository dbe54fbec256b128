"""Changes of many messages in several shards: recalls, new times, dead letters that go back or are dropped.

1. Each shard makes its part by itself, so a change can be done in one shard and not in another.
2. By id, each id has a result of its own: that of its shard, or why the shard has none.
3. By condition, there is one result. No shard is asked before all of them are served; if one fails all the
   same after another has done its part, the answer is `outcome_unknown`, and says which has done what. It is
   never `not_ready`: a client repeats that, and a repeated shift would move messages twice.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from aiohttp import web
from msgspec import UNSET

from timerwheel.api.http import bodies, query, responses
from timerwheel.api.http.problems import RequestError
from timerwheel.api.http.route import Handler, Route
from timerwheel.api.messages.recalls import ID_BYTES, SPARE_BYTES, SPARE_VALUES
from timerwheel.errors import NotReadyError, OutcomeUnknownError
from timerwheel.model.ids import shard_in
from timerwheel.model.shards import shard_of_topic
from timerwheel.shards import merging
from timerwheel.shards.forwarder import Answer, Call, Failure, Forwarder, to_client
from timerwheel.wire.fields import NoQuery
from timerwheel.wire.groups import Chosen, ChosenOfTopics, DroppedCount, RedrivenCount
from timerwheel.wire.recalls import (
    NewRecall,
    NewTimes,
    RecalledIds,
    RecalledWhere,
    RecallOutcome,
    RescheduledIds,
    RescheduledWhere,
    RescheduleOutcome,
)

ERROR: Final = 400
NOT_FOUND: Final = 404
OPEN: Final = 500
"""The status of an answer after which a part may have been done: `outcome_unknown`, `internal`."""


class _Kinds(NamedTuple):
    """What a change asks for, by id or by condition, and its answers: that of one id, and those of all."""

    wanted: type[NewRecall | NewTimes]
    ids: type[RecalledIds] | type[RescheduledIds]
    outcome: type[RecallOutcome | RescheduleOutcome]
    where: type[RecalledWhere | RescheduledWhere]


class _Problem(msgspec.Struct):
    code: str = "internal"
    detail: str = ""


class Bulk:
    """See the module. Belongs to the event loop."""

    def __init__(self, forwarder: Forwarder, count_max: int) -> None:
        self._forwarder = forwarder
        self._count = forwarder.leaders.count
        self._count_max = count_max
        """How many messages a request may name."""

    # ------------------------------------------------------------------ recall, reschedule

    def recall(self, route: Route) -> Handler:
        """Return what recalls messages, by id or by condition."""
        return self._of_many(route, _Kinds(NewRecall, RecalledIds, RecallOutcome, RecalledWhere))

    def reschedule(self, route: Route) -> Handler:
        """Return what gives messages another time, by id or by condition."""
        return self._of_many(route, _Kinds(NewTimes, RescheduledIds, RescheduleOutcome, RescheduledWhere))

    def _of_many(self, route: Route, kinds: _Kinds) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            body, wanted = await self._wanted(request, kinds.wanted)
            if wanted is None or wanted.ids is UNSET:
                return await self._where(request, route, body, wanted, kinds.where)
            found = await self._by_id(request, route, body, wanted)
            if not isinstance(found, list):
                return found
            return responses.json(kinds.ids(*_outcomes(wanted.ids, found, kinds)))

        return answer

    async def _wanted(
        self, request: web.Request, kind: type[NewRecall | NewTimes]
    ) -> tuple[bytes | bytearray, NewRecall | NewTimes | None]:
        """Return the body of a request, and what it asks for; None if a shard has to say what is wrong."""
        body = await bodies.whole(request, bytes_max=self._count_max * ID_BYTES + SPARE_BYTES)
        try:
            wanted = await bodies.decode(body, kind, self._count_max + SPARE_VALUES)
        except RequestError:
            return body, None
        too_many = wanted.ids is not UNSET and len(wanted.ids) > self._count_max
        return body, None if too_many else wanted

    async def _where(
        self,
        request: web.Request,
        route: Route,
        body: bytes | bytearray,
        wanted: NewRecall | NewTimes | None,
        kind: type[msgspec.Struct],
    ) -> web.StreamResponse:
        call = Call.of(request, route, body)
        if wanted is None:
            return await self._forwarder.pass_on(request, 0, call)
        if wanted.topic is not UNSET and (shard := shard_of_topic(wanted.topic, self._count)) is not None:
            return await self._forwarder.pass_on(request, shard, call)
        call = call.in_json()
        found = await self._all_or_unknown([(shard, call) for shard in range(self._count)])
        if isinstance(found, web.Response):
            return found
        return responses.json(_sum(found, kind))

    async def _by_id(
        self, request: web.Request, route: Route, body: bytes | bytearray, wanted: NewRecall | NewTimes
    ) -> "web.StreamResponse | list[tuple[list[int], Answer | Failure]]":
        """Return the places of the ids of each shard with its answer, or the answer for all ids."""
        ids = wanted.ids
        assert ids is not UNSET
        places: dict[int, list[int]] = {}
        for place, one in enumerate(ids):
            shard = shard_in(one)
            places.setdefault(shard if shard is not None and shard < self._count else 0, []).append(place)
        call = Call.of(request, route, body)
        if len(places) <= 1:
            return await self._forwarder.pass_on(request, next(iter(places), 0), call)
        parts = {
            shard: msgspec.json.encode(msgspec.structs.replace(wanted, ids=[ids[place] for place in own]))
            for shard, own in places.items()
        }
        found = await self._forwarder.try_each((shard, call.in_json(part)) for shard, part in parts.items())
        if not any(_is_done(one) for one in found):
            return _none_done(found)
        return list(zip(places.values(), found, strict=True))

    # ------------------------------------------------------------------ dead letters

    def settle(self, route: Route) -> Handler:
        """Return what lets dead letters go back to their groups, or drops them."""

        async def answer(request: web.Request) -> web.StreamResponse:
            body = await bodies.whole(request, bytes_max=bodies.JSON_BYTES_MAX)
            query.read(request, NoQuery)
            shards = shards_with_dead(request, self._count)
            call = Call.of(request, route, body)
            kind: type[Chosen] = Chosen if "{topic}" in route.path else ChosenOfTopics
            try:
                chosen = await bodies.decode(body, kind)
            except RequestError:
                return await self._forwarder.pass_on(request, shards[0], call)  # which says what is wrong
            own = {shard: part for shard in shards if (part := self._chosen_in(shard, chosen)) is not None}
            if not own:  # of what is chosen, no shard has anything
                own = {shards[0]: msgspec.structs.replace(chosen, offsets=[])}
            found = await self._settled(call, own)
            if chosen.offsets and isinstance(found, web.Response) and found.status == NOT_FOUND:
                # A shard without letters of the group may not know it: those that were not asked may.
                none = msgspec.structs.replace(chosen, offsets=[])
                rest = {shard: none for shard in shards if shard not in own}
                found = await self._settled(call, rest) if rest else found
            settled = RedrivenCount if route.name.startswith("redrive") else DroppedCount
            return found if isinstance(found, web.Response) else responses.json(_sum(found, settled))

        return answer

    async def _settled(
        self, call: Call, own: Mapping[int, Chosen | ChosenOfTopics]
    ) -> list[Answer] | web.Response:
        """Have shards settle what is chosen in each. Raises as `_all_or_unknown`."""
        return await self._all_or_unknown(
            [(shard, call.in_json(msgspec.json.encode(part))) for shard, part in own.items()]
        )

    def _chosen_in(self, shard: int, chosen: Chosen | ChosenOfTopics) -> Chosen | ChosenOfTopics | None:
        """Return what is chosen of the letters of one shard, None if nothing is."""
        if isinstance(chosen, ChosenOfTopics) and chosen.topics is not UNSET:
            topics = [one for one in chosen.topics if shard_of_topic(one, self._count) in (shard, None)]
            if not topics and chosen.topics:
                return None
            chosen = msgspec.structs.replace(chosen, topics=topics)
        if chosen.offsets is not UNSET and chosen.offsets:
            places = [merging.place_of(one, self._count) for one in chosen.offsets]
            own = [offset for where, offset in places if where == shard]
            if not own:
                return None
            chosen = msgspec.structs.replace(chosen, offsets=own)
        return chosen

    # ------------------------------------------------------------------ one result of all

    async def _all_or_unknown(self, calls: Sequence[tuple[int, Call]]) -> list[Answer] | web.Response:
        """Make calls that have one result together; returns it, or why there is none.

        Raises NotReadyError if nothing was done, and OutcomeUnknownError if a part was.
        """
        for shard, _ in calls:
            await self._forwarder.leaders.found(shard)
        found = await self._forwarder.try_each(calls)
        done = [one for one in found if isinstance(one, Answer) and one.status < ERROR]
        failed = {
            shard: one
            for (shard, _), one in zip(calls, found, strict=True)
            if not _is_done(one) and not (isinstance(one, Answer) and one.status == NOT_FOUND)
        }
        if failed and done:
            raise OutcomeUnknownError(
                f"done in shard {', '.join(str(one.shard) for one in done)}, but "
                + "; ".join(f"in shard {shard} {_why(one)}" for shard, one in failed.items())
            )
        return done or _none_done(found)


def shards_with_dead(request: web.Request, count: int) -> Sequence[int]:
    """Return the shards that may have dead letters of the group in the path."""
    topic = request.match_info.get("topic")
    shard = None if topic is None else shard_of_topic(topic, count)
    return range(count) if shard is None else [shard]


def those_that_know(found: list[Answer]) -> list[Answer]:
    """Return the answers of shards that have the group; all, if none has it."""
    known = [one for one in found if one.status != NOT_FOUND]
    return known or found


def first_wrong(found: Iterable[Answer]) -> web.Response | None:
    """Return the first answer that is an error: a list without one of the shards would not be the whole."""
    wrong = next((one for one in found if one.status >= ERROR), None)
    return None if wrong is None else to_client(wrong)


def _is_done(one: Answer | Failure) -> bool:
    return isinstance(one, Answer) and one.status < ERROR


def _none_done(found: Sequence[Answer | Failure]) -> web.Response:
    """Return the answer if no shard says that it has done its part; raises what leaves most open."""
    for one in found:
        if isinstance(one, OutcomeUnknownError):
            raise one
    for one in found:
        if isinstance(one, Answer) and one.status == OPEN:
            return to_client(one)
    for one in found:
        if isinstance(one, NotReadyError):
            raise one
    wrong = first_wrong(those_that_know([one for one in found if isinstance(one, Answer)]))
    assert wrong is not None
    return wrong


def _why(one: Answer | Failure) -> str:
    """Return why a shard has not done its part."""
    if not isinstance(one, Answer):
        return str(one)
    problem = _problem_of(one)
    return f"the answer was {one.status} {problem.code}: {problem.detail}"


def _problem_of(answer: Answer) -> _Problem:
    try:
        return msgspec.json.decode(answer.body, type=_Problem)
    except msgspec.DecodeError:
        return _Problem()


def _outcomes(
    ids: Sequence[str], found: Iterable[tuple[list[int], Answer | Failure]], kinds: _Kinds
) -> tuple[list[Any], int]:
    """Return the result of each id, in order, and how many messages were changed: a shard counts one once."""
    each: dict[int, Any] = {}
    changed = 0
    for places, one in found:
        if isinstance(one, Answer) and one.status < ERROR:
            results, count = msgspec.structs.astuple(msgspec.json.decode(one.body, type=kinds.ids))
            changed += count
            each.update(zip(places, results, strict=True))
        else:
            code = _problem_of(one).code if isinstance(one, Answer) else one.code
            each.update((place, kinds.outcome(id=ids[place], ok=False, code=code)) for place in places)
    return [each[place] for place in range(len(ids))], changed


def _sum(found: Iterable[Answer], kind: type[msgspec.Struct]) -> msgspec.Struct:
    return merging.summed([msgspec.json.decode(one.body, type=kind) for one in found])
