"""Retention: bounds the disk space without bounding the delay.

A sealed segment is removed when its newest record is past retention and none of its timers is pending. Timers
that would hold it back are *moved*: stored again at the tail with the same id, due time and order.
Deduplication keys that still count although their messages have ended are *carried* to the tail. Both happen
once that frees at least twice what it writes. So the log takes at most twice the pending timers and the keys
that count, plus retention. A turn with much to move removes segments in between: so it needs little space
for what it writes, and a service that ends in the middle of it has not worked for nothing. The order of the
steps makes a crash between any two harmless:

    move timers -> carry keys -> commit the index -> write the manifest -> unlink segments -> trim the index

Whether something is past retention is judged by its age (`timerwheel.runtime.ages`), so that what was
delivered and not yet consumed does not go because the clock was stepped, and no time stamp keeps a
segment for longer. A timer that cannot be read keeps its segment until it is recalled unread
(`BulkRecalls.end_damaged`).

The manifest says where the kept log begins and which queue offsets its first messages have. A start that
finds older segments finishes their removal.
"""

import logging
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from timerwheel.index import forwarding, queues
from timerwheel.model.durations import format_ms
from timerwheel.runtime.archived import ArchiveLimit
from timerwheel.runtime.core import Core
from timerwheel.runtime.dedup_keys import DedupKeys
from timerwheel.runtime.indexer import Indexer
from timerwheel.runtime.message_views import damaged_id
from timerwheel.state.batch import outlives
from timerwheel.state.dedup_key import CARRIED_BYTES, KEY_KEPT_MS, Ended, KeyEntry, contents_of, keys_of
from timerwheel.state.log_manifest import LogStart, write_start
from timerwheel.state.memtable import SegmentCount
from timerwheel.store import quarantine
from timerwheel.store.errors import CorruptionError, JournalAwayError, NoSpaceError
from timerwheel.store.index import IndexTransaction
from timerwheel.store.journaled_log import JournaledLog
from timerwheel.store.moved_timer import moved, topic_of
from timerwheel.store.record import FLAG_LEASE, Kind, decode_header
from timerwheel.store.segment import SEGMENT_HEADER_SIZE
from timerwheel.wheel.slot_table import entries_of

logger = logging.getLogger("timerwheel")

MOVE_RECORDS = 1_000
CARRY_KEYS = 256
DROP_MS = 1_000
"""How long a turn moves timers and carries keys before it removes the segments that it is done with."""


class _Kept(NamedTuple):
    """The remains of a sealed segment: the mean size of a timer, and the bytes to carry all of its keys."""

    timer_bytes: float
    keys_bytes: int


class Retention:
    """The loop that removes old segments. Belongs to the event loop."""

    def __init__(self, core: Core, indexer: Indexer, keys: DedupKeys) -> None:
        self._core = core
        self._log = core.log
        self._files = core.files
        self._state = core.state
        self._near = core.near
        self._index = core.index
        self._threads = core.threads
        self._clock = core.clock
        self._ages = core.log_ages
        self._settings = core.settings
        self._in_flight = core.in_flight
        self._indexer = indexer
        self._keys = keys
        self._archive = ArchiveLimit(core.files, core.settings.data, core.log.log_id)
        self._kept: dict[int, _Kept] = {}

    async def run(self) -> None:
        """Run a turn at each interval, until cancelled."""
        while True:
            await self._clock.sleep_for(self._settings.retention_interval_ms)
            try:
                await self.turn()
            except (NoSpaceError, OSError) as error:
                logger.warning("retention needs free space; retrying: %s", error)

    async def turn(self) -> int:
        """Remove the segments that may go now; returns how many those were."""
        await self._drop_quarantined()
        old = self._old_segments(await self._removable_until())
        movable_until = await self._movable_until(old)
        keep_from, since_ms, dropped = None, self._clock.monotonic_ms(), 0
        for base, following, segment in old:
            is_movable = following <= movable_until
            if segment.pending and is_movable:
                await self._move_timers(base)
            # Ids of delivered and recalled messages also stay valid for the whole of retention.
            if segment.pending or not self._is_old(self._ages.age_ms(segment.last_end_ms)):
                break
            # Not before all timers have ended or moved: a later recall leaves a key as well.
            if self._has_keys(segment) and not (is_movable and await self._carry_keys(base)):
                break
            keep_from = following
            if self._clock.monotonic_ms() - since_ms >= DROP_MS:
                dropped += await self._drop(keep_from)
                keep_from, since_ms = None, self._clock.monotonic_ms()
        return dropped if keep_from is None else dropped + await self._drop(keep_from)

    async def _drop_quarantined(self) -> None:
        """Remove the quarantine files that are past `quarantine_retention`."""
        kept_ms = self._settings.quarantine_retention_ms
        before_ms = self._core.ages.unstepped_now_ms(kept_ms) - kept_ms
        dropped = await self._threads.log(quarantine.drop_before, self._files, self._log.directory, before_ms)
        for kept in dropped:
            logger.info("retention removed %s, which was cut %s", kept.path.name, format_ms(kept.cut_ms))

    def _old_segments(self, removable_until: int) -> list[tuple[int, int, SegmentCount]]:
        """Return (base, next base, counts) of the first segments, as far as all are past retention."""
        found: list[tuple[int, int, SegmentCount]] = []
        ages_ms = self._ages.of_segments()
        for base, following in zip(self._log.bases, self._log.bases[1:], strict=False):
            if following > removable_until or not self._is_old(ages_ms[base]):
                break
            # A segment of which nothing could be read counts nothing.
            found.append((base, following, self._state.segments.get(base, SegmentCount())))
        return found

    def _is_old(self, age_ms: int) -> bool:
        return age_ms > self._settings.retention_ms

    def _has_keys(self, segment: SegmentCount) -> bool:
        """Whether keys of the segment may still count."""
        stamps_ms = (segment.last_store_ms, segment.last_end_ms)
        return segment.keyed and min(map(self._ages.age_ms, stamps_ms)) <= KEY_KEPT_MS

    async def _movable_until(self, old: list[tuple[int, int, SegmentCount]]) -> int:
        """Return the offset up to which moving timers and carrying keys writes at most half of what it frees.

        A segment full of timers with months to go is better left in place than written again each time it
        comes of age.
        """
        until = 0
        kept_bytes = 0.0
        for base, following, segment in old:
            has_keys = self._has_keys(segment)
            if segment.pending or has_keys:
                kept = await self._kept_of(base)
                kept_bytes += segment.pending * kept.timer_bytes + has_keys * kept.keys_bytes
            if 2 * kept_bytes <= following - old[0][0]:
                until = following
        return until

    async def _kept_of(self, base: int) -> _Kept:
        if base not in self._kept:
            rows = (await self._threads.read(self._log.segment_table, base)).rows
            timers = rows["size"][rows["kind"] == int(Kind.TIMER)]
            carried = rows["kind"] == int(Kind.CONTROL)
            keyed = outlives(rows)
            keys_bytes = CARRIED_BYTES * int((keyed & ~carried).sum()) + int(
                rows["size"][keyed & carried].sum()
            )
            self._kept[base] = _Kept(float(timers.mean()) if len(timers) else 0.0, keys_bytes)
        return self._kept[base]

    async def _removable_until(self) -> int:
        """Return the offset from which segments must stay, whatever their age."""
        if not self._settings.retention_archived_only:
            return self._log.tail
        return await self._threads.read(self._archive.until)

    async def _move_timers(self, base: int) -> None:
        """Store the segment's far timers again at the tail; the near ones fire soon anyway."""
        table = await self._threads.read(self._log.segment_table, base)
        ids = np.array([self._state.topic(name).id for name in table.topics], np.uint32)
        rows = table.rows[table.rows["kind"] == Kind.TIMER]
        rows["topic"] = ids[rows["topic"]]
        rows = rows[rows["due_ms"] >= self._near.until_ms + self._settings.near_ms]
        for at in range(0, len(rows), MOVE_RECORDS):
            await self._move(rows[at : at + MOVE_RECORDS])

    async def _move(self, rows: np.ndarray) -> None:
        targets = await self._marks_of(rows["root"])
        chosen = []
        columns = (rows[name].tolist() for name in ("offset", "root", "topic", "flags"))
        for place, (offset, root, topic, flags) in enumerate(zip(*columns, strict=True)):
            if flags & FLAG_LEASE:
                speaks = self._state.groups.timer_of(topic, root)
            else:
                speaks = targets.get(root, root)
            if speaks == offset and offset not in self._in_flight:
                chosen.append(place)
        rows = rows[chosen]
        # Timers that came near while the pointers were read may fire at any moment: leave them alone.
        rows = rows[rows["due_ms"] >= self._near.until_ms]
        if not len(rows):
            return
        held = self._in_flight.hold(rows)
        stay = np.ones(len(rows), bool)
        try:
            stay = await self._store_again(rows)
        finally:
            # Timers that were not moved stay pending. Those that came near were left out as in flight.
            near = stay & (rows["due_ms"] < self._near.until_ms)
            self._near.add(entries_of(rows[near], removed=False))
            self._core.near_changed.set()
            held.release()

    async def _marks_of(self, roots: np.ndarray) -> dict[int, int]:
        wanted = set(roots.tolist())

        async def read(known: dict[int, int]) -> dict[int, int]:
            return await self._threads.read(self._find_marks, roots) | known

        return await self._state.consistent_read(read, lambda: self._state.pointers_of(wanted))

    async def _carry_keys(self, base: int) -> bool:
        """Carry the keys of a segment without pending timers; returns False if damage hides a key."""
        table = await self._threads.read(self._log.segment_table, base)
        rows = table.rows[outlives(table.rows)]
        for at in range(0, len(rows), CARRY_KEYS):
            part = rows[at : at + CARRY_KEYS]
            targets = await self._marks_of(part["root"])
            end_ms = self._state.segments[base].last_end_ms
            try:
                keys = await self._threads.read(self._ended_keys, part, targets, end_ms)
            except CorruptionError as error:
                logger.warning(
                    "a deduplication key cannot be copied forward and keeps its segment for a day: %s", error
                )
                return False
            await self._keys.carry(keys)
        return True

    def _ended_keys(self, rows: np.ndarray, targets: dict[int, int], end_ms: int) -> dict[bytes, KeyEntry]:
        """Return the keys of these records, if their messages have ended, or carried keys; CorruptionError.

        `targets` are the targets of forwarding pointers, by root; no timer of these rows ended after
        `end_ms`.
        """
        found: dict[bytes, KeyEntry] = {}
        for place, record in enumerate(self._log.read_many(rows["offset"], rows["size"])):
            if not isinstance(record, bytes):
                raise record
            row = rows[place]
            offset, root, kind = int(row["offset"]), int(row["root"]), int(row["kind"])
            keys = keys_of(rows[place : place + 1], [record])
            recalled: list[bytes] = []
            ended_ms = int(row["store_ms"])
            if kind == Kind.TIMER:
                ended_ms = end_ms
                if (target := targets.get(root, root)) > offset:
                    last = decode_header(self._log.read(target))
                    if last.kind == Kind.TIMER or last.origin != offset:
                        continue  # replaced by a timer that has the key as well
                    ended_ms = last.store_ms
                    recalled = contents_of(record) if last.kind == Kind.CANCEL else []
            for digest, entry in keys.items():
                ended = entry.ended or Ended(ended_ms, tuple(recalled))
                found[digest] = entry._replace(ended=ended)
        return found

    async def _store_again(self, rows: np.ndarray) -> np.ndarray:
        """Store the timers of these rows at the tail; returns those that could not be and stay."""
        found = await self._threads.read(self._log.read_many, rows["offset"], rows["size"])
        now_ms = self._clock.now_ms()
        records: list[bytes] = []
        topics: list[str] = []
        stay = np.ones(len(rows), bool)
        offsets, roots = rows["offset"].tolist(), rows["root"].tolist()
        for place, (offset, root, record) in enumerate(zip(offsets, roots, found, strict=True)):
            if not isinstance(record, bytes):
                logger.error(
                    "a timer cannot be copied forward and keeps its segment: %s; if no backup has it, "
                    "`timerwheel recall %s --damaged` ends it",
                    record,
                    damaged_id(self._core.ids, root, record.remains),
                )
            elif len(record) > self._log.unit_bytes_max:
                text = "the timer at log offset %d is larger than the journal takes, and keeps its segment"
                logger.error(text, offset)
            else:
                records.append(moved(record, offset, now_ms))
                topics.append(topic_of(record))
                stay[place] = False
        if records:
            await self._core.commit.submit(records, topics, dues_ms=rows["due_ms"].tolist())
        return stay

    def _find_marks(self, roots: np.ndarray) -> dict[int, int]:
        with self._index.read() as txn:
            return forwarding.find_many(txn, roots)

    async def _drop(self, keep_from: int) -> int:
        await self._indexer.commit()
        start = keep_from + SEGMENT_HEADER_SIZE
        names = self._state.topics_by_id
        indexed = [
            (topic.id, number, queue.tail[0][0] if queue.tail else queue.next_offset)
            for topic in names
            for number, queue in topic.queues.items()
        ]
        firsts = await self._threads.index(self._queue_firsts, start, indexed)
        settings = self._state.dump_settings()
        for topic_id, _, first in firsts:
            letters = settings.dead.get(names[topic_id].name)
            if letters is not None:
                letters.forget_before(first)
        manifest = LogStart(
            keep_from,
            [(names[t].name, q, first) for t, q, first in firsts],
            self._state.until,
            settings,
        )
        await self._threads.log(self._log.sync)  # the manifest may refer only to synced records
        await self._threads.log(write_start, self._log, manifest)
        # Before the segments go: readers of a queue must not look for records in them.
        for topic_id, number, first in firsts:
            queue = names[topic_id].queues[number]
            # It is higher already if messages were deleted or purged.
            queue.min_offset = max(queue.min_offset, first)
            self._state.memtable.topics.add(topic_id)
            self._state.forget_dead(topic_id, first)
        dropped = await self._threads.log(self._log.drop_before, keep_from)
        if isinstance(self._log, JournaledLog):
            await self._threads.read(self._trim_journal, self._log, keep_from)
        async with self._indexer.turn:  # a commit in progress may write counts of these segments again
            # Also for segments of an earlier turn that was stopped before this step.
            gone = [base for base in self._state.segments if base < keep_from]
            for base in gone:
                del self._state.segments[base]
                self._kept.pop(base, None)
            await self._threads.index(self._trim, gone, start, firsts)
        logger.info("retention removed %d segments; the log begins at %d", len(dropped), keep_from)
        return len(dropped)

    def _trim_journal(self, log: JournaledLog, keep_from: int) -> None:
        try:
            log.trim(keep_from)
        except JournalAwayError as error:
            logger.warning("the journal keeps removed segments until retention removes others: %s", error)

    def _queue_firsts(
        self, start: int, indexed: Sequence[tuple[int, int, int]]
    ) -> list[tuple[int, int, int]]:
        """(topic, queue, first queue offset whose record is kept), for every queue.

        A replay counts queue offsets from there, so records of deleted and purged messages count too.
        """
        with self._index.read() as txn:
            return [
                (topic_id, number, queues.first_at(txn, topic_id, number, end, start))
                for topic_id, number, end in indexed
            ]

    def _trim(self, dropped: list[int], start: int, firsts: list[tuple[int, int, int]]) -> None:
        with self._index.write() as txn:
            self._trim_in(txn, dropped, start, firsts)

    def _trim_in(
        self, txn: IndexTransaction, dropped: list[int], start: int, firsts: list[tuple[int, int, int]]
    ) -> None:
        for base in dropped:
            txn.delete("segments", base.to_bytes(8, "big"))
        for topic_id, queue, first in firsts:
            queues.drop_before(txn, topic_id, queue, first)
        forwarding.drop_before(txn, start)
