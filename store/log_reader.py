"""Reading the commit log: any thread, any process, while its owner may be writing.

Knows the segments by their bases and the tail up to which it may read. `timerwheel.store.log.CommitLog` adds
the writing. Format: `doc/log-format.md`.

Threads: the writer publishes `bases`, a tuple that it replaces and never changes, and `tail`. A new segment's
base is published before the tail moves into it, so a reader takes the tail first and then the bases
(`_extent`): the segment that holds a tail is always among the bases read after it. Each call takes one
snapshot and works with that. A segment has one open file for all threads; `files_lock` guards the table of
these files.
"""

import contextlib
import itertools
import resource
import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from timerwheel.store import sidecar
from timerwheel.store.errors import (
    NO_SPACE,
    UNREADABLE,
    CorruptionError,
    ForeignSegmentError,
    FormatError,
    NoSpaceError,
    OffsetError,
)
from timerwheel.store.files import Files, LogFile
from timerwheel.store.record import HEADER_SIZE, fault, is_whole
from timerwheel.store.segment import (
    REGISTER_SUFFIX,
    SEGMENT_HEADER_SIZE,
    SIDECAR_SUFFIX,
    Block,
    Gap,
    Scanned,
    SegmentFile,
    end_of_writing,
    read_header,
    segment_base,
    segment_name,
    walk,
)
from timerwheel.store.table import Rows, Table, merge, table_of, table_of_block

Lost: TypeAlias = list[tuple[int, int]]
"""Damaged ranges [from, to) of the log."""

START_FILE = "start"
"""The manifest beside the segments: `timerwheel.state.log_manifest`."""
OPEN_SEGMENTS_MAX = 256
OPEN_SEGMENTS_SHARE = 4
"""Open segments use at most one in this many of the process's descriptors."""
_TABLE_RECORDS = 50_000
_GAP_BYTES = 16_384
_RUN_BYTES = 8 << 20


class Span(NamedTuple):
    """One segment: its base, the offset just past it, and whether it is sealed."""

    base: int
    end: int
    sealed: bool


def open_segments_max(descriptors: int) -> int:
    """How many segments a process with this many descriptors keeps open."""
    return max(min(OPEN_SEGMENTS_MAX, descriptors // OPEN_SEGMENTS_SHARE), 1)


class LogReader:
    """The log of one data directory, for reading."""

    def __init__(self, directory: Path, files: Files) -> None:
        self.directory = directory
        self.files = files
        self.log_id = b""
        self.bases: tuple[int, ...] = ()
        self.tail = 0
        self.keep_from = 0
        self.open_segments: dict[int, SegmentFile] = {}
        self.files_lock = threading.Lock()
        self._open_max = open_segments_max(resource.getrlimit(resource.RLIMIT_NOFILE)[0])

    def _found_bases(self) -> tuple[int, ...]:
        names = self.files.names(self.directory)
        return tuple(sorted(base for base in map(segment_base, names) if base is not None))

    def _extent(self) -> tuple[int, tuple[int, ...]]:
        """The tail, and the bases, which include that of the segment with the tail."""
        tail = self.tail
        return tail, self.bases

    def spans(self) -> list[Span]:
        """All current segments, first to last."""
        tail, bases = self._extent()
        ends = (*bases[1:], max(tail, bases[-1]))
        return [Span(base, end, base != bases[-1]) for base, end in zip(bases, ends, strict=True)]

    def open_readonly(self, *, keep_from: int = 0, faults: list[CorruptionError] | None = None) -> None:
        """Open the log read-only; its owner may keep writing. `keep_from` is where its manifest has it begin.

        A segment whose header is damaged, or that belongs to another log, is an error. With `faults` it is
        added there, unless no segment has a header.
        """
        self.keep_from = keep_from
        self.bases = tuple(base for base in self._found_bases() if base >= keep_from)
        if not self.bases:
            raise FormatError(f"{self.directory}: no segment of a commit log")
        while len(self.bases) > 1 and self.file(self.bases[-1]).size() < SEGMENT_HEADER_SIZE:
            self.bases = self.bases[:-1]
        self.log_id = self._log_id_of(self.bases, faults)
        self.tail = end_of_writing(self.file(self.bases[-1]), self.bases[-1])

    def _log_id_of(self, bases: Sequence[int], faults: list[CorruptionError] | None = None) -> bytes:
        """The log id in the headers of these segments, at least one. Raises CorruptionError and FormatError.

        With `faults`, what is wrong with a header goes there, and the id is that of most segments.
        """
        found: dict[int, bytes] = {}
        for base in bases:
            try:
                found[base] = read_header(self.file(base), self.path(base), base)
            except CorruptionError as error:
                if faults is None or len(bases) == 1:
                    raise
                faults.append(error)
        if not found:
            assert faults
            raise faults[0]
        log_id, _ = Counter(found.values()).most_common(1)[0]
        for base, other in found.items():
            if other != log_id:
                reason = f"the segment belongs to log {other.hex()}, and the others to log {log_id.hex()}"
                foreign = ForeignSegmentError(self.path(base), base, reason)
                if faults is None:
                    raise foreign
                faults.append(foreign)
        return log_id

    def check_beginning(self) -> None:
        """Raise CorruptionError if the segment is missing with which the log must begin."""
        if self.bases[0] != self.keep_from:
            reason = f"the log must begin at {self.keep_from}: a segment is missing"
            raise CorruptionError(self.directory, self.keep_from, reason)

    def close(self) -> None:
        """Release every descriptor; does not sync."""
        with self.files_lock:
            for file in self.open_segments.values():
                file.close()
            self.open_segments.clear()

    @property
    def start(self) -> int:
        """The offset of the first kept record."""
        return self.bases[0] + SEGMENT_HEADER_SIZE

    def path(self, base: int) -> Path:
        """The path of the segment with this base."""
        return self.directory / segment_name(base)

    def sidecar_path(self, base: int) -> Path:
        """The path of that segment's sidecar."""
        return self.path(base).with_suffix(SIDECAR_SUFFIX)

    def register_path(self, base: int) -> Path:
        """The path of that segment's register (`timerwheel.store.register`)."""
        return self.path(base).with_suffix(REGISTER_SUFFIX)

    def file(self, base: int) -> SegmentFile:
        """The open file of a segment. OffsetError if it was removed, NoSpaceError without a descriptor."""
        file = self.open_segments.get(base)
        if file is not None:
            return file
        with self.files_lock:
            file = self.open_segments.get(base)
            if file is None:
                try:
                    file = SegmentFile(self._open(self.path(base)))
                except FileNotFoundError:
                    raise OffsetError(base, "its segment has just been removed by retention") from None
                except OSError as error:
                    if error.errno not in NO_SPACE:
                        raise
                    raise NoSpaceError(f"{self.path(base)}: {error.strerror}") from error
                self._keep(base, file)
            return file

    def _keep(self, base: int, file: SegmentFile) -> None:
        """Share this file with all readers; the caller holds `files_lock`.

        A file whose segment is no longer among the bases is not kept: nobody would ever drop it.
        """
        bases = self.bases
        if bases and base < bases[0]:
            return
        self.open_segments[base] = file
        while len(self.open_segments) > self._open_max:
            # Not closed here: a reader in another thread may hold it; it closes when dropped.
            del self.open_segments[next(b for b in self.open_segments if b not in (base, bases[-1]))]

    def _open(self, path: Path) -> LogFile:
        return self.files.open_readonly(path)

    def base_of(self, offset: int) -> int:
        """The base of the segment that holds `offset`; OffsetError if none does."""
        return self._place_of(offset)[0]

    def _place_of(self, offset: int) -> tuple[int, int]:
        """The base of the segment that holds `offset`, and the log's tail; OffsetError if none does."""
        tail, bases = self._extent()
        place = bisect_right(bases, offset) - 1
        if place < 0:
            raise OffsetError(offset, f"the log now begins at {bases[0]}")
        if offset >= tail:
            raise OffsetError(offset, f"the log ends at {tail}")
        return bases[place], tail

    def end_of(self, base: int) -> int:
        """The offset just past the segment; OffsetError if retention has removed it."""
        tail, bases = self._extent()
        place = bisect_right(bases, base)
        if place == 0 or bases[place - 1] != base:
            raise OffsetError(base, "its segment has just been removed by retention")
        return bases[place] if place < len(bases) else max(tail, base)

    def read(self, offset: int, size: int | None = None) -> bytes:
        """The record at `offset`, checked. Raises OffsetError or CorruptionError."""
        base, tail = self._place_of(offset)
        if offset % 8 or offset < base + SEGMENT_HEADER_SIZE:
            raise OffsetError(offset, "no record begins there")
        file = self.file(base)
        data = file.read(offset - base, size or 1024)
        if len(data) >= HEADER_SIZE:
            stated = int.from_bytes(data[:4], "little")
            if stated > len(data) and stated <= tail - offset:
                data = file.read(offset - base, stated)
            data = data[: max(stated, HEADER_SIZE)]
        problem = fault(data)
        if problem is not None:
            raise self._damaged(file, base, offset, data, problem)
        return data

    def _damaged(
        self, file: SegmentFile, base: int, offset: int, record: bytes, problem: str
    ) -> CorruptionError:
        """A damaged record, of which these bytes were read: `problem`, unless the disk says why.

        They may stand in for what the disk could not read, so what remains of the header is read again.
        """
        at = offset - base
        reason = file.trouble(at, len(record))
        try:
            remains = file.exact(at, min(len(record), HEADER_SIZE))
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
            remains = b""
        return CorruptionError(self.path(base), offset, reason or problem, remains)

    def read_raw(self, offset: int, size: int) -> bytes:
        """Raw, unchecked bytes; other ones where the disk cannot read them."""
        base = self.base_of(offset)
        return self.file(base).read(offset - base, size)

    def read_exact(self, offset: int, size: int) -> bytes:
        """Raw bytes for a copy of them; OSError if the disk cannot read them."""
        base = self.base_of(offset)
        return self.file(base).exact(offset - base, size)

    def read_many(self, offsets: np.ndarray, sizes: np.ndarray) -> list[bytes | CorruptionError]:
        """The records at these places, in the given order; adjacent ones are read together.

        A damaged record is returned as its error, so that it does not block the others.
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
                file = self.file(base)
                data = file.read(first - base, span)
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
                if is_whole(record, size):
                    found[place] = record
                else:
                    problem = fault(record) or _size_fault(record, size)
                    found[place] = self._damaged(file, base, first + at, record, problem)
        return found

    def rows_reader(self, rows: Rows) -> Callable[[np.ndarray], Sequence[bytes | CorruptionError]]:
        """Return a function that maps places of rows to their records; a damaged record is its error."""

        def read(places: np.ndarray) -> Sequence[bytes | CorruptionError]:
            wanted = rows[places]
            return self.read_many(wanted["offset"], wanted["size"])

        return read

    def warm(self, offsets: np.ndarray, sizes: np.ndarray) -> None:
        """Prefetch these places in offset order into the page cache."""
        order = np.argsort(offsets, kind="stable")
        for run in self._runs(offsets[order], sizes[order]):
            places = order[run]
            first = int(offsets[places[0]])
            span = int(offsets[places[-1]]) + int(sizes[places[-1]]) - first
            with contextlib.suppress(OffsetError):
                base = self.base_of(first)
                self.file(base).read(first - base, span)

    def _runs(self, offsets: np.ndarray, sizes: np.ndarray) -> Iterator[slice]:
        """Slices of sorted places in one segment, close together and limited in size."""
        bases = np.searchsorted(np.array(self.bases, np.uint64), offsets, side="right")
        ends = offsets + sizes
        split = (offsets[1:] > ends[:-1] + np.uint64(_GAP_BYTES)) | (bases[1:] != bases[:-1])
        edges = [0, *(np.flatnonzero(split) + 1).tolist(), len(offsets)]
        for begin, end in itertools.pairwise(edges):
            at = begin
            while at < end:
                full = int(np.searchsorted(ends[at:end], offsets[at] + np.uint64(_RUN_BYTES), side="right"))
                yield slice(at, at + max(full, 1))
                at += max(full, 1)

    def blocks(self, start: int, end: int | None = None, lost: Lost | None = None) -> Iterator[Block]:
        """Yields the records of [start, end) in blocks. Raises CorruptionError at the first damaged one.

        With `lost`, damage is skipped, and its range [from, to) is added there.
        """
        for span in self.spans():
            yield from self._blocks_of(span, *_part(span, start, end), lost)

    def _blocks_of(self, span: Span, first: int, last: int, lost: Lost | None = None) -> Iterator[Block]:
        if first < last:
            for found in walk(self.file(span.base), span.base, first, last):
                if not isinstance(found, Gap):
                    yield found
                elif lost is None:
                    raise CorruptionError(self.path(span.base), found.start, found.reason)
                else:
                    lost.append((found.start, found.end))

    def scan(self, start: int, end: int | None = None) -> Iterator[Scanned]:
        """Yields the records of [start, end) one at a time."""
        for block in self.blocks(start, end):
            yield from block.records()

    def tables(self, start: int, end: int | None = None, lost: Lost | None = None) -> Iterator[Table]:
        """Yields tables of at most 50,000 records of [start, end); uses intact sidecars instead of scans."""
        for span in self.spans():
            yield from self._tables_of(span, *_part(span, start, end), lost)

    def _tables_of(self, span: Span, first: int, last: int, lost: Lost | None = None) -> Iterator[Table]:
        if first >= last:
            return
        if span.sealed:
            kept = sidecar.read(self.files, self.sidecar_path(span.base), span.base, span.end)
            if kept is not None:
                yield from _slices(kept, first, last)
                return
        yield from _block_tables(self._blocks_of(span, first, last, lost))

    def write_sidecar(self, base: int, table: Table | None) -> None:
        """Write the sidecar of a sealed segment; scans the segment if no table is given.

        Raises OffsetError, and leaves no sidecar, if retention removes the segment at the same time.
        """
        span = self._span_of(base)
        if table is None:
            table = merge(list(_block_tables(self._blocks_of(span, *_part(span, base, None)))))
        path = self.sidecar_path(base)
        sidecar.write(self.files, path, table, base, span.end)
        # Retention drops the base before the files, so this detects a sidecar that was written too late.
        if base < self.bases[0]:
            self.files.unlink(path)
            raise OffsetError(base, "its segment has just been removed by retention")

    def segment_table(self, base: int) -> Table:
        """The table of one segment's records. Raises OffsetError if retention has removed it."""
        span = self._span_of(base)
        return merge(list(self._tables_of(span, *_part(span, base, None), lost=[])))

    def _span_of(self, base: int) -> Span:
        for span in self.spans():
            if span.base == base:
                return span
        raise OffsetError(base, "its segment has just been removed by retention")


def _part(span: Span, start: int, end: int | None) -> tuple[int, int]:
    """The records of a segment in [start, end)."""
    return max(start, span.base + SEGMENT_HEADER_SIZE), span.end if end is None else min(end, span.end)


def _size_fault(record: bytes, size: int) -> str:
    return f"the record has {int.from_bytes(record[:4], 'little')} bytes, expected {size}"


def _slices(table: Table, first: int, last: int) -> Iterator[Table]:
    offsets = table.rows["offset"]
    low, high = np.searchsorted(offsets, np.array([first, last], np.uint64))
    for at in range(int(low), int(high), _TABLE_RECORDS):
        yield Table(table.rows[at : min(at + _TABLE_RECORDS, int(high))].copy(), table.topics)


def _block_tables(found: Iterator[Block]) -> Iterator[Table]:
    """Tables of blocks, at most 50,000 records each; a block has fewer."""
    parts: list[Table] = []
    count = 0
    for block in found:
        table = table_of_block(block.data, block.edges, block.offset)
        if count + len(table.rows) > _TABLE_RECORDS:
            yield merge(parts)
            parts, count = [], 0
        parts.append(table)
        count += len(table.rows)
    if parts:
        yield merge(parts)


def scan_tables(found: Iterator[Scanned]) -> Iterator[Table]:
    """Tables of scanned records, at most 50,000 records each."""
    records: list[bytes] = []
    offsets: list[int] = []
    topics: list[str] = []
    for item in found:
        data = item.data
        records.append(data[:HEADER_SIZE])  # all records in full would take as much memory as the segment
        offsets.append(item.offset)
        topics.append(data[HEADER_SIZE : HEADER_SIZE + int.from_bytes(data[16:18], "little")].decode())
        if len(records) == _TABLE_RECORDS:
            yield table_of(records, topics, offsets)
            records, offsets, topics = [], [], []
    if records:
        yield table_of(records, topics, offsets)
