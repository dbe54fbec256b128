"""Pages: the value under an index key is a packed array of fixed-width rows behind a small header.

A page is: CRC-32 of all that follows, row count, weight (a signed number that its user sums without
reading the rows), mask (32 bits that its user ORs). LMDB does not check its pages; these do.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple
from zlib import crc32

import numpy as np

from store.errors import IndexDamagedError

PAGE_ROWS_MAX = 2048
_HEAD = struct.Struct("<IIiI")
HEAD_SIZE = _HEAD.size


class PageHead(NamedTuple):
    """What a page says of itself."""

    rows: int
    weight: int
    mask: int


def pack(rows: np.ndarray, *, weight: int = 0, mask: int = 0) -> bytes:
    """One page of rows."""
    body = rows.tobytes()
    rest = struct.pack("<IiI", len(rows), weight, mask) + body
    return crc32(rest).to_bytes(4, "little") + rest


def head(value: bytes | memoryview[int]) -> PageHead:
    """The header alone, unchecked: for counts."""
    _, count, weight, mask = _HEAD.unpack_from(value)
    return PageHead(count, weight, mask)


def unpack(value: bytes | memoryview[int], dtype: np.dtype[np.void]) -> np.ndarray:
    """The rows of a page, copied out of the index; IndexDamagedError if they are not what was put."""
    if len(value) < HEAD_SIZE or crc32(value[4:]) != int.from_bytes(value[:4], "little"):
        raise IndexDamagedError("an index page fails its CRC")
    rows = np.frombuffer(value[HEAD_SIZE:], dtype)
    if len(rows) != head(value).rows:
        raise IndexDamagedError("an index page has another number of rows than it states")
    return rows.copy()


def chunks(rows: np.ndarray) -> Iterator[np.ndarray]:
    """Rows in pieces of at most PAGE_ROWS_MAX: long LMDB values need long runs of free pages."""
    for at in range(0, len(rows), PAGE_ROWS_MAX):
        yield rows[at : at + PAGE_ROWS_MAX]
