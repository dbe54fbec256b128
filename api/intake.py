"""From the bytes of a request to messages: fast when they are right, exact when they are wrong.

The usual request is decoded in one typed pass. Only when that finds something wrong is an array taken
apart, so that the answer can name every bad message and not just the first. Long arrays are worked through
in steps with a breath between them: a large request must not make a due message late.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from api import query
from api.bodies import unreadable
from api.delays import delay_property
from api.problems import RequestError
from api.wire import NewMessage, RawQuery
from timerwheel.errors import AdmissionError, Fault
from timerwheel.message import Outgoing

# Bounds that keep a hostile array from filling the memory before its length is known.
ITEM_BYTES_MIN = len(b'{"topic":""},')
BRACES_PER_MESSAGE = 4
COMMAS_PER_MESSAGE = 100

MESSAGES_PER_BREATH = 1000

Breathe = Callable[[], Awaitable[None]]


class Intake(msgspec.Struct):
    """The messages of an array: the good ones, and what is wrong with the others."""

    good: list[Outgoing]
    good_index: Sequence[int]
    faults: list[Fault]


class _Counted(NewMessage, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A message that stops the decoding of an array when too many of it were made."""

    left: ClassVar[int] = 0

    def __post_init__(self) -> None:
        _Counted.left -= 1
        if _Counted.left < 0:
            raise ValueError("too many")


_decode_one = msgspec.json.Decoder(NewMessage).decode
_decode_many = msgspec.json.Decoder(list[NewMessage]).decode
_decode_counted = msgspec.json.Decoder(list[_Counted]).decode
_decode_raws = msgspec.json.Decoder(list[msgspec.Raw]).decode


_IN_QUERY = frozenset(field.encode_name for field in msgspec.structs.fields(RawQuery))
_NOT_IN_QUERY = frozenset(field.encode_name for field in msgspec.structs.fields(NewMessage)) - _IN_QUERY


class Names(Protocol):
    """What every way to write a message says of its properties."""

    @property
    def tags(self) -> str | UnsetType:
        """The property TAGS."""

    @property
    def keys(self) -> str | list[str] | UnsetType:
        """The property KEYS."""


class Content(Names, Protocol):
    """What messages and schedules say of a message alike."""

    @property
    def body(self) -> str | UnsetType:
        """Text."""

    @property
    def body_base64(self) -> bytes | UnsetType:
        """Bytes."""


def outgoing(new: NewMessage) -> Outgoing:
    """One message in the engine's terms; raises `RequestError` or `AdmissionError`."""
    body = body_of(new) if new.body is UNSET or new.body_base64 is not UNSET else new.body.encode()
    properties = {} if new.properties is UNSET else new.properties
    after_ms, at_ms = new.delay_ms, new.deliver_at_ms
    if (
        not properties
        and (after_ms is UNSET or at_ms is UNSET)
        and new.delay is UNSET
        and new.deliver_at is UNSET
        and new.delay_level is UNSET
    ):
        # The common way, and nothing that could conflict with it.
        keyed = new.dedup_key is not UNSET or new.after_recall is not UNSET
        if not keyed and new.tags is UNSET and new.keys is UNSET:
            after, at = None if after_ms is UNSET else after_ms, None if at_ms is UNSET else at_ms
            return Outgoing(new.topic, body, properties, None, after, at)
        if after_ms is not UNSET:
            properties = {"TIMER_DELAY_MS": str(after_ms)}
        elif at_ms is not UNSET:
            properties = {"TIMER_DELIVER_MS": str(at_ms)}
    elif (when := delay_property(new, properties)) is not None:
        properties[when[0]] = when[1]
    if new.tags is not UNSET or new.keys is not UNSET:
        put_names(properties, new)
    return _keyed(new.topic, body, properties, new)


def raw(topic: str, body: bytes, given: dict[str, str]) -> Outgoing:
    """The message of a raw body: of its query, the fields of a JSON message are those, the rest properties.

    Raises `RequestError` or `AdmissionError`, as `outgoing` does.
    """
    misplaced = sorted(_NOT_IN_QUERY & given.keys())
    if misplaced:
        raise RequestError(
            "invalid_parameter",
            f"{misplaced[0]} cannot be given here: the path holds the topic, the request's body is the "
            "message's, and every other parameter is a property",
        )
    new = query.convert({name: given.pop(name) for name in _IN_QUERY & given.keys()}, RawQuery)
    if (when := delay_property(new, given)) is not None:
        given[when[0]] = when[1]
    put_names(given, new)
    return _keyed(topic, body, given, new)


def _keyed(topic: str, body: bytes, properties: dict[str, str], new: NewMessage | RawQuery) -> Outgoing:
    key = None if new.dedup_key is UNSET else new.dedup_key
    after_recall = None if new.after_recall is UNSET else new.after_recall
    return Outgoing(topic, body, properties, key, after_recall=after_recall)


def body_of(new: Content) -> bytes:
    """The body's bytes; raises `RequestError` conflicting_body."""
    if new.body is not UNSET:
        if new.body_base64 is not UNSET:
            raise RequestError("conflicting_body", "give one of body and body_base64")
        return new.body.encode()
    return b"" if new.body_base64 is UNSET else new.body_base64


def put_names(properties: dict[str, str], new: Names) -> None:
    """Put tags and keys among the properties; raises `RequestError` if they are there already."""
    if new.tags is not UNSET:
        _put(properties, "TAGS", new.tags, "conflicting_tags")
    if new.keys is not UNSET:
        _put(properties, "KEYS", _keys_text(new.keys), "conflicting_keys")


def _put(properties: dict[str, str], name: str, value: str, conflict: str) -> None:
    if name in properties:
        raise RequestError(conflict, f"give {name.lower()} or the property {name}, not both")
    properties[name] = value


def _keys_text(keys: str | list[str]) -> str:
    if isinstance(keys, str):
        return keys
    for key in keys:
        if not key or key.split() != [key]:
            raise RequestError("invalid_field", f"keys: {key!r} is empty or holds white space")
    return " ".join(keys)


def single(body: bytes) -> Outgoing:
    """The one message of a JSON object; raises `RequestError` or `AdmissionError`."""
    try:
        return outgoing(_decode_one(body))
    except (ValueError, RecursionError) as error:
        raise unreadable(error, body) from None


def few(body: bytes, count_max: int) -> list[Outgoing] | None:
    """The messages of a JSON array, None if there are more; raises as `single` does, without saying where."""
    try:
        news = _decode_array(body, count_max)
    except (ValueError, RecursionError) as error:
        raise unreadable(error, body) from None
    return list(map(outgoing, news)) if len(news) <= count_max else None


async def array(body: bytes, count_max: int, breathe: Breathe) -> Intake:
    """The messages of a JSON array; raises `RequestError` if it is no array or too long."""
    try:
        news = _decode_array(body, count_max)
    except (ValueError, RecursionError) as error:
        if not isinstance(error, (msgspec.ValidationError, UnicodeDecodeError)):
            raise unreadable(error, body) from None
        if body.count(b",") > count_max * COMMAS_PER_MESSAGE:
            raise unreadable(error, body) from None  # names the first bad message only
        return await _one_by_one(_raw_items(body), count_max, breathe)
    if len(news) > count_max:
        raise _too_many(count_max)
    good: list[Outgoing] = []
    try:
        for at in range(0, len(news), MESSAGES_PER_BREATH):
            if at:
                await breathe()
            good += map(outgoing, news[at : at + MESSAGES_PER_BREATH])
    except (RequestError, AdmissionError):
        return await _one_by_one(_raw_items(body), count_max, breathe)
    return Intake(good, range(len(good)), [])


async def lines(body: bytes, count_max: int, breathe: Breathe) -> Intake:
    """The messages of newline-delimited JSON; an empty line is no message."""
    if body.count(b"\n") > 2 * count_max:
        raise _too_many(count_max)
    rows = [row for row in body.split(b"\n") if row and not row.isspace()]
    return await _one_by_one(rows, count_max, breathe)


def _decode_array(body: bytes, count_max: int) -> Sequence[NewMessage]:
    if len(body) <= count_max * ITEM_BYTES_MIN or body.count(b"{") <= (count_max * BRACES_PER_MESSAGE):
        return _decode_many(body)
    _Counted.left = count_max
    try:
        return _decode_counted(body)
    except msgspec.ValidationError:
        if _Counted.left < 0:
            raise _too_many(count_max) from None
        raise


def _raw_items(body: bytes) -> list[msgspec.Raw]:
    try:
        return _decode_raws(body)
    except (ValueError, RecursionError) as error:
        raise unreadable(error, body) from None


async def _one_by_one(items: Sequence[msgspec.Raw | bytes], count_max: int, breathe: Breathe) -> Intake:
    if len(items) > count_max:
        raise _too_many(count_max)
    intake = Intake([], good_index := [], [])
    for index, item in enumerate(items):
        if index and index % MESSAGES_PER_BREATH == 0:
            await breathe()
        try:
            intake.good.append(single(bytes(item)))
            good_index.append(index)
        except (RequestError, AdmissionError) as error:
            intake.faults.append(Fault(index, error.code, str(error)))
    return intake


def _too_many(count_max: int) -> RequestError:
    return RequestError("too_many_messages", f"more than messages_per_request_max = {count_max} messages")
