"""The record: the byte layout of an entry of the commit log.

Pure. The page for readers is `doc/log-format.md`; its hex dump is decoded by a test with this module.

    offset size field
         0    4 size            bytes of the whole record, a multiple of 8
         4    4 crc             CRC-32 (zlib) of bytes 8..size
         8    1 version         FORMAT_VERSION
         9    1 kind            Kind
        10    1 flags           FLAG_*
        11    1 level           legacy delay level, 0 = none
        12    2 queue           consume queue of the topic
        14    2 rolls           how often retention moved the timer; in a retry, first the failed attempt;
                                in ACK, and in a CANCEL with FLAG_LEASE, an AckReason
        16    2 topic_len
        18    2 prior_level     level of the origin, 0 without origin
        20    4 properties_len
        24    4 body_len
        28    4 root_crc        CRC of the root record, 0 if this is the root
        32    8 root            offset of the message's first record, NO_OFFSET if this is it
        40    8 origin          offset of the record that this one replaces or ends, else NO_OFFSET
        48    8 store_ms        wall clock when this record was made
        56    8 due_ms          when the message is due; in ACK the queue offset of its end, in HOLD
                                the hash of a sharding key
        64    8 enqueue_ms      when the message was first accepted
        72    8 prior_due_ms    due time of the origin, 0 without origin; a queue offset in ACK and HOLD, in
                                the first record of a retry and in a CANCEL without origin
        80      topic, properties (JSON object or nothing), body, zeros up to size: fewer than 8, or to the
               end of a sector of 512 bytes

All numbers are little-endian. Everything that differs between a TIMER and the MESSAGE it becomes lies
in the header, so re-injection patches 72 bytes and copies the rest.

To change the format: give FORMAT_VERSION a new number, keep reading the old one, add a golden file.
"""

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple
from zlib import crc32

import msgspec
import numpy as np

FORMAT_VERSION = 1
HEADER_SIZE = 80
NO_OFFSET = (1 << 64) - 1
RECORD_SIZE_MAX = (1 << 31) - 8

UNKNOWN_VERSION = "unknown format version"

FLAG_MORE = 1  # the unit continues: this record counts only together with the next
FLAG_EARLY = 2  # delivered before its due time because clock or delay levels changed
FLAG_LEASE = 4  # concerns a message held by a consumer group, not a message of a client
FLAG_ENDED = 8  # a lease that has ended: the message waits for its next attempt
FLAG_KEYED = 16  # the properties hold a deduplication key
FLAG_RUN = 32  # with FLAG_KEYED: the message is a run of a schedule, and its key ends with it
FLAG_LIMITED = 64  # the properties limit for how long, or how often, groups try the message
FLAGS_KEPT = (
    FLAG_LEASE | FLAG_KEYED | FLAG_RUN | FLAG_LIMITED
)  # flags that a record passes on to its replacement

FLAGS_AT = 10  # the position of the flags in a record

_HEAD = struct.Struct("<BBBBHHHHIIIQQqqqq")  # bytes 8..80
_START = struct.Struct("<II")
_CRC = struct.Struct("<I")
_FULL = struct.Struct("<IIBBBBHHHHIIIQQqqqq")
_PADDING = [bytes(n) for n in range(8)]
_MARKED = struct.Struct("<4xI20xIQ")  # CRC, root_crc, root
_LENGTHS = struct.Struct("<II")  # of properties and body
_LENGTHS_AT = 20
_CRC_FROM = 8

HEADER_DTYPE = np.dtype(
    [
        ("size", "<u4"),
        ("crc", "<u4"),
        ("version", "u1"),
        ("kind", "u1"),
        ("flags", "u1"),
        ("level", "u1"),
        ("queue", "<u2"),
        ("rolls", "<u2"),
        ("topic_len", "<u2"),
        ("prior_level", "<u2"),
        ("properties_len", "<u4"),
        ("body_len", "<u4"),
        ("root_crc", "<u4"),
        ("root", "<u8"),
        ("origin", "<u8"),
        ("store_ms", "<i8"),
        ("due_ms", "<i8"),
        ("enqueue_ms", "<i8"),
        ("prior_due_ms", "<i8"),
    ]
)


QUEUE_OFFSET = "prior_due_ms"
"""The field of a queue offset in ACK and HOLD, a retry's first record and a CANCEL without origin."""
END_OFFSET = "due_ms"
"""The field of the queue offset at which an ACK ends."""
ATTEMPT = "rolls"
"""The field of the failed attempt in a retry's first record; 1 in a HOLD that a retry follows."""
ACK_REASON = "rolls"
"""The field of an `AckReason` in ACK, and in a CANCEL with FLAG_LEASE."""


class Kind(IntEnum):
    """The kinds of records."""

    MESSAGE = 1  # visible to consumers; with an origin, it is a timer that fired
    TIMER = 2  # pending; with an origin, it replaces an earlier timer of the same message
    CANCEL = 3  # ends the timer that its origin names; a retry may have no origin
    HOLD = 4  # the sharding key of a message that a consumer group retries; its hash is the due time
    CONTROL = 5  # the body changes settings that are stored in the log
    ACK = 6  # a consumer group is done with the messages of a queue up to the offset in the due time


NO_DUE_TIME = frozenset({Kind.HOLD, Kind.CONTROL, Kind.ACK})
"""The kinds whose field `due_ms` is not a due time."""


class AckReason(IntEnum):
    """Why a group is done with a message."""

    DONE = 0  # acknowledged, a dead letter, or given up
    PASSED_OVER = 1  # no consumer had it: the filter leaves it out, or retention removed it
    EXPIRED = 2  # its TTL was over


class Identity(NamedTuple):
    """A message: the log offset of its first record, and that record's CRC."""

    root: int
    root_crc: int


class Header(NamedTuple):
    """The fixed part of a record, unpacked."""

    size: int
    crc: int
    version: int
    kind: int
    flags: int
    level: int
    queue: int
    rolls: int
    topic_len: int
    prior_level: int
    properties_len: int
    body_len: int
    root_crc: int
    root: int
    origin: int
    store_ms: int
    due_ms: int
    enqueue_ms: int
    prior_due_ms: int

    @property
    def due_time_ms(self) -> int | None:
        """When the message is due; None in a record that is not about a due time."""
        return None if self.kind in NO_DUE_TIME else self.due_ms

    def identity(self, offset: int) -> "Identity":
        """Which message a record at this log offset is about: its root's offset and CRC."""
        if self.root == NO_OFFSET:
            return Identity(offset, self.crc)
        return Identity(self.root, self.root_crc)

    def size_without_padding(self) -> int:
        """Bytes of the record without the zeros that fill its last sector: again a multiple of 8."""
        size = HEADER_SIZE + self.topic_len + self.properties_len + self.body_len
        return size + (-size & 7)


def sizes_without_padding(headers: np.ndarray) -> np.ndarray:
    """`Header.size_without_padding` of an array of HEADER_DTYPE."""
    sizes = np.full(len(headers), HEADER_SIZE + 7, np.int64)
    for name in ("topic_len", "properties_len", "body_len"):
        sizes += headers[name]
    return sizes & ~np.int64(7)


class Record(NamedTuple):
    """A decoded record: header and parts."""

    header: Header
    topic: str
    properties: bytes
    body: bytes


encode_properties = msgspec.json.Encoder().encode
"""The properties of a record as JSON, byte for byte what orjson writes.

Where thousands of results are kept, those of orjson cost ten times as much: each was a kilobyte first.
"""


def encode(  # noqa: PLR0913, PLR0917 - one argument per header field that varies; by place they are faster
    kind: int,
    topic: bytes,
    properties: bytes,
    body: bytes,
    store_ms: int,
    due_ms: int,
    enqueue_ms: int,
    flags: int = 0,
    level: int = 0,
    queue: int = 0,
    rolls: int = 0,
    root: int = NO_OFFSET,
    root_crc: int = 0,
    origin: int = NO_OFFSET,
    prior_due_ms: int = 0,
    prior_level: int = 0,
) -> bytes:
    """Encodes a record: about 0.5 µs for a 200-byte body, a tenth more with keyword arguments."""
    size = HEADER_SIZE + len(topic) + len(properties) + len(body)
    padding = -size & 7
    size += padding
    if size > RECORD_SIZE_MAX:
        raise ValueError(f"a record of {size} bytes is over RECORD_SIZE_MAX = {RECORD_SIZE_MAX}")
    head = _HEAD.pack(
        FORMAT_VERSION,
        kind,
        flags,
        level,
        queue,
        rolls,
        len(topic),
        prior_level,
        len(properties),
        len(body),
        root_crc,
        root,
        origin,
        store_ms,
        due_ms,
        enqueue_ms,
        prior_due_ms,
    )
    rest = b"".join((head, topic, properties, body, _PADDING[padding]))
    return _START.pack(size, crc32(rest)) + rest


def encode_alike(
    kind: int,
    topic: bytes,
    properties: Sequence[bytes],
    bodies: Sequence[bytes],
    store_ms: int,
    queue: int,
) -> list[bytes]:
    """Encode records that differ in properties and body alone, as one unit: all but the last have FLAG_MORE.

    They are due when they are stored, and much smaller than RECORD_SIZE_MAX. What `encode` does, at three
    fifths of its cost.
    """
    last = encode(kind, topic, properties[-1], bodies[-1], store_ms, store_ms, store_ms, queue=queue)
    before = last[_CRC_FROM:FLAGS_AT] + bytes((FLAG_MORE,)) + last[FLAGS_AT + 1 : _LENGTHS_AT]
    after = last[_LENGTHS_AT + _LENGTHS.size : HEADER_SIZE] + topic
    fixed_bytes = HEADER_SIZE + len(topic)
    start, lengths, join, padding = _START.pack, _LENGTHS.pack, b"".join, _PADDING
    records: list[bytes] = []
    for text, body in zip(properties[:-1], bodies[:-1], strict=True):
        text_bytes, body_bytes = len(text), len(body)
        size = fixed_bytes + text_bytes + body_bytes
        zeros = -size & 7
        rest = join((before, lengths(text_bytes, body_bytes), after, text, body, padding[zeros]))
        records.append(start(size + zeros, crc32(rest)) + rest)
    records.append(last)
    return records


def pack_start(size: int, crc: int) -> bytes:
    """The first eight bytes of a record: its size and the CRC of the rest."""
    return _START.pack(size, crc)


def crc_of(record: bytes) -> int:
    """The CRC in a record's header."""
    return int(_CRC.unpack_from(record, 4)[0])


def root_crc_of(record: bytes) -> int:
    """The CRC of the first record of the message that this one is about, as in `Header.identity`."""
    crc, root_crc, root = _MARKED.unpack_from(record)
    return int(crc if root == NO_OFFSET else root_crc)


def unit_of(records: list[bytes]) -> list[bytes]:
    """Joins records into one unit: all but the last have FLAG_MORE."""
    return [_with_more(record) for record in records[:-1]] + records[-1:]


def _with_more(record: bytes) -> bytes:
    rest = bytearray(record[8:])
    rest[2] |= FLAG_MORE
    return _START.pack(len(record), crc32(rest)) + rest


def padded(record: bytes, count: int) -> bytes:
    """Append `count` zeros to a record, a multiple of 8: its size and CRC change, nothing else."""
    size, crc = _START.unpack_from(record)
    zeros = bytes(count)
    return _START.pack(size + count, crc32(zeros, crc)) + record[8:] + zeros


def decode_header(data: bytes, position: int = 0) -> Header:
    """Unpack the header at `position`; checks nothing."""
    return Header._make(_FULL.unpack_from(data, position))


def header_in(remains: bytes) -> Header:
    """Unpack the header of a damaged record from what is left of it; what is missing counts as zeros."""
    return decode_header(remains.ljust(HEADER_SIZE, b"\0"))


unpack_header = _FULL.unpack_from
"""Unpack the header as a plain tuple in the order of `Header`, for loops over thousands."""


def fault(data: bytes, position: int = 0, end: int | None = None) -> str | None:
    """Why the bytes at `position` are not an intact record; None if they are."""
    available = (len(data) if end is None else end) - position
    if available < HEADER_SIZE:
        return f"{available} bytes are fewer than a header's {HEADER_SIZE}"
    size, crc = _START.unpack_from(data, position)
    if size < HEADER_SIZE or size % 8 or size > RECORD_SIZE_MAX:
        return f"size {size} is not a record size"
    if size > available:
        return f"size {size} reaches past the end by {size - available} bytes"
    if crc32(memoryview(data)[position + 8 : position + size]) != crc:
        return "the CRC does not match"
    if data[position + 8] != FORMAT_VERSION:
        return f"{UNKNOWN_VERSION} {data[position + 8]}"
    return None


def is_whole(record: bytes, size: int) -> bool:
    """Whether these bytes are one intact record of this size: like `fault` without reasons, twice as fast."""
    return (
        len(record) == size >= HEADER_SIZE
        and _START.unpack_from(record) == (size, crc32(record[8:]))
        and record[8] == FORMAT_VERSION
    )


def decode(data: bytes, position: int = 0) -> Record:
    """Decodes the record at `position`, which `fault` has verified."""
    header = decode_header(data, position)
    topic_at = position + HEADER_SIZE
    properties_at = topic_at + header.topic_len
    body_at = properties_at + header.properties_len
    return Record(
        header,
        data[topic_at:properties_at].decode(),
        data[properties_at:body_at],
        data[body_at : body_at + header.body_len],
    )


def replace(  # noqa: PLR0913 - the header fields that a re-injection or a move sets
    data: bytes,
    header: Header,
    *,
    kind: int,
    origin: int,
    root: int,
    root_crc: int,
    store_ms: int,
    due_ms: int,
    rolls: int,
    level: int,
    flags: int = 0,
) -> bytes:
    """The record `data` with a new header and the same topic, properties, body and FLAGS_KEPT."""
    head = _HEAD.pack(
        FORMAT_VERSION,
        kind,
        flags | header.flags & FLAGS_KEPT,
        level,
        header.queue,
        rolls,
        header.topic_len,
        header.level,
        header.properties_len,
        header.body_len,
        root_crc,
        root,
        origin,
        store_ms,
        due_ms,
        header.enqueue_ms,
        header.due_ms,
    )
    size = header.size_without_padding()
    rest = head + data[HEADER_SIZE:size]
    return _START.pack(size, crc32(rest)) + rest
