"""What a node in front of shards does with a call: which shards get it, and how their answers become one.

    in its path a topic                -> the shard of the topic
    in its path an id of a message     -> the shard in the id
    in its path the token of an attempt   the shard in the token
    in its body topics                 -> `timerwheel.shards.sends`
    a name: of a schedule, a subscription   every shard is asked who has it
    nothing of these                   -> every shard, and the answers are merged

The header `Timerwheel-Shard` sends any of these calls to one shard. A token's scope was checked before;
its topics and its rate are checked by the shards, which get the token.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence

import msgspec
from aiohttp import hdrs, web
from msgspec import UNSET

from timerwheel.api.http import bodies, budget, query, responses
from timerwheel.api.http.problems import RequestError
from timerwheel.api.http.responses import REQUEST_ID_HEADER
from timerwheel.api.http.route import EVENTS, Handler, Route
from timerwheel.api.messages.recalls import ID_BYTES, SPARE_BYTES, SPARE_VALUES
from timerwheel.errors import NotReadyError
from timerwheel.model.admission import DEAD_PREFIX, is_sendable
from timerwheel.model.ids import shard_in
from timerwheel.model.shards import shard_of_topic
from timerwheel.push import ack_urls
from timerwheel.shards import merging
from timerwheel.shards.forwarder import Call, Forwarder, Said, headers_for_shard, said_to_client
from timerwheel.shards.merging import Cursors, Page
from timerwheel.shards.sends import Sends
from timerwheel.wire.fields import NoQuery
from timerwheel.wire.groups import Chosen, ChosenOfTopics, DeadQuery, DroppedCount, RedrivenCount
from timerwheel.wire.messages import PendingQuery
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
from timerwheel.wire.tasks import TasksQuery
from timerwheel.wire.transactions import OpenQuery

SHARD_HEADER = "Timerwheel-Shard"
OK, FORBIDDEN, NOT_FOUND = 200, 403, 404
ERROR, FAILURE = 400, 500
PLAIN = frozenset({"receive", "acknowledge"})
SAFE = frozenset({hdrs.METH_GET, hdrs.METH_HEAD})
OF_READERS = frozenset(
    {"readQueue", "receive", "acknowledge", "giveBack", "extend", "stream"}
    | {"getGroup", "putGroup", "deleteGroup", "rewindGroup"}
)
"""Calls on a topic that mean something for dead letters too."""
REPEATABLE = frozenset({"receive", "acknowledge", "extend"})
"""POSTs of consumers that may be repeated: what they miss is delivered again, and what is done stays done."""


def call_of(request: web.Request, route: Route, body: bytes | bytearray | None) -> Call:
    """Return a client's request as a call to a shard."""
    return Call(
        request.method,
        request.rel_url.raw_path_qs,
        headers_for_shard(request.headers),
        body,
        may_repeat=request.method in SAFE or route.name in REPEATABLE,
        waits=route.answer_kind == EVENTS,
        is_plain=route.name in PLAIN and REQUEST_ID_HEADER not in request.headers,
    )


def asked_shard(request: web.Request, count: int) -> int | None:
    """Return the shard that the header asks for; RequestError invalid_parameter."""
    text = request.headers.get(SHARD_HEADER)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 5 and int(text) < count):  # noqa: PLR2004 - digits
        raise RequestError(
            "invalid_parameter", f"{SHARD_HEADER}: {text!r} is not the number of a shard: 0 to {count - 1}"
        )
    return int(text)


class Calls:
    """The handlers of all calls on messages, topics, groups, schedules and subscriptions. Event loop only."""

    def __init__(self, forwarder: Forwarder, sends: Sends) -> None:
        self._forwarder = forwarder
        self._sends = sends
        self._count = forwarder.leaders.count
        self._names = asyncio.Lock()
        self._special: dict[str, Callable[[Route], Handler]] = {
            "sendMessages": sends.messages,
            "beginTransaction": sends.of_one,
            "recallMessages": self._recall,
            "rescheduleMessages": self._reschedule,
            "listPending": self._pending,
            "listTransactions": self._transactions,
            "listTopics": self._merged(merging.topics),
            "listGroups": self._merged(lambda found: merging.lists("groups", found)),
            "listSchedules": self._merged(lambda found: merging.lists("schedules", found)),
            "listSubscriptions": self._merged(
                lambda found: merging.in_order_of_shards("subscriptions", found)
            ),
            "getWheel": self._merged(merging.wheel),
            "getLiveHistory": self._merged(merging.figures),
            "listSlots": self._merged(merging.slots),
            "listLevels": self._merged(merging.levels),
            "createTask": self._create_task,
            "listTasks": self._list_tasks,
            "listTaskQueues": self._merged(lambda found: merging.lists("queues", found)),
            "putSchedule": self._put_schedule,
            "createSubscription": self._create_subscription,
            "listDeadLetters": self._dead_letters,
            "listGroupDeadLetters": self._dead_letters,
            "redriveDeadLetters": self._settle_dead,
            "redriveGroupDeadLetters": self._settle_dead,
            "dropDeadLetters": self._settle_dead,
            "dropGroupDeadLetters": self._settle_dead,
        }

    def handler_of(self, route: Route) -> Handler:
        """Return what answers the calls of a route; KeyError for one that no rule covers."""
        if route.name in self._special:
            handler = self._special[route.name](route)
        elif "{topic}" in route.path:
            handler = self._by_topic(route)
        elif "{queue}" in route.path:
            handler = self._by_task_queue(route)
        elif route.path.startswith(("/v1/messages/{id}", "/v1/transactions/{id}", "/v1/tasks/{id}")):
            handler = self._by_id(route)
        elif route.path.startswith(("/v1/schedules/{name}", "/v1/subscriptions/{id}")):
            handler = self._by_name(route)
        elif route.path.startswith("/v1/acks/{token}"):
            handler = self._by_ack(route)
        else:
            raise KeyError(route.name)

        async def answer(request: web.Request) -> web.StreamResponse:
            shard = asked_shard(request, self._count)
            if shard is None:
                return await handler(request)
            return await self._pass_on(request, route, shard)

        return answer

    async def _pass_on(self, request: web.Request, route: Route, shard: int) -> web.StreamResponse:
        body = await bodies.whole(request) if request.body_exists else None
        return await self._forwarder.pass_on(request, shard, call_of(request, route, body))

    # ------------------------------------------------------------------ to one shard

    def _by_topic(self, route: Route) -> Handler:
        merge: dict[str, Callable[[Iterable[bytes]], object]] = {
            "getTopic": merging.topic,
            "listGroupsOfTopic": lambda found: merging.lists("groups", found),
        }

        async def answer(request: web.Request) -> web.StreamResponse:
            topic = request.match_info["topic"]
            shard = shard_of_topic(topic, self._count)
            if shard is not None:
                return await self._pass_on(request, route, shard)
            if route.name in merge:
                return await self._merge(request, route, merge[route.name])
            if route.name not in OF_READERS or not topic.startswith(DEAD_PREFIX):
                return await self._pass_on(request, route, 0)  # which refuses it, as any shard would
            raise RequestError(
                "shard_required",
                f"topic {topic!r} is in each of the {self._count} shards; name one in the header "
                f"{SHARD_HEADER}, or ask the shard itself",
            )

        return answer

    def _by_id(self, route: Route) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            shard = shard_in(request.match_info["id"])
            known = shard is not None and shard < self._count
            # What is no id of any shard is unknown to each of them, and one says so.
            return await self._pass_on(request, route, shard if known and shard is not None else 0)

        return answer

    def _by_ack(self, route: Route) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            shard = ack_urls.shard_of(request.match_info["token"])
            # What is no token of any shard is unknown to each of them, and one says so.
            return await self._pass_on(request, route, shard if shard < self._count else 0)

        return answer

    def _by_task_queue(self, route: Route) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            return await self._pass_on(request, route, self._sends.shard_of(request.match_info["queue"]))

        return answer

    def _create_task(self, route: Route) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            queue = await self._sends.queue_of(await bodies.whole(request))
            return await self._pass_on(request, route, self._sends.shard_of(queue))

        return answer

    def _list_tasks(self, route: Route) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            return await self._pass_on(
                request, route, self._sends.shard_of(query.read(request, TasksQuery).queue)
            )

        return answer

    def _by_name(self, route: Route) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            path = request.rel_url.raw_path.split("/")
            shard = await self._shard_with(request, "/".join(path[:4]))
            return await self._pass_on(request, route, shard or 0)

        return answer

    async def _shard_with(self, request: web.Request, path: str) -> int | None:
        """Return the shard that has what is at a path, though it may not show it; None if none has it.

        NotReadyError if one of them cannot say.
        """
        headers = headers_for_shard(request.headers)
        headers.popall(hdrs.CONTENT_TYPE, None)
        call = Call(hdrs.METH_GET, path, headers, may_repeat=True)
        for said in await self._forwarder.ask_each((shard, call) for shard in range(self._count)):
            if said.status in (OK, FORBIDDEN):
                return said.shard
            if said.status >= FAILURE:
                raise NotReadyError(f"shard {said.shard} cannot say whether it has {path}")
        return None

    # ------------------------------------------------------------------ names

    def _put_schedule(self, route: Route) -> Handler:
        return self._named(route, lambda request, _: request.rel_url.raw_path)

    def _create_subscription(self, route: Route) -> Handler:
        class Named(msgspec.Struct):
            id: str = ""

        def path(_: web.Request, body: bytes | bytearray) -> str | None:
            try:
                name = msgspec.json.decode(body, type=Named).id
            except (msgspec.DecodeError, UnicodeDecodeError):
                return None
            return f"/v1/subscriptions/{name}" if name.replace("_", "").replace("-", "").isalnum() else None

        return self._named(route, path)

    def _named(
        self, route: Route, path_of: Callable[[web.Request, bytes | bytearray], str | None]
    ) -> Handler:
        """Return what makes a thing with a name in the shard of its topic, unless another shard has the name.

        One at a time on this node; two nodes that make one name at the same moment may both succeed.
        """

        async def answer(request: web.Request) -> web.StreamResponse:
            body = await bodies.whole(request, bytes_max=bodies.JSON_BYTES_MAX)
            topic = await self._sends.topic_of(body)
            shard = self._sends.shard_of(topic)
            path = path_of(request, body)
            if path is None:
                return await self._pass_on(request, route, shard)
            async with self._names:
                owner = await self._shard_with(request, path)
                if owner is not None and not (isinstance(topic, str) and is_sendable(topic)):
                    return await self._pass_on(request, route, owner)  # which refuses the topic
                if owner is not None and owner != shard:
                    raise RequestError(
                        "name_in_use",
                        f"{path} is in shard {owner}, and the topic that you name is in shard {shard}: "
                        "delete it first, or choose another name",
                    )
                return await self._pass_on(request, route, shard)

        return answer

    # ------------------------------------------------------------------ to every shard

    def _merged(self, merge: Callable[[Iterable[bytes]], object]) -> Callable[[Route], Handler]:
        def handler_of(route: Route) -> Handler:
            async def answer(request: web.Request) -> web.StreamResponse:
                return await self._merge(request, route, merge)

            return answer

        return handler_of

    async def _merge(
        self, request: web.Request, route: Route, merge: Callable[[Iterable[bytes]], object]
    ) -> web.StreamResponse:
        call = _for_merging(call_of(request, route, None))
        found = await self._forwarder.ask_each((shard, call) for shard in range(self._count))
        if (wrong := _wrong(found)) is not None:
            return wrong
        return _answered(request, found, merge(said.body for said in found))

    def _pending(self, route: Route) -> Handler:
        return self._paged(route, "messages", PendingQuery, merging.pending_cursor)

    def _transactions(self, route: Route) -> Handler:
        return self._paged(route, "transactions", OpenQuery, merging.open_cursor)

    def _paged(
        self,
        route: Route,
        field: str,
        kind: type[PendingQuery | OpenQuery],
        cursor_of: Callable[[merging._Timed], str],
    ) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            wanted = query.read(request, kind)
            if wanted.topic is not UNSET and (shard := shard_of_topic(wanted.topic, self._count)) is not None:
                return await self._pass_on(request, route, shard)
            cursors = Cursors.parse(None if wanted.cursor is UNSET else wanted.cursor, self._count)
            base = _for_merging(call_of(request, route, None))
            calls = [
                (shard, base._replace(target=_with_cursor(request, cursors.each[shard])))
                for shard in cursors.wanted
            ]
            found = await self._forwarder.ask_each(calls)
            if (wrong := _wrong(found)) is not None:
                return wrong
            given = [Page(said.shard, said.body) for said in found]
            return _answered(request, found, merging.pages(field, given, cursors, wanted.limit, cursor_of))

        return answer

    # ------------------------------------------------------------------ bulk recall

    def _recall(self, route: Route) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            count_max = self._sends.count_max
            body = await bodies.whole(request, bytes_max=count_max * ID_BYTES + SPARE_BYTES)
            try:
                wanted = await bodies.decode(body, NewRecall, count_max + SPARE_VALUES)
            except RequestError:
                return await self._pass_on(request, route, 0)  # which says what is wrong with it
            if wanted.ids is not UNSET:
                if len(wanted.ids) > count_max:
                    return await self._pass_on(request, route, 0)  # as above
                return await self._recall_ids(request, route, body, wanted.ids)
            if wanted.topic is not UNSET and (shard := shard_of_topic(wanted.topic, self._count)) is not None:
                return await self._pass_on(request, route, shard)
            call = _for_merging(call_of(request, route, body))
            found = await self._forwarder.ask_each((shard, call) for shard in range(self._count))
            if (wrong := _wrong(found)) is not None:
                return wrong
            each = [msgspec.json.decode(said.body, type=RecalledWhere) for said in found]
            return responses.json(
                RecalledWhere(
                    sum(one.matched for one in each),
                    sum(one.recalled for one in each),
                    sum(one.missed for one in each),
                    each[0].dry_run,
                )
            )

        return answer

    async def _recall_ids(
        self, request: web.Request, route: Route, body: bytes | bytearray, ids: Sequence[str]
    ) -> web.StreamResponse:
        places: dict[int, list[int]] = {}
        for place, one in enumerate(ids):
            shard = shard_in(one)
            places.setdefault(shard if shard is not None and shard < self._count else 0, []).append(place)
        if len(places) <= 1:
            return await self._pass_on(request, route, next(iter(places), 0))
        base = _for_merging(call_of(request, route, body))
        calls = [
            (shard, base._replace(body=msgspec.json.encode(NewRecall(ids=[ids[place] for place in own]))))
            for shard, own in places.items()
        ]
        found = await self._forwarder.ask_each(calls)
        if (wrong := _wrong(found)) is not None:
            return wrong
        outcomes: dict[int, RecallOutcome] = {}
        recalled = 0
        for said in found:
            part = msgspec.json.decode(said.body, type=RecalledIds)
            recalled += part.recalled
            outcomes.update(zip(places[said.shard], part.results, strict=True))
        return responses.json(RecalledIds([outcomes[place] for place in range(len(ids))], recalled))

    # ------------------------------------------------------------------ bulk reschedule

    def _reschedule(self, route: Route) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            count_max = self._sends.count_max
            body = await bodies.whole(request, bytes_max=count_max * ID_BYTES + SPARE_BYTES)
            try:
                wanted = await bodies.decode(body, NewTimes, count_max + SPARE_VALUES)
            except RequestError:
                return await self._pass_on(request, route, 0)  # which says what is wrong with it
            if wanted.ids is not UNSET:
                if len(wanted.ids) > count_max:
                    return await self._pass_on(request, route, 0)  # as above
                return await self._reschedule_ids(request, route, body, wanted)
            if wanted.topic is not UNSET and (shard := shard_of_topic(wanted.topic, self._count)) is not None:
                return await self._pass_on(request, route, shard)
            call = _for_merging(call_of(request, route, body))
            found = await self._forwarder.ask_each((shard, call) for shard in range(self._count))
            if (wrong := _wrong(found)) is not None:
                return wrong
            each = [msgspec.json.decode(said.body, type=RescheduledWhere) for said in found]
            return responses.json(
                RescheduledWhere(
                    sum(one.matched for one in each),
                    sum(one.rescheduled for one in each),
                    sum(one.missed for one in each),
                    sum(one.refused for one in each),
                    each[0].dry_run,
                )
            )

        return answer

    async def _reschedule_ids(
        self, request: web.Request, route: Route, body: bytes | bytearray, wanted: NewTimes
    ) -> web.StreamResponse:
        assert wanted.ids is not UNSET
        places: dict[int, list[int]] = {}
        for place, one in enumerate(wanted.ids):
            shard = shard_in(one)
            places.setdefault(shard if shard is not None and shard < self._count else 0, []).append(place)
        if len(places) <= 1:
            return await self._pass_on(request, route, next(iter(places), 0))
        base = _for_merging(call_of(request, route, body))
        calls = [
            (shard, base._replace(body=msgspec.json.encode(_with_ids(wanted, own))))
            for shard, own in places.items()
        ]
        found = await self._forwarder.ask_each(calls)
        if (wrong := _wrong(found)) is not None:
            return wrong
        outcomes: dict[int, RescheduleOutcome] = {}
        rescheduled = 0
        for said in found:
            part = msgspec.json.decode(said.body, type=RescheduledIds)
            rescheduled += part.rescheduled
            outcomes.update(zip(places[said.shard], part.results, strict=True))
        return responses.json(RescheduledIds([outcomes[at] for at in range(len(wanted.ids))], rescheduled))

    # ------------------------------------------------------------------ dead letters

    def _dead_letters(self, route: Route) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            wanted = query.read(request, DeadQuery)
            base = _for_merging(call_of(request, route, None))
            calls = []
            for shard in self._shards_of(request):
                first = merging.first_in(shard, wanted.first, self._count)
                target = f"{request.rel_url.raw_path}?from={first}&limit={wanted.limit}"
                calls.append((shard, base._replace(target=target)))
            found = _of_those_that_know(await self._forwarder.ask_each(calls))
            if (wrong := _wrong(found)) is not None:
                return wrong
            given = [Page(said.shard, said.body) for said in found]
            return _answered(request, found, merging.letters(given, self._count, wanted.limit))

        return answer

    def _shards_of(self, request: web.Request) -> Sequence[int]:
        """Return the shards that may have dead letters of the group in the path."""
        topic = request.match_info.get("topic")
        shard = None if topic is None else shard_of_topic(topic, self._count)
        return range(self._count) if shard is None else [shard]

    def _settle_dead(self, route: Route) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            body = await bodies.whole(request, bytes_max=bodies.JSON_BYTES_MAX)
            query.read(request, NoQuery)
            kind: type[Chosen] = Chosen if "{topic}" in route.path else ChosenOfTopics
            try:
                chosen = await bodies.decode(body, kind)
            except RequestError:
                return await self._pass_on(request, route, self._shards_of(request)[0])  # as above
            own = {
                shard: part
                for shard in self._shards_of(request)
                if (part := self._chosen_in(shard, chosen)) is not None
            }
            if not own:  # of what is chosen, no shard has anything
                own = {self._shards_of(request)[0]: msgspec.structs.replace(chosen, offsets=[])}
            base = _for_merging(call_of(request, route, None))
            base.headers[hdrs.CONTENT_TYPE] = "application/json"  # type: ignore[index]
            calls = [(shard, base._replace(body=msgspec.json.encode(part))) for shard, part in own.items()]
            found = _of_those_that_know(await self._forwarder.ask_each(calls))
            if (wrong := _wrong(found)) is not None:
                return wrong
            return responses.json(_settled(route, found))

        return answer

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


def _settled(route: Route, found: Iterable[Said]) -> RedrivenCount | DroppedCount:
    if route.name.startswith("redrive"):
        each = [msgspec.json.decode(said.body, type=RedrivenCount) for said in found]
        return RedrivenCount(sum(one.redriven for one in each), sum(one.left for one in each))
    return DroppedCount(sum(msgspec.json.decode(said.body, type=DroppedCount).dropped for said in found))


def _for_merging(call: Call) -> Call:
    """Return a call whose answer is to be read here: as plain JSON."""
    headers = call.headers.copy()  # type: ignore[attr-defined]
    headers[hdrs.ACCEPT_ENCODING] = "identity"
    method = hdrs.METH_GET if call.method == hdrs.METH_HEAD else call.method
    return call._replace(headers=headers, method=method)


def _with_cursor(request: web.Request, cursor: str | None) -> str:
    """Return the path and query of a request, with another cursor."""
    rest = [
        one for one in request.rel_url.raw_query_string.split("&") if one and not one.startswith("cursor=")
    ]
    if cursor is not None:
        rest.append(f"cursor={cursor}")
    return f"{request.rel_url.raw_path}?{'&'.join(rest)}" if rest else request.rel_url.raw_path


def _wrong(found: Sequence[Said]) -> web.Response | None:
    """Return the first answer that is an error: a list without one of the shards would not be the whole."""
    wrong = next((said for said in found if said.status >= ERROR), None)
    return None if wrong is None else said_to_client(wrong)


def _of_those_that_know(found: list[Said]) -> list[Said]:
    """Return the answers of shards that have the group; all, if none has it."""
    known = [said for said in found if said.status != NOT_FOUND]
    return known or found


def _answered(request: web.Request, found: Sequence[Said], content: object) -> web.Response:
    """Return a merged answer, charged like one of a single service."""
    size_bytes = sum(len(said.body) for said in found)
    if size_bytes > budget.FREE_BYTES:
        request[budget.KEY].take_answer(size_bytes, force=False)
    return responses.json_bytes(content) if isinstance(content, bytes) else responses.json(content)


def _with_ids(wanted: NewTimes, places: Sequence[int]) -> NewTimes:
    """Return the same request for the ids at these places."""
    assert wanted.ids is not UNSET
    return msgspec.structs.replace(wanted, ids=[wanted.ids[place] for place in places])
