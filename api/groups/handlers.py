"""The calls on consumer groups: receive, acknowledge, get, create, change, rewind, delete."""

import asyncio
from collections.abc import Sequence
from functools import partial

from aiohttp import web
from msgspec import UNSET
from msgspec.json import encode

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.groups.consumer import Consumer
from timerwheel.api.groups.window import Windows
from timerwheel.api.http import arrow, bodies, etags, query, responses
from timerwheel.api.http.problems import RequestError
from timerwheel.api.http.route import DELAY, STORE, Need, call
from timerwheel.api.messages import arrow_answers
from timerwheel.api.security import access
from timerwheel.groups.config import GroupConfig, UnknownGroupError
from timerwheel.model.durations import parse_delay_ms, parse_rfc3339_ms
from timerwheel.model.messages import Delivery, GroupInfo
from timerwheel.model.precondition import tag_of
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
)
from timerwheel.wire.topics import TopicPath

GROUP = "/v1/topics/{topic}/groups/{group}"

# Receiving may create the group.
MAKING = (
    *("illegal_group", "illegal_topic", "system_topic", "topic_ending", "illegal_filter", "too_many_groups"),
    "group_in_use",
    *STORE,
)
SETTLING = ("illegal_group", "unknown_group", *STORE)

_settles = partial(
    call, "POST", needs=Need.RECEIVE, answer=SettledAll, path_type=GroupPath, problems=SETTLING
)
_reads = partial(call, "GET", needs=Need.RECEIVE, answer=Groups)
_changes = partial(call, needs=Need.ADMIN, audited=True, answer=Group, path_type=GroupPath)

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
        path_type=GroupPath,
        body=Receive,
        body_required=False,
        problems=(*MAKING, "group_not_found", "group_differs"),
    )
    async def receive(self, request: web.Request) -> web.StreamResponse:
        """Receive messages for a consumer of the group, and wait for one if there is none."""
        place = query.path(request, GroupPath)
        wanted = await bodies.read(request, Receive, may_be_empty=True)
        pa = await arrow.for_answer(request)
        consumer = Consumer(self._handle, request, place)
        found: Sequence[Delivery]
        content = Received([])
        if not wanted.ack:
            found = await self._receive(consumer, wanted)
        else:
            found, results = await self._exchange(consumer, place, wanted)
            content = Received([], results)
        if pa is not None:
            told = {} if content.results is UNSET else {"results": encode(content.results).decode()}
            make = partial(arrow_answers.of_deliveries, pa, found)
            size_bytes = sum(len(one.message.body) for one in found)
            return await arrow.answer(request, pa, make, told, bodies_bytes=size_bytes, is_final=True)
        return await responses.page(request, content, "messages", Held.from_delivery, found, is_final=True)

    async def _exchange(
        self, consumer: Consumer, place: GroupPath, wanted: Receive
    ) -> tuple[Sequence[Delivery], list[Settled]]:
        """Acknowledge and receive in one commit; the acknowledgements stand if the receive is refused."""
        acking = asyncio.create_task(self._ack(place, wanted.ack))
        try:
            found = await self._receive(consumer, wanted)
        finally:
            await asyncio.wait([acking])  # done also if the receive is refused or its client goes away
        try:
            results = acking.result().results
        except UnknownGroupError:
            results = [Settled(receipt, ok=False, code="illegal_receipt") for receipt in wanted.ack]
        except BaseException:
            receipts = [one.receipt for one in found]
            self._handle.engine.groups.put_back(place.topic, place.group, receipts)
            raise
        if not found and not wanted.wait_ms:
            # The acknowledged messages may have held others back: those with their key, or of a full group.
            found = await self._receive(consumer, wanted)
        return found, results

    async def _receive(self, consumer: Consumer, wanted: Receive) -> Sequence[Delivery]:
        """Wait in short steps, so as not to wait for a client that has disconnected."""
        clock = self._handle.engine.clock
        end_ms = clock.monotonic_ms() + wanted.wait_ms
        invisible_ms = None if wanted.invisible_ms is UNSET else wanted.invisible_ms
        tags = None if wanted.tags is UNSET else wanted.tags
        start = None if wanted.start is UNSET else wanted.start
        found = await consumer.first(
            wanted.max, invisible_ms, wanted.wait_ms, tags, start, create=wanted.create
        )
        while not found and not consumer.gone and self._handle.ready:
            left_ms = end_ms - clock.monotonic_ms()
            if left_ms <= 0:
                break
            try:
                found = await consumer.more(wanted.max, invisible_ms, left_ms)
            except UnknownGroupError:
                break  # it was deleted: there is nothing to wait for
        return found

    @_settles(f"{GROUP}/ack", "acknowledge", body=Ack)
    async def ack(self, request: web.Request) -> web.Response:
        """Acknowledge messages."""
        place = query.path(request, GroupPath)
        wanted = await bodies.read(request, Ack)
        return responses.json(await self._ack(place, wanted.receipts))

    async def _ack(self, place: GroupPath, receipts: Sequence[str]) -> SettledAll:
        results = await self._handle.engine.groups.ack(place.topic, place.group, receipts)
        self._windows.settled(place, results)
        return SettledAll.of(results)

    @_settles(f"{GROUP}/nack", "giveBack", body=Nack, problems=(*SETTLING, *DELAY, "conflicting_delay"))
    async def nack(self, request: web.Request) -> web.Response:
        """Return messages to the group, to be redelivered after a delay."""
        place = query.path(request, GroupPath)
        wanted = await bodies.read(request, Nack)
        reason = None if wanted.reason is UNSET else wanted.reason
        groups, delay_ms = self._handle.engine.groups, _delay_ms(wanted)
        if wanted.dead_letter:
            results = await groups.give_up(place.topic, place.group, wanted.receipts, reason or GIVEN_UP)
        else:
            results = await groups.nack(place.topic, place.group, wanted.receipts, delay_ms, reason)
        self._windows.settled(place, results)
        return responses.json(SettledAll.of(results))

    @_settles(f"{GROUP}/extend", "extend", body=Extend)
    async def extend(self, request: web.Request) -> web.Response:
        """Extend the leases of messages."""
        place = query.path(request, GroupPath)
        wanted = await bodies.read(request, Extend)
        engine = self._handle.engine
        results = await engine.groups.extend(place.topic, place.group, wanted.receipts, wanted.invisible_ms)
        self._windows.extended(place, results, engine.clock.now_ms() + wanted.invisible_ms)
        return responses.json(SettledAll.of(results))

    # ------------------------------------------------------------------ the groups themselves

    @_reads("/v1/groups", "listGroups")
    async def all(self, request: web.Request) -> web.Response:
        """List all groups."""
        may = access.of(request).may
        every = await self._handle.engine.groups.describe_all()
        return responses.json(_groups([one for one in every if may(one.topic)]))

    @_reads("/v1/topics/{topic}/groups", "listGroupsOfTopic", path_type=TopicPath)
    async def of_topic(self, request: web.Request) -> web.Response:
        """List the groups of a topic."""
        topic = query.path(request, TopicPath).topic
        return responses.json(_groups(await self._handle.engine.groups.describe_all(topic)))

    @_reads(GROUP, "getGroup", etag=True, answer=Group, path_type=GroupPath, problems=("unknown_group",))
    async def one(self, request: web.Request) -> web.Response:
        """Get a group: its configuration, position, lag and counts."""
        place = query.path(request, GroupPath)
        described = await self._describe(place)
        return etags.tagged(responses.json(described), tag_of(described.config))

    @_changes(
        "PUT", GROUP, "putGroup", etag=True, also=(201,), located=True, body=GroupConfig, problems=MAKING
    )
    async def put(self, request: web.Request) -> web.Response:
        """Create a group or change its configuration.

        201 if this created it, 200 if it existed and now has this configuration.
        """
        place = query.path(request, GroupPath)
        config, when = await bodies.read(request, GroupConfig), etags.precondition(request)
        _, made = await self._handle.engine.groups.put_or_make(place.topic, place.group, config, when)
        described = await self._describe(place)
        return etags.tagged(responses.put(request, described, made=made), tag_of(described.config))

    @_changes("DELETE", GROUP, "deleteGroup", etag=True, problems=("unknown_group", "group_in_use", *STORE))
    async def delete(self, request: web.Request) -> web.Response:
        """Delete a group, with its position and leases.

        Refused while a subscription uses it. Returns its last state.
        """
        place = query.path(request, GroupPath)
        described, when = await self._describe(place), etags.precondition(request)
        await self._handle.push.delete_group(place.topic, place.group, when)
        self._windows.cleared(place)
        return responses.json(described)

    @_changes(
        "POST",
        f"{GROUP}/rewind",
        "rewindGroup",
        body=Rewind,
        problems=("illegal_delay", "illegal_group", "unknown_group", *STORE),
    )
    async def rewind(self, request: web.Request) -> web.Response:
        """Move a group to another position."""
        place = query.path(request, GroupPath)
        wanted = await bodies.read(request, Rewind)
        given = [wanted.to, wanted.time_ms, wanted.time, wanted.offsets]
        if sum(value is not UNSET for value in given) != 1:
            raise RequestError("invalid_field", "give exactly one of to, time_ms, time and offsets")
        if wanted.offsets == {}:
            raise RequestError("invalid_field", "offsets: name at least one queue")
        time_ms = None if wanted.time_ms is UNSET else wanted.time_ms
        if wanted.time is not UNSET:
            time_ms = parse_rfc3339_ms(wanted.time)
        await self._handle.engine.groups.rewind(
            place.topic,
            place.group,
            to=None if wanted.to is UNSET else wanted.to,
            time_ms=time_ms,
            offsets=None if wanted.offsets is UNSET else wanted.offsets,
        )
        self._windows.cleared(place)
        return responses.json(await self._describe(place))

    async def _describe(self, place: GroupPath) -> Group:
        return Group.of(await self._handle.engine.groups.describe(place.topic, place.group))


def _groups(infos: Sequence[GroupInfo]) -> Groups:
    return Groups([Group.of(info) for info in infos])


def _delay_ms(wanted: Nack) -> int | None:
    if wanted.dead_letter and not (wanted.delay is UNSET and wanted.delay_ms is UNSET):
        raise RequestError("conflicting_delay", "a dead letter is not redelivered: leave out the delay")
    if wanted.delay is UNSET:
        return None if wanted.delay_ms is UNSET else wanted.delay_ms
    if wanted.delay_ms is not UNSET:
        raise RequestError("conflicting_delay", "give exactly one of delay_ms and delay")
    return parse_delay_ms(wanted.delay)
