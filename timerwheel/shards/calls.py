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
from functools import partial
from urllib.parse import quote, unquote_plus
from weakref import WeakValueDictionary

from aiohttp import hdrs, web
from msgspec import UNSET

from timerwheel.api.http import bodies, budget, query, responses
from timerwheel.api.http.problems import RequestError
from timerwheel.api.http.route import Handler, Route
from timerwheel.model.admission import DEAD_PREFIX, is_sendable
from timerwheel.model.ids import shard_in
from timerwheel.model.messages import State
from timerwheel.model.shards import SHARED_PREFIXES, shard_of_topic
from timerwheel.push import ack_urls
from timerwheel.push.tasks.task import DEFAULT_QUEUE
from timerwheel.schedules.errors import ScheduleError
from timerwheel.schedules.spec import check_name
from timerwheel.shards import merging
from timerwheel.shards.bulk import Bulk, first_wrong, shards_with_dead, those_that_know
from timerwheel.shards.forwarder import Answer, Call, Forwarder, headers_for_shard, to_client
from timerwheel.shards.merging import Cursors, Page
from timerwheel.shards.sends import AnyPlace, Place, Sends
from timerwheel.wire.groups import DeadQuery
from timerwheel.wire.messages import PendingQuery
from timerwheel.wire.paging import PageQuery
from timerwheel.wire.service import SlotsQuery
from timerwheel.wire.tasks import TasksQuery
from timerwheel.wire.topics import TopicsQuery
from timerwheel.wire.transactions import OpenQuery

SHARD_HEADER = "Timerwheel-Shard"
HELD = frozenset({200, 403})
"""What a shard answers about a name that it has, also to a token that may not see it."""
NOT_HELD = frozenset({400, 404})
"""What it answers about a name that it does not have, or that nothing can have."""
OF_READERS = frozenset(
    {"readQueue", "receive", "acknowledge", "giveBack", "extend", "stream"}
    | {"getGroup", "putGroup", "deleteGroup", "rewindGroup"}
)
"""Calls on a topic that mean something for dead letters too."""


class _NewTask(Place):
    queue: str = DEFAULT_QUEUE
    cron: str | None = None
    schedule: str = ""

    @property
    def home(self) -> str:
        return self.queue


class _NewSubscription(Place):
    id: str = ""


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
        self._names: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        bulk = Bulk(forwarder, sends.count_max)
        self._special: dict[str, Callable[[Route], Handler]] = {
            "sendMessages": sends.messages,
            "beginTransaction": sends.of_one,
            "recallMessages": bulk.recall,
            "rescheduleMessages": bulk.reschedule,
            "listPending": self._pending,
            "listTransactions": self._transactions,
            "listTopics": self._listed(merging.topics, TopicsQuery),
            "listGroups": self._listed(partial(merging.lists, "groups")),
            "listSchedules": self._listed(partial(merging.lists, "schedules")),
            "listSubscriptions": self._listed(partial(merging.lists, "subscriptions")),
            "getWheel": self._merged(merging.wheel),
            "getLiveHistory": self._merged(merging.figures),
            "listSlots": self._listed(merging.slots, SlotsQuery),
            "getPeak": self._merged(merging.peak),
            "listLevels": self._listed(merging.levels),
            "createTask": self._create_task,
            "listTasks": self._list_tasks,
            "listTaskQueues": self._listed(partial(merging.lists, "queues")),
            "putSchedule": self._put_schedule,
            "createSubscription": self._create_subscription,
            "listDeadLetters": self._dead_letters,
            "listGroupDeadLetters": self._dead_letters,
            "redriveDeadLetters": bulk.settle,
            "redriveGroupDeadLetters": bulk.settle,
            "dropDeadLetters": bulk.settle,
            "dropGroupDeadLetters": bulk.settle,
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
        return await self._forwarder.pass_on(request, shard, Call.of(request, route, body))

    # ------------------------------------------------------------------ to one shard

    def _by_topic(self, route: Route) -> Handler:
        merge: dict[str, Callable[[Iterable[bytes]], object]] = {"getTopic": merging.topic}
        groups = self._listed(partial(merging.lists, "groups"))(route)

        async def answer(request: web.Request) -> web.StreamResponse:
            topic = request.match_info["topic"]
            shard = shard_of_topic(topic, self._count)
            if shard is not None:
                return await self._pass_on(request, route, shard)
            if route.name in merge:
                return await self._merge(request, route, merge[route.name])
            if route.name == "listGroupsOfTopic":
                return await groups(request)
            if route.name not in OF_READERS or not topic.startswith(DEAD_PREFIX):
                return await self._pass_on(request, route, 0)  # which refuses it, as any shard would
            raise self._shard_required(topic)

        return answer

    def _shard_required(self, topic: str) -> RequestError:
        return RequestError(
            "shard_required",
            f"topic {topic!r} is in each of the {self._count} shards; name one in the header "
            f"{SHARD_HEADER}, or ask the shard itself",
        )

    def _by_id(self, route: Route) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            shard = shard_in(request.match_info["id"])
            known = shard is not None and shard < self._count
            # What is not an id of any shard is unknown to each of them, and one says so.
            return await self._pass_on(request, route, shard if known and shard is not None else 0)

        return answer

    def _by_ack(self, route: Route) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            shard = ack_urls.shard_of(request.match_info["token"])
            # What is not a token of any shard is unknown to each of them, and one says so.
            return await self._pass_on(request, route, shard if shard < self._count else 0)

        return answer

    def _by_task_queue(self, route: Route) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            return await self._pass_on(request, route, self._sends.shard_of(request.match_info["queue"]))

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
            holder = await self._holder(request, "/".join(path[:4]))
            if holder is not None and holder.status not in HELD:
                return to_client(holder)
            return await self._pass_on(request, route, 0 if holder is None else holder.shard)

        return answer

    async def _holder(self, request: web.Request, path: str) -> Answer | None:
        """Return the answer of the shard that has what is at a path; None if none has it.

        It may be that the shard does not show it; with a status that is not in HELD, a shard cannot say.
        """
        headers = headers_for_shard(request.headers)
        headers.popall(hdrs.CONTENT_TYPE, None)
        call = Call(hdrs.METH_GET, path, headers, may_repeat=True)
        found = await self._forwarder.ask_each((shard, call) for shard in range(self._count))
        held = next((one for one in found if one.status in HELD), None)
        return held or next((one for one in found if one.status not in NOT_HELD), None)

    # ------------------------------------------------------------------ names

    def _put_schedule(self, route: Route) -> Handler:
        return self._named(route, Place, lambda request, _: request.rel_url.raw_path)

    def _create_task(self, route: Route) -> Handler:
        """Return what makes a task, or with `cron` a schedule: then its name may be in another shard."""

        def path(_: web.Request, found: _NewTask) -> str | None:
            try:
                return None if found.cron is None else f"/v1/schedules/{check_name(found.schedule)}"
            except ScheduleError:
                return None  # none is named, or the shard says what is wrong

        return self._named(route, _NewTask, path)

    def _create_subscription(self, route: Route) -> Handler:
        def path(_: web.Request, found: _NewSubscription) -> str | None:
            if found.topic is not None and found.topic.startswith(SHARED_PREFIXES):
                raise self._shard_required(found.topic)  # else it would push what is in one shard only
            plain = found.id.replace("_", "").replace("-", "")
            return f"/v1/subscriptions/{found.id}" if plain.isascii() and plain.isalnum() else None

        return self._named(route, _NewSubscription, path)

    def _named(
        self, route: Route, kind: type[AnyPlace], path_of: Callable[[web.Request, AnyPlace], str | None]
    ) -> Handler:
        """Return what makes a thing with a name in the shard of its topic, unless another shard has the name.

        One at a time of each name on this node; two nodes that make one name at the same moment may both
        succeed.
        """

        async def answer(request: web.Request) -> web.StreamResponse:
            body = await bodies.whole(request, bytes_max=bodies.JSON_BYTES_MAX)
            found = await self._sends.read(body, kind)
            shard = self._sends.shard_of(found.home)
            path = path_of(request, found)
            if path is None:
                return await self._pass_on(request, route, shard)
            turn = self._names.setdefault(path, asyncio.Lock())
            async with turn:
                holder = await self._holder(request, path)
                if holder is not None and holder.status not in HELD:
                    return to_client(holder)
                if holder is None or holder.shard == shard:
                    return await self._pass_on(request, route, shard)
                if found.home is None or not is_sendable(found.home):
                    return await self._pass_on(request, route, holder.shard)  # which refuses the topic
                raise RequestError(
                    "name_in_use",
                    f"{path} is in shard {holder.shard}, and the topic that you name is in shard {shard}: "
                    "delete it first, or choose another name",
                )

        return answer

    # ------------------------------------------------------------------ to every shard

    def _merged(self, merge: Callable[[Iterable[bytes]], object]) -> Callable[[Route], Handler]:
        def handler_of(route: Route) -> Handler:
            async def answer(request: web.Request) -> web.StreamResponse:
                return await self._merge(request, route, merge)

            return answer

        return handler_of

    def _listed(
        self, merge: Callable[[Iterable[bytes], PageQuery], object], kind: type[PageQuery] = PageQuery
    ) -> Callable[[Route], Handler]:
        """Return what merges pages of a list whose cursors mean the same in every shard."""

        def handler_of(route: Route) -> Handler:
            async def answer(request: web.Request) -> web.StreamResponse:
                wanted = query.read(request, kind)
                return await self._merge(request, route, lambda found: merge(found, wanted))

            return answer

        return handler_of

    async def _merge(
        self, request: web.Request, route: Route, merge: Callable[[Iterable[bytes]], object]
    ) -> web.StreamResponse:
        call = Call.of(request, route, None).in_json()
        found = await self._forwarder.ask_each((shard, call) for shard in range(self._count))
        if (wrong := first_wrong(found)) is not None:
            return wrong
        return _answered(request, found, merge(one.body for one in found))

    def _pending(self, route: Route) -> Handler:
        return self._paged(route, "messages", PendingQuery, _order_of_messages)

    def _transactions(self, route: Route) -> Handler:
        return self._paged(route, "transactions", OpenQuery, lambda _: merging.BY_BEGINNING)

    def _paged(
        self,
        route: Route,
        field: str,
        kind: type[PendingQuery | OpenQuery],
        order_of: Callable[[PendingQuery | OpenQuery], merging.Order | None],
    ) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            wanted = query.read(request, kind)
            if wanted.topic is not UNSET and (shard := shard_of_topic(wanted.topic, self._count)) is not None:
                return await self._pass_on(request, route, shard)
            cursors = Cursors.parse(None if wanted.cursor is UNSET else wanted.cursor, self._count)
            order = order_of(wanted)
            base = Call.of(request, route, None).in_json()
            asked = cursors.wanted if order is not None else cursors.wanted[:1]
            calls = [
                (shard, base._replace(target=_with_cursor(request, cursors.each[shard]))) for shard in asked
            ]
            found = await self._forwarder.ask_each(calls)
            if (wrong := first_wrong(found)) is not None:
                return wrong
            given = [Page(one.shard, one.body) for one in found]
            if order is None:
                return _answered(request, found, merging.one_after_another(field, given, cursors))
            return _answered(request, found, merging.pages(field, given, cursors, wanted.limit, order))

        return answer

    # ------------------------------------------------------------------ dead letters

    def _dead_letters(self, route: Route) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            wanted = query.read(request, DeadQuery)
            base = Call.of(request, route, None).in_json()
            calls = []
            for shard in shards_with_dead(request, self._count):
                first = merging.first_in(shard, wanted.begin, self._count)
                target = _from(request, first)
                calls.append((shard, base._replace(target=target)))
            found = those_that_know(await self._forwarder.ask_each(calls))
            if (wrong := first_wrong(found)) is not None:
                return wrong
            given = [Page(one.shard, one.body) for one in found]
            return _answered(request, found, merging.letters(given, self._count, wanted.limit))

        return answer


def _order_of_messages(wanted: PendingQuery | OpenQuery) -> merging.Order | None:
    """Return how to merge what shards list; None for what has ended: one shard comes after the other."""
    assert isinstance(wanted, PendingQuery)
    if wanted.key is not UNSET:
        return merging.BY_SENDING_NEWEST if wanted.order == "newest" else merging.BY_SENDING
    return merging.BY_DUE if wanted.state in (UNSET, State.SCHEDULED) else None


def _with_cursor(request: web.Request, cursor: str | None) -> str:
    """Return the path and query of a request, with another cursor: a client may have made it up."""
    rest = _parameters_without(request, "cursor")
    if cursor is not None:
        rest.append(f"cursor={quote(cursor, safe='')}")
    return f"{request.rel_url.raw_path}?{'&'.join(rest)}" if rest else request.rel_url.raw_path


def _from(request: web.Request, offset: int) -> str:
    """Return the path and query of a request for dead letters, which begin at an offset."""
    rest = _parameters_without(request, "cursor", "from")
    return f"{request.rel_url.raw_path}?{'&'.join([*rest, f'from={offset}'])}"


def _parameters_without(request: web.Request, *names: str) -> list[str]:
    given = request.rel_url.raw_query_string.split("&")
    return [one for one in given if one and unquote_plus(one.partition("=")[0]) not in names]


def _answered(request: web.Request, found: Sequence[Answer], content: object) -> web.Response:
    """Return a merged answer, charged like one of a single service."""
    size_bytes = sum(len(one.body) for one in found)
    if size_bytes > budget.FREE_BYTES:
        request[budget.KEY].take_answer(size_bytes, force=False)
    return responses.json_bytes(content) if isinstance(content, bytes) else responses.json(content)
