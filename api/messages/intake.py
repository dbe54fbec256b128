"""From the bytes of a request to messages: fast when they are right, exact when they are wrong.

The usual request is decoded in one typed pass. Only when that finds something wrong is each message of an
array decoded by itself, so that the answer can name every bad message and not just the first. Long arrays are
worked through in steps with a breath between them: a large request must not make a due message late. What is
larger than DIRECT_BYTES is cut into parts before it is decoded, or its values are counted
(`timerwheel.api.http.json_steps`).
"""

from typing import NamedTuple

import msgspec
from msgspec import UNSET

from timerwheel.api.http import query
from timerwheel.api.http.bodies import JSON_BODY_VALUES_MAX, unreadable
from timerwheel.api.http.json_steps import (
    DIRECT_BYTES,
    Breathe,
    Text,
    after_space,
    check_values,
    end_of_object,
    last_edge,
)
from timerwheel.api.http.json_value import compact, exact_number
from timerwheel.api.http.problems import RequestError
from timerwheel.api.messages.delays import delay_property
from timerwheel.errors import AdmissionError, Fault
from timerwheel.model.durations import parse_delay_ms
from timerwheel.model.limits import ATTEMPTS_MAX, ATTEMPTS_PROPERTY, TTL_MS_MAX, TTL_PROPERTY
from timerwheel.model.messages import Outgoing
from timerwheel.model.properties import KEYS, TAGS
from timerwheel.push.request import CONTENT_TYPE_PROPERTY
from timerwheel.settings import Settings
from timerwheel.wire.messages import NewMessage, RawQuery
from timerwheel.wire.schedules import NewSchedule
from timerwheel.wire.tasks import NewTask

MESSAGES_PER_BREATH = 1000
OBJECTS_PER_BREATH = 100  # of those that are cut out one by one
LINES_PER_MESSAGE = 2  # empty ones count, too

# JSON may take more bytes than what it stands for: a character beyond ASCII three times as many as in UTF-8.
ESCAPED_TIMES = 3
SPARE_BYTES = 1 << 16  # for names of fields and white space
SPARE_VALUES = 64


class Bounds(NamedTuple):
    """Limits on the JSON of one message: bytes, and values as `json_steps.check_values` counts them."""

    bytes_max: int
    values_max: int

    @classmethod
    def of(cls, settings: Settings) -> "Bounds":
        """Enough for every message that these settings allow."""
        size_bytes = settings.body_bytes_max + settings.properties_bytes_max
        # Each property has a comma and a colon, and each of the keys, of which all are one property, a comma.
        values = 2 * settings.properties_max + settings.properties_bytes_max // 2
        values_max = max(values + SPARE_VALUES, JSON_BODY_VALUES_MAX)
        return cls(ESCAPED_TIMES * size_bytes + SPARE_BYTES, values_max)


class Intake(msgspec.Struct):
    """The messages of an array: the good ones, and what is wrong with the others."""

    good: list[Outgoing]
    good_index: list[int]
    faults: list[Fault]
    texts: list[Text | msgspec.Raw] | None = None
    """The JSON of each message, if that was asked for."""


_decode_one = msgspec.json.Decoder(NewMessage, float_hook=exact_number).decode
_decode_many = msgspec.json.Decoder(list[NewMessage], float_hook=exact_number).decode
_decode_raws = msgspec.json.Decoder(list[msgspec.Raw]).decode


_IN_QUERY = frozenset(field.encode_name for field in msgspec.structs.fields(RawQuery))
_NOT_IN_QUERY = (
    frozenset(field.encode_name for field in msgspec.structs.fields(NewMessage))
    - _IN_QUERY
    - {"queue", "json"}  # these name properties, as they did before messages in JSON had the fields
)


def outgoing(new: NewMessage) -> Outgoing:
    """One message in the engine's terms; raises `RequestError` or `AdmissionError`."""
    body = body_of(new) if new.body is UNSET or new.body_base64 is not UNSET else new.body.encode()
    properties = {} if new.properties is UNSET else new.properties
    if new.json is not UNSET:
        body = put_json(properties, new)
    after_ms, at_ms = new.delay_ms, new.deliver_at_ms
    if (
        not properties
        and (after_ms is UNSET or at_ms is UNSET)
        and new.delay is UNSET
        and new.deliver_at is UNSET
        and new.delay_level is UNSET
    ):
        # The common way, and nothing that could conflict with it.
        keyed = new.dedup_key is not UNSET or new.after_recall is not UNSET or new.on_duplicate is not UNSET
        limited = new.ttl_ms is not UNSET or new.ttl is not UNSET or new.max_attempts is not UNSET
        if not keyed and not limited and new.tags is UNSET and new.keys is UNSET:
            after, at = None if after_ms is UNSET else after_ms, None if at_ms is UNSET else at_ms
            queue = None if new.queue is UNSET else new.queue
            return Outgoing(new.topic, body, properties, None, after, at, queue=queue)
        if after_ms is not UNSET:
            properties = {"TIMER_DELAY_MS": str(after_ms)}
        elif at_ms is not UNSET:
            properties = {"TIMER_DELIVER_MS": str(at_ms)}
    elif (when := delay_property(new, properties)) is not None:
        properties[when[0]] = when[1]
    if new.tags is not UNSET or new.keys is not UNSET:
        put_names(properties, new)
    put_limits(properties, new)
    queue = None if new.queue is UNSET else new.queue
    return _keyed(new.topic, body, properties, new, queue)


def raw(topic: str, body: bytes, given: dict[str, str]) -> Outgoing:
    """The message of a raw body: of its query, the fields of a JSON message are those, the rest properties.

    Raises `RequestError` or `AdmissionError`, as `outgoing` does.
    """
    misplaced = sorted(_NOT_IN_QUERY & given.keys())
    if misplaced:
        raise RequestError(
            "invalid_parameter",
            (
                f"{misplaced[0]} cannot be given here: the topic is in the path, the request's body is "
                "the message's body, and every other parameter is a property"
            ),
        )
    new = query.convert({name: given.pop(name) for name in _IN_QUERY & given.keys()}, RawQuery)
    if (when := delay_property(new, given)) is not None:
        given[when[0]] = when[1]
    put_names(given, new)
    put_limits(given, new)
    return _keyed(topic, body, given, new)


def _keyed(
    topic: str,
    body: bytes,
    properties: dict[str, str],
    new: NewMessage | RawQuery,
    queue: int | None = None,
) -> Outgoing:
    key = None if new.dedup_key is UNSET else new.dedup_key
    after_recall = None if new.after_recall is UNSET else new.after_recall
    replaces = new.on_duplicate == "replace"
    return Outgoing(topic, body, properties, key, after_recall=after_recall, queue=queue, replaces=replaces)


def body_with_type(properties: dict[str, str], new: NewMessage | NewSchedule | NewTask) -> bytes:
    """Return the body's bytes; one in `json` puts its type among the properties. Raises `RequestError`."""
    return body_of(new) if new.json is UNSET else put_json(properties, new)


def body_of(new: NewMessage | NewSchedule | NewTask) -> bytes:
    """Return the body's bytes; raises `RequestError` conflicting_body."""
    if new.body is not UNSET:
        if new.body_base64 is not UNSET:
            raise RequestError("conflicting_body", "give only one of body and body_base64")
        return new.body.encode()
    return b"" if new.body_base64 is UNSET else new.body_base64


def put_json(properties: dict[str, str], new: NewMessage | NewSchedule | NewTask) -> bytes:
    """Return the value in `json` as a body, and put its type among the properties if they have none.

    Raises `RequestError` conflicting_body, and invalid_field for a value that cannot be stored.
    """
    if new.body is not UNSET or new.body_base64 is not UNSET:
        raise RequestError("conflicting_body", "give only one of body, body_base64 and json")
    properties.setdefault(CONTENT_TYPE_PROPERTY, "application/json")
    return compact(new.json)


def put_names(properties: dict[str, str], new: NewMessage | NewSchedule | RawQuery) -> None:
    """Put tags and keys among the properties; raises `RequestError` if they are there already."""
    if new.tags is not UNSET:
        _put(properties, TAGS, new.tags, "conflicting_tags")
    if new.keys is not UNSET:
        _put(properties, KEYS, _keys_text(new.keys), "conflicting_keys")


def put_limits(properties: dict[str, str], new: NewMessage | RawQuery) -> None:
    """Put the TTL and the number of attempts among the properties; raises `RequestError` invalid_field."""
    if new.ttl is not UNSET:
        if new.ttl_ms is not UNSET:
            raise RequestError("invalid_field", "give only one of ttl and ttl_ms")
        try:
            ttl_ms = parse_delay_ms(new.ttl)
        except AdmissionError as error:
            raise RequestError("invalid_field", f"ttl: {error.detail}") from None
        _put(properties, TTL_PROPERTY, str(ttl_ms), "invalid_field")
    elif new.ttl_ms is not UNSET:
        _check_range("ttl_ms", new.ttl_ms, TTL_MS_MAX)
        _put(properties, TTL_PROPERTY, str(new.ttl_ms), "invalid_field")
    if new.max_attempts is not UNSET:
        _check_range("max_attempts", new.max_attempts, ATTEMPTS_MAX)
        _put(properties, ATTEMPTS_PROPERTY, str(new.max_attempts), "invalid_field")


def _check_range(field: str, value: int, most: int) -> None:
    """Raise `RequestError` for a number of a column; those of JSON and queries were checked before."""
    if not 1 <= value <= most:
        raise RequestError("invalid_field", f"{field} = {value}: must be from 1 to {most}")


_FIELDS = {TAGS: "tags", KEYS: "keys", TTL_PROPERTY: "ttl", ATTEMPTS_PROPERTY: "max_attempts"}


def _put(properties: dict[str, str], name: str, value: str, conflict: str) -> None:
    if name in properties:
        raise RequestError(conflict, f"give either {_FIELDS[name]} or the property {name}, not both")
    properties[name] = value


def _keys_text(keys: str | list[str]) -> str:
    if isinstance(keys, str):
        return keys
    for key in keys:
        if not key or key.split() != [key]:
            raise RequestError("invalid_field", f"keys: {key!r} is empty or contains white space")
    return " ".join(keys)


def single(body: bytes) -> Outgoing:
    """The one message of a JSON object; raises `RequestError` or `AdmissionError`."""
    try:
        return outgoing(_decode_one(body))
    except (ValueError, RecursionError) as error:
        raise unreadable(error, body, NewMessage) from None


def few(body: bytes, count_max: int) -> list[Outgoing] | None:
    """The messages of a JSON array, None if there are more; raises as `single` does, without saying where."""
    try:
        news = _decode_many(body)
    except (ValueError, RecursionError) as error:
        raise unreadable(error, body, NewMessage) from None
    return list(map(outgoing, news)) if len(news) <= count_max else None


async def single_in_steps(body: Text, bounds: Bounds, breathe: Breathe) -> Outgoing:
    """Like `single`, for a body of any size; also raises `RequestError` for a body that is too large."""
    if len(body) > DIRECT_BYTES:
        if len(body) > bounds.bytes_max:
            raise RequestError(
                "body_too_large",
                (
                    f"the message's JSON has {len(body)} bytes, more than {bounds.bytes_max} "
                    f"({ESCAPED_TIMES} times body_size_max and properties_size_max); send the body raw"
                ),
            )
        await check_values(body, bounds.values_max, breathe)
    return single(bytes(body))


async def array(
    body: Text, count_max: int, bounds: Bounds, breathe: Breathe, *, with_texts: bool = False
) -> Intake:
    """The messages of a JSON array; raises `RequestError` if it is not an array or is too long."""
    parts = _Parts(_nothing(with_texts=with_texts), count_max, bounds, breathe)
    if len(body) <= DIRECT_BYTES:
        try:
            await parts.take(bytes(body))
        except (ValueError, RecursionError) as error:
            raise unreadable(error, bytes(body), NewMessage) from None
        return parts.intake
    at = await after_space(body, await after_space(body, 0, breathe) + 1, breathe)
    while edge := last_edge(body, at):
        try:
            await parts.take(b"[%b]" % bytes(body[at : edge[0]]))
        except (ValueError, RecursionError):
            break  # what seemed to be an edge was none, or the JSON is malformed
        at = edge[1]
        await breathe()
    await _take_objects(body, at, parts, bounds, breathe)
    return parts.intake


async def _take_objects(body: Text, at: int, parts: "_Parts", bounds: Bounds, breathe: Breathe) -> None:
    """Take the objects of an array one by one, to the end of the body."""
    while True:
        at = await after_space(body, at, breathe)
        where = f"message {parts.count}"
        if body[at : at + 1] != b"{":
            raise RequestError("invalid_field", f"{where}: Expected `object`")
        end = await end_of_object(body, at, bounds.bytes_max, breathe)
        if end is None and len(body) - at > bounds.bytes_max:
            raise RequestError("body_too_large", f"{where}: its JSON has more than {bounds.bytes_max} bytes")
        if end is None:
            raise RequestError("malformed_json", f"the JSON ends inside {where}")
        await parts.take_one(body[at:end])
        at = await after_space(body, end, breathe)
        if body[at : at + 1] == b"]":
            break
        if body[at : at + 1] != b",":
            raise RequestError("malformed_json", f"expected `,` or `]` after {where} (byte {at})")
        at += 1
        if parts.count % OBJECTS_PER_BREATH == 0:
            await breathe()
    if await after_space(body, at + 1, breathe) < len(body):
        raise RequestError("malformed_json", f"unexpected data after the array (byte {at + 1})")


class _Parts:
    """Takes an array in parts; the faults of all are kept."""

    def __init__(self, intake: Intake, count_max: int, bounds: Bounds, breathe: Breathe) -> None:
        self.intake = intake
        self.count = 0
        self._count_max = count_max
        self._bounds = bounds
        self._breathe = breathe

    async def take(self, part: bytes) -> None:
        """The messages of an array of up to about DIRECT_BYTES.

        Raises ValueError and RecursionError, and then none is taken; `RequestError` if there are too many.
        """
        try:
            news = _decode_many(part)
        except (msgspec.ValidationError, UnicodeDecodeError):
            await self._take_each(part)
            return
        self._check(len(news))
        good: list[Outgoing] = []
        try:
            for at in range(0, len(news), MESSAGES_PER_BREATH):
                if at:
                    await self._breathe()
                good += map(outgoing, news[at : at + MESSAGES_PER_BREATH])
        except (RequestError, AdmissionError):
            await self._take_each(part)
            return
        if self.intake.texts is not None:
            self.intake.texts += _decode_raws(part)
        self.intake.good += good
        self.intake.good_index += range(self.count, self.count + len(good))
        self.count += len(good)

    async def _take_each(self, part: bytes) -> None:
        items = _decode_raws(part)
        self._check(len(items))
        for place, item in enumerate(items):
            if place and place % MESSAGES_PER_BREATH == 0:
                await self._breathe()
            await self.take_one(bytes(item))

    async def take_one(self, item: Text) -> None:
        """One message of any size."""
        self._check(1)
        if self.intake.texts is not None:
            self.intake.texts.append(item)
        try:
            self.intake.good.append(await single_in_steps(item, self._bounds, self._breathe))
            self.intake.good_index.append(self.count)
        except (RequestError, AdmissionError) as error:
            self.intake.faults.append(Fault(self.count, error.code, str(error)))
        self.count += 1

    def _check(self, more: int) -> None:
        if self.count + more > self._count_max:
            raise _too_many(self._count_max)


async def lines(
    body: Text, count_max: int, bounds: Bounds, breathe: Breathe, *, with_texts: bool = False
) -> Intake:
    """Return the messages of newline-delimited JSON; skips empty lines."""
    parts = _Parts(_nothing(with_texts=with_texts), count_max, bounds, breathe)
    at, looked_at = 0, 0
    for number in range(1, LINES_PER_MESSAGE * count_max + 2):
        end = body.find(b"\n", at)
        row = body[at:] if end < 0 else body[at:end]
        if row and not row.isspace():
            await parts.take_one(row)
        if end < 0:
            return parts.intake
        at = end + 1
        if number % OBJECTS_PER_BREATH == 0 or at - looked_at > DIRECT_BYTES:
            looked_at = at
            await breathe()
    raise _too_many(count_max)


def _nothing(*, with_texts: bool) -> Intake:
    return Intake([], [], [], [] if with_texts else None)


def _too_many(count_max: int) -> RequestError:
    return RequestError("too_many_messages", f"more than messages_per_request_max = {count_max} messages")
