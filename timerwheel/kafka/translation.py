"""What a Kafka record asks for, and what record a message becomes. Pure.

    in Kafka                            in the log                         over HTTP
    TIMER_TOPIC                         the topic, `.` as `%2E`            topic
    DELAY, TIMER_DELAY_SEC,             due time and level                 due_ms, level
      TIMER_DELAY_MS, TIMER_DELIVER_MS
    TIMER_KEY                           the deduplication key              DEDUP_KEY
    the value                           the body; NULL in the envelope     the body; NULL as an empty one
    the key                             the envelope, and __SHARDINGKEY    __SHARDINGKEY; bytes in base64
    a header with a text                the envelope, and a property       a property, the last of its name
    any other header: bytes, NULL, or   the envelope                       not shown
      a name that only the service sets

    a message                             its record in Kafka
    of the inlet                          the key, value and headers that came in
    of HTTP or RocketMQ                   __SHARDINGKEY as the key, the body, a header for each property
    both                                  TIMER_DUE_MS and TIMER_ID besides

A delay counts from when Kafka stored the record, if the topic says so (`message.timestamp.type` is
LogAppendTime); else from when the service takes it, because a timestamp that a client sets may be the time of
an event long ago. Of several headers with one name the last counts, as in Kafka's clients.
"""

from base64 import b64encode
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec
import orjson

from timerwheel.kafka import names
from timerwheel.kafka.envelope import Envelope, Header, text_of
from timerwheel.kafka.names import KafkaTopics
from timerwheel.model.admission import (
    DELAY_PROPERTIES,
    DOMAIN_PROPERTY,
    ENVELOPE_PROPERTY,
    HALF_PROPERTY,
    HASH_PROPERTY,
    KEY_PROPERTY,
    RESERVED_PREFIXES,
    RESERVED_PROPERTIES,
    Rules,
    are_plain,
)
from timerwheel.model.messages import Outgoing
from timerwheel.model.properties import SHARDING_KEY
from timerwheel.store.record import HEADER_SIZE, encode_properties

SHOWN_CHARACTERS: Final = 40
USUAL_HEADERS_MAX: Final = 32
USUAL_NAMES_MAX: Final = 1_024
"""Most characters in the names of a usual record's headers."""
_SHORT_DIGITS: Final = 18
_UTF8_BYTES_MAX: Final = 4
NOT_SHOWN: Final = frozenset({*RESERVED_PROPERTIES, *DELAY_PROPERTIES, HALF_PROPERTY, SHARDING_KEY, ""})
_NOT_SENT: Final = (HASH_PROPERTY, DOMAIN_PROPERTY, ENVELOPE_PROPERTY, KEY_PROPERTY, SHARDING_KEY)


class Taken(NamedTuple):
    """A record that was read from the inlet.

    `headers` is None if they cannot be read; `stored_ms` is when Kafka stored it, if it says so.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] | None
    stored_ms: int | None = None

    @property
    def size_bytes(self) -> int:
        """Count the bytes of key, value and headers."""
        return len(self.key or b"") + len(self.value or b"") + _size_bytes(self.headers or ())

    @property
    def place(self) -> str:
        """Where it is in Kafka."""
        return f"{self.topic}/{self.partition}@{self.offset}"


class Recall(NamedTuple):
    """A record that recalls the message with a key."""

    topic: str
    key: str


class Refusal(NamedTuple):
    """Why a record is refused; a `bare` one is reported without its key, value and headers."""

    code: str
    detail: str
    bare: bool = False


Wanted = Outgoing | Recall | Refusal


class Produced(msgspec.Struct, frozen=True, gc=False):
    """A record to be produced."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[Header]

    @property
    def size_bytes(self) -> int:
        """Count the bytes of key, value and headers."""
        return len(self.key or b"") + len(self.value or b"") + _size_bytes(self.headers)


# ---------------------------------------------------------------------- in


def wanted_of(taken: Taken, topics: KafkaTopics, rules: Rules) -> Wanted:
    """Return what a record asks for. What the engine checks anyway is not checked here."""
    return usual_message(taken, topics, rules) or in_full(taken, topics, rules)


def usual_message(taken: Taken, topics: KafkaTopics, rules: Rules) -> Outgoing | None:
    """Return the message that a usual record asks for; None if only `in_full` can tell.

    A usual record has a target, TIMER_DELAY_MS or TIMER_DELIVER_MS in plain digits, a few headers with texts
    for whose names admission has no rules, and a text or nothing as its key. Reading, admitting and encoding
    it takes 5 µs instead of 11. A property test holds that both store the same.
    """
    headers = taken.headers
    if not headers or len(headers) > USUAL_HEADERS_MAX:
        return None
    names_of = tuple([name for name, _ in headers])
    shape = _shape_of(names_of) if sum(map(len, names_of)) <= USUAL_NAMES_MAX else None
    if shape is None:
        return None
    number = headers[shape.due_at][1] or b""
    topic = _usual_topic(headers[shape.topic_at][1] or b"", topics)
    if topic is None or len(number) > _SHORT_DIGITS or not number.isdigit():
        return None
    kept = [headers[place] for place in shape.kept]
    properties = _usual_properties(taken.key, kept, rules)
    if properties is None:
        return None
    properties[ENVELOPE_PROPERTY] = text_of(taken.key, kept, is_null=taken.value is None)
    plain, body = encode_properties(properties), taken.value or b""
    if shape.is_delay:
        return Outgoing(topic, body, after_ms=int(number), from_ms=taken.stored_ms, plain=plain)
    return Outgoing(topic, body, at_ms=int(number), plain=plain)


class _Shape(NamedTuple):
    """Where a usual record with certain headers has what; `kept` are the headers of the message itself."""

    topic_at: int
    due_at: int
    is_delay: bool
    kept: tuple[int, ...]


@lru_cache(maxsize=256)
def _shape_of(headers: tuple[str, ...]) -> _Shape | None:
    """Return the shape of records with headers of these names; None if they are not usual."""
    own = {name: place for place, name in enumerate(headers) if name in names.OWN_HEADERS}
    kept = tuple(place for place, name in enumerate(headers) if name not in names.OWN_HEADERS)
    texts = [headers[place] for place in kept]
    is_delay = names.DELAY_MS in own
    due = names.DELAY_MS if is_delay else names.DELIVER_MS
    is_usual = own.keys() == {names.TOPIC, due} and are_plain(texts) and NOT_SHOWN.isdisjoint(texts)
    if not is_usual or len(set(headers)) < len(headers):
        return None
    return _Shape(own[names.TOPIC], own[due], is_delay, kept)


def _usual_topic(target: bytes, topics: KafkaTopics) -> str | None:
    """Return the topic of this service for the one that a record names; None if it is refused."""
    return _known_topic(target, topics) if len(target) <= names.NAME_CHARACTERS_MAX else None


@lru_cache(maxsize=1024)
def _known_topic(target: bytes, topics: KafkaTopics) -> str | None:
    try:
        return _topic({names.TOPIC: target.decode("ascii")}, topics)
    except (UnicodeDecodeError, _RefusedError):
        return None


def _usual_properties(key: bytes | None, headers: Sequence[Header], rules: Rules) -> dict[str, str] | None:
    """Return the properties that show a key and headers; None if they are not texts, or near a limit."""
    properties: dict[str, str] = {}
    size_bytes = 0
    try:
        for name, value in headers:
            if value is None:
                return None
            properties[name] = value.decode()
            size_bytes += len(name) * _UTF8_BYTES_MAX + len(value)
        if key is not None:
            properties[SHARDING_KEY] = key.decode()
            size_bytes += len(SHARDING_KEY) + len(key)
    except UnicodeDecodeError:
        return None
    few = len(properties) <= rules.properties_max and size_bytes <= rules.properties_bytes_max
    return properties if few else None


def in_full(taken: Taken, topics: KafkaTopics, rules: Rules) -> Wanted:
    """Return what any record asks for."""
    try:
        read = _readable(taken)
        own = _own_headers(read)
        topic = _topic(own, topics)
        if _recalls(own):
            return Recall(topic, own[names.KEY])
        delays = _delays(own)
        headers = [header for header in read if header[0] not in names.OWN_HEADERS]
        _check_limits(taken.key, headers, rules)
    except _RefusedError as error:
        return error.refusal
    return Outgoing(
        topic,
        taken.value or b"",
        shown(taken.key, headers) | delays,
        dedup_key=own.get(names.KEY),
        from_ms=taken.stored_ms,
        envelope=Envelope(taken.key, headers, taken.value is None).encode(),
    )


class _RefusedError(Exception):
    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.refusal = Refusal(code, detail)


def _readable(taken: Taken) -> Sequence[Header]:
    if taken.headers is None:
        detail = "the name of a header is not UTF-8 text, so none of the headers can be read"
        raise _RefusedError("illegal_header", detail)
    return taken.headers


def _own_headers(headers: Sequence[Header]) -> dict[str, str]:
    """Return the headers for the service, the last of each name; _RefusedError if one is not a text.

    A key may have any letters, as over HTTP. The others have none beyond ASCII.
    """
    last = {name: value for name, value in headers if name in names.OWN_HEADERS}
    found: dict[str, str] = {}
    for name, value in last.items():
        text = None if value is None else _text(value)
        if text is None or not (name == names.KEY or text.isascii()):
            detail = f"header {name} is not a text; write numbers as digits too"
            raise _RefusedError("illegal_header", detail)
        found[name] = text
    return found


def _topic(own: dict[str, str], topics: KafkaTopics) -> str:
    """Return the topic of this service for the one that a record names."""
    target = own.get(names.TOPIC)
    if target is None:
        raise _RefusedError("no_topic", f"header {names.TOPIC} is missing; it names the topic to deliver to")
    if not names.is_kafka_topic(target):
        detail = f"{names.TOPIC} = {target[:SHOWN_CHARACTERS]!r} is not the name of a Kafka topic"
        raise _RefusedError("illegal_topic", detail)
    if topics.is_own(target):
        raise _RefusedError("system_topic", f"{names.TOPIC} = {target} belongs to the service")
    return names.topic_of(target)


def _delays(own: dict[str, str]) -> dict[str, str]:
    found: dict[str, str] = {name: own[name] for name in names.DELAYS if name in own}
    if not found:
        raise _RefusedError("no_delay", f"no delay header; set one of {', '.join(names.DELAYS)}")
    return found


def _recalls(own: dict[str, str]) -> bool:
    recalls = own.get(names.RECALL, "false").lower()
    if recalls not in {"true", "false"}:
        raise _RefusedError("illegal_header", f"header {names.RECALL} is neither true nor false")
    if recalls == "true" and names.KEY not in own:
        raise _RefusedError("no_key", f"header {names.KEY} is missing; it names the message to recall")
    return recalls == "true"


def _check_limits(key: bytes | None, headers: Sequence[Header], rules: Rules) -> None:
    """Raise _RefusedError for more than an HTTP message's properties could hold."""
    if len(headers) > rules.properties_max:
        detail = f"{len(headers)} headers, more than properties_max = {rules.properties_max}"
        raise _RefusedError("too_many_properties", detail)
    size_bytes = len(key or b"") + _size_bytes(headers)
    if size_bytes > rules.properties_bytes_max:
        detail = (
            f"key and headers have {size_bytes} bytes, more than properties_size_max = "
            f"{rules.properties_bytes_max}"
        )
        raise _RefusedError("properties_too_large", detail)


def _size_bytes(headers: Sequence[Header]) -> int:
    size_bytes = 0
    for name, value in headers:
        size_bytes += len(name.encode()) + len(value or b"")
    return size_bytes


def shown(key: bytes | None, headers: Sequence[Header]) -> dict[str, str]:
    """Return the properties that show a key and headers to other protocols, as far as they can."""
    found: dict[str, str] = {}
    for name, value in headers:
        is_hidden = name in NOT_SHOWN or name.startswith(RESERVED_PREFIXES) or not name.isprintable()
        if not is_hidden and value is not None and (text := _text(value)) is not None:
            found[name] = text
    if key is not None:
        text = _text(key)
        found[SHARDING_KEY] = b64encode(key).decode() if text is None else text
    return found


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def rejection_of(taken: Taken, refusal: Refusal, topics: KafkaTopics, rules: Rules) -> Outgoing:
    """Return the message that goes to the topic of rejected records; what is too large of it is left out.

    No limit of messages refuses it: what does not fit into properties is in the envelope alone. It is a
    message as any other: in the log in one unit with the inlet's position, and sent by the outlet.
    """
    why: list[Header] = [
        (names.REJECTED, refusal.code.encode()),
        (names.REASON, refusal.detail.encode()),
        (names.FROM, taken.place.encode()),
    ]
    key, headers, value = taken.key, list(taken.headers or ()), taken.value
    if refusal.bare:
        key, headers, value = None, [], None
    try:
        _check_limits(key, headers, rules)
    except _RefusedError:
        key, headers = None, []
    if value is not None and len(value) > rules.body_bytes_max:
        value = None
    fits = len(why) <= rules.properties_max and _size_bytes(why) <= rules.properties_bytes_max
    return Outgoing(
        names.topic_of(topics.rejected),
        value or b"",
        {name: (text or b"").decode() for name, text in why} if fits else {},
        own=True,
        envelope=Envelope(key, [*headers, *why], value is None).encode(),
    )


# ---------------------------------------------------------------------- out


def produced_of(data: bytes, header: Sequence[int], message_id: str) -> Produced:
    """Return the Kafka record of a delivered message, from its record and the header of that, unpacked."""
    # fmt: off
    (_, _, _, _, _, _, _, _, topic_bytes, _, properties_bytes, body_bytes,
     _, _, _, _, due_ms, _, _) = header
    # fmt: on
    properties_at = HEADER_SIZE + topic_bytes
    body_at = properties_at + properties_bytes
    properties: dict[str, str] = orjson.loads(data[properties_at:body_at]) if properties_bytes else {}
    envelope = Envelope.decode(properties.get(ENVELOPE_PROPERTY, "")) or _envelope_of(properties)
    return Produced(
        names.kafka_topic_of(data[HEADER_SIZE:properties_at].decode()),
        envelope.key,
        None if envelope.is_null else data[body_at : body_at + body_bytes],
        [*envelope.headers, (names.DUE_MS, b"%d" % due_ms), (names.ID, message_id.encode())],
    )


def _envelope_of(properties: dict[str, str]) -> Envelope:
    """Return the envelope of a message of another protocol."""
    key = properties.get(SHARDING_KEY)
    sent = {name: text for name, text in properties.items() if name not in _NOT_SENT}
    return Envelope(
        None if key is None else key.encode(), [(name, text.encode()) for name, text in sent.items()]
    )


def rejected(record: Produced, refusal: Refusal, topics: KafkaTopics, *, whole: bool = True) -> Produced:
    """Return what goes to the topic of rejected records instead; unless `whole`, without key and value."""
    why = [
        (names.TOPIC, record.topic.encode()),
        (names.REJECTED, refusal.code.encode()),
        (names.REASON, refusal.detail.encode()),
    ]
    if whole:
        return Produced(topics.rejected, record.key, record.value, [*record.headers, *why])
    kept = [header for header in record.headers if header[0] in {names.DUE_MS, names.ID}]
    return Produced(topics.rejected, None, None, [*kept, *why])
