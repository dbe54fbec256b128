"""Index keys: fixed-width, big-endian, so that LMDB's byte order is numeric order. Pure."""

import struct

_U64 = struct.Struct(">Q")
_SLOT = struct.Struct(">BQ")
_QUEUE = struct.Struct(">IH")


def sequence_key(sequence: int) -> bytes:
    """The last 8 bytes of every page key: orders the pages of one prefix by creation."""
    return _U64.pack(sequence)


def sequence_of(key: bytes) -> int:
    """The sequence in a page key."""
    return int(_U64.unpack_from(key, len(key) - 8)[0])


def slot_prefix(level: int, start_ms: int) -> bytes:
    """Wheel pages: level of the wheel, first millisecond of the slot."""
    return _SLOT.pack(level, start_ms)


def slot_of(key: bytes) -> tuple[int, int]:
    """Level and first millisecond of the slot in a wheel key."""
    level, start_ms = _SLOT.unpack_from(key)
    return int(level), int(start_ms)


def queue_prefix(topic_id: int, queue: int) -> bytes:
    """Consume queue pages: topic and queue; the sequence is the first queue offset of the page."""
    return _QUEUE.pack(topic_id, queue)


def block_prefix(offset: int) -> bytes:
    """Forwarding pointer pages (table `marks`): the mebibyte of the log that holds the roots."""
    return _U64.pack(offset >> 20)
