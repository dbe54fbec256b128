"""The view: everything the engine derives from the log and has not yet given to the index.

`apply` is the one place where a record takes effect. Firing, recall, replay after a crash and the rebuild
of a lost index all go through it, so what a record means is said once. What is applied gathers in a *stage*
until the indexer seals it and writes it in one transaction with its checkpoint.

Invariants:
1. index (at its checkpoint) + sealed stage + open stage = the log up to `until`.
2. `pending` counts are exact at every moment.

Belongs to the event loop (and to the recovering thread before the loop uses it).
"""

from collections.abc import Callable
from typing import NamedTuple

import msgspec
import numpy as np

from store.record import FLAG_EARLY, NO_OFFSET, Kind
from store.table import Table
from timerwheel.geometry import Horizons
from timerwheel.queues import POSITION_DTYPE, Positions, positions_of

_NONE = np.uint64(NO_OFFSET)


class QueueTail(msgspec.Struct):
    """One consume queue: readable offsets, and the positions that are not yet in the index."""

    min_offset: int = 0
    next_offset: int = 0
    tail: list[tuple[int, Positions]] = []


class Topic(msgspec.Struct):
    """One topic's counts and queues."""

    id: int
    name: str
    pending: int = 0
    queues: dict[int, QueueTail] = {}


class SegmentCount(msgspec.Struct):
    """Timers of one segment that still wait, its newest store time, and when one of its timers last ended."""

    pending: int = 0
    last_store_ms: int = 0
    last_end_ms: int = 0


class QueuePages(NamedTuple):
    """Positions to append to a queue in the index."""

    topic_id: int
    queue: int
    first: int
    positions: Positions


class Stage:
    """Applied records that the index does not have yet."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.until = start
        self.rows: list[np.ndarray] = []
        self.count = 0
        self.marks: dict[int, int] = {}
        self.queues: list[QueuePages] = []
        self.topics: set[int] = set()
        self.segments: set[int] = set()


class IndexState(msgspec.Struct, frozen=True):
    """The single value that the index keeps beside its tables; the checkpoint is `until`."""

    format: int
    log_id: bytes
    until: int
    horizons: Horizons
    sequence: int
    fired_until_ms: int
    level_pending: dict[int, int]


class Snapshot(NamedTuple):
    """What the index writes besides the stage's rows, taken when the stage was sealed."""

    fired_until_ms: int
    level_pending: dict[int, int]
    topics: dict[int, bytes]
    segments: dict[int, bytes]


class View:
    """See the module."""

    def __init__(self, base_of: Callable[[], list[int]]) -> None:
        self._bases = base_of
        self.topics: dict[str, Topic] = {}
        self.topics_by_id: list[Topic] = []
        self.level_pending: dict[int, int] = {}
        self.segments: dict[int, SegmentCount] = {}
        self.fired_until_ms = 0
        self.origin_floor = 0
        self.generation = 0
        self.stage = Stage(0)
        self.sealed: Stage | None = None

    @property
    def until(self) -> int:
        """The log offset up to which records have taken effect."""
        return self.stage.until

    @property
    def pending(self) -> int:
        """Messages that wait, over all topics."""
        return sum(topic.pending for topic in self.topics.values())

    # ------------------------------------------------------------------ taking effect

    def apply(self, table: Table, until: int) -> np.ndarray:
        """Let a table of records take effect, the log being known up to `until`; returns its rows.

        The rows' topic column then holds the view's topic ids.
        """
        rows = table.rows
        stage = self.stage
        stage.until = until
        if not len(rows):
            return rows
        # Only names in use: one without rows would take an id that the index never hears of.
        used, places = np.unique(rows["topic"], return_inverse=True)
        ids = np.array([self.topic(table.topics[number]).id for number in used.tolist()], np.uint32)
        rows["topic"] = ids[places]
        self._mark(rows)
        if self.origin_floor:
            # A rebuild from a log whose beginning is gone: a timer moved from there is new here.
            rows["origin"][rows["origin"] < self.origin_floor] = _NONE
        timers = rows["kind"] == Kind.TIMER
        ends = rows["origin"] != _NONE
        self._count_topics(rows, timers, ends)
        self._count_levels(rows, timers, ends)
        self._count_segments(rows, timers, ends)
        self._publish(rows[rows["kind"] == Kind.MESSAGE])
        stage.rows.append(rows)
        stage.count += len(rows)
        return rows

    def topic(self, name: str) -> Topic:
        """The topic of this name, made if it is new; ids follow the order of first appearance."""
        topic = self.topics.get(name)
        if topic is None:
            topic = Topic(len(self.topics_by_id), name)
            self.topics[name] = topic
            self.topics_by_id.append(topic)
        return topic

    def queue(self, topic: Topic, queue: int) -> QueueTail:
        """A queue of the topic, made if it is new."""
        found = topic.queues.get(queue)
        if found is None:
            found = topic.queues[queue] = QueueTail()
        return found

    def _count_topics(self, rows: np.ndarray, timers: np.ndarray, ends: np.ndarray) -> None:
        for topic_id in np.unique(rows["topic"]).tolist():
            self.stage.topics.add(topic_id)
        for chosen, step in ((timers, 1), (ends, -1)):
            if chosen.any():
                for topic_id, count in _tally(rows["topic"][chosen]):
                    self.topics_by_id[topic_id].pending += step * count

    def _count_levels(self, rows: np.ndarray, timers: np.ndarray, ends: np.ndarray) -> None:
        for levels, step in ((rows["level"][timers], 1), (rows["prior_level"][ends], -1)):
            if levels.any():
                for level, count in _tally(levels[levels > 0]):
                    self.level_pending[level] = self.level_pending.get(level, 0) + step * count

    def _count_segments(self, rows: np.ndarray, timers: np.ndarray, ends: np.ndarray) -> None:
        bases = np.array(self._bases(), np.uint64)
        owners = np.searchsorted(bases, rows["offset"], side="right") - 1
        firsts = np.concatenate([[0], np.flatnonzero(np.diff(owners)) + 1])
        newest = np.maximum.reduceat(rows["store_ms"], firsts)
        for owner, store_ms in zip(owners[firsts].tolist(), newest.tolist(), strict=True):
            segment = self._segment(int(bases[owner]))
            segment.last_store_ms = max(segment.last_store_ms, store_ms)
        now_ms = int(rows["store_ms"].max())
        for offsets, step in ((rows["offset"][timers], 1), (rows["origin"][ends], -1)):
            if len(offsets):
                for base, count in _tally(_bases_of(offsets, bases)):
                    self._segment(base).pending += step * count
        over = ends & ~timers
        if over.any():
            for base, _ in _tally(_bases_of(rows["origin"][over], bases)):
                self._segment(base).last_end_ms = max(self._segment(base).last_end_ms, now_ms)

    def _segment(self, base: int) -> SegmentCount:
        self.stage.segments.add(base)
        return self.segments.setdefault(base, SegmentCount())

    def _publish(self, rows: np.ndarray) -> None:
        if not len(rows):
            return
        fired = rows[(rows["origin"] != _NONE) & (rows["flags"] & FLAG_EARLY == 0)]
        if len(fired):
            self.fired_until_ms = max(self.fired_until_ms, int(fired["due_ms"].max()) + 1)
        keys = rows["topic"].astype(np.int64) << 16 | rows["queue"]
        for key in np.unique(keys).tolist() if len(keys) > 1 else keys.tolist():
            topic = self.topics_by_id[key >> 16]
            queue = self.queue(topic, key & 0xFFFF)
            positions = positions_of(rows[keys == key])
            queue.tail.append((queue.next_offset, positions))
            self.stage.queues.append(QueuePages(topic.id, key & 0xFFFF, queue.next_offset, positions))
            queue.next_offset += len(positions)

    def _mark(self, rows: np.ndarray) -> None:
        leads = (rows["kind"] != Kind.MESSAGE) | (rows["flags"] & FLAG_EARLY != 0)
        leads &= rows["origin"] != _NONE
        if leads.any():
            marked = rows[leads]
            pairs = zip(marked["root"].tolist(), marked["offset"].tolist(), strict=True)
            self.stage.marks.update(pairs)

    # ------------------------------------------------------------------ the way to the index

    def seal(self) -> tuple[Stage, Snapshot]:
        """Close the open stage for writing and begin the next; one may be sealed at a time."""
        assert self.sealed is None
        stage = self.sealed = self.stage
        self.stage = Stage(stage.until)
        snapshot = Snapshot(
            self.fired_until_ms,
            dict(self.level_pending),
            {number: _encode_topic(self.topics_by_id[number]) for number in stage.topics},
            {
                base: msgspec.msgpack.encode(self.segments[base])
                for base in stage.segments
                if base in self.segments
            },
        )
        return stage, snapshot

    def committed(self) -> None:
        """The sealed stage is in the index: let go of it."""
        assert self.sealed is not None
        for topic_id, number, first, positions in self.sealed.queues:
            tail = self.topics_by_id[topic_id].queues[number].tail
            assert tail[0][0] == first
            assert len(tail[0][1]) == len(positions)
            del tail[0]
        self.sealed = None
        self.generation += 1

    def unseal(self) -> None:
        """The sealed stage could not be written: put it back before the open one."""
        assert self.sealed is not None
        old, new = self.sealed, self.stage
        old.until = new.until
        old.rows += new.rows
        old.count += new.count
        old.marks.update(new.marks)
        old.queues += new.queues
        old.topics |= new.topics
        old.segments |= new.segments
        self.stage, self.sealed = old, None

    # ------------------------------------------------------------------ asking

    def mark_of(self, root: int) -> int | None:
        """Where a mark leads that the index may not have yet."""
        target = self.stage.marks.get(root)
        if target is None and self.sealed is not None:
            target = self.sealed.marks.get(root)
        return target

    def staged_rows(self, checkpoint: int) -> list[np.ndarray]:
        """Rows that an index at this checkpoint lacks."""
        parts = [*(self.sealed.rows if self.sealed else []), *self.stage.rows]
        return [part[part["offset"] >= checkpoint] for part in parts if part["offset"][-1] >= checkpoint]

    def queue_tail(self, queue: QueueTail, first: int, count_max: int) -> Positions | None:
        """Positions from `first` on if they are all in memory, else None."""
        if not queue.tail or first < queue.tail[0][0]:
            return None
        parts = []
        count = 0
        for start, positions in queue.tail:
            if start + len(positions) > first and count < count_max:
                part = positions[max(first - start, 0) :]
                parts.append(part)
                count += len(part)
        return np.concatenate(parts)[:count_max] if parts else np.zeros(0, POSITION_DTYPE)

    # ------------------------------------------------------------------ restoring

    def restore(self, state: IndexState, topics: list[bytes], segments: dict[int, bytes]) -> None:
        """Begin where an index at its checkpoint left off."""
        self.fired_until_ms = state.fired_until_ms
        self.level_pending = dict(state.level_pending)
        for raw in topics:
            name, pending, queues = msgspec.msgpack.decode(raw)
            topic = self.topic(name)
            topic.pending = pending
            topic.queues = {q: QueueTail(low, high) for q, low, high in queues}
        self.segments = {
            base: msgspec.msgpack.decode(raw, type=SegmentCount) for base, raw in segments.items()
        }
        self.stage = Stage(state.until)


def _bases_of(offsets: np.ndarray, bases: np.ndarray) -> np.ndarray:
    """The base of the segment of each offset, without those that are no longer kept."""
    places = np.searchsorted(bases, offsets, side="right") - 1
    found: np.ndarray = bases[places[places >= 0]]
    return found


def _tally(values: np.ndarray) -> list[tuple[int, int]]:
    """Each distinct value and how often it occurs."""
    if not len(values):
        return []
    if len(values) == 1:
        return [(int(values[0]), 1)]
    found, counts = np.unique(values, return_counts=True)
    return list(zip(found.tolist(), counts.tolist(), strict=True))


def _encode_topic(topic: Topic) -> bytes:
    queues = [(q, found.min_offset, found.next_offset) for q, found in topic.queues.items()]
    return msgspec.msgpack.encode((topic.name, topic.pending, queues))
