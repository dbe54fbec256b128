"""The calls on messages: send, look at, list, recall, reschedule."""

from collections.abc import Sequence
from typing import Literal

import msgspec
import orjson
from aiohttp import web
from msgspec import UNSET

from api import answers, intake, query
from api.delays import DELAY_PROPERTIES, delay_property
from api.gate import Gate
from api.problems import RequestError, refused
from api.wire import Message, MessagePath, NewTime, NoQuery, Pending, PendingQuery, TopicPath
from timerwheel.errors import Fault, RefusedError
from timerwheel.message import Outgoing, Receipt

JsonForm = Literal["json", "lines"]

# curl -d names its data a form; whoever types it means JSON.
FORMS: dict[str, JsonForm] = {
    "": "json",
    "application/json": "json",
    "application/x-www-form-urlencoded": "json",
    "application/x-ndjson": "lines",
}
UTF8 = frozenset({"", "utf-8", "utf8", "us-ascii"})

_decode_time = msgspec.json.Decoder(NewTime).decode


class Messages:
    """Handlers for `/v1/messages` and for sending to a topic. Event loop only."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def send(self, request: web.Request) -> web.Response:
        """POST /v1/messages: 201 once the message, or the whole array, is durable."""
        form = json_form(request)
        if request.rel_url.raw_query_string:
            query.read(request, NoQuery)
        body = await request.read()
        if form == "json" and body[:1] != b"[" and body.lstrip()[:1] != b"[":
            receipts = await self._store([intake.single(body)])
            return answers.json_bytes(orjson.dumps(_accepted(receipts[0])), 201)
        return await self._send_array(body, form)

    async def send_raw(self, request: web.Request) -> web.Response:
        """POST /v1/topics/{topic}/messages: the request's body is the message's, its query the properties."""
        refuse_encoding(request)
        topic = query.path(request, TopicPath).topic
        properties = query.pairs(request)
        receipts = await self._store([Outgoing(topic, await request.read(), properties)])
        return answers.json_bytes(orjson.dumps(_accepted(receipts[0])), 201)

    async def get(self, request: web.Request) -> web.Response:
        """GET /v1/messages/{id}: the message as it stands."""
        query.read(request, NoQuery)
        view = await self._gate.engine.get(query.path(request, MessagePath).id)
        return answers.json(Message.of(view))

    async def pending(self, request: web.Request) -> web.Response:
        """GET /v1/messages: a page of waiting messages in due order."""
        wanted = query.read(request, PendingQuery)
        page = await self._gate.engine.pending(
            topic=None if wanted.topic is UNSET else wanted.topic,
            due_from_ms=None if wanted.due_from_ms is UNSET else wanted.due_from_ms,
            due_to_ms=None if wanted.due_to_ms is UNSET else wanted.due_to_ms,
            limit=wanted.limit,
            cursor=None if wanted.cursor is UNSET else wanted.cursor,
        )
        return answers.json(Pending([Message.of(view) for view in page.messages], page.cursor))

    async def recall(self, request: web.Request) -> web.Response:
        """DELETE /v1/messages/{id}: the message will not be delivered."""
        query.read(request, NoQuery)
        view = await self._gate.engine.recall(query.path(request, MessagePath).id)
        return answers.json(Message.of(view))

    async def reschedule(self, request: web.Request) -> web.Response:
        """PATCH /v1/messages/{id}: another due time under the same id."""
        query.read(request, NoQuery)
        message_id = query.path(request, MessagePath).id
        if json_form(request) == "lines":
            raise RequestError("unsupported_media_type", "send one JSON object")
        properties = new_time(await request.read())
        receipt = await self._gate.engine.reschedule(message_id, properties)
        return answers.json(_accepted(receipt))

    async def _store(self, messages: list[Outgoing]) -> list[Receipt]:
        return await self._gate.engine.send(messages)

    async def _send_array(self, body: bytes, form: JsonForm) -> web.Response:
        engine = self._gate.engine
        count_max = self._gate.settings.messages_per_request_max
        read = intake.lines if form == "lines" else intake.array
        taken = await read(body, count_max, engine.clock.breathe)
        if taken.faults:
            found = [
                Fault(taken.good_index[fault.index], fault.code, fault.detail)
                for fault in engine.check(taken.good)
            ]
            return refused(sorted(taken.faults + found, key=_index), array=True)
        try:
            receipts = await engine.send(taken.good) if taken.good else []
        except RefusedError as error:
            return refused(error.faults, array=True)
        return answers.json_bytes(orjson.dumps(_accepted_all(receipts)), 201)


def json_form(request: web.Request) -> JsonForm:
    """How the body is to be read; raises `RequestError` for a type or encoding that is not taken."""
    refuse_encoding(request)
    given = request.headers.get("Content-Type", "")
    form = FORMS.get(given)
    if form is not None:
        return form
    kind, _, parameters = given.partition(";")
    form = FORMS.get(kind.strip().lower())
    if form is None:
        raise RequestError(
            "unsupported_media_type",
            f"{kind.strip()!r}: send application/json or application/x-ndjson",
        )
    _, _, charset = parameters.partition("charset=")
    if charset.strip().strip('"').lower() not in UTF8:
        raise RequestError("unsupported_media_type", f"charset {charset!r}: JSON is UTF-8")
    return form


def refuse_encoding(request: web.Request) -> None:
    """A compressed body would be stored or parsed as it is, so it is not taken."""
    encoding = request.headers.get("Content-Encoding", "identity")
    if encoding.lower() != "identity":
        raise RequestError("unsupported_encoding", f"{encoding!r}: send the body as it is")


def new_time(body: bytes) -> dict[str, str]:
    """The delay properties of a reschedule; raises `RequestError` or `AdmissionError`."""
    try:
        wanted = _decode_time(body)
    except (ValueError, RecursionError) as error:
        raise intake.unreadable(error, body) from None
    properties = {} if wanted.properties is UNSET else wanted.properties
    for name in properties:
        if name not in DELAY_PROPERTIES:
            raise RequestError("invalid_field", f"properties: {name!r} is not a delay property")
    when = delay_property(wanted, properties)
    if when is not None:
        properties[when[0]] = when[1]
    if not properties:
        raise RequestError("invalid_field", "give one delay field or a delay property")
    return properties


def _accepted(receipt: Receipt) -> dict[str, object]:
    return {
        "id": receipt.id,
        "topic": receipt.topic,
        "due_ms": receipt.due_ms,
        "state": receipt.state,
    }


def _accepted_all(receipts: Sequence[Receipt]) -> list[dict[str, object]]:
    return [{"id": r.id, "topic": r.topic, "due_ms": r.due_ms, "state": r.state} for r in receipts]


def _index(fault: Fault) -> int:
    return fault.index
