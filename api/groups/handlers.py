"""The calls on consumer groups: receive, acknowledge, get, create, change, rewind, delete."""

from collections.abc import Sequence
from functools import partial

from aiohttp import web
from msgspec import UNSET
from msgspec.json import encode

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.groups.consumer import Consumer
from timerwheel.api.groups.window import Windows
from timerwheel.api.http import arrow, etags, responses
from timerwheel.api.http.problems import RequestError
from timerwheel.api.http.route import DELAY, STORE, Need, call
from timerwheel.api.messages import arrow_answers
from timerwheel.api.security import access
from timerwheel.groups.config import GroupConfig, UnknownGroupError
from timerwheel.model import list_cursor
from timerwheel.model.durations import parse_delay_ms, parse_rfc3339_ms
from timerwheel.model.messages import Delivery
from timerwheel.model.precondition import tag_of
from timerwheel.runtime.shielded import finished
from timerwheel.wire.fields import given
from timerwheel.wire.groups import (
    Ack,
    Extend,
    Group,
    GroupPath,
    Groups,
    Held,
    Nack,
    Receive,
    Received,
    Rewind,
    Settled,
    SettledAll,
    terms_of,
)
from timerwheel.wire.paging import PageQuery
from timerwheel.wire.topics import TopicPath

GROUP = "/v1/topics/{topic}/groups/{group}"

# Receiving may create the group.
MAKING = (
    *("illegal_group", "illegal_topic", "system_topic", "topic_ending", "illegal_filter", "too_many_groups"),
    "group_in_use",
    *STORE,
)
SETTLING = ("illegal_group", "unknown_group", *STORE)

_settles = partial(call, "POST", needs=Need.RECEIVE, answer=SettledAll, problems=SETTLING)
_reads = partial(call, "GET", needs=Need.RECEIVE, answer=Groups)
_changes = partial(call, needs=Need.ADMIN, audited=True, answer=Group)

GIVEN_UP = "given up by its consumer"


class GroupCalls:
    """Handlers under `/v1/topics/{topic}/groups` and `/v1/groups`. Event loop only."""

    def __init__(self, handle: EngineHandle, windows: Windows) -> None:
        self._handle = handle
        self._windows = windows

    # ------------------------------------------------------------------ consuming

    @call(
        "POST",
        f"{GROUP}/receive",
        "receive",
        needs=Need.RECEIVE,
        answer=Received,
        answers_arrow=True,
        leases_messages=True,
        body_required=False,
        problems=(*MAKING, "group_not_found", "group_differs"),
    )
    async def receive(self, request: web.Request, path: GroupPath, body: Receive) -> web.StreamResponse:
        """Receive messages for a consumer of the group, and wait for one if there is none."""
        pa = await arrow.for_answer(request)
        content = Received([])
        if body.ack:
            content = Received([], await self._ack_first(path, body.ack))
        consumer = Consumer(self._handle, request, path)
        found = await self._receive(consumer, body)
        consumer.will_answer(found)
        if pa is not None:
            metadata = {} if content.results is UNSET else {"results": encode(content.results).decode()}
            make = partial(arrow_answers.of_deliveries, pa, found)
            size_bytes = sum(len(one.message.body) for one in found)
            return await arrow.answer(request, pa, make, metadata, bodies_bytes=size_bytes, is_final=True)
        return await responses.page(request, content, "messages", Held.from_delivery, found, is_final=True)

    async def _ack_first(self, place: GroupPath, receipts: Sequence[str]) -> list[Settled]:
        """Acknowledge before anything is received, which would end late receipts of the messages it finds.

        If it fails, nothing is received. It stands if the receive is refused, or its client goes away.
        """
        try:
            return (await finished(self._ack(place, receipts))).results
        except UnknownGroupError:  # the receive may create it
            return [Settled(receipt, ok=False, code="illegal_receipt") for receipt in receipts]

    async def _receive(self, consumer: Consumer, wanted: Receive) -> Sequence[Delivery]:
        """Wait in short steps, so as not to wait for a client that has disconnected."""
        clock = self._handle.engine.clock
        end_ms = clock.monotonic_ms() + wanted.wait_ms
        invisible_ms = given(wanted.invisible_ms)
        found = await consumer.first(wanted.max, invisible_ms, wanted.wait_ms, terms_of(wanted))
        while not found and not consumer.gone and self._handle.ready:
            left_ms = end_ms - clock.monotonic_ms()
            if left_ms <= 0:
                break
            try:
                found = await consumer.more(wanted.max, invisible_ms, left_ms)
            except UnknownGroupError:
                break  # it was deleted: there is nothing to wait for
        return found

    @_settles(f"{GROUP}/ack", "acknowledge")
    async def ack(self, _: web.Request, path: GroupPath, body: Ack) -> web.Response:
        """Acknowledge messages."""
        return responses.json(await self._ack(path, body.receipts))

    async def _ack(self, place: GroupPath, receipts: Sequence[str]) -> SettledAll:
        results = await self._handle.engine.groups.ack(place.topic, place.group, receipts)
        self._windows.settled(place, results)
        return SettledAll.of(results)

    @_settles(f"{GROUP}/nack", "giveBack", problems=(*SETTLING, *DELAY, "conflicting_delay"))
    async def nack(self, _: web.Request, path: GroupPath, body: Nack) -> web.Response:
        """Return messages to the group, to be redelivered after a delay."""
        reason = given(body.reason)
        groups, delay_ms = self._handle.engine.groups, _delay_ms(body)
        if body.dead_letter:
            results = await groups.give_up(path.topic, path.group, body.receipts, reason or GIVEN_UP)
        else:
            results = await groups.nack(path.topic, path.group, body.receipts, delay_ms, reason)
        self._windows.settled(path, results)
        return responses.json(SettledAll.of(results))

    @_settles(f"{GROUP}/extend", "extend")
    async def extend(self, _: web.Request, path: GroupPath, body: Extend) -> web.Response:
        """Extend the leases of messages."""
        engine = self._handle.engine
        results = await engine.groups.extend(path.topic, path.group, body.receipts, body.invisible_ms)
        self._windows.extended(path, results, body.invisible_ms)
        return responses.json(SettledAll.of(results))

    # ------------------------------------------------------------------ the groups themselves

    @_reads("/v1/groups", "listGroups", problems=("illegal_cursor",))
    async def all(self, request: web.Request, params: PageQuery) -> web.Response:
        """List groups."""
        may = access.of(request).may
        return await self._page(params, [one for one in self._handle.engine.groups.names() if may(one[0])])

    @_reads("/v1/topics/{topic}/groups", "listGroupsOfTopic", problems=("illegal_cursor",))
    async def of_topic(self, _: web.Request, path: TopicPath, params: PageQuery) -> web.Response:
        """List the groups of a topic."""
        return await self._page(params, self._handle.engine.groups.names(path.topic))

    async def _page(self, params: PageQuery, names: Sequence[tuple[str, str]]) -> web.Response:
        page, cursor = list_cursor.page(names, tuple, params.count_max, params.after)
        infos = await self._handle.engine.groups.describe_each(page)
        return responses.json(Groups([Group.of(info) for info in infos], params.answered(cursor)))

    @_reads(GROUP, "getGroup", etag=True, answer=Group, problems=("unknown_group",))
    async def one(self, _: web.Request, path: GroupPath) -> web.Response:
        """Get a group: its configuration, position, lag and counts."""
        described = await self._describe(path)
        return etags.tagged(responses.json(described), tag_of(described.config))

    @_changes("PUT", GROUP, "putGroup", etag=True, also=(201,), located=True, problems=MAKING)
    async def put(self, request: web.Request, path: GroupPath, body: GroupConfig) -> web.Response:
        """Create a group or change its configuration.

        201 if this created it, 200 if it existed and now has this configuration.
        """
        when = etags.precondition(request)
        _, made = await self._handle.engine.groups.put_or_make(path.topic, path.group, body, when)
        described = await self._describe(path)
        return etags.tagged(responses.put(request, described, made=made), tag_of(described.config))

    @_changes("DELETE", GROUP, "deleteGroup", etag=True, problems=("unknown_group", "group_in_use", *STORE))
    async def delete(self, request: web.Request, path: GroupPath) -> web.Response:
        """Delete a group, with its position and leases.

        Refused while a subscription uses it. Returns its last state.
        """
        described, when = await self._describe(path), etags.precondition(request)
        await self._handle.push.delete_group(path.topic, path.group, when)
        self._windows.cleared(path)
        return responses.json(described)

    @_changes(
        "POST",
        f"{GROUP}/rewind",
        "rewindGroup",
        problems=("illegal_delay", "illegal_group", "unknown_group", *STORE),
    )
    async def rewind(self, _: web.Request, path: GroupPath, body: Rewind) -> web.Response:
        """Move a group to another position."""
        places = [body.to, body.time_ms, body.time, body.offsets]
        if sum(value is not UNSET for value in places) != 1:
            raise RequestError("invalid_field", "give exactly one of to, time_ms, time and offsets")
        if body.offsets == {}:
            raise RequestError("invalid_field", "offsets: name at least one queue")
        time_ms = given(body.time_ms)
        if body.time is not UNSET:
            time_ms = parse_rfc3339_ms(body.time)
        await self._handle.engine.groups.rewind(
            path.topic, path.group, to=given(body.to), time_ms=time_ms, offsets=given(body.offsets)
        )
        return responses.json(await self._describe(path))

    async def _describe(self, place: GroupPath) -> Group:
        return Group.of(await self._handle.engine.groups.describe(place.topic, place.group))


def _delay_ms(wanted: Nack) -> int | None:
    if wanted.dead_letter and not (wanted.delay is UNSET and wanted.delay_ms is UNSET):
        raise RequestError("conflicting_delay", "a dead letter is not redelivered: leave out the delay")
    if wanted.delay is UNSET:
        return given(wanted.delay_ms)
    if wanted.delay_ms is not UNSET:
        raise RequestError("conflicting_delay", "give exactly one of delay_ms and delay")
    return parse_delay_ms(wanted.delay)
