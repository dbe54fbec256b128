"""The calls on messages: send, get, list, recall, reschedule."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from aiohttp import web

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.http import arrow, bodies, etags, idempotency, query, responses
from timerwheel.api.http.bodies import JsonForm
from timerwheel.api.http.json_steps import Text, after_space
from timerwheel.api.http.problems import RequestError, refused
from timerwheel.api.http.route import (
    ADMISSION,
    ANY,
    ARROW,
    BODY,
    CONFLICTS,
    DELAY,
    JSON,
    JSON_BODY,
    KEY,
    NDJSON,
    RAW_CONFLICTS,
    SETTLED,
    STORE,
    Need,
    call,
)
from timerwheel.api.messages import arrow_answers, arrow_intake, intake, listings
from timerwheel.api.messages.arrow_sends import ArrowSends
from timerwheel.api.messages.delays import new_time
from timerwheel.api.messages.intake import Bounds, Intake
from timerwheel.api.messages.trace_headers import put_context
from timerwheel.api.security import access
from timerwheel.errors import Fault, RefusedError, UnknownMessageError
from timerwheel.history.history import MessageHistory
from timerwheel.history.service import HistoryReader
from timerwheel.model.admission import check_topic_name
from timerwheel.model.messages import Outgoing, Receipt
from timerwheel.model.precondition import ALWAYS, view_tag
from timerwheel.store.errors import CorruptionError
from timerwheel.wire.fields import given
from timerwheel.wire.messages import (
    Accepted,
    KeyPath,
    Message,
    MessagePath,
    NewMessage,
    NewTime,
    Pending,
    PendingQuery,
    RawQuery,
    RecallQuery,
    SendQuery,
    SentPart,
)
from timerwheel.wire.topics import TopicPath

ONE = r"/v1/messages/{id:(?!(?:recall|reschedule)$)[^/]+}"  # no id is written like that

UNKNOWN = ("unknown_message", "message_deleted")

_history = partial(call, "GET", needs=Need.EITHER, path_type=MessagePath, problems=UNKNOWN)
_sends = partial(
    call,
    "POST",
    needs=Need.SEND,
    status=201,
    also=(200,),
    compresses=False,
    takes_key=True,
    takes_context=True,
)
_one = partial(call, path="/v1/messages/{id}", pattern=ONE, path_type=MessagePath, etag=True)
_keyed = partial(call, path="/v1/topics/{topic}/keys/{key}", path_type=KeyPath, etag=True)


class Story(MessageHistory, frozen=True):
    """The history of one message, as the OpenAPI document names it for the older path."""


class Messages:
    """Handlers for `/v1/messages` and for sending to a topic. Event loop only."""

    def __init__(self, handle: EngineHandle) -> None:
        self._handle = handle
        self._bounds = Bounds.of(handle.settings)
        self._arrow = ArrowSends(handle)
        self._histories = HistoryReader()

    @_sends(
        "/v1/messages",
        "sendMessages",
        answer=Accepted | list[Accepted],
        partly=list[SentPart],
        query_type=SendQuery,
        bodies={JSON: NewMessage | list[NewMessage], NDJSON: NewMessage, ARROW: bytes},
        answers_arrow=True,
        problems=(
            *(*JSON_BODY, *ADMISSION, *CONFLICTS, *KEY, *STORE),
            *("refused", "too_many_messages", "malformed_arrow", "several_shards"),
        ),
    )
    async def send(self, request: web.Request) -> web.StreamResponse:
        """Store one message, or an array as one durable unit.

        201 once the message, or the whole array, is durable; 200 if none is new.
        """
        form = bodies.form_of_messages(request)
        if request.rel_url.raw_query_string:
            query.read(request, SendQuery)
        pa = await arrow.for_answer(request)
        if form == "arrow":
            return await self._send_arrow(request, pa)
        body = await bodies.whole(request)
        if form == "json" and (body[:1] == b"{" or not await self._is_array(body)):
            single = await intake.single_in_steps(body, self._bounds, self._handle.engine.clock.breathe)
            message = idempotency.keyed(single, idempotency.key_of(request))
            access.of(request).check([message.topic])
            receipts = await self._store(request, [message])
            return await _answer(request, receipts, pa)
        idempotency.refuse_for_many(request)
        return await self._send_array(request, body, form, pa)

    @_history("/v1/messages/{id}/history", "getHistory", answer=MessageHistory)
    @_history(
        "/v1/messages/{id}/story",
        "getStory",
        answer=Story,
        summary="Get the history of a message, at its old path; use getHistory instead",
    )
    async def history(self, _: web.Request, path: MessagePath) -> web.Response:
        """Get the history of a message: what happened to it, and when."""
        return responses.json(await self._histories.read(self._handle.engine, path.id))

    @_sends(
        "/v1/topics/{topic}/messages",
        "sendRaw",
        answer=Accepted,
        query_type=RawQuery,
        takes_properties=True,
        bodies={ANY: bytes},
        body_required=False,  # raw bytes may be none at all: an empty body is a message
        problems=(*BODY, *ADMISSION, *RAW_CONFLICTS, *KEY, *STORE),
    )
    async def send_raw(self, request: web.Request, path: TopicPath) -> web.StreamResponse:
        """Store the request's body as a message; other query parameters are its properties."""
        bodies.refuse_encoding(request)
        given, key = query.pairs(request), idempotency.key_of(request)
        body = bytes(await bodies.whole(request, message_bytes_max=self._handle.settings.body_bytes_max))
        message = idempotency.keyed(intake.raw(path.topic, body, given), key)
        return await _answer(request, await self._store(request, [message]))

    @_one("GET", name="getMessage", needs=Need.EITHER, answer=Message, problems=UNKNOWN)
    @_keyed(
        "GET",
        name="getKeyedMessage",
        summary="Get the message with this deduplication key",
        needs=Need.EITHER,
        answer=Message,
        problems=UNKNOWN,
    )
    async def get(self, _: web.Request, path: MessagePath | KeyPath) -> web.Response:
        """Get a message."""
        view = await self._handle.engine.messages.get(await self._id(path))
        return etags.tagged(responses.json(Message.of(view)), view_tag(view))

    @call(
        "GET",
        "/v1/messages",
        "listPending",
        needs=Need.EITHER,
        answer=Pending,
        problems=("illegal_cursor", "illegal_topic", "illegal_filter"),
    )
    async def all(self, request: web.Request, params: PendingQuery) -> web.StreamResponse:
        """List messages by topic, state, tag, key and time, in pages."""
        listing, caller = listings.of_query(params).check(), access.of(request)
        if listing.topic is not None:
            check_topic_name(listing.topic)
            caller.check([listing.topic])
        elif listing.key is None:
            caller.check_all_topics("give the parameter topic")
        cursor = given(params.cursor)
        page = await self._handle.engine.listings.page(listing, params.limit, cursor, caller.may)
        return await responses.page(request, Pending([], page.cursor), "messages", Message.of, page.messages)

    @_one(
        "DELETE",
        name="recallMessage",
        needs=Need.SEND,
        answer=Message,
        problems=(*SETTLED, "open_transaction", *STORE),
    )
    @_keyed(
        "DELETE",
        name="recallKeyedMessage",
        summary="Recall the scheduled message with this deduplication key",
        needs=Need.SEND,
        answer=Message,
        problems=(*SETTLED, *STORE),
    )
    async def recall(
        self, request: web.Request, path: MessagePath | KeyPath, params: RecallQuery
    ) -> web.Response:
        """Recall a scheduled message: it will not be delivered."""
        when, engine = etags.precondition(request), self._handle.engine
        if params.damaged:
            access.of(request).check_all_topics("a damaged message has no topic that can be trusted")
        message_id = await self._id(path)
        try:
            view = await engine.recalls.recall(message_id, when=when)
        except (CorruptionError, UnknownMessageError):  # the id of a damaged header is another one
            unread = params.damaged and when is ALWAYS
            ended = await engine.bulk_recalls.end_damaged(message_id) if unread else None
            if ended is None:
                raise
            view = ended
        return etags.tagged(responses.json(Message.of(view)), view_tag(view))

    @_one(
        "PATCH",
        name="rescheduleMessage",
        needs=Need.SEND,
        answer=Accepted,
        problems=(*DELAY, "conflicting_delay", *SETTLED, "open_transaction", "topic_ending", *STORE),
    )
    @_keyed(
        "PATCH",
        name="rescheduleKeyedMessage",
        summary="Reschedule the scheduled message with this deduplication key",
        needs=Need.SEND,
        answer=Accepted,
        problems=(*DELAY, "conflicting_delay", *SETTLED, "topic_ending", *STORE),
    )
    async def reschedule(
        self, request: web.Request, path: MessagePath | KeyPath, body: NewTime
    ) -> web.Response:
        """Reschedule a scheduled message; its id stays.

        So does its key.
        """
        properties, when = new_time(body), etags.precondition(request)
        receipt = await self._handle.engine.recalls.reschedule(await self._id(path), properties, when)
        return etags.tagged(responses.json(receipt), view_tag(receipt))

    async def _id(self, path: MessagePath | KeyPath) -> str:
        """Return the id in the path, or that of the message with the key in the path."""
        if isinstance(path, MessagePath):
            return path.id
        try:
            return await self._handle.engine.keys.id_of(path.topic, path.key)
        except UnknownMessageError:
            detail = f"topic {path.topic!r} has no message with the key {path.key!r}; it may have expired"
            raise RequestError("unknown_message", detail) from None

    async def _is_array(self, body: Text) -> bool:
        at = await after_space(body, 0, self._handle.engine.clock.breathe)
        return body[at : at + 1] == b"["

    async def _send_array(
        self,
        request: web.Request,
        body: Text,
        form: JsonForm,
        pa: Any,  # noqa: ANN401 - pyarrow if the answer is to be Arrow
    ) -> web.StreamResponse:
        engine = self._handle.engine
        count_max = self._handle.settings.messages_per_request_max
        read = intake.lines if form == "lines" else intake.array
        taken = await read(body, count_max, self._bounds, engine.clock.breathe)
        return await self._store_array(request, taken, pa)

    async def _store_array(
        self,
        request: web.Request,
        taken: Intake,
        pa: Any,  # noqa: ANN401 - as above
        name: Callable[[list[Fault]], list[Fault]] = list,
    ) -> web.StreamResponse:
        """Store the messages of an array, or say what is wrong with each; `name` puts that into words."""
        engine, caller = self._handle.engine, access.of(request)
        caller.check(message.topic for message in taken.good)
        caller.charge(max(len(taken.good) + len(taken.faults), 1))
        if taken.faults:
            found = [
                Fault(taken.good_index[fault.index], fault.code, fault.detail)
                for fault in engine.sender.check(taken.good)
            ]
            return refused(name(sorted(taken.faults + found, key=_index)), array=True)
        try:
            receipts = await self._store(request, taken.good) if taken.good else []
        except RefusedError as error:
            return refused(name(error.faults), array=True)
        status = 200 if all(receipt.duplicate for receipt in receipts) else 201
        if pa is not None:
            make = partial(arrow_answers.of_receipts, pa, receipts)
            return await arrow.answer(request, pa, make, status=status)
        return responses.json(receipts, status)

    async def _send_arrow(
        self,
        request: web.Request,
        pa: Any,  # noqa: ANN401 - as above
    ) -> web.StreamResponse:
        """Store the messages of an Arrow stream, as those of an array."""
        idempotency.refuse_for_many(request)
        rows = await self._arrow.rows(request)
        if rows.columns is not None and self._handle.traces is None:
            return await self._arrow.send(request, rows, pa)
        taken = await arrow_intake.take_each(rows, self._handle.engine.clock.breathe)
        return await self._store_array(request, taken, pa, partial(arrow_intake.named, rows.table))

    def _store(self, request: web.Request, messages: Sequence[Outgoing]) -> Awaitable[list[Receipt]]:
        """Store the messages of a request, with its trace context."""
        put_context(request, [message.properties for message in messages])
        engine, traces = self._handle.engine, self._handle.traces
        return engine.sender.send(messages) if traces is None else traces.send(messages, engine.sender.send)


async def _answer(
    request: web.Request,
    receipts: Sequence[Receipt],
    pa: Any = None,  # noqa: ANN401 - as above
) -> web.StreamResponse:
    """The answer to a single message: 200 if it was there already."""
    status = 200 if receipts[0].duplicate else 201
    if pa is not None:
        make = partial(arrow_answers.of_receipts, pa, receipts)
        return await arrow.answer(request, pa, make, status=status)
    return responses.json(receipts[0], status)


def _index(fault: Fault) -> int:
    return fault.index
