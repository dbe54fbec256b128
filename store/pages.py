"""Pages: the value under an index key is a packed array of fixed-width rows behind a small header.

LMDB does not check what it reads. Each value of the index therefore begins with a check, a CRC-32 over the
name of its table, its key and its content, so that a value is never accepted under another key or in another
table:

    check, value                                                       single values
    check, CRC-32 of the rows, row count, weight, mask, rows           pages
    check, CRC-32 of the rest, row count, 0, 0, 4 zeros, rows          columns

The check of a page covers its header, and the header the rows: counts are summed from headers alone, and
Spark packs the rows before the key is known. The weight of a page is a signed number that its user can sum
without reading the rows; its mask has 32 bits to OR.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias
from zlib import crc32

import numpy as np

from timerwheel.store.errors import IndexDamagedError

PAGE_ROWS_MAX = 2048
PAGED_TABLES = frozenset({"wheel", "queues", "marks", "key_parts"})
CHECK_SIZE = 4
_HEAD = struct.Struct("<IIiI")
HEAD_SIZE = CHECK_SIZE + _HEAD.size
_LEAD = bytes(4)
_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))

Raw: TypeAlias = "bytes | memoryview[int]"


class PageHead(NamedTuple):
    """The header of a page."""

    rows: int
    weight: int
    mask: int


def pack(rows: np.ndarray, *, weight: int = 0, mask: int = 0) -> bytes:
    """Packs one page of rows, without its check."""
    body = rows.tobytes()
    return _HEAD.pack(crc32(body), len(rows), weight, mask) + body


@functools.cache
def _seed_of(table: str) -> int:
    return crc32(table.encode())


def check_of(table: str, key: bytes, value: Raw) -> int:
    """The check of a value. For a page it covers the header, which has the CRC of the rows."""
    covered = value[: _HEAD.size] if table in PAGED_TABLES else value
    return crc32(covered, crc32(key, _seed_of(table)))


def stored_check(stored: Raw) -> int:
    """The check with which a stored value begins."""
    return int.from_bytes(stored[:CHECK_SIZE], "little")


def seal(table: str, key: bytes, value: bytes) -> bytes:
    """The stored form of a value: its check, then the value."""
    return sealed(check_of(table, key, value), value)


def sealed(check: int, value: bytes) -> bytes:
    """`seal` with a check that is known."""
    return check.to_bytes(CHECK_SIZE, "little") + value


def unseal(table: str, key: bytes, stored: Raw) -> Raw:
    """The value without its check; IndexDamagedError if it was not stored under this key of this table.

    The rows of a page are checked by `Page.rows`.
    """
    value = stored[CHECK_SIZE:]
    if len(stored) < CHECK_SIZE or check_of(table, key, value) != stored_check(stored):
        raise IndexDamagedError(f"the entry {key.hex()} of table {table} fails its check")
    return value


def weight_of(stored: Raw) -> int:
    """The weight of a stored page whose check was verified."""
    if len(stored) < HEAD_SIZE:
        raise IndexDamagedError("a page is too short")
    weight: int = _HEAD.unpack_from(stored, CHECK_SIZE)[2]
    return weight


class Page(NamedTuple):
    """A stored page, valid until the transaction that read it ends."""

    table: str
    key: bytes
    stored: Raw

    def head(self) -> PageHead:
        """The header, verified; the rows are not touched."""
        value = unseal(self.table, self.key, self.stored)
        if len(value) < _HEAD.size:
            raise IndexDamagedError(f"the page {self.key.hex()} of table {self.table} is too short")
        _, count, weight, mask = _HEAD.unpack_from(value)
        return PageHead(count, weight, mask)

    def rows(self, dtype: np.dtype[np.void]) -> np.ndarray:
        """The rows, copied out of the index; raises IndexDamagedError if they changed."""
        count = self.head().rows
        body = self.stored[HEAD_SIZE:]
        if crc32(body) != _HEAD.unpack_from(self.stored, CHECK_SIZE)[0]:
            raise IndexDamagedError(f"the page {self.key.hex()} of table {self.table} fails its CRC")
        if len(body) != count * dtype.itemsize:
            raise IndexDamagedError(
                f"the page {self.key.hex()} of table {self.table} does not have {count} rows"
            )
        return np.frombuffer(body, dtype).copy()


def pack_column(rows: np.ndarray) -> bytes:
    """Packs one column of many rows, without its check: after the header come 4 zeros, then the rows.

    LMDB begins a long value 16 bytes after the start of one of its pages. So the rows are at a multiple of 8
    there, and can be read in place.
    """
    body = _LEAD + rows.tobytes()
    return _HEAD.pack(crc32(body), len(rows), 0, 0) + body


def column_of(page: Page, dtype: np.dtype[Any], *, is_proved: bool) -> np.ndarray:
    """The rows of a column in place, valid until the transaction ends; IndexDamagedError if they changed.

    What `is_proved` was checked before, with the check and the CRC of this column.
    """
    if not is_proved:
        count = page.head().rows
        body = page.stored[HEAD_SIZE:]
        if crc32(body) != _HEAD.unpack_from(page.stored, CHECK_SIZE)[0]:
            raise IndexDamagedError(f"the page {page.key.hex()} of table {page.table} fails its CRC")
        if len(body) != len(_LEAD) + count * dtype.itemsize:
            raise IndexDamagedError(
                f"the page {page.key.hex()} of table {page.table} does not have {count} rows"
            )
    rows = np.frombuffer(page.stored, dtype, offset=HEAD_SIZE + len(_LEAD))
    return rows if rows.flags.aligned else rows.copy()


def chunks(rows: np.ndarray) -> Iterator[np.ndarray]:
    """Rows in pieces of at most PAGE_ROWS_MAX: long LMDB values need long runs of free pages."""
    for at in range(0, len(rows), PAGE_ROWS_MAX):
        yield rows[at : at + PAGE_ROWS_MAX]


def digest_of(numbers: np.ndarray | list[int], with_each: np.ndarray | int = 0) -> int:
    """A number for a set: the sum, modulo 2^64, of a 64-bit mix (splitmix64) of each pair of numbers.

    Sums of parts add up, and removing an element subtracts it. So two sets can be compared, in any order,
    without holding either.
    """
    mixed = np.asarray(numbers, np.uint64) * _MIX[0] ^ np.asarray(with_each).astype(np.uint64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX[1]
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX[2]
    return int((mixed ^ (mixed >> np.uint64(31))).sum(dtype=np.uint64))
