"""The logs that a query reads, and where each part of them can be read: on the node, or in an archive.

Runs on the driver. What it holds grows with segments, topics and queues; of records it reads those that are
new, or the tables of their segments, to count them.

1. The same two positions always give the same rows: their stretches may be in a segment that grows, in a
   sealed one, or in the archive.
2. The log is read where it still has the range, the archive where retention has removed it.
3. A range that neither has is a DataLossError, or left out and logged; then numbering goes on with the queue
   offsets that the log's manifest `start` states.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from timerwheel.spark_jobs.archive.manifest import ArchivedSegment, Chunk
from timerwheel.spark_jobs.archive.part import RESTORED_GAP_BYTES
from timerwheel.spark_jobs.archive.store import Archive
from timerwheel.spark_jobs.delivered.archive_range import read_table
from timerwheel.spark_jobs.delivered.log_range import LogRange, unit_ends
from timerwheel.spark_jobs.delivered.options import EARLIEST, Options, Place
from timerwheel.spark_jobs.delivered.position import (
    DataLossError,
    LogChangedError,
    Position,
    QueueOffsets,
    added,
    digest_of,
    position,
)
from timerwheel.spark_jobs.delivered.rows import Selection, Stretch, changed
from timerwheel.spark_jobs.errors import JobError
from timerwheel.spark_jobs.logs import NodeLog, NoLogError, find_logs
from timerwheel.spark_jobs.segment_stats import visible_counts
from timerwheel.spark_jobs.segments import Segment
from timerwheel.store.segment import SEGMENT_HEADER_SIZE
from timerwheel.store.table import Table

logger = logging.getLogger("timerwheel")

COUNTING_THREADS = 8
COUNTS_KEPT = 10_000


class Extent(NamedTuple):
    """Bytes [base, end) of a log in one place; `end` is None for the segment that grows."""

    base: int
    end: int | None
    segment: Segment | None
    chunk: Chunk | None


class Step(NamedTuple):
    """The part [lo, hi) of an extent; `reset` has the queue offsets at `lo` if something before is gone."""

    extent: Extent
    lo: int
    hi: int | None
    reset: QueueOffsets | None


class Count(NamedTuple):
    """What a step holds: visible messages by topic and queue, how many are wanted, and its last record."""

    queues: list[tuple[str, int, int]]
    wanted: int
    last: tuple[int, int] | None


class Limit(NamedTuple):
    """How far to go at most: to a log offset, and so many wanted rows or bytes, but at least one unit."""

    until: int | None = None
    rows: int | None = None
    size_bytes: int | None = None


Counts = dict[tuple[str, int, int, int], Count]
"""Counts by log, base, lo and hi: the offset of a batch is planned first, and then its tasks."""


class Node:
    """The history of one log."""

    def __init__(
        self,
        name: str,
        log_id: bytes,
        log: NodeLog | None,
        options: Options,
        selection: Selection,
        counts: Counts,
    ) -> None:
        self.name = name
        self.log_id = log_id
        self.digest = digest_of(log_id)
        self._log = log
        self._archive = options.archive
        self._skip = options.skip
        self._selection = selection
        self._counts = counts
        segments = () if log is None else log.segments
        self._segments = tuple(one for one in segments if one.end is not None or not options.sealed)

    # ------------------------------------------------------------------ positions

    def at(self, place: Place) -> Position:
        """The position that an option names; that of a node which a document leaves out is the beginning."""
        if isinstance(place, dict):
            return place[self.name] if self.name in place else self._begin()
        return self._begin() if place == EARLIEST else self._end()

    def _begin(self) -> Position:
        """Where the first message that can be read comes."""
        first = next(iter(self._extents(0)), None)
        if first is None:
            assert self._log is not None  # a log without a sealed segment
            base = self._log.segments[0].base
            return position(base, None, self.digest, self._log_numbers())
        numbers = self._numbers_at(first)
        if numbers is None:
            self._lose(0, first.base, "the archive begins later")
        return position(first.base, None, self.digest, numbers or {})

    def _end(self) -> Position:
        """Behind the last message that can be read."""
        if self._log is None:
            return self.advance(self._begin(), Limit())[0]
        base = self._log.segments[0].base
        return self.advance(position(base, None, self.digest, self._log_numbers()), Limit())[0]

    def end_bound(self) -> int:
        """Where the last complete unit ends, without counting what is before it."""
        extents = self._extents(0 if self._log is None else self._log.segments[0].base)
        if not extents:
            return self._begin().at
        last = extents[-1]
        if last.end is not None:
            return last.end
        assert last.segment is not None
        with LogRange(last.segment, self.log_id, skip=self._skip) as source:
            return _end_of(source.table(last.base, None), last.base)

    def backlog_bytes(self, start: Position) -> int:
        """Roughly how much of the log follows."""
        extents = self._extents(start.at)
        if not extents:
            return 0
        last = extents[-1]
        if last.end is not None:
            return last.end - start.at
        assert last.segment is not None
        with LogRange(last.segment, self.log_id, skip=self._skip) as source:
            return max(last.base + source.size() - start.at, 0)

    def advance(self, start: Position, limit: Limit) -> tuple[Position, int]:
        """The position behind all that follows `start`, within the limit, and the wanted rows before it.

        Raises DataLossError, and LogChangedError if this is not the log that `start` is of.
        """
        self.check(start)
        steps = list(self._steps(start.at, limit.until))
        if limit.rows is None and limit.size_bytes is None:
            with ThreadPoolExecutor(COUNTING_THREADS) as threads:
                list(threads.map(self._count, [step for step in steps if step.hi is not None]))
        at, last, numbers = start.at, start.last, start.numbers
        rows = 0
        for step in steps:
            numbers |= step.reset or {}
            taken, count = self._take(step, limit, rows, step.lo - start.at, must=at <= start.at)
            if taken > at:
                last = count.last
            at, rows = taken, rows + count.wanted
            numbers = added(numbers, count.queues)
            if taken != step.hi:
                break
        return position(at, last, self.digest, numbers), rows

    def check(self, at: Position) -> None:
        """Raise LogChangedError if the log does not have the record that ends at this position."""
        if at.log != self.digest:
            raise LogChangedError(f"{self.name}: a position of log {at.log}; this is log {self.digest}")
        for segment in self._segments if at.last is not None else ():
            assert at.last is not None
            if segment.base <= at.last[0] and (segment.end is None or at.last[0] < segment.end):
                with LogRange(segment, self.log_id, skip=self._skip) as source:
                    if not source.has_record(at.last, at.at):
                        raise changed(self.name, at.last[0])
        if at.last is None and self._log_ends_before(at.at):
            raise changed(self.name, at.at)

    def _log_ends_before(self, at: int) -> bool:
        """Whether the log lost its end; only a segment that grows has to be read, and only then."""
        if not self._segments:
            return False
        last = self._segments[-1]
        if last.base >= at:
            return False
        if last.end is not None:
            return last.end < at
        with LogRange(last, self.log_id, skip=self._skip) as source:
            return _end_of(source.table(last.base, None), last.base + SEGMENT_HEADER_SIZE) < at

    # ------------------------------------------------------------------ tasks

    def stretches(self, start: Position, end: Position) -> Iterator[Stretch]:
        """The stretches between two positions that have wanted messages, with what numbers these."""
        self.check(start)
        self.check(end)
        numbers = start.numbers
        for step in self._steps(start.at, end.at):
            numbers |= step.reset or {}
            count = self._count(step)
            if self._is_wanted(count, numbers):
                own = {(topic, queue): numbers.get((topic, queue), 0) for topic, queue, _ in count.queues}
                yield self._stretch(step, own, start, end)
            numbers = added(numbers, count.queues)

    def stretches_from(self, at: int) -> Iterator[Stretch]:
        """All stretches from a log offset on, without counting: their rows have no queue offsets."""
        for step in self._steps(at, None):
            yield self._stretch(step, None, None, None)

    def _stretch(
        self, step: Step, numbers: QueueOffsets | None, start: Position | None, end: Position | None
    ) -> Stretch:
        extent = step.extent
        before = start.last if start is not None and start.at == step.lo else None
        if before is not None and before[0] < extent.base:
            before = None
        last = end.last if end is not None and end.at == step.hi else None
        if last is not None and last[0] < extent.base:
            last = None
        chunk = None if extent.chunk is None else extent.chunk.base
        return Stretch(self.name, self.log_id, step.lo, step.hi, extent.segment, chunk, numbers, last, before)

    def _is_wanted(self, count: Count, numbers: QueueOffsets) -> bool:
        if not count.wanted or self._selection.ranges is None:
            return bool(count.wanted)
        for topic, queue, messages in count.queues:
            first = numbers.get((topic, queue), 0)
            low, high = self._selection.ranges.of(topic, queue)
            if self._selection.wants(topic) and first + messages > low and (high is None or first < high):
                return True
        return False

    # ------------------------------------------------------------------ extents

    def _extents(self, at: int) -> list[Extent]:
        """Where the log can be read from `at` on, in order."""
        first = self._log.segments[0].base if self._log is not None else None
        found: list[Extent] = []
        if self._archive is not None and (first is None or at < first):
            for chunk in self._archive.chunks(self.log_id.hex(), at):
                end = chunk.end if first is None else min(chunk.end, first)
                if at < end and chunk.base < end:
                    found.append(Extent(chunk.base, end, None, chunk))
        return found + [
            Extent(one.base, one.end, one, None) for one in self._segments if one.end is None or one.end > at
        ]

    def _steps(self, at: int, until: int | None) -> Iterator[Step]:
        if until is not None and until <= at:
            return
        expected: int | None = at
        for extent in self._extents(at):
            if until is not None and extent.base >= until:
                break
            lo = max(at, extent.base)
            reset = None
            if expected is not None and lo > expected:
                # A log that was restored from an archive goes on behind a gap.
                if lo - expected != RESTORED_GAP_BYTES:
                    self._lose(expected, lo, self._where())
                reset = self._numbers_at(extent) or {}
            hi = until if until is not None and (extent.end is None or extent.end > until) else extent.end
            if extent.chunk is not None:
                self._lose_archived(extent.chunk, lo, hi or extent.chunk.end)
            yield Step(extent, lo, hi, reset)
            expected = hi
        if until is not None and expected is not None and expected < until:
            self._lose(expected, until, self._where())

    def _numbers_at(self, extent: Extent) -> QueueOffsets | None:
        """The queue offsets where an extent begins, if something states them."""
        if extent.base == 0:
            return {}
        if extent.chunk is not None:
            beginning = extent.chunk.segments[0].beginning
            return None if beginning is None else {(t, queue): n for t, queue, n in beginning.queues}
        is_first = self._log is not None and extent.base == self._log.segments[0].base
        return self._log_numbers() if is_first else None

    def _log_numbers(self) -> QueueOffsets:
        assert self._log is not None
        start = self._log.start
        return {} if start is None else {(topic, queue): n for topic, queue, n in start.queues}

    def _where(self) -> str:
        if self._log is None:
            return "the archive does not have them"
        if self._archive is None:
            return "retention has removed them, or the data directory was restored; an archive may have them"
        return "retention has removed them, and the archive does not have them"

    def _lose_archived(self, chunk: Chunk, lo: int, hi: int) -> None:
        for segment in chunk.segments:
            for lost in segment.lost:
                if lost.offset < hi and lost.end > lo:
                    self._lose(lost.offset, lost.end, f"they were damaged when archived: {lost.reason}")

    def _lose(self, lo: int, hi: int, why: str) -> None:
        if not self._skip:
            raise DataLossError(
                f"{self.name}: log offsets {lo} to {hi} cannot be read: {why}. "
                "failOnDataLoss=false goes on without them"
            )
        logger.warning("%s: log offsets %d to %d are left out: %s", self.name, lo, hi, why)

    # ------------------------------------------------------------------ counting

    def _count(self, step: Step) -> Count:
        """What a step with a known end holds."""
        assert step.hi is not None
        key = (self.digest, step.extent.base, step.lo, step.hi)
        found = self._counts.get(key)
        if found is None:
            found = self._counted(step, step.hi)
            self._remember(key, found)
        return found

    def _remember(self, key: tuple[str, int, int, int], count: Count) -> None:
        if len(self._counts) >= COUNTS_KEPT:
            self._counts.clear()
        self._counts[key] = count

    def _counted(self, step: Step, hi: int) -> Count:
        if step.extent.segment is not None:
            with LogRange(step.extent.segment, self.log_id, skip=self._skip) as source:
                return self._count_of(source.table(step.lo, hi), source)
        assert step.extent.chunk is not None
        inside = [one for one in step.extent.chunk.segments if one.end > step.lo and one.base < hi]
        if step.lo <= inside[0].base and inside[-1].end <= hi:
            return self._count_archived(inside)
        assert self._archive is not None
        table, _ = read_table(self._archive, self.log_id.hex(), step.extent.chunk.base, step.lo, hi)
        return self._count_of(table, None)

    def _count_archived(self, segments: list[ArchivedSegment]) -> Count:
        """Counts by the manifest: conditions on other columns than the topic may still hold."""
        totals: Counter[tuple[str, int]] = Counter()
        for segment in segments:
            for topic, queue, messages in segment.queues:
                totals[topic, queue] += messages
        wanted = sum(n for (topic, _), n in totals.items() if self._selection.wants(topic))
        return Count([(topic, queue, n) for (topic, queue), n in totals.items()], wanted, None)

    def _count_of(self, table: Table, source: LogRange | None) -> Count:
        wanted = int(np.count_nonzero(self._selection.mask(table)))
        last = None
        if source is not None and len(table.rows):
            offset = int(table.rows["offset"][-1])
            last = (offset, source.crc_at(offset))
        return Count(visible_counts(table), wanted, last)

    def _take(self, step: Step, limit: Limit, rows: int, size: int, *, must: bool) -> tuple[int, Count]:
        """How far to go in a step, and what that holds; `must` go on by at least one unit."""
        rows_left = None if limit.rows is None else max(limit.rows - rows, 0)
        bytes_left = None if limit.size_bytes is None else max(limit.size_bytes - size, 0)
        if (
            step.hi is not None
            and rows_left is None
            and (bytes_left is None or step.hi - step.lo <= bytes_left)
        ):
            return step.hi, self._count(step)
        if step.extent.segment is None:
            return self._take_archived(step, rows_left, bytes_left, must=must)
        with LogRange(step.extent.segment, self.log_id, skip=self._skip) as source:
            table = source.table(step.lo, step.hi)
            place = _cut(table, self._selection.mask(table), step.lo, rows_left, bytes_left, must=must)
            whole = place == len(table.rows)
            table = Table(table.rows[:place], table.topics)
            at = step.hi if whole and step.hi is not None else _end_of(table, step.lo)
            count = self._count_of(table, source)
        self._remember((self.digest, step.extent.base, step.lo, at), count)
        return at, count

    def _take_archived(
        self, step: Step, rows_left: int | None, bytes_left: int | None, *, must: bool
    ) -> tuple[int, Count]:
        """Whole segments of a chunk."""
        assert step.extent.chunk is not None
        assert step.hi is not None
        at, total = step.lo, Count([], 0, None)
        for segment in step.extent.chunk.segments:
            if segment.end <= step.lo or segment.base >= step.hi:
                continue
            hi = min(segment.end, step.hi)
            count = self._count(step._replace(lo=at, hi=hi))
            too_many = rows_left is not None and total.wanted + count.wanted > rows_left
            too_large = bytes_left is not None and hi - step.lo > bytes_left
            if (too_many or too_large) and not (must and at == step.lo):
                break
            at, total = hi, Count([*total.queues, *count.queues], total.wanted + count.wanted, None)
        return at, total


def _end_of(table: Table, otherwise: int) -> int:
    if not len(table.rows):
        return otherwise
    row = table.rows[-1]
    return int(row["offset"]) + int(row["size"])


def _cut(
    table: Table,
    wanted: np.ndarray,
    lo: int,
    rows_left: int | None,
    bytes_left: int | None,
    *,
    must: bool,
) -> int:
    """How many rows to take: whole units within the limits, or one if there `must` be one."""
    ends = unit_ends(table.rows)
    fits = np.ones(len(ends), bool)
    if rows_left is not None:
        fits &= np.cumsum(wanted)[ends - 1] <= rows_left
    if bytes_left is not None:
        last = table.rows[ends - 1]
        fits &= (last["offset"] + last["size"]).astype(np.int64) - lo <= bytes_left
    if fits.all():
        return len(table.rows)
    within = ends[fits]
    if len(within):
        return int(within[-1])
    return int(ends[0]) if must else 0


# ---------------------------------------------------------------------- which logs


def find_nodes(
    options: Options, selection: Selection, positions: Mapping[str, Position] | None, counts: Counts
) -> dict[str, Node]:
    """The logs that the options name, and those of known positions that only the archive still has.

    A log keeps the name under which it is known. Raises LogChangedError if another log has taken a name, and
    NoLogError for a path without a log. If the log of a position is gone, such a path may be where it was:
    the caller compares the positions with what is found. None stands for positions that are not known yet,
    and does the same.
    """
    known = positions or {}
    names = {one.log: name for name, one in known.items()}
    found: dict[str, Node] = {}
    digests: dict[str, str] = {}
    gone: list[NoLogError] = []
    for log in find_logs(options.paths, may_begin=True, gone=gone) if options.paths else ():
        digest = digest_of(log.log_id)
        if digest in digests:
            raise JobError(f"{digests[digest]} and {log.url} hold the same log: read one of them")
        digests[digest] = log.url
        name = names.get(digest, log.node)
        if name in found or (name in known and known[name].log != digest):
            raise LogChangedError(
                f"{log.url} holds another log (id {digest}) than the one that this query has read as {name}; "
                "put that one back, or begin again with a new checkpoint"
            )
        found[name] = Node(name, log.log_id, log, options, selection, counts)
    if gone and positions is not None and names.keys() <= digests.keys():
        raise gone[0]
    if options.archive is not None:
        for log_id in options.archive.log_ids():
            digest = digest_of(bytes.fromhex(log_id))
            if digest in digests or (options.paths and digest not in names):
                continue
            name = names.get(digest) or _archived_name(options.archive, log_id, found)
            found[name] = Node(name, bytes.fromhex(log_id), None, options, selection, counts)
    if not found and not known and not options.paths and options.archive is not None:
        raise JobError(f"{options.archive.url} has no archived log")
    return found


def _archived_name(archive: Archive, log_id: str, taken: Mapping[str, Node]) -> str:
    name = archive.chunk(log_id, archive.bases(log_id)[-1]).node
    return name if name not in taken else f"{name}-{digest_of(bytes.fromhex(log_id))}"
