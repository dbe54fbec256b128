"""Sends through a node in front of shards: which shard the messages of a request go to.

    one message        to the shard of its topic
    an array, lines    to one shard as one durable unit, if all topics are there; else it is refused, or with
                       `atomic=false` each shard stores its part as a unit of its own
    an Arrow stream    as an array, but never split

What cannot be read goes to a shard as it is, which says what is wrong with it.
"""

import asyncio
import re
from collections.abc import Iterable, Sequence
from typing import TypeVar

import msgspec
from aiohttp import hdrs, web

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.http import bodies, query, responses
from timerwheel.api.http.json_steps import DIRECT_BYTES, Text, check_values
from timerwheel.api.http.problems import RequestError
from timerwheel.api.http.responses import REQUEST_ID_HEADER
from timerwheel.api.http.route import Handler, Route
from timerwheel.api.messages import arrow_intake, intake
from timerwheel.api.messages.arrow_sends import ArrowSends
from timerwheel.api.messages.intake import Bounds
from timerwheel.clock import Clock
from timerwheel.errors import Fault, NotReadyError, OutcomeUnknownError
from timerwheel.model.shards import shard_of_topic
from timerwheel.shards.forwarder import Answer, Call, Forwarder, headers_for_shard
from timerwheel.wire.messages import Accepted, SendQuery, SentPart

OK_MAX = 299
CREATED = 201
MULTI_STATUS = 207
PER_BREATH = 1_000


_match_space = re.compile(rb"[ \t\n\r]*").match


class Place(msgspec.Struct):
    """What of a JSON object says where it goes: strings, since objects and arrays would be built."""

    topic: str | None = None

    @property
    def home(self) -> str | None:
        """The name by which the shard is found."""
        return self.topic


class _Problem(msgspec.Struct):
    code: str = "internal"
    detail: str = ""
    errors: list[Fault] = []


_one = msgspec.json.Decoder(Place)
_many = msgspec.json.Decoder(list[Place])
_raw = msgspec.json.Decoder(msgspec.Raw)
_raw_array = msgspec.json.Decoder(list[msgspec.Raw])
AnyPlace = TypeVar("AnyPlace", bound=Place)


class Sends:
    """See the module. Belongs to the event loop."""

    def __init__(self, handle: EngineHandle, forwarder: Forwarder, clock: Clock) -> None:
        self._forwarder = forwarder
        self._clock = clock
        self._count = forwarder.leaders.count
        self.count_max = handle.settings.messages_per_request_max
        self._bounds = Bounds.of(handle.settings)
        self._arrow = ArrowSends(handle)

    def shard_of(self, topic: str | None) -> int:
        """Return the shard for a topic of a request; that of one without shard refuses it."""
        return (None if topic is None else shard_of_topic(topic, self._count)) or 0

    async def read(self, body: bytes | bytearray, kind: type[AnyPlace]) -> AnyPlace:
        """Return what of a JSON object says where it goes, the defaults if it cannot be read.

        All that a shard takes can be read here. Nothing else in the object is built, however large it is.
        """
        try:
            if len(body) > DIRECT_BYTES:
                await check_values(body, self._bounds.values_max, self._clock.breathe)
            return msgspec.json.decode(body, type=kind)
        except (ValueError, RecursionError, RequestError):
            return kind()

    async def _shard_of_one(self, body: bytes | bytearray) -> int:
        return self.shard_of((await self.read(body, Place)).topic)

    def of_one(self, route: Route) -> Handler:
        """Return what passes on a call whose body names a topic."""

        async def answer(request: web.Request) -> web.StreamResponse:
            body = await bodies.whole(request)
            return await self._pass_on(request, await self._shard_of_one(body), body)

        del route
        return answer

    def messages(self, route: Route) -> Handler:
        """Return what passes on sends."""

        async def answer(request: web.Request) -> web.StreamResponse:
            wanted = query.read(request, SendQuery) if request.rel_url.raw_query_string else SendQuery()
            form = bodies.form_of_messages(request)
            if form == "arrow":
                return await self._arrow_stream(request)
            body = await bodies.whole(request)
            if form == "json" and _begins_object(body):
                return await self._pass_on(request, await self._shard_of_one(body), body)
            if not wanted.atomic:
                return await self._split(request, body, form)
            shards = {self.shard_of(topic) for topic in await self._topics(body, form)}
            if len(shards) > 1:
                raise _several(shards)
            return await self._pass_on(request, next(iter(shards), 0), body)

        del route
        return answer

    async def _pass_on(self, request: web.Request, shard: int, body: bytes | bytearray) -> web.StreamResponse:
        is_plain = REQUEST_ID_HEADER not in request.headers
        headers = headers_for_shard(request.headers)
        call = Call(request.method, request.rel_url.raw_path_qs, headers, body, is_plain=is_plain)
        return await self._forwarder.pass_on(request, shard, call)

    async def _topics(self, body: bytes | bytearray, form: str) -> Iterable[str]:
        """Return the topics that a body names, or none if it cannot be read."""
        if len(body) > DIRECT_BYTES:  # in steps: it would hold up everybody else
            read = intake.lines if form == "lines" else intake.array
            try:
                taken = await read(body, self.count_max, self._bounds, self._clock.breathe)
            except RequestError:
                return []
            return {message.topic for message in taken.good}
        try:
            found = _one.decode_lines(body) if form == "lines" else _many.decode(body)
        except (ValueError, RecursionError):  # something in it is not a message; the others have their shards
            return await self._topics_of_messages(body, form)
        return {one.topic for one in found if one.topic is not None}

    async def _topics_of_messages(self, body: bytes | bytearray, form: str) -> Iterable[str]:
        """Return the topics of what is a message in a body; none if it cannot be read at all."""
        try:
            raws = raws_of(body, form)
        except (ValueError, RecursionError):
            return []
        found: set[str] = set()
        for place, raw in enumerate(raws):
            if place % PER_BREATH == PER_BREATH - 1:
                await self._clock.breathe()
            if (topic := _topic_in(raw)) is not None:
                found.add(topic)
        return found

    async def _arrow_stream(self, request: web.Request) -> web.StreamResponse:
        rows = await self._arrow.rows(request)
        topics: Iterable[str]
        if rows.columns is None:
            each = await arrow_intake.take_each(rows, self._clock.breathe)
            topics = [message.topic for message in each.good]
        else:
            topics = (await arrow_intake.take(rows, self._clock.breathe)).good.used_topics()
        shards = {self.shard_of(topic) for topic in topics}
        if len(shards) > 1:
            raise _several(shards)
        return await self._pass_on(request, next(iter(shards), 0), await bodies.whole(request))

    # ------------------------------------------------------------------ in parts

    async def _split(self, request: web.Request, body: bytes | bytearray, form: str) -> web.StreamResponse:
        """Let each shard store its part; the answer has one item for each message, in order.

        If no more than one shard is named, it gets the body as it is.
        """
        try:
            raws = await self._each(body, form)
        except (ValueError, RecursionError, RequestError):
            return await self._pass_on(request, 0, body)
        if len(raws) > self.count_max:
            detail = f"more than messages_per_request_max = {self.count_max} messages"
            raise RequestError("too_many_messages", detail)
        places: dict[int, list[int]] = {}
        shards: set[int] = set()
        for place, raw in enumerate(raws):
            if place % PER_BREATH == PER_BREATH - 1:
                await self._clock.breathe()
            topic = _topic_in(raw)
            shard = self.shard_of(topic)
            places.setdefault(shard, []).append(place)
            if topic is not None:
                shards.add(shard)
        if len(shards) <= 1:
            return await self._pass_on(request, next(iter(shards), 0), body)
        headers = headers_for_shard(request.headers)
        headers[hdrs.CONTENT_TYPE] = "application/json"
        headers[hdrs.ACCEPT_ENCODING], headers[hdrs.ACCEPT] = "identity", "application/json"
        parts = {
            shard: Call(
                request.method,
                request.rel_url.raw_path,
                headers,
                b"[%b]" % b",".join(bytes(raws[place]) for place in own),
            )
            for shard, own in places.items()
        }
        found = await asyncio.gather(*(self._part(shard, call) for shard, call in parts.items()))
        return self._whole(len(raws), list(zip(places.values(), found, strict=True)))

    async def _each(self, body: bytes | bytearray, form: str) -> Sequence[Text | msgspec.Raw]:
        """Return the JSON of each message; ValueError, RecursionError and RequestError."""
        if len(body) <= DIRECT_BYTES:
            return raws_of(body, form)
        read = intake.lines if form == "lines" else intake.array
        taken = await read(body, self.count_max, self._bounds, self._clock.breathe, with_texts=True)
        assert taken.texts is not None
        return taken.texts

    async def _part(self, shard: int, call: Call) -> Answer | SentPart:
        try:
            return await self._forwarder.ask(shard, call)
        except (NotReadyError, OutcomeUnknownError) as error:
            return SentPart(code=error.code, detail=str(error))

    def _whole(self, count: int, parts: Sequence[tuple[list[int], Answer | SentPart]]) -> web.StreamResponse:
        items: list[Accepted | SentPart | None] = [None] * count
        statuses: set[int] = set()
        for places, answer in parts:
            if isinstance(answer, SentPart):
                statuses.add(MULTI_STATUS)
                for place in places:
                    items[place] = answer
            elif answer.status > OK_MAX:
                statuses.add(MULTI_STATUS)
                for place, refused in zip(places, _refused(answer, places), strict=True):
                    items[place] = refused
            else:
                statuses.add(answer.status)
                stored = msgspec.json.decode(answer.body, type=list[Accepted])
                for place, one in zip(places, stored, strict=True):
                    items[place] = one
        status = MULTI_STATUS if MULTI_STATUS in statuses else max(statuses, default=CREATED)
        return responses.json(items, status)


def _refused(answer: Answer, places: Sequence[int]) -> list[SentPart]:
    """Return the item of each message of a part that was not stored, at these places of the array."""
    wrong = msgspec.json.decode(answer.body, type=_Problem)
    if not wrong.errors:
        return [SentPart(code=wrong.code, detail=wrong.detail)] * len(places)
    # The shard counts the messages of its part, the client those of the array.
    wrong_at = {fault.index: fault for fault in wrong.errors}
    named = ", ".join(str(places[index]) for index in wrong_at)
    others = SentPart(
        code=wrong.code, detail=f"it was not stored, since its shard refused others of the array: {named}"
    )
    own = {
        index: SentPart(code=wrong.code, detail=f"{fault.code}: {fault.detail}")
        for index, fault in wrong_at.items()
    }
    return [own.get(index, others) for index in range(len(places))]


def raws_of(body: bytes | bytearray, form: str) -> list[msgspec.Raw]:
    """Return the messages of an array, or of lines; ValueError and RecursionError."""
    return _raw.decode_lines(body) if form == "lines" else _raw_array.decode(body)


def _topic_in(raw: Text | msgspec.Raw) -> str | None:
    """Return the topic of one message of an array; None if it is not a message."""
    try:
        return _one.decode(raw).topic
    except (ValueError, RecursionError):
        return None


def _begins_object(body: bytes | bytearray) -> bool:
    """Whether the first character that is not white space is that of an object."""
    found = _match_space(body)
    assert found is not None
    return body[found.end() : found.end() + 1] == b"{"


def _several(shards: set[int]) -> RequestError:
    named = ", ".join(map(str, sorted(shards)))
    return RequestError(
        "several_shards",
        f"nothing was stored: the topics of these messages are in the shards {named}, which cannot store "
        "them as one unit; send those of each shard by themselves, or all of them with ?atomic=false",
    )
