"""Rows of delivered messages: the columns, the numbering of queue offsets, and the reading of one stretch.

A row is what the service answers for the message; columns have the names of the fields in its JSON.
Runs in executors: a task needs the segment, or the chunk of the archive, that its stretch is in.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from timerwheel.model.ids import Ids
from timerwheel.model.messages import MessageView
from timerwheel.runtime.message_views import delivered_views
from timerwheel.spark_jobs.archive.store import Archive, ArchiveError
from timerwheel.spark_jobs.columns import BATCH_RECORDS
from timerwheel.spark_jobs.conditions import Condition, mask_of
from timerwheel.spark_jobs.delivered.archive_range import read_table, read_views
from timerwheel.spark_jobs.delivered.log_range import LogRange, Lost
from timerwheel.spark_jobs.delivered.position import LogChangedError, QueueOffsets, added
from timerwheel.spark_jobs.segments import Segment, SegmentGoneError
from timerwheel.state.batch import is_visible
from timerwheel.store.table import Rows, Table

logger = logging.getLogger("timerwheel")

COLUMNS = {
    "node": "string",
    "topic": "string",
    "queue": "int",
    "offset": "bigint",
    "log_offset": "bigint",
    "due_ms": "bigint",
    "delivered_ms": "bigint",
    "lateness_ms": "bigint",
    "level": "int",
    "id": "string",
    "enqueue_ms": "bigint",
    "tags": "string",
    "keys": "array<string>",
    "dedup_key": "string",
    "properties": "map<string,string>",
    "body": "binary",
}
IN_TABLES = {
    "topic": "topic",
    "queue": "queue",
    "log_offset": "offset",
    "due_ms": "due_ms",
    "delivered_ms": "store_ms",
    "level": "level",
}
"""Columns that need no record, by their names in tables; so do those that follow from them."""
_FREE = {*IN_TABLES, "node", "offset", "lateness_ms"}

Bounds = tuple[int, int | None]


class Ranges(NamedTuple):
    """The first queue offset (included) and the last one (excluded) of a queue that are wanted.

    The most specific counts: of topic and queue, of a topic, of all.
    """

    low: Mapping[tuple[str | None, int | None], int]
    high: Mapping[tuple[str | None, int | None], int]

    def of(self, topic: str, queue: int) -> Bounds:
        """The bounds of a queue."""
        keys = ((topic, queue), (topic, None), (None, None))
        low = next((self.low[key] for key in keys if key in self.low), 0)
        return low, next((self.high[key] for key in keys if key in self.high), None)


class Selection(NamedTuple):
    """Which messages a query wants. `conditions` are those of its `where` that tables can answer."""

    topics: frozenset[str] | None = None
    conditions: tuple[Condition, ...] = ()
    ranges: Ranges | None = None

    def wants(self, topic: str) -> bool:
        """Whether messages of this topic may be wanted."""
        return (self.topics is None or topic in self.topics) and all(
            condition.holds(topic) for condition in self.conditions if condition.column == "topic"
        )

    def mask(self, table: Table) -> np.ndarray:
        """The mask of the rows that are wanted, as far as queue offsets do not matter."""
        mask: np.ndarray = is_visible(table.rows) & mask_of(self.conditions, table, IN_TABLES)
        if self.topics is not None:
            mask &= np.array([topic in self.topics for topic in table.topics], bool)[table.rows["topic"]]
        return mask

    def offset_mask(self, table: Table, offsets: np.ndarray) -> np.ndarray:
        """The mask of the rows that are wanted by their queue offsets."""
        mask = np.ones(len(offsets), bool)
        for condition in self.conditions:
            if condition.column == "offset":
                mask &= condition.mask(offsets)
        if self.ranges is not None and len(offsets):
            keys, inverse = np.unique(_queue_keys(table.rows), return_inverse=True)
            bounds = [self.ranges.of(table.topics[key >> 16], key & 0xFFFF) for key in keys.tolist()]
            low = np.array([one[0] for one in bounds], np.int64)
            high = np.array(
                [np.iinfo(np.int64).max if one[1] is None else one[1] for one in bounds], np.int64
            )
            mask &= (offsets >= low[inverse]) & (offsets < high[inverse])
        return mask

    @property
    def needs_offsets(self) -> bool:
        """Whether queue offsets decide."""
        return self.ranges is not None or any(one.column == "offset" for one in self.conditions)


class Stretch(NamedTuple):
    """Bytes [lo, hi) of a log that one task reads; without `hi` up to the last complete unit.

    They are in `segment`, or in the archive's chunk that begins at `chunk`. `numbers` has the queue offset
    that follows for each queue, None if offsets are not wanted. `last` is the record that must end at `hi`,
    `before` the one that must end at `lo`, where they are known.
    """

    node: str
    log_id: bytes
    lo: int
    hi: int | None
    segment: Segment | None
    chunk: int | None
    numbers: QueueOffsets | None
    last: tuple[int, int] | None = None
    before: tuple[int, int] | None = None


def _queue_keys(rows: Rows) -> np.ndarray:
    keys: np.ndarray = rows["topic"].astype(np.int64) << 16 | rows["queue"]
    return keys


def number(table: Table, visible: np.ndarray, numbers: QueueOffsets) -> tuple[np.ndarray, QueueOffsets]:
    """The queue offsets of the visible rows (indexes, in log order), and those that follow."""
    keys, inverse, counts = np.unique(
        _queue_keys(table.rows)[visible], return_inverse=True, return_counts=True
    )
    queues = [(table.topics[key >> 16], key & 0xFFFF) for key in keys.tolist()]
    firsts = np.array([numbers.get(queue, 0) for queue in queues], np.int64)
    begins = np.cumsum(counts) - counts
    order = np.argsort(inverse, kind="stable")
    ranks = np.empty(len(visible), np.int64)
    ranks[order] = np.arange(len(visible)) - begins[inverse[order]]
    counted = [(*queue, count) for queue, count in zip(queues, counts.tolist(), strict=True)]
    return firsts[inverse] + ranks, added(numbers, counted)


class StretchReader(NamedTuple):
    """Reads stretches as Arrow batches of this schema. Plain data: executors get copies of it.

    With `skip`, damage is left out and logged; else it is CorruptionError or ArchiveError.
    """

    selection: Selection
    schema: pa.Schema
    archive: Archive | None
    skip: bool

    def read(self, stretch: Stretch) -> Iterator[pa.RecordBatch]:
        """The wanted messages of one stretch."""
        if stretch.segment is None:
            yield from self._from_archive(stretch)
            return
        try:
            source = LogRange(stretch.segment, stretch.log_id, skip=self.skip)
        except SegmentGoneError:
            moved = self._archived(stretch)
            if moved is None:
                raise
            yield from self._from_archive(moved)
            return
        with source:
            yield from self._from_log(stretch, source)
        for lost in source.lost:
            report_lost(stretch.node, lost)

    def _archived(self, stretch: Stretch) -> Stretch | None:
        """Returns the stretch as it is in the archive, if it has been archived."""
        if self.archive is None or stretch.hi is None:
            return None
        for chunk in self.archive.chunks(stretch.log_id.hex(), stretch.lo):
            if chunk.base <= stretch.lo and stretch.hi <= chunk.end:
                return stretch._replace(segment=None, chunk=chunk.base)
        return None

    def _from_log(self, stretch: Stretch, source: LogRange) -> Iterator[pa.RecordBatch]:
        for mark, at in ((stretch.before, stretch.lo), (stretch.last, stretch.hi)):
            if mark is not None and at is not None and not source.has_record(mark, at):
                raise changed(stretch.node, mark[0])
        ids = Ids(stretch.log_id)
        numbers = stretch.numbers
        for part in source.parts(stretch.lo, stretch.hi):
            chosen, offsets, numbers = self._choose(part.table, numbers)
            if not self._needs_records:
                yield from self._table_batches(stretch.node, part.table, chosen, offsets)
                continue
            for indexes, records in source.records(part, chosen):
                places = offsets[np.searchsorted(chosen, indexes)]
                roots = part.table.rows["root"][indexes].tolist()
                views = delivered_views(ids, records, roots, places.tolist())
                yield self._batch(stretch.node, part.table, indexes, places, views)

    def _from_archive(self, stretch: Stretch) -> Iterator[pa.RecordBatch]:
        assert self.archive is not None
        assert stretch.chunk is not None
        assert stretch.hi is not None
        log_id = stretch.log_id.hex()
        lo = stretch.lo if stretch.before is None else min(stretch.before[0], stretch.lo)
        table, crcs = read_table(self.archive, log_id, stretch.chunk, lo, stretch.hi)
        check_marks(stretch, table, crcs)
        inside = table.rows["offset"] >= stretch.lo
        table = Table(table.rows[inside], table.topics)
        chosen, offsets, _ = self._choose(table, stretch.numbers)
        if not len(chosen):
            return
        if not self._needs_records:
            yield from self._table_batches(stretch.node, table, chosen, offsets)
            return
        rows = table.rows[chosen]
        topics = {table.topics[place] for place in np.unique(rows["topic"]).tolist()}
        found = 0
        for places, views in read_views(self.archive, log_id, stretch.chunk, rows, offsets, topics):
            found += len(places)
            yield self._batch(stretch.node, table, chosen[places], offsets[places], views)
        if found != len(chosen):
            raise ArchiveError(f"{self.archive.url}: the chunk {stretch.chunk} changed while it was read")

    def _choose(
        self, table: Table, numbers: QueueOffsets | None
    ) -> tuple[np.ndarray, np.ndarray, QueueOffsets | None]:
        """The indexes of the wanted rows, and their queue offsets; and the numbers for what follows."""
        mask = self.selection.mask(table)
        if numbers is None:
            chosen = np.flatnonzero(mask)
            return chosen, np.zeros(len(chosen), np.int64), None
        visible = np.flatnonzero(is_visible(table.rows))
        offsets, numbers = number(table, visible, numbers)
        kept = mask[visible]
        visible, offsets = visible[kept], offsets[kept]
        kept = self.selection.offset_mask(Table(table.rows[visible], table.topics), offsets)
        return visible[kept], offsets[kept], numbers

    @property
    def _needs_records(self) -> bool:
        return not _FREE.issuperset(self.schema.names)

    def _table_batches(
        self, node: str, table: Table, chosen: np.ndarray, offsets: np.ndarray
    ) -> Iterator[pa.RecordBatch]:
        for at in range(0, len(chosen), BATCH_RECORDS):
            part = slice(at, at + BATCH_RECORDS)
            yield self._batch(node, table, chosen[part], offsets[part], [])

    def _batch(
        self,
        node: str,
        table: Table,
        indexes: np.ndarray,
        offsets: np.ndarray,
        views: Sequence[MessageView],
    ) -> pa.RecordBatch:
        rows = table.rows[indexes]
        found: dict[str, pa.Array | np.ndarray] = {"offset": offsets}
        found["lateness_ms"] = rows["store_ms"] - rows["due_ms"]
        columns = []
        for field in self.schema:
            name = field.name
            if name == "node":
                column = pa.array([node]).take(pa.array(np.zeros(len(rows), np.int32)))
            elif name == "topic":
                column = pa.array(table.topics, pa.string()).take(pa.array(rows["topic"]))
            elif name in _FREE:
                numbers = found[name] if name in found else rows[IN_TABLES[name]]
                column = pa.array(numbers.astype(field.type.to_pandas_dtype()))
            else:
                column = pa.array([_VALUES[name](view) for view in views], field.type)
            columns.append(column.cast(field.type))
        return pa.record_batch(columns, schema=self.schema)


def _keys(view: MessageView) -> list[str]:
    return view.properties.get("KEYS", "").split()


_VALUES: dict[str, Callable[[MessageView], object]] = {
    "id": lambda view: view.id,
    "enqueue_ms": lambda view: view.enqueue_ms,
    "tags": lambda view: view.properties.get("TAGS"),
    "keys": _keys,
    "dedup_key": lambda view: view.properties.get("DEDUP_KEY"),
    "properties": lambda view: list(view.properties.items()),
    "body": lambda view: view.body,
}
"""Columns that need the record, as `timerwheel.wire.messages.fields_of` has them."""


def check_marks(stretch: Stretch, table: Table, crcs: np.ndarray) -> None:
    """Raise LogChangedError unless the archive has the records that the positions name."""
    for mark, at in ((stretch.before, stretch.lo), (stretch.last, stretch.hi)):
        if mark is None:
            continue
        place = int(np.searchsorted(table.rows["offset"], np.uint64(mark[0])))
        if place < len(crcs):
            row = table.rows[place]
            if (int(row["offset"]), int(crcs[place]), int(row["offset"] + row["size"])) == (*mark, at):
                continue
        raise changed(stretch.node, mark[0])


def changed(node: str, offset: int) -> LogChangedError:
    """The error of a log with another record where one was read."""
    return LogChangedError(
        f"{node}: the record at log offset {offset} is not the one that this query has read. The node lost "
        "records that were not synced yet, in a power cut or a failed write, or its data directory was "
        "restored. Rows that were read before may not exist any more; begin again with a new checkpoint"
    )


def report_lost(node: str, lost: Lost) -> None:
    """Log what is left out."""
    logger.warning("%s: log offsets %d to %d are left out: %s", node, lost.offset, lost.end, lost.reason)
