"""What a message is over gRPC: its fields go into properties of a stored message, and come out again. Pure.

    over gRPC                             in the log                          over HTTP
    delivery_timestamp                    due time                            due_ms
    tag, keys, message_id                 TAGS, KEYS (joined by a space),     properties
                                            UNIQ_KEY
    message_group                         __SHARDINGKEY                       properties
    trace_context                         traceparent                         properties
    born_timestamp, address of the peer   the envelope, a hidden property     not shown
    born_host                             __BORNHOST                          properties
    body_digest, body_encoding            checked; the plain body             the plain body
    user_properties                       properties                          properties
    message_type TRANSACTION              a bit of the envelope               not shown

A user property must not have the name of a property that stands for a field, or that only the service sets.
None of these is shown as a user property. A message without UNIQ_KEY gets the service's id as its message
id.
"""

import hashlib
import re
import zlib
from collections.abc import Mapping
from typing import Any, Final

from timerwheel.groups.dead_letter_properties import ORIGIN_ID, ORIGIN_TOPIC
from timerwheel.model.admission import (
    DELAY_PROPERTIES,
    HALF_PROPERTY,
    RESERVED_PREFIXES,
    RESERVED_PROPERTIES,
)
from timerwheel.model.messages import Delivery, MessageView, Outgoing
from timerwheel.model.properties import KEYS, SHARDING_KEY, TAGS
from timerwheel.model.trace_context import TRACEPARENT, TRACESTATE
from timerwheel.rocketmq.codes import SYS_PREPARED
from timerwheel.rocketmq.grpc.codes import CallError, Code, DigestType, Encoding, MessageType
from timerwheel.rocketmq.grpc.schema import message_class
from timerwheel.rocketmq.stored_message import Host
from timerwheel.rocketmq.translation import PRODUCER_GROUP, UNIQ_KEY, Envelope

BORN_HOST: Final = "__BORNHOST"
GROUP_CHARACTERS_MAX: Final = 64

_OF_FIELDS: Final = frozenset({TAGS, KEYS, UNIQ_KEY, SHARDING_KEY, BORN_HOST, TRACEPARENT, TRACESTATE})
_OF_TRANSACTIONS: Final = frozenset({HALF_PROPERTY, PRODUCER_GROUP})
NOT_OF_USERS: Final = _OF_FIELDS | _OF_TRANSACTIONS | DELAY_PROPERTIES | RESERVED_PROPERTIES
_WAITED: Final = "TIMER_ENQUEUE_MS"

_match_id = re.compile(r"[!-~]{1,255}").fullmatch
_has_control = re.compile(r"[\x00-\x1f\x7f-\x9f]").search
_NANOS_PER_MS: Final = 1_000_000
_GZIP_OR_ZLIB: Final = zlib.MAX_WBITS | 32
_REFUSED_TYPES: Final = {
    MessageType.LITE: "lite topics are not supported",
    MessageType.PRIORITY: "priorities are not supported",
}

_Message = message_class("Message")


def name_of(resource: Any) -> str:
    """Return the name of a topic or group, with its namespace as RocketMQ writes it."""
    name: str = resource.name
    return f"{resource.resource_namespace}%{name}" if resource.resource_namespace else name


def to_ms(time: Any) -> int:
    """Return whole milliseconds, rounded down."""
    return int(time.seconds) * 1000 + int(time.nanos) // _NANOS_PER_MS


def set_ms(time: Any, ms: int) -> None:
    """Set a time, or a duration, in milliseconds."""
    time.seconds, rest_ms = divmod(ms, 1000)
    time.nanos = rest_ms * _NANOS_PER_MS


def outgoing(message: Any, peer: Host, now_ms: int, body_bytes_max: int) -> Outgoing:
    """Return the message that a client sends from this address; CallError."""
    system = message.system_properties
    kind = _kind(system)
    if _match_id(system.message_id) is None:
        raise CallError(
            Code.ILLEGAL_MESSAGE_ID, "message_id: give 1 to 255 printable ASCII characters without spaces"
        )
    properties = _user_properties(message.user_properties)
    properties[UNIQ_KEY] = system.message_id
    if system.HasField("tag"):
        properties[TAGS] = _tag(system.tag)
    if system.keys:
        properties[KEYS] = _keys(system.keys)
    if kind is MessageType.FIFO:
        properties[SHARDING_KEY] = _group(system.message_group)
    if system.born_host:
        properties[BORN_HOST] = _plain(system.born_host, Code.BAD_REQUEST, "born_host")
    if system.trace_context:
        properties[TRACEPARENT] = system.trace_context  # admission drops one that is malformed
    born_ms = to_ms(system.born_timestamp) if system.HasField("born_timestamp") else now_ms
    return Outgoing(
        topic=name_of(message.topic),
        body=_body(message, body_bytes_max),
        properties=properties,
        at_ms=_due_ms(system) if kind is MessageType.DELAY else None,
        envelope=Envelope(
            max(born_ms, 0), peer, sys_flag=SYS_PREPARED if kind is MessageType.TRANSACTION else 0
        ).encode(),
    )


def _kind(system: Any) -> MessageType:
    """Return the type of a message, which must agree with its fields."""
    found = MessageType.NORMAL
    if system.HasField("delivery_timestamp"):
        found = MessageType.DELAY
    if system.HasField("message_group"):
        if found is MessageType.DELAY:
            raise CallError(
                Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "give either delivery_timestamp or message_group"
            )
        found = MessageType.FIFO
    if system.message_type == MessageType.TRANSACTION:
        if found is not MessageType.NORMAL:
            raise CallError(
                Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                "a transactional message has neither delivery_timestamp nor message_group",
            )
        return MessageType.TRANSACTION
    if (detail := _REFUSED_TYPES.get(system.message_type)) is not None:
        raise CallError(Code.UNSUPPORTED, detail)
    if system.message_type not in (found, MessageType.MESSAGE_TYPE_UNSPECIFIED):
        raise CallError(
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            f"message_type = {system.message_type}, but the fields are those of a {found.name} message "
            "(DELAY has a delivery_timestamp, FIFO a message_group)",
        )
    return found


def _due_ms(system: Any) -> int:
    due_ms = to_ms(system.delivery_timestamp)
    if not 0 <= due_ms < 1 << 63:
        raise CallError(
            Code.ILLEGAL_DELIVERY_TIME, f"delivery_timestamp = {due_ms} ms is not a time since 1970"
        )
    return due_ms


def _user_properties(given: Mapping[str, str]) -> dict[str, str]:
    properties = dict(given)
    for name, value in properties.items():
        if name in NOT_OF_USERS or name.startswith(RESERVED_PREFIXES):
            raise CallError(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
                f"the property {name[:40]!r} is reserved; choose another name",
            )
        if not name.strip() or _has_control(name) or _has_control(value):
            raise CallError(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
                f"the property {name[:40]!r}: a name must not be blank, and neither it nor its value may "
                "contain control characters",
            )
    return properties


def _tag(tag: str) -> str:
    if "|" in tag:
        raise CallError(Code.ILLEGAL_MESSAGE_TAG, "tag: must not contain |, which separates tags in filters")
    return _plain(tag, Code.ILLEGAL_MESSAGE_TAG, "tag")


def _keys(keys: Any) -> str:
    return " ".join([_plain(key, Code.ILLEGAL_MESSAGE_KEY, "keys") for key in keys])


def _group(group: str) -> str:
    if len(group) > GROUP_CHARACTERS_MAX:
        raise CallError(
            Code.ILLEGAL_MESSAGE_GROUP,
            f"message_group: {len(group)} characters; at most {GROUP_CHARACTERS_MAX} are allowed",
        )
    return _plain(group, Code.ILLEGAL_MESSAGE_GROUP, "message_group")


def _plain(text: str, code: Code, field: str) -> str:
    if not text.strip() or _has_control(text):
        raise CallError(code, f"{field}: must not be blank or contain control characters")
    return text


def _body(message: Any, bytes_max: int) -> bytes:
    """Return the plain body, if its digest is right."""
    body: bytes = message.body
    system = message.system_properties
    if len(body) > bytes_max:
        raise _too_large(bytes_max)
    if system.HasField("body_digest") and not _agrees(system.body_digest, body):
        raise CallError(
            Code.MESSAGE_CORRUPTED, "the body does not have the checksum in body_digest; send it again"
        )
    if system.body_encoding == Encoding.GZIP:
        body = _inflated(body, bytes_max)
    elif system.body_encoding not in (Encoding.IDENTITY, Encoding.ENCODING_UNSPECIFIED):
        raise CallError(Code.UNSUPPORTED, f"body_encoding = {system.body_encoding}; use IDENTITY or GZIP")
    if not body:
        raise CallError(Code.MESSAGE_BODY_EMPTY, "the body is empty")
    return body


def _too_large(bytes_max: int) -> CallError:
    return CallError(
        Code.MESSAGE_BODY_TOO_LARGE, f"the body has more than body_size_max = {bytes_max} bytes; send less"
    )


def _agrees(digest: Any, body: bytes) -> bool:
    if digest.type == DigestType.DIGEST_TYPE_UNSPECIFIED:
        return True
    if digest.type == DigestType.CRC32:
        found = f"{zlib.crc32(body):08X}"
    elif digest.type in (DigestType.MD5, DigestType.SHA1):
        name = "md5" if digest.type == DigestType.MD5 else "sha1"
        found = hashlib.new(name, body, usedforsecurity=False).hexdigest().upper()
    else:
        raise CallError(Code.UNSUPPORTED, f"body_digest: type {digest.type}; use CRC32, MD5 or SHA1")
    given: str = digest.checksum.upper()
    return given.rjust(len(found), "0") == found  # some clients leave out zeros at the beginning


def _inflated(body: bytes, bytes_max: int) -> bytes:
    """Return what a compressed body holds; never more than `bytes_max` and one byte are in memory."""
    inflate = zlib.decompressobj(_GZIP_OR_ZLIB)
    try:
        plain = inflate.decompress(body, bytes_max + 1)
    except zlib.error as error:
        raise CallError(Code.MESSAGE_CORRUPTED, f"the body is not gzip or zlib: {error}") from None
    if len(plain) > bytes_max:
        raise _too_large(bytes_max)
    if not inflate.eof or inflate.unused_data:
        raise CallError(
            Code.MESSAGE_CORRUPTED, "the compressed body is cut short, or has more behind its end"
        )
    return plain


def shown(delivery: Delivery, topic: Any, invisible_ms: int, store_host: str) -> Any:
    """Return a message as its consumer gets it; `topic` is that of the request."""
    message = stored(delivery.message, topic, store_host)
    system = message.system_properties
    system.receipt_handle = delivery.receipt
    system.delivery_attempt = delivery.attempt
    set_ms(system.invisible_duration, invisible_ms)
    return message


def stored(view: MessageView, topic: Any, store_host: str) -> Any:
    """Return a message without what belongs to a delivery."""
    properties = view.properties
    message = _Message(body=view.body)
    message.topic.CopyFrom(topic)
    for name, value in properties.items():
        if name not in NOT_OF_USERS and not name.startswith(RESERVED_PREFIXES):
            message.user_properties[name] = value
    system = message.system_properties
    if (tag := properties.get(TAGS)) is not None:
        system.tag = tag
    system.keys.extend(properties.get(KEYS, "").split())
    system.message_id = properties.get(UNIQ_KEY, view.id)
    system.body_encoding = Encoding.IDENTITY
    system.body_digest.type = DigestType.MD5
    if view.problem is None:  # a body that could not be read has no checksum, so the client sees that
        system.body_digest.checksum = hashlib.md5(view.body, usedforsecurity=False).hexdigest().upper()
    envelope = Envelope.of(view.envelope)
    set_ms(system.born_timestamp, view.enqueue_ms if envelope is None else envelope.born_ms)
    system.born_host = properties.get(BORN_HOST) or ("" if envelope is None else envelope.born_host.address)
    if view.delivered_ms is not None:
        set_ms(system.store_timestamp, view.delivered_ms)
    system.store_host = store_host
    if envelope is not None and envelope.sys_flag & SYS_PREPARED:
        system.message_type = MessageType.TRANSACTION
    else:
        _set_kind(system, properties, view.due_ms)
    if (context := properties.get(TRACEPARENT)) is not None:
        system.trace_context = context
    if (origin := properties.get(ORIGIN_ID)) is not None:
        system.dead_letter_queue.topic = properties.get(ORIGIN_TOPIC, "")
        system.dead_letter_queue.message_id = origin
    system.queue_id = view.queue
    if view.queue_offset is not None:
        system.queue_offset = view.queue_offset
    return message


def _set_kind(system: Any, properties: Mapping[str, str], due_ms: int) -> None:
    system.message_type = MessageType.NORMAL
    if _WAITED in properties:
        system.message_type = MessageType.DELAY
        set_ms(system.delivery_timestamp, due_ms)
    if (group := properties.get(SHARDING_KEY)) is not None:
        system.message_type = MessageType.FIFO
        system.message_group = group
