"""Registers: which records of a sealed segment have which keys, and which messages were recalled in it.

A register is a file beside its segment, or a *draft* in memory while the segment grows. Both have two sorted
tables: keys by (hash of the key, root of the message), and recalls by (hash of the topic, log offset). What
they name is read from the log and compared before anyone sees it: a hash can be that of another key.

1. Derived data: a missing, outdated or damaged register is built again by a scan of the segment.
2. A register is complete: each record of its segment that has an entry by `timerwheel.state.register_rows`
   has it here. Each block has its own CRC, so damage is noticed when the block is read.

Format: `doc/log-format.md`.
"""

import contextlib
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias
from zlib import crc32

import numpy as np

from timerwheel.store.errors import NO_SPACE, NoSpaceError, NotAFileError, StoreError
from timerwheel.store.files import Files, ReadFile, ReadFiles
from timerwheel.store.rows import join

MAGIC = b"TWREGS01"
BLOCK_BYTES = 4_096
_HEAD = struct.Struct("<8sQQqqQQ")  # magic, base, end, earliest and latest store time, keys, recalls
_CRC = struct.Struct("<I")
_PLACE = struct.Struct("<QQ")  # base of the segment and number of the block: part of each block's CRC
_BLOCK_HEAD = 8
_HEAD_BYTES = 64

KEY_DTYPE = np.dtype([("hash", "<u8"), ("order", "<u8"), ("place", "<u8")])
"""A key of a message: hash of the key, root of the message, log offset of the record and part of a hash of
its topic."""
RECALL_DTYPE = np.dtype([("hash", "<u8"), ("order", "<u8"), ("origin", "<u8"), ("at_ms", "<i8")])
"""A recall: hash of the topic, log offset of the CANCEL, log offset of the timer that it ended, when."""
TOPIC_BITS = 16
_NO_MS = (1 << 62, -1)

Rows: TypeAlias = np.ndarray[tuple[int], np.dtype[np.void]]


class RegisterDamagedError(StoreError):
    """A register cannot be trusted; it is derived from its segment and must be built again."""

    code = "register_damaged"

    def __init__(self, base: int, reason: str) -> None:
        super().__init__(f"the register of segment {base} is damaged: {reason}")
        self.base = base


class Lookup(NamedTuple):
    """Asks for entries of one hash with `low` ≤ order < `high`: the lowest or the highest `count_max`."""

    hash: int
    low: int
    high: int
    count_max: int
    newest: bool = False


class Source(Protocol):
    """A register or a draft."""

    base: int
    end: int
    first_ms: int
    last_ms: int

    def find_keys(self, lookup: Lookup) -> Rows:
        """Return entries of KEY_DTYPE in ascending order; RegisterDamagedError."""

    def find_recalls(self, lookup: Lookup) -> Rows:
        """Return entries of RECALL_DTYPE in ascending order; RegisterDamagedError."""


class Draft:
    """The entries of the beginning of a segment, up to the log offset `end`.

    Only ever grows: a reader in another thread takes `end` first, and then sees all entries before it.
    """

    def __init__(self, base: int, first: int) -> None:
        self.base = base
        self.end = first
        self.first_ms, self.last_ms = _NO_MS
        self.keys: tuple[Rows, ...] = ()
        self.recalls: tuple[Rows, ...] = ()

    def add(self, found: "Found", end: int) -> None:
        """Add the entries of the next records, which end at this log offset."""
        self.keys = _with(self.keys, found.keys)
        self.recalls = _with(self.recalls, found.recalls)
        self.first_ms = min(self.first_ms, found.first_ms)
        self.last_ms = max(self.last_ms, found.last_ms)
        self.end = end

    def find_keys(self, lookup: Lookup) -> Rows:
        """See `Source`."""
        return _found_in(self.keys, lookup, KEY_DTYPE)

    def find_recalls(self, lookup: Lookup) -> Rows:
        """See `Source`."""
        return _found_in(self.recalls, lookup, RECALL_DTYPE)


class Found(NamedTuple):
    """The entries of some records, and their earliest and latest store times."""

    keys: Rows
    recalls: Rows
    first_ms: int
    last_ms: int


NOTHING = Found(np.zeros(0, KEY_DTYPE), np.zeros(0, RECALL_DTYPE), *_NO_MS)


def _with(parts: tuple[Rows, ...], more: Rows) -> tuple[Rows, ...]:
    """Add rows; parts of like size are joined, so there are few of them."""
    if not len(more):
        return parts
    while parts and len(parts[-1]) <= len(more):
        more = join([parts[-1], more], more.dtype)
        parts = parts[:-1]
    return (*parts, more)


def _found_in(parts: Sequence[Rows], lookup: Lookup, dtype: np.dtype[np.void]) -> Rows:
    chosen = [
        part[(part["hash"] == lookup.hash) & (part["order"] >= lookup.low) & (part["order"] < lookup.high)]
        for part in parts
    ]
    rows = join(chosen, dtype)
    rows = rows[np.argsort(rows["order"], kind="stable")]
    found: Rows = rows[-lookup.count_max :] if lookup.newest else rows[: lookup.count_max]
    return found


class Register:
    """The register of a sealed segment [base, end), in a file. Any thread."""

    def __init__(self, files: ReadFiles, path: Path, head: Sequence[int]) -> None:
        self._files = files
        self._path = path
        self.base, self.end, self.first_ms, self.last_ms, keys, recalls = head
        self._keys = _Table(self.base, 0, keys, KEY_DTYPE)
        self._recalls = _Table(self.base, self._keys.blocks, recalls, RECALL_DTYPE)

    @classmethod
    def open(cls, files: ReadFiles, path: Path, base: int, end: int) -> "Register | None":
        """Return the register, None if it is missing or not that of [base, end); NoSpaceError."""
        try:
            file = files.open_readonly(path)
        except NotAFileError:
            return None
        except OSError as error:
            _raise_if_no_descriptor(error, path)
            return None
        with contextlib.closing(file):
            try:
                raw = file.read(0, _HEAD_BYTES)
            except OSError:
                return None
            if len(raw) < _HEAD_BYTES or crc32(raw[:-4]) != _CRC.unpack(raw[-4:])[0]:
                return None
            magic, *head = _HEAD.unpack_from(raw)
            found = cls(files, path, head)
            whole = _HEAD_BYTES + BLOCK_BYTES * (found._keys.blocks + found._recalls.blocks)
            sound = magic == MAGIC and (found.base, found.end) == (base, end) and file.size() == whole
            return found if sound else None

    def find_keys(self, lookup: Lookup) -> Rows:
        """See `Source`; about 15 blocks of 4 KiB are read in a register of a million keys."""
        return self._find(self._keys, lookup)

    def find_recalls(self, lookup: Lookup) -> Rows:
        """See `Source`."""
        return self._find(self._recalls, lookup)

    def check(self) -> None:
        """Read every block; RegisterDamagedError."""
        with self._opened() as file:
            for table in (self._keys, self._recalls):
                for number in range(table.blocks):
                    table.block(file, number)

    def _find(self, table: "_Table", lookup: Lookup) -> Rows:
        if not table.count:
            return np.zeros(0, table.dtype)
        with self._opened() as file:
            return table.find(file, lookup)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[ReadFile]:
        try:
            file = self._files.open_readonly(self._path)
        except NotAFileError as error:
            raise RegisterDamagedError(self.base, error.reason) from error
        except OSError as error:
            _raise_if_no_descriptor(error, self._path)
            raise RegisterDamagedError(self.base, str(error)) from error
        with contextlib.closing(file):
            try:
                yield file
            except OSError as error:
                raise RegisterDamagedError(self.base, str(error)) from error


def _raise_if_no_descriptor(error: OSError, path: Path) -> None:
    """Raise NoSpaceError for what says nothing about the file: it may be sound."""
    if error.errno in NO_SPACE:
        raise NoSpaceError(f"{path}: {error.strerror}") from error


class _Table:
    """One sorted table of a register: blocks of rows from the block `first` on."""

    def __init__(self, base: int, first: int, count: int, dtype: np.dtype[np.void]) -> None:
        self.count = count
        self.dtype = dtype
        self._base = base
        self._first = first
        self._rows = rows_in_block(dtype)
        self.blocks = -(-count // self._rows)

    def block(self, file: ReadFile, number: int) -> Rows:
        """Return the rows of a block; RegisterDamagedError."""
        number += self._first
        data = file.read(_HEAD_BYTES + number * BLOCK_BYTES, BLOCK_BYTES)
        if len(data) < BLOCK_BYTES or _block_crc(self._base, number, data) != _CRC.unpack_from(data)[0]:
            raise RegisterDamagedError(self._base, f"block {number} fails its CRC")
        whole = np.frombuffer(data, self.dtype, self._rows, _BLOCK_HEAD)
        rows: Rows = whole[: self.count - (number - self._first) * self._rows]
        return rows

    def find(self, file: ReadFile, lookup: Lookup) -> Rows:
        """Return the entries of a lookup."""
        low = self._first_from(file, lookup.hash, lookup.low)
        high = self._first_from(file, lookup.hash, lookup.high)
        if lookup.newest:
            low = max(low, high - lookup.count_max)
        else:
            high = min(high, low + lookup.count_max)
        if low >= high:
            return np.zeros(0, self.dtype)
        first = low // self._rows
        blocks = [self.block(file, number) for number in range(first, (high - 1) // self._rows + 1)]
        begin = low - first * self._rows
        return join(blocks, self.dtype)[begin : begin + high - low]

    def _first_from(self, file: ReadFile, key_hash: int, order: int) -> int:
        """Return the number of the first row at or after (hash, order)."""
        low, high = 0, self.blocks  # the blocks before `low` begin before it, those from `high` on do not
        rows = np.zeros(0, self.dtype)
        while low < high:
            middle = (low + high) // 2
            block = self.block(file, middle)
            if (int(block["hash"][0]), int(block["order"][0])) < (key_hash, order):
                low, rows = middle + 1, block
            else:
                high = middle
        if not low:
            return 0
        before = (rows["hash"] < key_hash) | ((rows["hash"] == key_hash) & (rows["order"] < order))
        return (low - 1) * self._rows + int(np.count_nonzero(before))


def rows_in_block(dtype: np.dtype[np.void]) -> int:
    """Return how many rows a block has."""
    return (BLOCK_BYTES - _BLOCK_HEAD) // dtype.itemsize


def _block_crc(base: int, number: int, data: bytes | memoryview) -> int:
    return crc32(memoryview(data)[_CRC.size :], crc32(_PLACE.pack(base, number)))


def write(files: Files, path: Path, draft: Draft) -> None:
    """Write the register of a segment that is drafted to its end, completely or not at all."""
    files.write_whole(path, encode(draft))


def encode(draft: Draft) -> bytes:
    """The register as bytes."""
    tables = [
        _in_order(join(draft.keys, KEY_DTYPE)),
        _in_order(join(draft.recalls, RECALL_DTYPE)),
    ]
    head = _HEAD.pack(
        MAGIC, draft.base, draft.end, draft.first_ms, draft.last_ms, *(len(rows) for rows in tables)
    ).ljust(_HEAD_BYTES - _CRC.size, b"\0")
    parts = [head, _CRC.pack(crc32(head))]
    number = 0
    for rows in tables:
        step = rows_in_block(rows.dtype)
        for at in range(0, len(rows), step):
            data = (bytes(_BLOCK_HEAD) + rows[at : at + step].tobytes()).ljust(BLOCK_BYTES, b"\0")
            parts += (_CRC.pack(_block_crc(draft.base, number, data)), data[_CRC.size :])
            number += 1
    return b"".join(parts)


def _in_order(rows: Rows) -> Rows:
    return rows[np.lexsort((rows["order"], rows["hash"]))]
