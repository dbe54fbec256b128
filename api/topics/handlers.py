"""The calls on topics and on the messages delivered to their queues."""

from collections.abc import Iterable
from functools import partial
from itertools import filterfalse

from aiohttp import web

from timerwheel.api.engine_handle import LOOK_UP_MS, EngineHandle
from timerwheel.api.http import arrow, etags, responses
from timerwheel.api.http.problems import RequestError
from timerwheel.api.http.route import STORE, Need, call
from timerwheel.api.http.steps import made_of
from timerwheel.api.messages import arrow_answers
from timerwheel.api.messages.while_connected import while_connected
from timerwheel.api.security import access
from timerwheel.model import list_cursor
from timerwheel.model.admission import is_reserved
from timerwheel.model.messages import QueuePage, TopicDeletion, TopicInfo, TopicPurged
from timerwheel.wire.fields import given
from timerwheel.wire.messages import Message
from timerwheel.wire.topics import (
    DeleteQuery,
    Delivered,
    NewPurge,
    QueuePath,
    ReadQuery,
    TopicChanges,
    TopicPath,
    Topics,
    TopicsQuery,
)

TOPIC = "/v1/topics/{topic}"
CHANGE = ("unknown_topic", "illegal_topic", "system_topic", "too_many_topics", "topic_ending")

_reads = partial(call, "GET", needs=Need.EITHER, answer=TopicInfo)
_changes = partial(
    call, needs=Need.ADMIN, audited=True, answer=TopicInfo, path_type=TopicPath, problems=(*CHANGE, *STORE)
)


class TopicCalls:
    """Handlers under `/v1/topics`. Event loop only."""

    def __init__(self, handle: EngineHandle) -> None:
        self._handle = handle

    @_reads("/v1/topics", "listTopics", answer=Topics, problems=("illegal_cursor",))
    async def all(self, request: web.Request, params: TopicsQuery) -> web.Response:
        """List topics with their queues and counts."""
        engine = self._handle.engine
        every: Iterable[str] = filter(access.of(request).may, engine.queues.topic_names())
        if not params.reserved:
            every = filterfalse(is_reserved, every)
        names, cursor = list_cursor.page(every, list_cursor.topic_key, params.count_max, params.after)
        found = await made_of(engine.clock, names, engine.queues.find_topic)
        return responses.json(Topics(found, params.answered(cursor)))

    @_reads(TOPIC, "getTopic", etag=True, problems=("unknown_topic",))
    async def one(self, _: web.Request, path: TopicPath) -> web.Response:
        """Get a topic with its queues and counts."""
        return self._tagged(path.topic)

    def _tagged(self, name: str) -> web.Response:
        engine = self._handle.engine
        return etags.tagged(responses.json(engine.queues.topic(name)), engine.topics.tag(name))

    @_changes(
        "PATCH",
        TOPIC,
        "changeTopic",
        etag=True,
        problems=(*CHANGE, "queues_shrink", "keys_move", "fixed_outlet", *STORE),
    )
    async def change(self, request: web.Request, path: TopicPath, body: TopicChanges) -> web.Response:
        """Set the number of queues of a topic, whether it is ordered by sharding key or goes to Kafka.

        The topic need not exist yet.
        """
        ordered, queues, to_kafka = given(body.ordered), given(body.queues), given(body.to_kafka)
        if ordered is None and queues is None and to_kafka is None:
            raise RequestError("invalid_field", "nothing to change: give ordered, queues or to_kafka")
        await self._handle.engine.topics.change(
            path.topic,
            ordered=ordered,
            queues=queues,
            move_keys=body.move_keys,
            to_kafka=to_kafka,
            when=etags.precondition(request),
        )
        return self._tagged(path.topic)

    @_changes("POST", f"{TOPIC}/pause", "pauseTopic")
    async def pause(self, _: web.Request, path: TopicPath) -> web.Response:
        """Pause a topic: deliver none of its messages to consumers until it is resumed."""
        engine = self._handle.engine
        await engine.topics.pause(path.topic)
        return responses.json(engine.queues.topic(path.topic))

    @_changes("POST", f"{TOPIC}/resume", "resumeTopic")
    async def resume(self, _: web.Request, path: TopicPath) -> web.Response:
        """Resume a paused topic."""
        engine = self._handle.engine
        await engine.topics.resume(path.topic)
        return responses.json(engine.queues.topic(path.topic))

    @_changes(
        "POST",
        f"{TOPIC}/purge",
        "purgeTopic",
        answer=TopicPurged,
        problems=("unknown_topic", "system_topic", "topic_ending", *STORE),
    )
    async def purge(self, request: web.Request, path: TopicPath, body: NewPurge) -> web.Response:
        """Take away the scheduled or delivered messages of a topic, or both; all else stays.

        A client that disconnects breaks it off.
        """
        if not (body.scheduled or body.delivered):
            raise RequestError("invalid_field", "nothing to purge: give scheduled, delivered or both")
        purge = self._handle.engine.topic_purges.purge(
            path.topic, scheduled=body.scheduled, delivered=body.delivered, dry_run=body.dry_run
        )
        return responses.json(await while_connected(request, self._handle, purge))

    @_changes(
        "DELETE",
        TOPIC,
        "deleteTopic",
        etag=True,
        also=(202,),
        answer=TopicDeletion,
        problems=("unknown_topic", "system_topic", *STORE),
    )
    async def delete(self, request: web.Request, path: TopicPath, params: DeleteQuery) -> web.Response:
        """Delete a topic with its messages, groups, schedules and subscriptions.

        202 if that goes on.
        """
        when, deletions = etags.precondition(request), self._handle.engine.topic_deletions
        if params.dry_run:
            return responses.json(deletions.plan(path.topic))
        deletion = await deletions.delete(path.topic, params.wait_ms, when)
        return responses.json(deletion, status=202 if deletion.state == "ending" else 200)

    @_reads(
        f"{TOPIC}/queues/{{queue}}/messages",
        "readQueue",
        needs=Need.RECEIVE,
        answer=Delivered,
        answers_arrow=True,
        problems=("unknown_topic", "unknown_queue", "offset_out_of_range"),
    )
    async def delivered(self, request: web.Request, path: QueuePath, params: ReadQuery) -> web.StreamResponse:
        """Read delivered messages from an offset, and wait for one if there is none."""
        pa = await arrow.for_answer(request)
        page = await self._read(request, path, params)
        if pa is not None:
            metadata = {
                name: str(getattr(page, name)) for name in ("next_offset", "min_offset", "max_offset")
            }
            make = partial(arrow_answers.of_messages, pa, page.messages)
            size_bytes = sum(len(one.body) for one in page.messages)
            return await arrow.answer(request, pa, make, metadata, bodies_bytes=size_bytes)
        return await responses.page(request, Delivered.of(page), "messages", Message.of, page.messages)

    async def _read(self, request: web.Request, place: QueuePath, wanted: ReadQuery) -> QueuePage:
        """Wait in short steps: the engine's wait is never cancelled, and the client may disconnect."""
        engine = self._handle.engine
        end_ms = engine.clock.monotonic_ms() + wanted.wait_ms
        offset, wait_ms = wanted.offset, min(wanted.wait_ms, LOOK_UP_MS)
        while True:
            page = await engine.queues.read_queue(place.topic, place.queue, offset, wanted.max, wait_ms)
            left_ms = end_ms - engine.clock.monotonic_ms()
            over = request.transport is None or self._handle.stopping or not engine.ready
            if page.messages or left_ms <= 0 or over:
                if not page.messages:
                    engine.queues.topic(
                        place.topic
                    )  # raises UnknownTopicError: it may have come while we waited
                return page
            offset = page.next_offset  # -1 meant the end at the first look, not at each
            wait_ms = min(left_ms, LOOK_UP_MS)
