"""The index thread's work: commit stages, cascade slots, load the near wheel, keep sidecars.

One loop does these in turn, so the index has one writer and what it reads for the near wheel cannot move
under it. The log is synced before a stage is committed: the index is never ahead of what is durable.
"""

import asyncio
import contextlib
import logging
import struct
from collections.abc import Iterable, Iterator
from hashlib import blake2s

import msgspec
import numpy as np

from timerwheel import dedup, marks, queues, wheel
from timerwheel.clock import Clock
from timerwheel.control import Put
from timerwheel.geometry import Horizons, round_up
from timerwheel.groups.tables import Writes
from timerwheel.measures import Measures
from timerwheel.near import NearWheel
from timerwheel.settings import Settings
from timerwheel.stage import IndexState, Kept, QueuePages, Snapshot, Stage
from timerwheel.store.errors import CorruptionError, NoSpaceError, OffsetError
from timerwheel.store.index import INDEX_FORMAT, Index, IndexTransaction
from timerwheel.store.log import CommitLog
from timerwheel.store.record import NO_OFFSET, Kind
from timerwheel.store.rows import join
from timerwheel.store.segment import SEGMENT_HEADER_SIZE
from timerwheel.store.table import ROW_DTYPE, Table
from timerwheel.tally import parts_of
from timerwheel.threads import Threads
from timerwheel.trouble import Trouble
from timerwheel.view import View

logger = logging.getLogger("timerwheel")

STATE_KEY = b"state"
ITEM_KEY = struct.Struct(">IQ")
UNBOUNDED = 1 << 62
TICK_MS = 500
SOON_MS = 2_000
OVERDUE_TIMES = 8
WARM_RECORDS = 500


def read_state(txn: IndexTransaction) -> IndexState | None:
    """The checkpoint and what goes with it; None in a new index."""
    raw = txn.get("meta", STATE_KEY)
    return None if raw is None else msgspec.msgpack.decode(raw, type=IndexState)


def read_kept(txn: IndexTransaction) -> Kept:
    """What goes with the checkpoint in tables of its own."""
    return Kept(
        [raw for _, raw in txn.items("topics")],
        {int.from_bytes(key, "big"): raw for key, raw in txn.items("segments")},
        [msgspec.json.decode(raw, type=Put) for _, raw in txn.items("control")],
        [(int.from_bytes(key, "big"), raw) for key, raw in txn.items("groups")],
        [(*ITEM_KEY.unpack(key), raw) for key, raw in txn.items("leases")],
        [(int.from_bytes(key, "big"), raw) for key, raw in txn.items("dead")],
    )


def _put_settings(txn: IndexTransaction, puts: Iterable[Put]) -> None:
    for put in puts:
        # LMDB's keys are short; the value tells the names.
        key = blake2s(f"{put.table}\0{put.key}".encode(), digest_size=16).digest()
        _put_or_delete(txn, "control", key, None if put.value is None else msgspec.json.encode(put))


def _put_groups(txn: IndexTransaction, writes: Writes) -> None:
    for number, raw in writes.groups.items():
        _put_or_delete(txn, "groups", number.to_bytes(4, "big"), raw)
    for place, raw in writes.items.items():
        _put_or_delete(txn, "leases", ITEM_KEY.pack(*place), raw)
    for number, raw in writes.dead.items():
        txn.put("dead", number.to_bytes(4, "big"), raw)


def _put_or_delete(txn: IndexTransaction, table: str, key: bytes, raw: bytes | None) -> None:
    if raw is None:
        txn.delete(table, key)
    else:
        txn.put(table, key, raw)


class IndexWriter:
    """Writes stages and cascade steps. Belongs to the index thread."""

    def __init__(self, index: Index, state: IndexState) -> None:
        self.index = index
        self.state = state

    def commit(self, stage: Stage, snapshot: Snapshot) -> None:
        """One transaction: a stage's changes and the checkpoint that covers them."""
        entries = stage_entries(stage.rows)
        horizons, sequence = self.state.horizons, self.state.sequence
        with self.index.write() as txn:
            sequence, lost = wheel.put(txn, entries, horizons, sequence)
            wheel.drop_empty(txn, lost, horizons)
            for pages in joined(stage.queues):
                queues.put(txn, *pages)
            sequence = marks.put(txn, stage.marks.items(), sequence)
            for topic_id, raw in snapshot.topics.items():
                txn.put("topics", topic_id.to_bytes(4, "big"), raw)
            for base, raw in snapshot.segments.items():
                txn.put("segments", base.to_bytes(8, "big"), raw)
            dedup.put(txn, stage.keys)
            _put_settings(txn, stage.control.values())
            _put_groups(txn, snapshot.groups)
            state = msgspec.structs.replace(
                self.state,
                until=stage.until,
                sequence=sequence,
                fired_until_ms=snapshot.fired_until_ms,
                level_pending=snapshot.level_pending,
            )
            self._put_state(txn, state)
        self.state = state

    def cascade(self, now_ms: int, entries_max: int) -> int:
        """One bounded step; how many entries it took from their slots: unless none, there may be more to do.

        Horizons that passed empty slots only are written with the next change: those of before are as right.
        """
        with self.index.write() as txn:
            horizons, sequence, moved = wheel.cascade(
                txn, self.state.horizons, now_ms, entries_max=entries_max, sequence=self.state.sequence
            )
            state = msgspec.structs.replace(self.state, horizons=horizons, sequence=sequence)
            if moved:
                self._put_state(txn, state)
        self.state = state
        return moved

    def load(self, from_ms: int, to_ms: int, entries_max: int) -> tuple[wheel.Entries, int, int]:
        """Entries for the near wheel, up to when they are complete, and the checkpoint they reflect."""
        with self.index.read() as txn:
            to_ms = min(to_ms, wheel.loadable_until(txn, self.state.horizons))
            if to_ms <= from_ms:
                return np.zeros(0, wheel.ENTRY_DTYPE), from_ms, self.state.until
            entries, until_ms = wheel.load(txn, from_ms, to_ms, entries_max)
        return entries, until_ms, self.state.until

    def _put_state(self, txn: IndexTransaction, state: IndexState) -> None:
        txn.put("meta", STATE_KEY, msgspec.msgpack.encode(state))


def new_state(log_id: bytes, horizons: Horizons, start: int) -> IndexState:
    """The state of an empty index that begins at a log offset."""
    return IndexState(INDEX_FORMAT, log_id, start, horizons, 0, 0, {})


def joined(parts: Iterable[QueuePages]) -> Iterator[QueuePages]:
    """The positions of each queue, of many batches, in one piece: hundreds of small pages cost far more."""
    by_queue: dict[tuple[int, int], list[QueuePages]] = {}
    for part in parts:
        by_queue.setdefault((part.topic_id, part.queue), []).append(part)
    for (topic_id, queue), found in by_queue.items():
        positions = join([part.positions for part in found], queues.POSITION_DTYPE)
        yield QueuePages(topic_id, queue, found[0].first, positions)


def stage_entries(parts: list[np.ndarray]) -> wheel.Entries:
    """The wheel entries of applied rows: what they add and what they end, less what they do both to."""
    if not parts:
        return np.zeros(0, wheel.ENTRY_DTYPE)
    rows = join(parts, ROW_DTYPE)
    # `compress` moves rows whole; indexing by a mask moves them field by field, three times as slowly.
    adds = wheel.entries_of(rows.compress(rows["kind"] == int(Kind.TIMER)), removed=False)
    removes = wheel.entries_of(rows.compress(rows["origin"] != np.uint64(NO_OFFSET)), removed=True)
    return wheel.cancel_out(join([adds, removes], wheel.ENTRY_DTYPE))


def _within(dues_ms: np.ndarray, from_ms: int, until_ms: int) -> np.ndarray:
    found: np.ndarray = (dues_ms >= from_ms) & (dues_ms < until_ms)
    return found


class Indexer:
    """The loop that drives the index thread. Belongs to the event loop."""

    def __init__(  # noqa: PLR0913 - the parts that it moves data between
        self,
        *,
        writer: IndexWriter,
        view: View,
        near: NearWheel,
        log: CommitLog,
        threads: Threads,
        clock: Clock,
        settings: Settings,
        in_flight: dict[int, asyncio.Future[None]],
        loaded: asyncio.Event,
        measures: Measures,
    ) -> None:
        self.writer = writer
        self._view = view
        self._near = near
        self._log = log
        self._threads = threads
        self._clock = clock
        self._settings = settings
        self._in_flight = in_flight
        self._loaded = loaded
        self._measures = measures
        self.wake = asyncio.Event()
        self.active_rows: dict[int, list[np.ndarray]] = {}
        self.turn = asyncio.Lock()
        self._stopping = False
        self._next_commit_ms = 0
        self._no_space = Trouble(clock)
        self._warming: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Tick twice a second or when woken, until `stop`; commit at the interval or when much is staged."""
        while not self._stopping:
            self.wake.clear()  # before the tick: whoever wakes it meanwhile gets another one
            more = await self.tick(commit=self._commit_is_due())
            if more:
                await self._clock.breathe()
                continue
            await self._clock.wait_until(self._clock.now_ms() + TICK_MS, self.wake)

    def _commit_is_due(self) -> bool:
        """Each commit rewrites the pages of all slots it touches, so few large ones write less than many."""
        return (
            self._view.stage.count >= self._settings.index_records_max
            or self._clock.monotonic_ms() >= self._next_commit_ms
        )

    async def tick(self, *, commit: bool = True) -> bool:
        """Commit, cascade one step, load; True if there is more to do at once."""
        async with self.turn:
            more = False
            try:
                if commit:
                    await self._commit()
                more = await self._cascade()
            except NoSpaceError as error:
                # What waits in memory and in second slots still fires; the next tick tries again.
                self._tell(error)
            await self._load()
            await self._keep_sidecars()
        return more

    def _tell(self, error: NoSpaceError) -> None:
        if times := self._no_space.met():
            again = f" (tried {times} times since this was said last)" if times > 1 else ""
            records = self._view.stage.count
            logger.warning(
                "the index waits for space, %d records are kept for it: %s%s", records, error, again
            )

    def _tell_end(self) -> None:
        if (lasted_ms := self._no_space.over()) is not None:
            logger.warning("the index has space again, after %d s", lasted_ms // 1000)

    async def _cascade(self) -> bool:
        # After a step back of the clock the wheel stays where it was, see `_load`.
        now_ms = max(self._clock.now_ms(), self._view.fired_until_ms)
        with self._measures.cascade_s.timing():
            step = self._settings.cascade_entries_max
            moved = await self._threads.index(self.writer.cascade, now_ms, step)
        self._measures.cascaded += moved
        if moved:
            self._tell_end()
        return moved > 0

    def stop(self) -> None:
        """Let `run` return after the tick it is in: a commit under way must be known to have happened."""
        self._stopping = True
        if self._warming is not None:
            self._warming.cancel()
        self.wake.set()

    async def finish(self) -> None:
        """The last commit and the sidecars that are due."""
        async with self.turn:
            await self._commit()
            await self._keep_sidecars()

    async def commit(self) -> None:
        """Bring the index up to the view.

        Shielded: the index thread cannot be stopped in a commit, so a caller that is cancelled must not make
        the stage look unwritten. It would be written twice.
        """
        await asyncio.shield(asyncio.ensure_future(self._commit_in_turn()))

    async def _commit_in_turn(self) -> None:
        async with self.turn:
            await self._commit()

    async def _commit(self) -> None:
        if self._view.stage.until == self.writer.state.until:
            return
        stage, snapshot = self._view.seal()
        try:
            await self._threads.log(self._log.sync)
            with self._measures.index_commit_s.timing():
                await self._threads.index(self.writer.commit, stage, snapshot)
        except BaseException:
            self._view.unseal()
            raise
        self._view.committed()
        self._tell_end()
        self._next_commit_ms = self._clock.monotonic_ms() + self._settings.index_interval_ms

    async def _load(self) -> None:
        """Extend the near wheel towards `near_ms` ahead of the clock, as far as slots are complete.

        It always comes to cover every due time that was ever fired: then a timer due before `until_ms`
        that is not here was delivered, and one due later was not, whatever the clock did.
        """
        near = self._near
        wanted = max(self._clock.now_ms() + self._settings.near_ms, self._view.fired_until_ms)
        behind = near.until_ms < self._view.fired_until_ms
        room = UNBOUNDED if behind else self._room()
        if wanted <= near.until_ms or room <= 0:
            return
        entries, until_ms, checkpoint = await self._threads.index(
            self.writer.load, near.until_ms, round_up(wanted, 1000), room
        )
        if until_ms <= near.until_ms:
            return
        rows = join(self._view.staged_rows(checkpoint), ROW_DTYPE)
        within = _within(rows["due_ms"], near.until_ms, until_ms)
        within |= _within(rows["prior_due_ms"], near.until_ms, until_ms)
        staged = stage_entries([rows.compress(within)])
        staged = staged.compress(_within(staged["due_ms"], near.until_ms, until_ms))
        entries = wheel.settle(join([entries, staged], wheel.ENTRY_DTYPE))
        if self._in_flight and len(entries):
            leaving = np.fromiter(self._in_flight, np.uint64, len(self._in_flight))
            entries = entries[~np.isin(entries["offset"], leaving)]
        near.add_run(entries)
        near.until_ms = until_ms
        self._loaded.set()
        self._warm(entries)

    def _room(self) -> int:
        """How many more timers may be loaded.

        A second with very many must not keep those after it away when they fall due, so of the next seconds
        one is always loaded, unless what is overdue alone would take too much memory.
        """
        near, limit = self._near, self._settings.near_entries_max
        if near.overdue > OVERDUE_TIMES * limit:
            return 0
        soon = near.until_ms < self._clock.now_ms() + SOON_MS
        return max(limit - (len(near) - near.overdue), 1 if soon else 0)

    def _warm(self, entries: wheel.Entries) -> None:
        """Read the records of the coming seconds ahead, so that a cold log makes no timer late."""
        within = np.cumsum(entries["size"].astype(np.int64)) <= self._settings.readahead_bytes_max
        entries = entries[within & (entries["due_ms"] > self._clock.now_ms())]
        if not len(entries) or (self._warming is not None and not self._warming.done()):
            return
        self._warming = asyncio.create_task(self._warm_in_steps(entries))

    async def _warm_in_steps(self, entries: wheel.Entries) -> None:
        """A wish, not a duty: what cannot be read now is read, or told, when it is due."""
        for at in range(0, len(entries), WARM_RECORDS):
            part = entries[at : at + WARM_RECORDS]
            with contextlib.suppress(Exception):
                await self._threads.read(self._log.warm, part["offset"], part["size"])

    def keep(self, rows: np.ndarray) -> None:
        """Remember applied rows for the sidecar of their segment."""
        for base, low, high in parts_of(rows["offset"], self._log.bases):
            self.active_rows.setdefault(base, []).append(rows[low:high])

    def find_missing_sidecars(self) -> None:
        """Have the sealed segments that lack a sidecar scanned."""
        there = set(self._log.files.names(self._log.directory))
        for base in self._log.bases[:-1]:
            if self._log.sidecar_path(base).name not in there:
                self.active_rows.setdefault(base, [])

    async def _keep_sidecars(self) -> None:
        """Write the tables of segments that were sealed since the last time."""
        for base in [b for b in self.active_rows if b != self._log.bases[-1]]:
            rows = self.active_rows.pop(base)
            names = [topic.name for topic in self._view.topics_by_id]
            try:
                await self._threads.index(self._write_sidecar, base, rows, names)
            except OffsetError:
                continue  # retention has removed the segment
            except (OSError, CorruptionError) as error:
                # Derived and dispensable: without it the segment is scanned. Tried again at the next start.
                logger.warning("no sidecar for segment %d: %s", base, error)

    def _write_sidecar(self, base: int, parts: list[np.ndarray], names: list[str]) -> None:
        rows = join(parts, ROW_DTYPE)
        whole = self._log.end_of(base) - base - SEGMENT_HEADER_SIZE
        if not parts or int(rows["size"].sum(dtype=np.int64)) != whole:
            self._log.write_sidecar(base, None)  # it was begun before this process
            return
        topics = rows["topic"]
        if (topics == topics[0]).all():  # sorting would hold up the other threads
            used = [int(topics[0])]
            topics[:] = 0
        else:
            found, topics[:] = np.unique(topics, return_inverse=True)
            used = found.tolist()
        self._log.write_sidecar(base, Table(rows, [names[number] for number in used]))
