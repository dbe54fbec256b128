"""What a message is over remoting and over HTTP: which properties go in, and what comes out. Pure.

    over remoting                               in the log                        over HTTP
    DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS,     due time and level                due_ms, level
      TIMER_DELIVER_MS, __STARTDELIVERTIME
    a body compressed with zlib                 the plain body                    the plain body
    born time and host, flag, system flag,      the envelope, a hidden property   not shown
      times consumed before
    names that only the service sets:           left out                          refused
      REAL_TOPIC, TIMER_OUT_MS, DLQ_..., DEDUP_...
    TRAN_MSG, PGROUP of a half message          a bit of the envelope, PGROUP     PGROUP
    names that a client sets for itself:        left out                          kept
      WAIT, MIN_OFFSET, MAX_OFFSET, POP_CK, ...
    names that RocketMQ's broker sets:          left out; shown with each         kept
      MSG_REGION, TRACE_ON                        message over remoting
    UNIQ_KEY, KEYS, TAGS, all others            properties                        properties

A consumer sees the delay of a delivered message again: DELAY with the level, if a level set the time, and
TIMER_OUT_MS, REAL_TOPIC and REAL_QID for each message that waited. A committed message shows TRAN_MSG,
without which a consumer gives it no transaction id, and its system flag says that it was committed. A
message without UNIQ_KEY gets the service's id as such, so its message id over remoting is the id over HTTP.
Names that only the service sets are left out, not refused, because clients send messages on with all the
properties that they received.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec
import orjson

from timerwheel.model.admission import (
    DEAD_PREFIX,
    ENVELOPE_PROPERTY,
    HALF_DUE_MS,
    HALF_PROPERTY,
    RESERVED_PREFIXES,
    RESERVED_PROPERTIES,
    RETRY_PREFIX,
    Rules,
    are_plain,
)
from timerwheel.model.ids import root_of
from timerwheel.model.messages import MessageView
from timerwheel.rocketmq import properties_text, stored_message
from timerwheel.rocketmq.codes import (
    SYS_COMMIT,
    SYS_COMPRESSED,
    SYS_COMPRESSION_TYPE,
    SYS_PREPARED,
    SYS_TRANSACTION,
)
from timerwheel.rocketmq.properties_text import TEXT_BYTES_MAX
from timerwheel.rocketmq.stored_message import (
    PACKED_IPV4_BYTES,
    SHORT_TOPIC_BYTES_MAX,
    Host,
    StoredMessage,
    encode_plain,
    short_topic,
)
from timerwheel.store.record import HEADER_SIZE, NO_OFFSET, Header, Kind, Record, unpack_header

UNIQ_KEY: Final = "UNIQ_KEY"
PRODUCER_GROUP: Final = "PGROUP"
OWN_OF_CLIENTS: Final = frozenset(
    {"WAIT", "MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME", "POP_CK", "1ST_POP_TIME", "CLUSTER"}
)
OF_THE_BROKER: Final = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
"""What RocketMQ's broker adds to each message. Consumers of version 5 trace no message without a region."""
LEFT_OUT: Final = OWN_OF_CLIENTS | OF_THE_BROKER.keys() | RESERVED_PROPERTIES
BORN_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999: later times do not fit a Timestamp of gRPC, and its clients refuse them."""
_is_below_zero = re.compile("-[0-9]{1,10}").fullmatch
HIDDEN: Final = ("DEDUP_HASH", "DEDUP_DOMAIN", ENVELOPE_PROPERTY)
"""Properties of the log that no client sees."""
_ENVELOPE_MARK = f"\x02{ENVELOPE_PROPERTY}\x01".encode()
"""What stands before the text of the envelope. Without its first byte, other names could end like this."""
_UNIQ_KEY_MARK = f'"{UNIQ_KEY}":"'.encode()
_UNUSUAL_MARKS = (b'"DEDUP_', *(f'"{name}":"'.encode() for name in OF_THE_BROKER))
_OF_THE_BROKER_TEXT = properties_text.encode(OF_THE_BROKER)
_TOPIC_LEN, _PROPERTIES_LEN = Header._fields.index("topic_len"), Header._fields.index("properties_len")
_DEFAULTS = ("0", "0", "0", "")
NOTHING_MORE: Final[Mapping[str, str]] = {}
_UNKNOWN_HOST = Host("127.0.0.1", 0)
_PLAIN_BYTES_MAX = 4_096
_SAME_IN_JSON = bytes({1, 2, *range(0x20, 0x7F)} - set(b'"\\'))
"""The marks, and all characters of ASCII that JSON does not escape."""
_TEXT_END = b"\x03"
"""Separates texts that are processed together."""
_OF_VIEWS: Final = frozenset({"TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES"})
"""Properties that the service adds to a delivered message that waited, and that RocketMQ does not show."""


class Envelope(NamedTuple):
    """What remoting has beside properties: the hidden property ENVELOPE_PROPERTY, as text.

    The text is `born_ms address port flag sys_flag consumed_before first_id`; what is 0 or empty at its end
    is left out, and a `born_ms` after BORN_MS_MAX is written as that. In a copy that is a retry, `first_id`
    is the service's id of the message that was sent.
    """

    born_ms: int
    born_host: Host
    flag: int = 0
    sys_flag: int = 0
    consumed_before: int = 0
    first_id: str = ""

    def encode(self) -> str:
        """Return the text."""
        born_ms, (address, port), flag, sys_flag, consumed_before, first_id = self
        born_ms = min(born_ms, BORN_MS_MAX)
        sys_flag &= ~(SYS_COMPRESSED | SYS_COMPRESSION_TYPE)
        rest = [flag, sys_flag, consumed_before, first_id]
        while rest and not rest[-1]:
            rest.pop()
        plain = f"{born_ms} {address} {port}"
        return " ".join((plain, *map(str, rest))) if rest else plain

    @classmethod
    def of(cls, text: str) -> "Envelope | None":
        """Return the envelope in the text of a property; None for no text, or for another protocol's."""
        return cls.decode(text) if text[:1].isdecimal() else None

    @classmethod
    def decode(cls, text: str) -> "Envelope":
        """Return the envelope in a text that `encode` returned."""
        born_ms, address, port, *rest = text.split(" ")
        flag, sys_flag, consumed_before, first_id, *_ = *rest, *_DEFAULTS[len(rest) :]
        host = Host(address, int(port))
        return cls(int(born_ms), host, int(flag), int(sys_flag), int(consumed_before), first_id)


class Plain(NamedTuple):
    """Properties of messages as the log stores them, with the envelope, and the UNIQ_KEY of the first."""

    stored: list[bytes]
    uniq_key: str


class _Shape(NamedTuple):
    """The names in a text of properties, in order. Nearly all messages of a producer have the same.

    `text % values` is the text, without a mark at its end, and `stored % values` what the log stores, once
    its _TEXT_END is replaced by the envelope.
    """

    text: bytes
    stored: bytes
    kept: int
    uniq_key_at: int


class Waited(NamedTuple):
    """What a consumer sees of the delay of a message."""

    level: int
    due_ms: int
    queue: int


class Restored(msgspec.Struct, frozen=True):
    """A delivered message as remoting shows it."""

    properties: dict[str, str]
    envelope: Envelope


def admitted(properties: dict[str, str]) -> dict[str, str]:
    """Return the properties of an incoming message without those that are left out.

    RocketMQ takes a delay level below 0 for none, so it is left out too.
    """
    if _is_below_zero(properties.get("DELAY", "")):
        properties = {name: value for name, value in properties.items() if name != "DELAY"}
    if LEFT_OUT.isdisjoint(properties) and not any(name.startswith(RESERVED_PREFIXES) for name in properties):
        return properties
    return {name: value for name, value in properties.items() if not _is_left_out(name)}


def plain_properties(texts: Sequence[bytes], envelope: str, rules: Rules) -> Plain | None:
    """Return what the log stores of texts of properties, as `Outgoing.plain`; None if only the long way can.

    The long way decodes a text, leaves out what `admitted` does, and encodes the rest with the envelope. This
    one exchanges the marks between names and values, of all texts at once and at a fraction of the cost. It
    can for most messages: those that have the same names in the same order, names for which admission has no
    rules, and values that are the same in JSON.
    """
    text = _TEXT_END.join(texts).replace(b"\x02\x03", _TEXT_END).removesuffix(b"\x02")
    count = len(texts)
    size_max = min(_PLAIN_BYTES_MAX, rules.properties_bytes_max)
    if max(map(len, texts)) > size_max or text.translate(None, _SAME_IN_JSON) != _TEXT_END * (count - 1):
        return None
    parts = text.replace(b"\x01", b"\x02").replace(_TEXT_END, b"\x02").split(b"\x02")
    each, rest = divmod(len(parts), count)
    values = tuple(parts[1::2])
    shape = None if rest or each % 2 else _shape_of(tuple(parts[:each:2]))
    if shape is None or shape.kept > rules.properties_max or not all(values):
        return None
    if _TEXT_END.join([shape.text] * count) % values != text:
        return None  # other names, or marks that do not alternate
    stored = shape.stored.replace(_TEXT_END, envelope.replace("%", "%%").encode())
    key = b"" if shape.uniq_key_at < 0 else values[shape.uniq_key_at]
    return Plain((_TEXT_END.join([stored] * count) % values).split(_TEXT_END), key.decode())


@lru_cache(maxsize=256)
def _shape_of(names: tuple[bytes, ...]) -> _Shape | None:
    """Return the shape of these names; None for those whose messages go the long way."""
    texts = [name.decode() for name in names]
    kept = [name for name in texts if not _is_left_out(name)]
    if not are_plain(kept) or len(set(texts)) < len(texts):
        return None
    text, stored = b"", b""
    for name, shown in zip(names, texts, strict=True):
        escaped = name.replace(b"%", b"%%")
        text += b"\x02%b\x01%%b" % escaped if text else b"%b\x01%%b" % escaped
        stored += b"%.0b" if _is_left_out(shown) else b'"%b":"%%b",' % escaped
    stored = b'{%b"%b":"%b"}' % (stored, ENVELOPE_PROPERTY.encode(), _TEXT_END)
    return _Shape(text, stored, len(kept), texts.index(UNIQ_KEY) if UNIQ_KEY in texts else -1)


def _is_left_out(name: str) -> bool:
    return name in LEFT_OUT or name.startswith(RESERVED_PREFIXES)


def envelope_of(header: Header, properties: dict[str, str]) -> Envelope:
    """Return the envelope of a stored record with these properties; a plain one if it has none of its own."""
    found = Envelope.of(properties.get(ENVELOPE_PROPERTY, ""))
    return Envelope(header.enqueue_ms, _UNKNOWN_HOST) if found is None else found


def restored(header: Header, topic: str, properties: dict[str, str], message_id: str) -> Restored:
    """Return what a consumer sees of a stored record with these properties; takes the dict over."""
    waited = None
    if header.origin != NO_OFFSET and not _is_half_or_was(header):
        waited = Waited(header.level or header.prior_level, header.due_ms, header.queue)
    is_half = header.due_ms == HALF_DUE_MS
    envelope = envelope_of(header, properties)
    return _restored(topic, properties, message_id, envelope, waited, is_half=is_half)


def _restored(
    topic: str,
    properties: dict[str, str],
    message_id: str,
    envelope: Envelope,
    waited: Waited | None,
    *,
    is_half: bool = False,
) -> Restored:
    if envelope.sys_flag & SYS_TRANSACTION:
        properties[HALF_PROPERTY] = "true"
        bit = SYS_PREPARED if is_half else SYS_COMMIT
        envelope = envelope._replace(sys_flag=envelope.sys_flag & ~SYS_TRANSACTION | bit)
    if waited is not None:
        if waited.level:
            properties["DELAY"] = str(waited.level)
        properties["TIMER_OUT_MS"] = str(waited.due_ms)
        properties["REAL_TOPIC"] = topic
        properties["REAL_QID"] = str(waited.queue)
    for name in HIDDEN:
        properties.pop(name, None)
    properties.setdefault(UNIQ_KEY, message_id)
    return Restored(properties, envelope)


def _text_of(properties: dict[str, str]) -> str:
    """Return the text of properties; with those of the broker, if none is there and they have room."""
    text = properties_text.encode(properties)
    if not OF_THE_BROKER.keys().isdisjoint(properties):
        return text
    whole = text + _OF_THE_BROKER_TEXT
    return whole if len(whole.encode()) <= TEXT_BYTES_MAX else text


def _is_half_or_was(header: Header) -> bool:
    """Whether a record is a half message, or that message committed without a delay."""
    return header.due_ms == HALF_DUE_MS or (
        header.kind == Kind.MESSAGE and header.prior_due_ms == HALF_DUE_MS
    )


def stored_form(
    record: Record,
    log_offset: int,
    queue_offset: int,
    message_id: str,
    host: Host,
    more: Mapping[str, str] = NOTHING_MORE,
) -> bytes:
    """Return a record as a client gets it; `host` is the address of the broker, `more` are properties."""
    header = record.header
    properties: dict[str, str] = orjson.loads(record.properties) if record.properties else {}
    properties |= more
    found = restored(header, record.topic, properties, message_id)
    envelope = found.envelope
    return stored_message.encode(
        StoredMessage(
            topic=record.topic,
            queue=header.queue,
            queue_offset=queue_offset,
            log_offset=log_offset,
            born_ms=envelope.born_ms,
            store_ms=header.store_ms,
            born_host=envelope.born_host,
            store_host=host,
            body=record.body,
            properties=_text_of(found.properties),
            flag=envelope.flag,
            sys_flag=envelope.sys_flag,
            consumed_before=envelope.consumed_before,
            half_offset=_half_offset(record, envelope, log_offset),
        )
    )


def plain_forms(
    records: Sequence[bytes], log_offsets: Sequence[int], queue_offsets: Sequence[int], store_host: bytes
) -> list[bytes | None]:
    """Return what `stored_form` makes of whole records, at a sixth of the cost; None for all that it must do.

    It can for most messages that were sent over remoting: without transactions, tries and flags, with
    UNIQ_KEY and with hosts of IPv4. `store_host` is packed.
    """
    found = _plain_forms(records, log_offsets, queue_offsets, store_host)
    if found is not None:
        return [*found]
    if len(records) == 1:
        return [None]
    return [
        plain_form(data, log_offset, queue_offset, store_host)
        for data, log_offset, queue_offset in zip(records, log_offsets, queue_offsets, strict=True)
    ]


def plain_form(data: bytes, log_offset: int, queue_offset: int, store_host: bytes) -> bytes | None:
    """Return what `plain_forms` does, for one record."""
    [found] = plain_forms([data], [log_offset], [queue_offset], store_host)
    return found


def _plain_forms(
    records: Sequence[bytes], log_offsets: Sequence[int], queue_offsets: Sequence[int], store_host: bytes
) -> list[bytes] | None:
    """Return the messages of the records; None if one of them is not plain."""
    headers = list(map(unpack_header, records))
    bodies_at = [HEADER_SIZE + header[_TOPIC_LEN] + header[_PROPERTIES_LEN] for header in headers]
    stored = [
        data[at - header[_PROPERTIES_LEN] : at]
        for data, at, header in zip(records, bodies_at, headers, strict=True)
    ]
    texts = properties_text.from_json(stored)
    if texts is None or len(store_host) != PACKED_IPV4_BYTES:
        return None
    joined = b"".join(stored)
    if joined.count(_UNIQ_KEY_MARK) != len(records) or any(mark in joined for mark in _UNUSUAL_MARKS):
        return None
    found: list[bytes] = []
    topics: dict[bytes, bytes] = {}
    for data, header, at, text, log_offset, queue_offset in zip(
        records, headers, bodies_at, texts, log_offsets, queue_offsets, strict=True
    ):
        # fmt: off
        (_, _, _, _, _, level, queue, _, topic_len, prior_level, properties_len, body_len,
         _, _, origin, store_ms, due_ms, _, prior_due_ms) = header
        # fmt: on
        properties, mark, envelope = text.rpartition(_ENVELOPE_MARK)
        if not mark:
            return None
        properties += mark[:1]
        born_ms, _, host = envelope.partition(b" ")
        born_host = _plain_host(host)
        topic = data[HEADER_SIZE : at - properties_len]
        if not born_host or HALF_DUE_MS in (due_ms, prior_due_ms):
            return None
        if origin != NO_OFFSET:
            if level := level or prior_level:
                properties += b"DELAY\x01%d\x02" % level
            wait = b"TIMER_OUT_MS\x01%d\x02REAL_TOPIC\x01%b\x02REAL_QID\x01%d\x02"
            properties += wait % (due_ms, topic, queue)
        properties += _OF_THE_BROKER_TEXT.encode()
        if topic_len > SHORT_TOPIC_BYTES_MAX or len(properties) > TEXT_BYTES_MAX:
            return None
        short = topics.get(topic) or topics.setdefault(topic, short_topic(topic))
        body = data[at : at + body_len]
        places = queue, queue_offset, log_offset
        found.append(
            encode_plain(short, *places, int(born_ms), born_host, store_ms, store_host, body, properties)
        )
    return found


@lru_cache(maxsize=4096)
def _plain_host(text: bytes) -> bytes:
    """Return the packed host at the end of an envelope; nothing if there is more in it, or IPv6."""
    address, _, port = text[:-1].decode().partition(" ")
    if not port.isdecimal():
        return b""
    packed = stored_message.packed(Host(address, int(port)))
    return packed if len(packed) == PACKED_IPV4_BYTES else b""


def _half_offset(record: Record, envelope: Envelope, log_offset: int) -> int:
    """Return where the half message of a committed one was stored; 0 for all others, and for their copies."""
    is_copy = record.topic.startswith((RETRY_PREFIX, DEAD_PREFIX))
    is_committed = envelope.sys_flag & SYS_TRANSACTION == SYS_COMMIT
    return record.header.identity(log_offset).root if is_committed and not is_copy else 0


def leased_form(
    view: MessageView,
    queue: int,
    queue_offset: int,
    attempt: int,
    host: Host,
    more: Mapping[str, str] = NOTHING_MORE,
) -> bytes:
    """Return a delivered message as the consumer that leases it gets it; `more` are properties.

    Its log offset is that of its first record. Of a committed transaction it is not shown whether it waited.
    """
    envelope = Envelope.of(view.envelope) or Envelope(view.enqueue_ms, _UNKNOWN_HOST)
    properties = {name: value for name, value in view.properties.items() if name not in _OF_VIEWS}
    is_committed = bool(envelope.sys_flag & SYS_TRANSACTION)
    has_waited = not is_committed and len(properties) < len(view.properties)
    waited = Waited(view.level, view.due_ms, view.queue) if has_waited else None
    found = _restored(view.topic, {**properties, **more}, view.id, envelope, waited)
    root = root_of(view.id)
    return stored_message.encode(
        StoredMessage(
            topic=view.topic,
            queue=queue,
            queue_offset=queue_offset,
            log_offset=root,
            born_ms=envelope.born_ms,
            store_ms=view.enqueue_ms if view.delivered_ms is None else view.delivered_ms,
            born_host=envelope.born_host,
            store_host=host,
            body=view.body,
            properties=_text_of(found.properties),
            flag=envelope.flag,
            sys_flag=found.envelope.sys_flag,
            consumed_before=attempt - 1,
            half_offset=root if is_committed else 0,
        )
    )
