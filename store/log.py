"""The commit log: segments in a directory, appended by one writer, read by anyone.

Invariants:
1. What `append(sync=True)` reported stored is durable; so is everything before it.
2. A segment but the last is complete and was synced before its successor was created.
3. A unit (records that count together) lies in one segment, whole or, after recovery, not at all.
4. An append that fails for want of space leaves the log as it was before the unit that failed.
5. After a failed sync nothing more is written: what the disk holds is unknown (`LogFailedError`).

`append`, `sync` and `drop_before` belong to the writer thread; `read` and `scan` may run in any thread.
Format: `doc/log-format.md`.
"""

import contextlib
import errno
import itertools
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from store import sidecar
from store.errors import CorruptionError, FormatError, LogFailedError, NoSpaceError, OffsetError
from store.files import AppendFile, Files
from store.record import HEADER_SIZE, UNKNOWN_VERSION, fault
from store.segment import (
    SEGMENT_HEADER_SIZE,
    SIDECAR_SUFFIX,
    Damage,
    Scanned,
    encode_header,
    read_header,
    scan,
    segment_base,
    segment_name,
    whole_units,
)
from store.table import Table, merge, table_of

_TABLE_RECORDS = 50_000
_GAP_BYTES = 16_384
_RUN_BYTES = 8 << 20
OPEN_SEGMENTS_MAX = 256


class Appended(NamedTuple):
    """The offset of each stored unit's first record; fewer than were given if `error` is set."""

    offsets: list[int]
    error: NoSpaceError | None


class Truncation(NamedTuple):
    """What recovery cut from the tail of the log."""

    offset: int
    size: int
    reason: str


class CommitLog:
    """The log of one data directory."""

    def __init__(
        self, directory: Path, files: Files, segment_size_bytes: int, *, writable: bool = True
    ) -> None:
        self.directory = directory
        self.files = files
        self.segment_size_bytes = segment_size_bytes
        self.writable = writable
        self.log_id = b""
        self.bases: list[int] = []
        self.tail = 0
        self.synced = 0
        self._segments: dict[int, AppendFile] = {}
        self._failed: str | None = None

    # ------------------------------------------------------------------ opening

    def open(self, *, new_log_id: bytes, now_ms: int, keep_from: int = 0) -> None:
        """Find the segments and check their headers; make the first one in an empty directory.

        Segments before `keep_from` were given up by retention: what a crash left of them, in whatever
        order the disk forgot them, is removed now.
        """
        self.files.make_dir(self.directory)
        self.bases = self._found_bases()
        self.drop_before(keep_from)
        self._drop_unborn_segment()
        self.log_id = new_log_id
        for base in self.bases:
            self.log_id = read_header(self.file(base), self.path(base), base)
        if not self.bases:
            self._create(0, now_ms)
        self._check_gaps()
        self.tail = self.bases[-1] + self.file(self.bases[-1]).size()
        self.synced = 0

    def _found_bases(self) -> list[int]:
        names = self.files.names(self.directory)
        return sorted(base for base in map(segment_base, names) if base is not None)

    def open_readonly(self, *, keep_from: int = 0) -> None:
        """See the log as it is, without touching it; the owner may go on writing it meanwhile."""
        self.bases = [base for base in self._found_bases() if base >= keep_from]
        if not self.bases:
            raise FormatError(f"{self.directory}: no segment of a commit log is there")
        while len(self.bases) > 1 and self.file(self.bases[-1]).size() < SEGMENT_HEADER_SIZE:
            self.bases.pop()
        for base in self.bases:
            self.log_id = read_header(self.file(base), self.path(base), base)
        self.tail = self.bases[-1] + self.file(self.bases[-1]).size()

    def _drop_unborn_segment(self) -> None:
        """Remove a last segment whose header never reached the disk: a crash while it was created."""
        if not self.bases:
            return
        last = self.bases[-1]
        try:
            read_header(self.file(last), self.path(last), last)
        except CorruptionError:
            if self.file(last).size() > SEGMENT_HEADER_SIZE:
                raise
            self.file(last).close()
            del self._segments[last]
            self.files.unlink(self.path(last))
            self.files.sync_dir(self.directory)
            self.bases.pop()

    def _check_gaps(self) -> None:
        for base, following in zip(self.bases, self.bases[1:], strict=False):
            size = self.file(base).size()
            if base + size != following:
                reason = f"the segment has {size} bytes, its successor begins after {following - base}"
                raise CorruptionError(self.path(base), base, reason)

    def recover_tail(self, verified: int) -> Truncation | None:
        """Cut the last segment at its last whole unit; bytes before `verified` are known to be whole.

        A damaged record before `verified` is not a torn tail but corruption, and is found when read.
        """
        base = self.bases[-1]
        start = max(verified, base + SEGMENT_HEADER_SIZE)
        file = self.file(base)
        end = self.tail
        if start > end:
            raise CorruptionError(self.path(base), end, f"the log ends before offset {start}")
        unit_end, reason = whole_units(scan(file, base, start, end), start)
        if reason is not None:
            if reason.startswith(UNKNOWN_VERSION):
                raise FormatError(
                    f"{self.path(base)}: at log offset {unit_end}: {reason}; use a newer program"
                )
            file.truncate(unit_end - base)
            self.tail = unit_end
        file.sync()
        self.synced = self.tail
        return None if reason is None else Truncation(unit_end, end - unit_end, reason)

    def close(self) -> None:
        """Release every descriptor; does not sync."""
        for file in self._segments.values():
            file.close()
        self._segments.clear()

    # ------------------------------------------------------------------ writing

    def append(self, units: Sequence[Sequence[bytes]], *, sync: bool, now_ms: int) -> Appended:
        """Store units in order, rolling segments as needed; with `sync`, return when all are durable."""
        if self._failed is not None:
            raise LogFailedError(self._failed)
        offsets: list[int] = []
        pending: list[bytes] = []
        pending_bytes = 0
        try:
            for unit in units:
                size = sum(map(len, unit))
                used = self.tail + pending_bytes - self.bases[-1]
                if used > SEGMENT_HEADER_SIZE and used + size > self.segment_size_bytes:
                    self._write(b"".join(pending))
                    pending.clear()
                    pending_bytes = 0
                    self._roll(now_ms)
                offsets.append(self.tail + pending_bytes)
                pending.extend(unit)
                pending_bytes += size
            self._write(b"".join(pending))
        except NoSpaceError as error:
            if sync:
                self.sync()
            return Appended([o for o in offsets if o < self.tail], error)
        if sync:
            self.sync()
        return Appended(offsets, None)

    def _write(self, data: bytes) -> None:
        file = self.file(self.bases[-1])
        try:
            file.append(data)
        except OSError as error:
            self._undo(file, error)
        self.tail += len(data)

    def _undo(self, file: AppendFile, error: OSError) -> None:
        """Cut what a failed write left, durably, so that a refused unit can never come back."""
        try:
            file.truncate(self.tail - self.bases[-1])
            self._datasync(file)
        except OSError as second:
            self._failed = f"a failed write could not be undone: {second}"
            raise LogFailedError(self._failed) from error
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise NoSpaceError(f"{self.path(self.bases[-1])}: {error.strerror}") from error
        self._failed = f"writing the log failed: {error}"
        raise LogFailedError(self._failed) from error

    def _datasync(self, file: AppendFile) -> None:
        try:
            file.sync()
        except OSError as error:
            self._failed = f"syncing the log failed: {error}; what the disk holds is unknown"
            raise LogFailedError(self._failed) from error

    def sync(self) -> None:
        """Make everything appended so far durable."""
        if self._failed is not None:
            raise LogFailedError(self._failed)
        if self.synced < self.tail:
            tail = self.tail
            self._datasync(self.file(self.bases[-1]))
            self.synced = tail

    def _roll(self, now_ms: int) -> None:
        """Seal the last segment and begin the next.

        The old one is synced first: a crash in between must not leave a successor behind a gap.
        """
        self.sync()
        self._create(self.tail, now_ms)

    def _create(self, base: int, now_ms: int) -> None:
        path = self.path(base)
        try:
            file = self.files.open(path, create=True)
            file.append(encode_header(base, self.log_id, now_ms))
            file.sync()
            self.files.sync_dir(self.directory)
        except OSError as error:
            with contextlib.suppress(OSError):
                self.files.unlink(path)
                self.files.sync_dir(self.directory)
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise NoSpaceError(f"{path}: {error.strerror}") from error
            self._failed = f"{path}: a new segment could not be made: {error}"
            raise LogFailedError(self._failed) from error
        self.bases.append(base)
        self._keep(base, file)
        self.tail = self.synced = base + SEGMENT_HEADER_SIZE

    def drop_before(self, offset: int) -> list[int]:
        """Remove the sealed segments that end at or before `offset`; returns their bases.

        The caller has put down durably that the log begins at `offset`: a crash may undo any of the
        removals, not just the last.
        """
        dropped: list[int] = []
        while len(self.bases) > 1 and self.bases[0] < offset and self.bases[1] <= offset:
            base = self.bases.pop(0)
            self.files.unlink(self.path(base))
            self.files.unlink(self.sidecar_path(base))
            dropped.append(base)
        if dropped:
            self.files.sync_dir(self.directory)
        for base in dropped:
            self._segments.pop(base, None)  # closed when the last reader lets go of it
        return dropped

    # ------------------------------------------------------------------ reading

    @property
    def start(self) -> int:
        """The offset of the first record that is still kept."""
        return self.bases[0] + SEGMENT_HEADER_SIZE

    def path(self, base: int) -> Path:
        """Where the segment with this base lies."""
        return self.directory / segment_name(base)

    def sidecar_path(self, base: int) -> Path:
        """Where that segment's sidecar lies."""
        return self.path(base).with_suffix(SIDECAR_SUFFIX)

    def file(self, base: int) -> AppendFile:
        """The open file of a segment."""
        file = self._segments.get(base)
        if file is None:
            try:
                file = self.files.open(self.path(base)) if self.writable else self._open_readonly(base)
            except FileNotFoundError:
                raise OffsetError(base, "its segment has just been removed by retention") from None
            self._keep(base, file)
        return file

    def _keep(self, base: int, file: AppendFile) -> None:
        self._segments[base] = file
        while len(self._segments) > OPEN_SEGMENTS_MAX:
            # Not closed here: a reader in another thread may hold it; it closes when let go.
            oldest = next(b for b in list(self._segments) if b not in (base, self.bases[-1]))
            self._segments.pop(oldest, None)

    def _open_readonly(self, base: int) -> AppendFile:
        return self.files.open_readonly(self.path(base))

    def base_of(self, offset: int) -> int:
        """The base of the segment that holds `offset`; OffsetError if none does."""
        bases = self.bases
        place = bisect_right(bases, offset) - 1
        if place < 0:
            raise OffsetError(offset, f"the log now begins at {bases[0]}")
        if offset >= self.tail:
            raise OffsetError(offset, f"the log ends at {self.tail}")
        return bases[place]

    def end_of(self, base: int) -> int:
        """The offset just past the segment."""
        place = bisect_right(self.bases, base)
        return self.bases[place] if place < len(self.bases) else self.tail

    def read(self, offset: int, size: int | None = None) -> bytes:
        """The whole record at `offset`, checked; OffsetError or CorruptionError if there is none."""
        base = self.base_of(offset)
        if offset % 8 or offset < base + SEGMENT_HEADER_SIZE:
            raise OffsetError(offset, "no record begins there")
        file = self.file(base)
        data = file.read(offset - base, size or 1024)
        if len(data) >= HEADER_SIZE:
            stated = int.from_bytes(data[:4], "little")
            if stated > len(data) and stated <= self.tail - offset:
                data = file.read(offset - base, stated)
            data = data[:stated]
        problem = fault(data)
        if problem is not None:
            raise CorruptionError(self.path(base), offset, problem)
        return data

    def read_raw(self, offset: int, size: int) -> bytes:
        """Bytes as they lie there, unchecked, for telling what is left of a damaged record."""
        base = self.base_of(offset)
        return self.file(base).read(offset - base, size)

    def read_many(self, offsets: np.ndarray, sizes: np.ndarray) -> list[bytes | CorruptionError]:
        """The records at these places, in the order given; neighbours are read together.

        A record that is not whole is returned as its error, so that it stops none of the others.
        """
        found: list[bytes | CorruptionError] = [b""] * len(offsets)
        order = np.argsort(offsets, kind="stable")
        for run in self._runs(offsets[order], sizes[order]):
            places = order[run]
            first = int(offsets[places[0]])
            last = places[-1]
            try:
                base = self.base_of(first)
                span = int(offsets[last]) + int(sizes[last]) - first
                data = self.file(base).read(first - base, span)
            except OffsetError as error:
                for place in places.tolist():
                    at = int(offsets[place])
                    found[place] = CorruptionError(self.directory, at, str(error))
                continue
            for place, at, size in zip(
                places.tolist(),
                (offsets[places] - first).tolist(),
                sizes[places].tolist(),
                strict=True,
            ):
                record = data[at : at + size]
                problem = fault(record) or _size_fault(record, size)
                found[place] = (
                    record if problem is None else CorruptionError(self.path(base), first + at, problem)
                )
        return found

    def warm(self, offsets: np.ndarray, sizes: np.ndarray) -> None:
        """Read these places in offset order, so that they are in the page cache when they are wanted."""
        order = np.argsort(offsets, kind="stable")
        for run in self._runs(offsets[order], sizes[order]):
            places = order[run]
            first = int(offsets[places[0]])
            span = int(offsets[places[-1]]) + int(sizes[places[-1]]) - first
            with contextlib.suppress(OffsetError):
                base = self.base_of(first)
                self.file(base).read(first - base, span)

    def _runs(self, offsets: np.ndarray, sizes: np.ndarray) -> Iterator[slice]:
        """Slices of sorted places that lie in one segment, close together, and are not too much."""
        bases = np.searchsorted(np.array(self.bases, np.uint64), offsets, side="right")
        ends = offsets + sizes
        apart = (offsets[1:] > ends[:-1] + np.uint64(_GAP_BYTES)) | (bases[1:] != bases[:-1])
        edges = [0, *(np.flatnonzero(apart) + 1).tolist(), len(offsets)]
        for begin, end in itertools.pairwise(edges):
            at = begin
            while at < end:
                full = int(np.searchsorted(ends[at:end], offsets[at] + np.uint64(_RUN_BYTES), side="right"))
                yield slice(at, at + max(full, 1))
                at += max(full, 1)

    def scan(self, start: int, end: int | None = None) -> Iterator[Scanned]:
        """Every record in [start, end); CorruptionError at the first that is not whole."""
        end = self.tail if end is None else end
        for base in list(self.bases):
            first, last = max(start, base + SEGMENT_HEADER_SIZE), min(end, self.end_of(base))
            if first < last:
                for item in scan(self.file(base), base, first, last):
                    if isinstance(item, Damage):
                        raise CorruptionError(self.path(base), item.offset, item.reason)
                    yield item

    def tables(self, start: int, end: int | None = None) -> Iterator[Table]:
        """The same as columns, at most 50,000 records a table; sound sidecars spare the scan."""
        end = self.tail if end is None else end
        for base in list(self.bases):
            first, last = max(start, base + SEGMENT_HEADER_SIZE), min(end, self.end_of(base))
            if first >= last:
                continue
            if base != self.bases[-1]:
                kept = sidecar.read(self.files, self.sidecar_path(base), base, self.end_of(base))
                if kept is not None:
                    yield from _slices(kept, first, last)
                    continue
            yield from scan_tables(self.scan(first, last))

    def write_sidecar(self, base: int, table: Table | None) -> None:
        """Keep the table of a sealed segment beside it; scans the segment if no table is given."""
        end = self.end_of(base)
        if table is None:
            table = merge(list(scan_tables(self.scan(base + SEGMENT_HEADER_SIZE, end))))
        sidecar.write(self.files, self.sidecar_path(base), table, base, end)

    def segment_table(self, base: int) -> Table:
        """The whole table of one segment."""
        return merge(list(self.tables(base, self.end_of(base))))


def _size_fault(record: bytes, size: int) -> str | None:
    stated = int.from_bytes(record[:4], "little")
    return None if stated == size else f"the record has {stated} bytes, {size} were asked for"


def _slices(table: Table, first: int, last: int) -> Iterator[Table]:
    offsets = table.rows["offset"]
    low, high = np.searchsorted(offsets, np.array([first, last], np.uint64))
    for at in range(int(low), int(high), _TABLE_RECORDS):
        yield Table(table.rows[at : min(at + _TABLE_RECORDS, int(high))].copy(), table.topics)


def scan_tables(found: Iterator[Scanned]) -> Iterator[Table]:
    """Tables of scanned records, at most 50,000 records each."""
    records: list[bytes] = []
    offsets: list[int] = []
    topics: list[str] = []
    for item in found:
        data = item.data
        records.append(data)
        offsets.append(item.offset)
        topics.append(data[HEADER_SIZE : HEADER_SIZE + int.from_bytes(data[16:18], "little")].decode())
        if len(records) == _TABLE_RECORDS:
            yield table_of(records, topics, np.array(offsets, np.uint64))
            records, offsets, topics = [], [], []
    if records:
        yield table_of(records, topics, np.array(offsets, np.uint64))
