"""The state of the log: everything the engine derives from it and has not yet given to the index.

`apply` is the one place where a record takes effect. Firing, recall, replay after a crash and the rebuild
of a lost index all go through it, so the meaning of a record is defined once. Applied records collect in a
*memtable* until the indexer freezes it and writes it in one transaction with its checkpoint.

Invariants:
1. index (at its checkpoint) + immutable memtable + open memtable = the log up to `until`.
2. `pending` counts are exact at every moment.
3. An immutable memtable, its rows and its snapshot never change: the index thread reads them.

Belongs to the event loop (and to the recovering thread before the loop uses it). Other threads get what they
need as arguments; `timerwheel.runtime.gauges` and retention copy dictionaries in one step before they walk
them.
"""

import itertools
from bisect import bisect_right
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from operator import itemgetter
from typing import TypeVar

import msgspec
import numpy as np

from timerwheel.model.admission import is_reserved
from timerwheel.state.batch import (
    Batch,
    forget_lost_origins,
    forget_origins,
    outlives,
    parts_of,
    tally,
    tally_segments,
)
from timerwheel.state.config_table import (
    NO_SETTINGS,
    ConfigTable,
    ControlTables,
    Put,
    TopicEnd,
    TopicPurge,
    decode_puts,
)
from timerwheel.state.dedup_key import KeyEntry, keys_of
from timerwheel.state.groups import DeadLetters, GroupTables, is_internal, lease_rows
from timerwheel.state.key_columns import KnownKeys
from timerwheel.state.memtable import (
    IndexState,
    Kept,
    Memtable,
    QueuePages,
    QueueTail,
    SegmentCount,
    SettingsDump,
    Snapshot,
    Topic,
    joined_memtables,
)
from timerwheel.state.positions import POSITION_DTYPE, Positions, positions_of
from timerwheel.store.errors import CorruptionError
from timerwheel.store.record import FLAG_KEYED, FLAG_LEASE, Kind
from timerwheel.store.rows import join
from timerwheel.store.table import FEW, Table

K = TypeVar("K")
T = TypeVar("T")
_CONTROL = int(Kind.CONTROL)
ReadRecords = Callable[[np.ndarray], Sequence[bytes | CorruptionError]]


def read_nothing(_places: np.ndarray) -> Sequence[bytes | CorruptionError]:
    """Stand in where a table is known to have no record whose payload matters."""
    raise AssertionError


class LogState:
    """The state of one log; see the module."""

    def __init__(self, bases: Callable[[], tuple[int, ...]]) -> None:
        self._bases = bases
        self.topics: dict[str, Topic] = {}
        self.topics_by_id: list[Topic] = []
        self._internal: list[int] = []
        self._reserved: list[int] = []
        self.level_pending: dict[int, int] = {}
        self.segments: dict[int, SegmentCount] = {}
        self.fired_until_ms = 0
        self.control = ControlTables()
        self.groups = GroupTables()
        self.origin_floor = 0
        self.settings_from = 0
        self.lost: list[tuple[int, int]] = []
        self.generation = 0
        self.memtable = Memtable(0)
        self.immutable: Memtable | None = None

    def begin_at(self, offset: int) -> None:
        """Take a timer with an origin before this offset as new: the log before it was removed."""
        self.origin_floor = offset

    def continue_rebuild(self, state: IndexState) -> None:
        """Go on with a rebuild that was cut short as it began; nothing changes if there was none."""
        self.origin_floor, self.settings_from, self.lost = state.origin_floor, state.settings_from, state.lost

    def end_rebuild(self) -> None:
        """Take origins and settings of records as they are from now on: the log was replayed to its end."""
        self.origin_floor, self.settings_from, self.lost = 0, 0, []

    @property
    def until(self) -> int:
        """Return the log offset up to which records have taken effect."""
        return self.memtable.until

    @property
    def pending(self) -> int:
        """Return the number of pending messages, over all topics of clients."""
        return sum(topic.pending for topic in self.topics.values() if not topic.internal)

    @property
    def leases(self) -> int:
        """Return the number of pending timers of consumer groups."""
        return sum(topic.pending for topic in self.topics.values() if topic.internal)

    @property
    def internal_ids(self) -> tuple[int, ...]:
        """Return the ids of the internal topics, one for each group."""
        return tuple(self._internal)

    @property
    def unlisted_ids(self) -> tuple[int, ...]:
        """Return the ids of the internal topics, and of those that have a reserved name."""
        return (*self._internal, *self._reserved)

    @property
    def client_topics(self) -> int:
        """Return the number of topics that clients created and that were not deleted."""
        deleted = sum(not self.exists(name) for name in self.control.topic_ends)
        return len(self.topics) - len(self._internal) - deleted

    def exists(self, name: str) -> bool:
        """Whether a topic has or had messages, since it was deleted if it ever was."""
        topic, end = self.topics.get(name), self.control.topic_ends.get(name)
        if topic is None or end is None:
            return topic is not None
        return topic.pending > 0 or any(self.is_used(topic, queue) for queue in topic.queues)

    def is_used(self, topic: Topic, queue: int) -> bool:
        """Whether a message went to this queue of a topic since it was deleted, if it ever was."""
        end = self.control.topic_ends.get(topic.name)
        return topic.queues[queue].next_offset > (0 if end is None else end.queues.get(queue, 0))

    def end_of(self, name: str, root: int) -> TopicEnd | None:
        """Return the end of the topic with which the message of this root was deleted; None if it was not."""
        end = self.control.topic_ends.get(name)
        return end if end is not None and root < end.until else None

    # ------------------------------------------------------------------ taking effect

    def apply(
        self,
        table: Table,
        until: int,
        read: ReadRecords = read_nothing,
        known: Sequence[KnownKeys] = (),
    ) -> Batch:
        """Apply a table of records, after which the log is applied up to `until`; returns its rows.

        The rows' topic column then holds the state's topic ids. `read` returns whole records by their places
        in the table: those of settings and of messages with a deduplication key, whose payload matters. Keys
        that are `known` are not read from their records again.
        """
        rows = table.rows
        memtable = self.memtable
        memtable.until = until
        if not len(rows):
            return Batch(rows)
        memtable.topics.update(self._number_topics(table))
        batch = Batch(rows)
        self._point(batch)
        if self.origin_floor:
            # A rebuild from a log whose beginning is gone: a timer moved from there is new here.
            forget_origins(rows, self.origin_floor)
            batch = Batch(rows)
        if self.lost:
            forget_lost_origins(rows, self.lost)
            batch = Batch(rows)
        self._count_topics(batch)
        self._count_levels(batch)
        bases = self._bases()  # once: the log thread may publish others in between
        self._count_segments(batch, bases)
        if batch.flags & FLAG_KEYED:
            self._note_keyed(batch, bases, read, known)
        if batch.has_messages:
            self._publish(batch)
        if batch.flags & FLAG_LEASE or not (batch.all_timers or batch.all_messages):
            self._note_special(batch, read)
        memtable.rows.append(rows)
        memtable.count += len(rows)
        return batch

    def topic(self, name: str) -> Topic:
        """Return the topic of this name, created if it is new; ids follow the order of first appearance."""
        topic = self.topics.get(name)
        if topic is None:
            topic = Topic(len(self.topics_by_id), name, internal=is_internal(name))
            self.topics[name] = topic
            self.topics_by_id.append(topic)
            if topic.internal:
                self._internal.append(topic.id)
            elif is_reserved(name):
                self._reserved.append(topic.id)
        return topic

    def queue(self, topic: Topic, queue: int) -> QueueTail:
        """Return a queue of the topic, created if it is new."""
        found = topic.queues.get(queue)
        if found is None:
            found = topic.queues[queue] = QueueTail()
        return found

    def _number_topics(self, table: Table) -> list[int]:
        """Change the rows' topic column to the state's ids; returns the ids in use."""
        rows = table.rows
        if len(table.topics) == 1:
            topic_id = self.topic(table.topics[0]).id
            rows["topic"] = topic_id
            return [topic_id]
        # Only names in use: a name without rows would take an id that the index never gets.
        used, places = np.unique(rows["topic"], return_inverse=True)
        ids = [self.topic(table.topics[number]).id for number in used.tolist()]
        rows["topic"] = np.array(ids, np.uint32)[places]
        return ids

    def _count_topics(self, batch: Batch) -> None:
        for topics, step in ((batch.of_timers("topic"), 1), (batch.of_ends("topic"), -1)):
            for topic_id, count in tally(topics):
                self.topics_by_id[topic_id].pending += step * count

    def _count_levels(self, batch: Batch) -> None:
        for levels, step in ((batch.of_timers("level"), 1), (batch.of_ends("prior_level"), -1)):
            if len(levels) and levels.any():
                for level, count in tally(levels[levels > 0]):
                    self.level_pending[level] = self.level_pending.get(level, 0) + step * count

    def _count_segments(self, batch: Batch, bases: tuple[int, ...]) -> None:
        rows = batch.rows
        if len(rows) == 1:
            self._count_segment(batch, bases)
            return
        now_ms = int(rows["store_ms"].max())
        for base, low, high in parts_of(rows["offset"], bases):
            segment = self._segment(base)
            newest_ms = now_ms if high - low == len(rows) else int(rows["store_ms"][low:high].max())
            segment.last_store_ms = max(segment.last_store_ms, newest_ms)
        for offsets, step in ((batch.of_timers("offset"), 1), (batch.of_ends("origin"), -1)):
            for base, count in tally_segments(offsets, bases):
                self._segment(base).pending += step * count
        if batch.has_ends and not batch.all_timers:
            over = rows["origin"][batch.ends & ~batch.timers] if batch.has_timers else batch.of_ends("origin")
            for base, _ in tally_segments(over, bases):
                segment = self._segment(base)
                segment.last_end_ms = max(segment.last_end_ms, now_ms)

    def _count_segment(self, batch: Batch, bases: tuple[int, ...]) -> None:
        """Count a single row, without arrays."""
        rows = batch.rows
        store_ms = rows["store_ms"].item()
        segment = self._segment(bases[bisect_right(bases, rows["offset"].item()) - 1])
        segment.last_store_ms = max(segment.last_store_ms, store_ms)
        if batch.has_timers:
            segment.pending += 1
        if batch.has_ends and (place := bisect_right(bases, rows["origin"].item()) - 1) >= 0:
            ended = self._segment(bases[place])
            ended.pending -= 1
            if not batch.has_timers:
                ended.last_end_ms = max(ended.last_end_ms, store_ms)

    def _note_keyed(
        self, batch: Batch, bases: tuple[int, ...], read: ReadRecords, known: Sequence[KnownKeys]
    ) -> None:
        """Deduplication keys, and the segments that hold them."""
        rows = batch.rows
        keyed = rows["flags"] & FLAG_KEYED != 0
        for base, _ in tally_segments(rows["offset"][outlives(rows)], bases):
            self._segment(base).keyed = True
        for keys in known:
            self.memtable.keys.put_rows(keys.digests, keys.rows)
            keyed[keys.places] = False
        places = np.flatnonzero(keyed & ~batch.ends)
        if len(places):
            self.memtable.keys.put(keys_of(rows[places], read(places)))

    def _segment(self, base: int) -> SegmentCount:
        self.memtable.segments.add(base)
        return self.segments.setdefault(base, SegmentCount())

    def _publish(self, batch: Batch) -> None:
        self.fired_until_ms = max(self.fired_until_ms, batch.fired_until_ms)
        rows = batch.rows if batch.all_visible else batch.rows[batch.visible]
        if not len(rows):
            return
        positions = positions_of(rows)
        keys = rows["topic"].astype(np.int64) << 16 | rows["queue"]
        parts, at = tally(keys), 0
        if len(parts) > 1:  # one queue after the other, each in the order of the log
            positions = positions[np.argsort(keys, kind="stable")]
        for key, count in parts:
            topic = self.topics_by_id[key >> 16]
            queue = self.queue(topic, key & 0xFFFF)
            part, at = positions[at : at + count], at + count
            queue.tail.append((queue.next_offset, part))
            self.memtable.queues.append(QueuePages(topic.id, key & 0xFFFF, queue.next_offset, part))
            queue.next_offset += count

    def _point(self, batch: Batch) -> None:
        pointing = batch.pointing
        if len(pointing):
            pairs = zip(pointing["root"].tolist(), pointing["offset"].tolist(), strict=True)
            self.memtable.pointers.update(pairs)

    def _note_special(self, batch: Batch, read: ReadRecords) -> None:
        """Leases and settings, in log order."""
        rows = batch.rows
        places = np.arange(len(rows))
        if len(rows) > FEW:  # before each becomes an object
            places = np.flatnonzero((rows["flags"] & FLAG_LEASE != 0) | (rows["kind"] == _CONTROL))
            rows = rows[places]
        chosen = [
            (place, topic_id, row)
            for place, topic_id, row in zip(
                places.tolist(), rows["topic"].tolist(), lease_rows(rows), strict=True
            )
            if row.offset >= self.settings_from and (row.flags & FLAG_LEASE or row.kind == _CONTROL)
        ]
        controls = [place for place, _, row in chosen if row.kind == _CONTROL]
        puts = iter([decode_puts(record) for record in read(np.array(controls))] if controls else ())
        for _, topic_id, row in chosen:
            if row.kind == _CONTROL:
                for put in next(puts):
                    self.put(put, row.offset)
            elif self.topics_by_id[topic_id].internal:
                self.groups.apply(row, topic_id, self.memtable.groups)
            else:
                self.groups.remove_dead(row, topic_id, self.memtable.groups)

    def put(self, put: Put, offset: int = 0) -> None:
        """Apply one change of a setting, from the record at this log offset."""
        changed = self.memtable.groups
        if put.table == ConfigTable.CURSOR:
            self.groups.reset(put.key, put.value, changed, offset)
            return
        if put.table in NO_SETTINGS:
            return
        if put.table == ConfigTable.PASSED:
            self.groups.advance(put.key, put.value, changed)
            return
        self.control.apply(put)
        self.memtable.control[put.table, put.key] = put
        if put.table == ConfigTable.TOPIC_END and put.value is not None:
            self._hide(put.key, self.control.topic_ends[put.key].queues)
        elif put.table == ConfigTable.TOPIC_PURGE and put.value is not None:
            self._hide(put.key, msgspec.convert(put.value, TopicPurge, strict=False).queues)
        elif put.table == ConfigTable.GROUP and put.value is None:
            self.groups.drop(put.key, changed)
        elif put.table == ConfigTable.GROUP:
            topic = self.topic(put.key)
            self.memtable.topics.add(topic.id)
            self.groups.make(topic.id, put.key, changed, offset)

    def _hide(self, name: str, firsts: Mapping[int, int]) -> None:
        """Hide the messages of a topic before these queue offsets: they were deleted or purged."""
        topic = self.topic(name)
        self.memtable.topics.add(topic.id)
        for number, first in firsts.items():
            queue = self.queue(topic, number)
            queue.min_offset = max(queue.min_offset, first)
            if number == 0:
                self.forget_dead(topic.id, first)

    # ------------------------------------------------------------------ the way to the index

    def freeze(self) -> tuple[Memtable, Snapshot]:
        """Make the open memtable immutable and begin the next; there is one immutable memtable at a time."""
        assert self.immutable is None
        memtable = self.immutable = self.memtable
        self.memtable = Memtable(memtable.until)
        snapshot = Snapshot(
            self.fired_until_ms,
            dict(self.level_pending),
            {number: _encode_topic(self.topics_by_id[number]) for number in memtable.topics},
            {
                base: msgspec.msgpack.encode(self.segments[base])
                for base in memtable.segments
                if base in self.segments
            },
            self.groups.writes(memtable.groups),
        )
        return memtable, snapshot

    def committed(self) -> None:
        """The immutable memtable is in the index: drop it."""
        assert self.immutable is not None
        parts = Counter((part.topic_id, part.queue) for part in self.immutable.queues)
        for (topic_id, number), count in parts.items():
            del self.topics_by_id[topic_id].queues[number].tail[:count]
        self.immutable = None
        self.generation += 1

    def thaw(self) -> None:
        """The immutable memtable could not be written: put it back before the open one.

        Into a new memtable: after a cancelled commit the index thread may still read the immutable one.
        """
        assert self.immutable is not None
        self.memtable, self.immutable = joined_memtables(self.immutable, self.memtable), None

    # ------------------------------------------------------------------ asking

    async def consistent_read(self, read: Callable[[K], Awaitable[T]], staged: Callable[[], K]) -> T:
        """Read the index and the memtables as of one moment.

        `staged` returns what the memtables have, and `read` completes it from the index. If an index commit
        came in between, or the answer of `staged` changed, both are read again.
        """
        while True:
            generation, known = self.generation, staged()
            found = await read(known)
            if generation == self.generation and known == staged():
                return found

    def pointer_of(self, root: int) -> int | None:
        """Return the target of a forwarding pointer that the index may not have yet."""
        return self.pointers_of({root}).get(root)

    def pointers_of(self, roots: set[int]) -> dict[int, int]:
        """Return the targets of those of these roots that have a pointer in a memtable."""
        found: dict[int, int] = {}
        for memtable in (self.immutable, self.memtable):
            if memtable is not None:
                found.update({root: memtable.pointers[root] for root in memtable.pointers.keys() & roots})
        return found

    def key_of(self, digest: bytes) -> KeyEntry | None:
        """Return the entry of a deduplication key if a memtable has it."""
        return self.memtable.keys.get(digest) or (self.immutable.keys.get(digest) if self.immutable else None)

    def has_any_key(self, digests: set[bytes]) -> bool:
        """Whether a memtable has any of these deduplication keys."""
        return self.memtable.keys.has_any(digests) or (
            self.immutable is not None and self.immutable.keys.has_any(digests)
        )

    def unindexed_rows(self, checkpoint: int) -> list[np.ndarray]:
        """Return the rows that an index at this checkpoint lacks."""
        found: list[np.ndarray] = []
        for memtable in (self.immutable, self.memtable):
            if memtable is None or memtable.until <= checkpoint:
                continue
            if memtable.start >= checkpoint:
                found += memtable.rows
            else:
                found += [part[part["offset"] >= checkpoint] for part in memtable.rows]
        return found

    def queue_tail(self, queue: QueueTail, first: int, count_max: int) -> Positions | None:
        """Return the positions from `first` on if they are all in memory, else None."""
        if not queue.tail or first < queue.tail[0][0]:
            return None
        parts = []
        count = 0
        at = bisect_right(queue.tail, first, key=itemgetter(0)) - 1
        for start, positions in itertools.islice(queue.tail, at, None):
            part = positions[max(first - start, 0) :]
            parts.append(part)
            count += len(part)
            if count >= count_max:
                break
        return join(parts, POSITION_DTYPE)[:count_max]

    # ------------------------------------------------------------------ restoring

    def restore(self, state: IndexState, kept: Kept) -> None:
        """Continue from the checkpoint of an index."""
        self.fired_until_ms = state.fired_until_ms
        self.level_pending = dict(state.level_pending)
        for raw in kept.topics:
            name, pending, queues = msgspec.msgpack.decode(raw)
            topic = self.topic(name)
            topic.pending = pending
            topic.queues = {q: QueueTail(low, high) for q, low, high in queues}
        self.segments = {
            base: msgspec.msgpack.decode(raw, type=SegmentCount) for base, raw in kept.segments.items()
        }
        for put in kept.control:
            self.control.apply(put)
        self.groups.restore(kept.groups, kept.items, kept.dead)
        self.memtable = Memtable(state.until)

    def dump_settings(self) -> SettingsDump:
        """Return settings and groups as of `until`, for the manifest of a log whose beginning is dropped."""
        dead = {
            self.topics_by_id[number].name: DeadLetters(letters.low, set(letters.removed))
            for number, letters in self.groups.dead.items()
        }
        return SettingsDump(list(self.control.all()), self.groups.dump(), dead)

    def forget_dead(self, topic_id: int, first: int) -> None:
        """Retention has removed the messages of a dead-letter queue before `first`."""
        letters = self.groups.dead.get(topic_id)
        if letters is not None:
            letters.forget_before(first)
            self.memtable.groups.dead.add(topic_id)

    def load_settings(self, dump: SettingsDump, until: int) -> None:
        """Begin with these settings and groups; records before `until` change neither."""
        self.settings_from = until
        for put in dump.control:
            self.put(put)
        changed = self.memtable.groups
        for name, group in dump.groups.items():
            self.groups.load(name, self.topic(name).id, group, changed)
        for name, letters in dump.dead.items():
            topic = self.topic(name)
            self.memtable.topics.add(topic.id)
            self.groups.dead[topic.id] = letters
            changed.dead.add(topic.id)


def _encode_topic(topic: Topic) -> bytes:
    queues = [(q, found.min_offset, found.next_offset) for q, found in topic.queues.items()]
    return msgspec.msgpack.encode((topic.name, topic.pending, queues))
