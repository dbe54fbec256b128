"""Reads bytes [lo, hi) of one segment: as a table, and then the records of chosen rows.

Runs on the driver, which counts, and in executors. Also reads the last segment while its service writes it:
what follows the last complete unit there is ignored, and so is a record that is only there in part.
"""

from collections.abc import Iterator
from typing import NamedTuple, Self

import numpy as np

from timerwheel.spark_jobs.columns import BATCH_BYTES, BATCH_RECORDS
from timerwheel.spark_jobs.delivered.position import LogChangedError
from timerwheel.spark_jobs.segments import Segment, SegmentGoneError, SegmentReader
from timerwheel.spark_jobs.storage import place_of
from timerwheel.store.errors import CorruptionError, FormatError
from timerwheel.store.record import FLAG_MORE, UNKNOWN_VERSION, fault, pack_start
from timerwheel.store.segment import SEGMENT_HEADER_SIZE, Block, Gap, read_header, segment_name, walk
from timerwheel.store.table import Rows, Table, merge, table_of_block


class Lost(NamedTuple):
    """Bytes [offset, end) of a log that cannot be read, and why."""

    offset: int
    end: int
    reason: str


class Part(NamedTuple):
    """Some rows in log order, and the block that has their records, if it was read."""

    table: Table
    block: Block | None


class LogRange:
    """One open segment. With `skip`, damage is left out and listed in `lost`; else it is CorruptionError."""

    def __init__(self, segment: Segment, log_id: bytes, *, skip: bool) -> None:
        self.segment = segment
        self.lost: list[Lost] = []
        self._skip = skip
        place = place_of(segment.directory)
        self._path = place.file(segment_name(segment.base))
        try:
            self._file = place.files.open_readonly(self._path)
        except FileNotFoundError:
            raise SegmentGoneError(
                f"{self._path} is gone: retention has removed it, or it was moved; start the query again"
            ) from None
        self._check_header(log_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()

    def _check_header(self, log_id: bytes) -> None:
        base = self.segment.base
        try:
            found = read_header(self._file, self._path, base)
        except CorruptionError as error:
            self._note(base, base + SEGMENT_HEADER_SIZE, error.reason)
            return
        if found != log_id:
            raise LogChangedError(f"{self._path} belongs to another log than the other segments")

    def has_record(self, last: tuple[int, int], at: int) -> bool:
        """Whether a record with this log offset and CRC ends at `at`."""
        offset, crc = last
        return self._file.read(offset - self.segment.base, 8) == pack_start(at - offset, crc)

    def size(self) -> int:
        """Bytes in the file, with the zeros that the service writes ahead."""
        return self._file.size()

    def crc_at(self, offset: int) -> int:
        """The CRC of the record there."""
        return int.from_bytes(self._file.read(offset - self.segment.base + 4, 4), "little")

    def parts(self, lo: int, hi: int | None) -> Iterator[Part]:
        """The rows between, in pieces; without `hi` those up to the last complete unit."""
        kept = self._kept(lo, hi) if hi is not None else self.table(lo, None)
        if kept is not None:
            yield Part(kept, None)
            return
        assert hi is not None
        for block in self._blocks(lo, hi):
            yield Part(table_of_block(block.data, block.edges, block.offset), block)

    def table(self, lo: int, hi: int | None) -> Table:
        """The rows between as one table: about 64 bytes per record."""
        kept = None if hi is None else self._kept(lo, hi)
        if kept is not None:
            return kept
        found = self._growing(lo) if hi is None else self._blocks(lo, hi)
        table = merge([table_of_block(block.data, block.edges, block.offset) for block in found])
        return table if hi is not None else Table(table.rows[: units_end(table.rows)], table.topics)

    def records(self, part: Part, chosen: np.ndarray) -> Iterator[tuple[np.ndarray, list[bytes]]]:
        """The records of chosen rows, a batch at a time: the indexes of those that are intact, and these."""
        sizes = np.cumsum(part.table.rows["size"][chosen].astype(np.int64))
        at = 0
        while at < len(chosen):
            before = int(sizes[at - 1]) if at else 0
            end = int(np.searchsorted(sizes, before + BATCH_BYTES, side="right"))
            end = min(max(end, at + 1), at + BATCH_RECORDS)
            indexes = chosen[at:end]
            if part.block is None:
                yield self._read(part.table.rows, indexes)
            else:
                data, edges = part.block.data, part.block.edges
                yield indexes, [data[edges[place] : edges[place + 1]] for place in indexes.tolist()]
            at = end

    def _read(self, rows: Rows, indexes: np.ndarray) -> tuple[np.ndarray, list[bytes]]:
        wanted = rows[indexes]
        records: list[bytes] = []
        intact = []
        for index, offset, size in zip(
            indexes.tolist(), wanted["offset"].tolist(), wanted["size"].tolist(), strict=True
        ):
            data = self._file.read(offset - self.segment.base, size)
            if (problem := fault(data)) is None:
                records.append(data)
                intact.append(index)
            else:
                self._note(offset, offset + size, problem)
        return np.array(intact, np.int64), records

    def _kept(self, lo: int, hi: int) -> Table | None:
        """The rows between by the sidecar; None if it is missing or not intact."""
        if self.segment.end is None:
            return None
        table = SegmentReader(self.segment).kept_table()
        if table is None:
            return None
        first, last = np.searchsorted(table.rows["offset"], np.array([lo, hi], np.uint64)).tolist()
        return Table(table.rows[first:last], table.topics)

    def _blocks(self, lo: int, hi: int) -> Iterator[Block]:
        base = self.segment.base
        for found in walk(self._file, base, max(lo, base + SEGMENT_HEADER_SIZE), hi):
            if isinstance(found, Block):
                yield found
            else:
                self._note(found.start, found.end, found.reason)

    def _growing(self, lo: int) -> Iterator[Block]:
        """The intact records from `lo` on.

        The service may be writing: a record that looks damaged before others that are intact is looked at
        again before it counts as damage.
        """
        base = self.segment.base
        at, end = max(lo, base + SEGMENT_HEADER_SIZE), base + self._file.size()
        torn = -1
        while True:
            gap: Gap | None = None
            for found in walk(self._file, base, at, end):
                if isinstance(found, Gap):
                    gap = found
                    break
                yield found
            if gap is None or gap.end == end:
                return
            at = gap.start
            if gap.start == torn:
                self._note(gap.start, gap.end, gap.reason)
                at = gap.end
            torn = gap.start

    def _note(self, offset: int, end: int, reason: str) -> None:
        if reason.startswith(UNKNOWN_VERSION):
            raise FormatError(f"{self._path}: at log offset {offset}: {reason}; use a newer version")
        if not self._skip:
            raise CorruptionError(self._path, offset, f"{reason}; failOnDataLoss=false leaves it out")
        self.lost.append(Lost(offset, end, reason))


def units_end(rows: Rows) -> int:
    """How many of these rows belong to complete units."""
    ends = unit_ends(rows)
    return int(ends[-1]) if len(ends) else 0


def unit_ends(rows: Rows) -> np.ndarray:
    """After how many rows a unit is complete."""
    found: np.ndarray = np.flatnonzero(rows["flags"] & FLAG_MORE == 0) + 1
    return found
