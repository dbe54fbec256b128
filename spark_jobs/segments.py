"""Reads one segment of a log from any file system: its table from an intact sidecar, or from a scan.

Runs in executors: imports neither LMDB nor an event loop.

What a scan finds:
1. An incomplete record in a sealed segment is damage: CorruptionError, or with `salvage` a `Damaged` region,
   after which the scan continues at the next intact record.
2. An incomplete unit at the end of the last segment was being written or was torn, and is ignored, as in
   `timerwheel.store.log.CommitLog.recover_tail`. It is damage only if intact records follow it.
"""

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from timerwheel.spark_jobs.storage import place_of
from timerwheel.state.log_manifest import read_start
from timerwheel.store import sidecar
from timerwheel.store.errors import CorruptionError, FormatError, StoreError
from timerwheel.store.files import ReadFile, ReadPath
from timerwheel.store.log_reader import scan_tables
from timerwheel.store.record import FLAG_MORE, FLAGS_AT, UNKNOWN_VERSION, fault
from timerwheel.store.segment import (
    SEGMENT_HEADER_SIZE,
    Block,
    Scanned,
    end_of_writing,
    read_header,
    read_made_ms,
    segment_name,
    sidecar_name,
    walk,
)
from timerwheel.store.table import Rows, Table, merge


class SegmentGoneError(StoreError):
    """Retention removed a segment before it was read."""

    code = "segment_gone"


class Segment(NamedTuple):
    """One segment file. `end` is the log offset where the next one begins, None for the last one of a log.

    `staged` is the URL of a table that a survey made because no sidecar was intact. `until`, set by the
    survey, is where its last complete unit ends. `log_id` is that of the log, None if it need not be checked.
    """

    node: str
    directory: str
    base: int
    end: int | None
    staged: str | None = None
    until: int | None = None
    log_id: bytes | None = None


class Damaged(NamedTuple):
    """A region [offset, end) of a log without an intact record."""

    node: str
    path: str
    offset: int
    end: int
    reason: str
    torn: bool = False  # the unfinished end of the last segment, which is not an error


class SegmentReader:
    """Reads one segment, once. `damaged`, `until` and `source` are valid after the reading has ended."""

    def __init__(self, segment: Segment, *, salvage: bool = False, sidecars: bool = True) -> None:
        self.segment = segment
        self.damaged: list[Damaged] = []
        self.until = segment.base + SEGMENT_HEADER_SIZE
        self.source = "scan"
        self._salvage = salvage
        self._sidecars = sidecars
        self._place = place_of(segment.directory)

    @property
    def path(self) -> ReadPath:
        """The segment file."""
        return self._place.file(segment_name(self.segment.base))

    def table(self) -> Table:
        """The whole table: about 64 bytes per record."""
        found = self.kept_table()
        return found if found is not None else merge(list(scan_tables(self.records())))

    def tables(self) -> Iterator[Table]:
        """The table in pieces."""
        found = self.kept_table()
        if found is not None:
            yield found
        else:
            yield from scan_tables(self.records())

    def kept_table(self) -> Table | None:
        """The whole table if it can be had without reading the records; else None."""
        segment = self.segment
        if segment.staged is not None:
            files, path = place_of(segment.staged)
            assert segment.until is not None
            found = sidecar.read(files, path, segment.base, segment.until)
            if found is None:
                raise CorruptionError(
                    segment.staged, segment.base, "the staged table has changed since it was written"
                )
            self.source, self.until = "staged", segment.until
            return found
        if segment.end is None or not self._sidecars or not self._has_full_size():
            return None
        path = self._place.file(sidecar_name(segment.base))
        found = sidecar.read(self._place.files, path, segment.base, segment.end)
        if found is not None:
            self.source, self.until = "sidecar", segment.end
        return found

    def _has_full_size(self) -> bool:
        """Whether the file exists and has the right size, which its sidecar cannot show."""
        segment = self.segment
        assert segment.end is not None
        try:
            with contextlib.closing(self._place.files.open_readonly(self.path)) as file:
                return file.size() == segment.end - segment.base
        except FileNotFoundError:
            return False

    def records(self) -> Iterator[Scanned]:
        """Yields every record of a complete unit, checked against its CRC."""
        segment = self.segment
        file = self._open()
        if file is None:
            return
        try:
            # First: a web server that knows no range requests answers with the whole file.
            if not self._is_ours(file):
                return
            end = end_of_writing(file, segment.base) if segment.end is None else segment.end
            unit: list[Scanned] = []
            for item in self._found(file, end):
                unit.append(item)
                if not item.data[FLAGS_AT] & FLAG_MORE:
                    yield from unit
                    unit.clear()
                    self.until = item.offset + len(item.data)
            if unit and segment.end is None:
                reason = "the last unit of records is not complete"
                if self.damaged and self.damaged[-1].torn:
                    reason += f": {self.damaged.pop().reason}"  # one region for the whole unit
                self._note(unit[0].offset, end, reason, torn=True)
            else:
                yield from unit
            if (beyond := segment.base + file.size() - end) > 0 and segment.end is not None:
                reason = f"the segment extends {beyond} bytes beyond the start of the next one"
                self._note(end, end + beyond, reason)
        finally:
            file.close()

    def records_of(self, rows: Rows) -> Iterator[Scanned]:
        """Yields the records of these rows of the segment's table, in order, checked against their CRC."""
        if not len(rows):
            return
        file = self._open()
        if file is None:
            return
        with contextlib.closing(file):
            for offset, size in zip(rows["offset"].tolist(), rows["size"].tolist(), strict=True):
                data = file.read(offset - self.segment.base, size)
                problem = fault(data)
                if problem is None:
                    yield Scanned(offset, data)
                else:
                    self._note(offset, offset + size, problem)

    def _open(self) -> ReadFile | None:
        """The file; None if it is missing although retention did not remove it."""
        segment = self.segment
        try:
            return open_segment(segment)
        except FileNotFoundError:
            if segment.end is None:
                raise SegmentGoneError(
                    f"{self.path} is gone: the log was moved or removed; run the job again"
                ) from None
            self._note(segment.base, segment.end, "the segment is missing")
            return None

    def _is_ours(self, file: ReadFile) -> bool:
        """Note a damaged header; False, and all of the segment is noted, if it belongs to another log."""
        base, wanted = self.segment.base, self.segment.log_id
        try:
            found = read_header(file, self.path, base)
        except CorruptionError as error:
            self._note(base, base + SEGMENT_HEADER_SIZE, error.reason)
            return True
        if wanted is None or found == wanted:
            return True
        end = base + file.size() if self.segment.end is None else self.segment.end
        reason = f"the segment belongs to log {found.hex()}, and the others to log {wanted.hex()}"
        self._note(base, end, reason)
        return False

    def _found(self, file: ReadFile, end: int) -> Iterator[Scanned]:
        base = self.segment.base
        for found in walk(file, base, base + SEGMENT_HEADER_SIZE, end):
            if isinstance(found, Block):
                yield from found.records()
                continue
            if found.reason.startswith(UNKNOWN_VERSION):
                raise FormatError(
                    f"{self.path}: at log offset {found.start}: {found.reason}; use a newer version"
                )
            torn = found.end == end and self.segment.end is None
            self._note(found.start, found.end, found.reason, torn=torn)

    def _note(self, offset: int, end: int, reason: str, *, torn: bool = False) -> None:
        if not torn and not self._salvage:
            raise CorruptionError(self.path, offset, f"{reason}; --salvage skips it")
        self.damaged.append(Damaged(self.segment.node, str(self.path), offset, end, reason, torn))


def open_segment(segment: Segment) -> ReadFile:
    """Opens the file of a segment.

    Raises SegmentGoneError if retention has removed it, FileNotFoundError if it is missing although the log
    begins before it. Retention writes the manifest first, so the manifest is read after the attempt.
    """
    place = place_of(segment.directory)
    path = place.file(segment_name(segment.base))
    try:
        return place.files.open_readonly(path)
    except FileNotFoundError:
        start = read_start(place.files, place.path)
        if start is None or segment.base >= start.offset:
            raise
        raise SegmentGoneError(f"{path} is gone: retention has removed it; run the job again") from None


def made_ms_of(segment: Segment) -> int:
    """When a segment was created, epoch milliseconds; 0 if its header is damaged."""
    path = place_of(segment.directory).file(segment_name(segment.base))
    try:
        with contextlib.closing(open_segment(segment)) as file:
            return read_made_ms(file, path, segment.base)
    except CorruptionError:
        return 0


def read_records(segment: Segment, rows: Rows) -> list[bytes | CorruptionError]:
    """Reads the records of these rows of a segment's table, or returns why one cannot be read."""
    path = place_of(segment.directory).file(segment_name(segment.base))
    found: list[bytes | CorruptionError] = []
    with contextlib.closing(open_segment(segment)) as file:
        for offset, size in zip(rows["offset"].tolist(), rows["size"].tolist(), strict=True):
            data = file.read(offset - segment.base, size)
            problem = fault(data)
            found.append(data if problem is None else CorruptionError(path, offset, problem))
    return found
