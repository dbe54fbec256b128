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
    UNIQ_KEY, KEYS, TAGS, all others            properties                        properties

A consumer sees the delay of a delivered message again: DELAY with the level, if a level set the time, and
TIMER_OUT_MS, REAL_TOPIC and REAL_QID for each message that waited. A committed message shows TRAN_MSG,
without which a consumer gives it no transaction id, and its system flag says that it was committed. A
message without UNIQ_KEY gets the service's id as such, so its message id over remoting is the id over HTTP.
Names that only the service sets are left out, not refused, because clients send messages on with all the
properties that they received.
"""

from collections.abc import Mapping
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
)
from timerwheel.rocketmq import properties_text, stored_message
from timerwheel.rocketmq.codes import (
    SYS_COMMIT,
    SYS_COMPRESSED,
    SYS_COMPRESSION_TYPE,
    SYS_PREPARED,
    SYS_TRANSACTION,
)
from timerwheel.rocketmq.stored_message import Host, StoredMessage
from timerwheel.store.record import NO_OFFSET, Header, Kind, Record

UNIQ_KEY: Final = "UNIQ_KEY"
PRODUCER_GROUP: Final = "PGROUP"
OWN_OF_CLIENTS: Final = frozenset(
    {"WAIT", "MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME", "POP_CK", "1ST_POP_TIME", "CLUSTER"}
)
LEFT_OUT: Final = OWN_OF_CLIENTS | RESERVED_PROPERTIES
HIDDEN: Final = ("DEDUP_HASH", "DEDUP_DOMAIN", ENVELOPE_PROPERTY)
"""Properties of the log that no client sees."""
_DEFAULTS = ("0", "0", "0", "")
NOTHING_MORE: Final[Mapping[str, str]] = {}
_UNKNOWN_HOST = Host("127.0.0.1", 0)


class Envelope(NamedTuple):
    """What remoting has beside properties: the hidden property ENVELOPE_PROPERTY, as text.

    The text is `born_ms address port flag sys_flag consumed_before first_id`; what is 0 or empty at its end
    is left out. In a copy that is a retry, `first_id` is the service's id of the message that was sent.
    """

    born_ms: int
    born_host: Host
    flag: int = 0
    sys_flag: int = 0
    consumed_before: int = 0
    first_id: str = ""

    def encode(self) -> str:
        """Return the text."""
        sys_flag = self.sys_flag & ~(SYS_COMPRESSED | SYS_COMPRESSION_TYPE)
        rest = [self.flag, sys_flag, self.consumed_before, self.first_id]
        while rest and not rest[-1]:
            rest.pop()
        return " ".join(map(str, (self.born_ms, *self.born_host, *rest)))

    @classmethod
    def decode(cls, text: str) -> "Envelope":
        """Return the envelope in a text that `encode` returned."""
        born_ms, address, port, *rest = text.split(" ")
        flag, sys_flag, consumed_before, first_id, *_ = *rest, *_DEFAULTS[len(rest) :]
        host = Host(address, int(port))
        return cls(int(born_ms), host, int(flag), int(sys_flag), int(consumed_before), first_id)


class Restored(msgspec.Struct, frozen=True):
    """A delivered message as remoting shows it."""

    properties: dict[str, str]
    envelope: Envelope


def admitted(properties: dict[str, str]) -> dict[str, str]:
    """Return the properties of an incoming message without those that are left out."""
    if LEFT_OUT.isdisjoint(properties) and not any(name.startswith(RESERVED_PREFIXES) for name in properties):
        return properties
    return {
        name: value
        for name, value in properties.items()
        if name not in LEFT_OUT and not name.startswith(RESERVED_PREFIXES)
    }


def envelope_of(header: Header, properties: dict[str, str]) -> Envelope:
    """Return the envelope of a stored record with these properties; a message of HTTP gets a plain one."""
    text = properties.get(ENVELOPE_PROPERTY)
    return Envelope(header.enqueue_ms, _UNKNOWN_HOST) if text is None else Envelope.decode(text)


def restored(header: Header, topic: str, properties: dict[str, str], message_id: str) -> Restored:
    """Return what a consumer sees of a stored record with these properties; takes the dict over."""
    envelope = envelope_of(header, properties)
    if envelope.sys_flag & SYS_TRANSACTION:
        properties[HALF_PROPERTY] = "true"
        bit = SYS_PREPARED if header.due_ms == HALF_DUE_MS else SYS_COMMIT
        envelope = envelope._replace(sys_flag=envelope.sys_flag & ~SYS_TRANSACTION | bit)
    if header.origin != NO_OFFSET and not _is_half_or_was(header):
        if level := header.level or header.prior_level:
            properties["DELAY"] = str(level)
        properties["TIMER_OUT_MS"] = str(header.due_ms)
        properties["REAL_TOPIC"] = topic
        properties["REAL_QID"] = str(header.queue)
    for name in HIDDEN:
        properties.pop(name, None)
    properties.setdefault(UNIQ_KEY, message_id)
    return Restored(properties, envelope)


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
            properties=properties_text.encode(found.properties),
            flag=envelope.flag,
            sys_flag=envelope.sys_flag,
            consumed_before=envelope.consumed_before,
            half_offset=_half_offset(record, envelope, log_offset),
        )
    )


def _half_offset(record: Record, envelope: Envelope, log_offset: int) -> int:
    """Return where the half message of a committed one was stored; 0 for all others, and for their copies."""
    is_copy = record.topic.startswith((RETRY_PREFIX, DEAD_PREFIX))
    is_committed = envelope.sys_flag & SYS_TRANSACTION == SYS_COMMIT
    return record.header.identity(log_offset).root if is_committed and not is_copy else 0
