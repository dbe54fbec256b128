"""A message as consumers get it: RocketMQ's storage format, and the messages in the body of a batch. Pure.

A stored message, numbers big-endian:

     at  size  field
      0     4  total size
      4     4  magic: MAGIC, or MAGIC_LONG_TOPIC whose topic has 2 bytes of length
      8     4  CRC-32 of the body, without its highest bit
     12     4  queue
     16     4  flag, the application's own number
     20     8  queue offset
     28     8  log offset
     36     4  system flag
     40     8  born, epoch milliseconds
     48     8  born host: 4 bytes of IPv4 (16 of IPv6, with SYS_BORN_IPV6) and 4 of the port
     56     8  stored, epoch milliseconds
     64     8  store host, alike
     72     4  how often it was consumed before
     76     8  offset of the half message of a transaction
     84  4+n  body; then topic (1+n or 2+n) and properties (2+n)

A message in a batch has total size, 0, 0, flag, body (4+n) and properties (2+n). Source: MessageDecoder of
RocketMQ 5.3.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache
from ipaddress import ip_address
from typing import Final, NamedTuple
from zlib import crc32

import msgspec

from timerwheel.rocketmq.codes import SYS_BORN_IPV6, SYS_STORE_IPV6
from timerwheel.rocketmq.frame import FrameError

MAGIC: Final = -626_843_481
MAGIC_LONG_TOPIC: Final = -626_843_477
SHORT_TOPIC_BYTES_MAX: Final = 127

_IPV4_BYTES = 4
PACKED_IPV4_BYTES: Final = 8
_FIXED = struct.Struct(">iiiiiqqiq")
_STORED_MS = struct.Struct(">q")
_TIMES = struct.Struct(">iqi")
_PORT = struct.Struct(">i")
_SHORT = struct.Struct(">H")
_PLAIN = struct.Struct(">iiiiiqqiq8sq8siqi")
"""All fields before the body, with hosts of IPv4."""
_BATCHED = struct.Struct(">iiiii")
_REST = (
    8 + 4 + 8 + 4 + 1 + 2
)  # stored, consumed before, half offset, and the lengths of body, topic, properties
_PLAIN_BYTES = _PLAIN.size + 2  # and the length of the properties


class Host(NamedTuple):
    """An address and a port."""

    address: str
    port: int


class StoredMessage(msgspec.Struct, frozen=True, gc=False):
    """See the module. Times are epoch milliseconds, `properties` is the text form."""

    topic: str
    queue: int
    queue_offset: int
    log_offset: int
    born_ms: int
    store_ms: int
    born_host: Host
    store_host: Host
    body: bytes
    properties: str = ""
    flag: int = 0
    sys_flag: int = 0
    consumed_before: int = 0
    half_offset: int = 0


class Batched(NamedTuple):
    """The messages in the body of a batch, as columns; `properties` are the text forms in UTF-8."""

    flags: list[int]
    bodies: list[bytes]
    properties: list[bytes]


@lru_cache(maxsize=4096)
def packed(host: Host) -> bytes:
    """Return the bytes of a host: 8, or 20 of an IPv6 address."""
    return ip_address(host.address).packed + _PORT.pack(host.port)


def encode(message: StoredMessage) -> bytes:
    """Encode a message; about 2 µs with a short body."""
    born, store = packed(message.born_host), packed(message.store_host)
    sys_flag = message.sys_flag & ~(SYS_BORN_IPV6 | SYS_STORE_IPV6)
    if len(born) > _IPV4_BYTES + _PORT.size:
        sys_flag |= SYS_BORN_IPV6
    if len(store) > _IPV4_BYTES + _PORT.size:
        sys_flag |= SYS_STORE_IPV6
    topic, properties, body = message.topic.encode(), message.properties.encode(), message.body
    is_long = len(topic) > SHORT_TOPIC_BYTES_MAX
    size = _FIXED.size + len(born) + len(store) + _REST + is_long + len(body) + len(topic) + len(properties)
    return b"".join(
        (
            _FIXED.pack(
                size,
                MAGIC_LONG_TOPIC if is_long else MAGIC,
                crc32(body) & 0x7FFF_FFFF,
                message.queue,
                message.flag,
                message.queue_offset,
                message.log_offset,
                sys_flag,
                message.born_ms,
            ),
            born,
            _STORED_MS.pack(message.store_ms),
            store,
            _TIMES.pack(message.consumed_before, message.half_offset, len(body)),
            body,
            _SHORT.pack(len(topic)) if is_long else bytes((len(topic),)),
            topic,
            _SHORT.pack(len(properties)),
            properties,
        )
    )


def short_topic(topic: bytes) -> bytes:
    """Return a topic with its length, as a message has it."""
    return bytes((len(topic),)) + topic


def encode_plain(  # noqa: PLR0913, PLR0917 - the fields of the format; a struct would double the cost
    topic: bytes,
    queue: int,
    queue_offset: int,
    log_offset: int,
    born_ms: int,
    born_host: bytes,
    store_ms: int,
    store_host: bytes,
    body: bytes,
    properties: bytes,
) -> bytes:
    """Encode a message whose hosts are packed IPv4, with a `short_topic`, and 0 in all other fields."""
    return b"".join(
        (
            _PLAIN.pack(
                _PLAIN_BYTES + len(body) + len(topic) + len(properties),
                MAGIC,
                crc32(body) & 0x7FFF_FFFF,
                queue,
                0,
                queue_offset,
                log_offset,
                0,
                born_ms,
                born_host,
                store_ms,
                store_host,
                0,
                0,
                len(body),
            ),
            body,
            topic,
            _SHORT.pack(len(properties)),
            properties,
        )
    )


def decode_batch(data: bytes, count_max: int) -> Batched:
    """Decode the body of a batch; FrameError, also for more than `count_max` messages."""
    flags: list[int] = []
    bodies: list[bytes] = []
    properties: list[bytes] = []
    unpack, fixed_bytes, length = _BATCHED.unpack_from, _BATCHED.size, len(data)
    at = 0
    try:
        for _ in range(count_max):
            if at >= length:
                break
            size, _, _, flag, body_size = unpack(data, at)
            body_at, end = at + fixed_bytes, at + size
            body_end = body_at + body_size
            properties_at = body_end + _SHORT.size
            if body_size < 0 or properties_at > length:
                raise FrameError(f"a body of {body_size} bytes in a batch of {length} bytes")
            if end - properties_at != data[body_end] << 8 | data[body_end + 1] or end > length:
                raise FrameError("a message of the batch does not end where it says")
            flags.append(flag)
            bodies.append(data[body_at:body_end])
            properties.append(data[properties_at:end])
            at = end
    except struct.error as error:
        raise FrameError(f"the batch is malformed: {error}") from None
    if at < length:
        raise FrameError(f"a batch of more than {count_max} messages")
    _check_utf8(properties)
    return Batched(flags, bodies, properties)


def _check_utf8(texts: Sequence[bytes]) -> None:
    if b"".join(texts).isascii():
        return
    try:
        for text in texts:
            text.decode()
    except UnicodeDecodeError as error:
        raise FrameError(f"the batch is malformed: {error}") from None
