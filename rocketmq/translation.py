"""What a message is over remoting and over HTTP: which properties go in, and what comes out. Pure.

    over remoting                               in the log                        over HTTP
    DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS,     due time and level                due_ms, level
      TIMER_DELIVER_MS, __STARTDELIVERTIME
    a body compressed with zlib                 the plain body                    the plain body
    born time and host, flag, system flag,      the envelope, a hidden property   not shown
      times consumed before
    names that only the service sets:           left out                          refused
      REAL_TOPIC, TIMER_OUT_MS, DLQ_..., DEDUP_...
    names that a client sets for itself:        left out                          kept
      WAIT, MIN_OFFSET, MAX_OFFSET, POP_CK, ...
    UNIQ_KEY, KEYS, TAGS, all others            properties                        properties

A consumer sees the delay of a delivered message again: DELAY with the level, if a level set the time, and
TIMER_OUT_MS, REAL_TOPIC and REAL_QID for each message that waited. A message without UNIQ_KEY gets the
service's id as such, so its message id over remoting is the id over HTTP. Names that only the service sets
are left out, not refused, because clients send messages on with all the properties that they received.
"""

from typing import Final, NamedTuple

import msgspec
import orjson

from timerwheel.model.admission import ENVELOPE_PROPERTY, RESERVED_PREFIXES, RESERVED_PROPERTIES
from timerwheel.rocketmq import properties_text, stored_message
from timerwheel.rocketmq.codes import SYS_COMPRESSED, SYS_COMPRESSION_TYPE
from timerwheel.rocketmq.stored_message import Host, StoredMessage
from timerwheel.store.record import NO_OFFSET, Header, Record

UNIQ_KEY: Final = "UNIQ_KEY"
OWN_OF_CLIENTS: Final = frozenset(
    {"WAIT", "MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME", "POP_CK", "1ST_POP_TIME", "CLUSTER"}
)
LEFT_OUT: Final = OWN_OF_CLIENTS | RESERVED_PROPERTIES
HIDDEN: Final = ("DEDUP_HASH", "DEDUP_DOMAIN", ENVELOPE_PROPERTY)
"""Properties of the log that no client sees."""
_DEFAULTS = ("0", "0", "0", "")
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
    if header.origin != NO_OFFSET:
        if level := header.level or header.prior_level:
            properties["DELAY"] = str(level)
        properties["TIMER_OUT_MS"] = str(header.due_ms)
        properties["REAL_TOPIC"] = topic
        properties["REAL_QID"] = str(header.queue)
    for name in HIDDEN:
        properties.pop(name, None)
    properties.setdefault(UNIQ_KEY, message_id)
    return Restored(properties, envelope)


def stored_form(record: Record, log_offset: int, queue_offset: int, message_id: str, host: Host) -> bytes:
    """Return a record as a consumer gets it; `host` is the address of the broker."""
    header = record.header
    properties: dict[str, str] = orjson.loads(record.properties) if record.properties else {}
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
        )
    )
