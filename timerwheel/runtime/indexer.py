"""The loop of the index thread: commits memtables, cascades slots, loads the near wheel, keeps sidecars.

One loop does these in turn, so the index has one writer, and timers cannot move while the loop reads them for
the near wheel. It syncs the log before it commits a memtable: the index is never ahead of the durable log.
"""

import asyncio
import contextlib
import logging

import numpy as np

from timerwheel.errors import IndexFullError
from timerwheel.index.writer import memtable_entries
from timerwheel.runtime.core import Core
from timerwheel.state.batch import parts_of
from timerwheel.state.dedup_key import KEY_KEPT_MS
from timerwheel.store.errors import CorruptionError, NoSpaceError, OffsetError, StoreError
from timerwheel.store.rows import join
from timerwheel.store.segment import SEGMENT_HEADER_SIZE
from timerwheel.store.table import ROW_DTYPE, Table
from timerwheel.telemetry.background import in_background
from timerwheel.telemetry.throttled_log import ThrottledLog
from timerwheel.wheel import slot_table
from timerwheel.wheel.geometry import round_up

logger = logging.getLogger("timerwheel")

UNBOUNDED = 1 << 62
TICK_MS = 500
SOON_MS = 2_000
OVERDUE_TIMES = 8
WARM_RECORDS = 500
WAITING_TIMES = 10
"""How many times `index_records_max` may wait for an index without room; then new messages are refused."""


def _within(dues_ms: np.ndarray, from_ms: int, until_ms: int) -> np.ndarray:
    found: np.ndarray = (dues_ms >= from_ms) & (dues_ms < until_ms)
    return found


class Indexer:
    """The loop that drives the index thread. Belongs to the event loop."""

    def __init__(self, core: Core) -> None:
        self._index = core.index
        self._state = core.state
        self._near = core.near
        self._near_changed = core.near_changed
        self._log = core.log
        self._threads = core.threads
        self._clock = core.clock
        self._ages = core.ages
        self._settings = core.settings
        self._in_flight = core.in_flight
        self._counters = core.counters
        self.wake = asyncio.Event()
        self.active_rows: dict[int, list[np.ndarray]] = {}
        self.turn = asyncio.Lock()
        self._stopping = False
        self._next_commit_ms = 0
        self._no_space = ThrottledLog(core.clock)
        self._refused: NoSpaceError | None = None
        core.disk.ask_index(self._refusal)
        self._warming: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Tick twice a second or when woken, until `stop`; commit at the interval or a full memtable."""
        while not self._stopping:
            self.wake.clear()  # before the tick: a wake-up during it causes another tick
            more = await self.tick(commit=self._commit_is_due())
            if more:
                await self._clock.breathe()
                continue
            await self._clock.wait_until(self._clock.now_ms() + TICK_MS, self.wake)

    def _commit_is_due(self) -> bool:
        """Whether to commit now.

        A commit rewrites the pages of all slots it touches, so rare ones write less.
        """
        return (
            self._state.memtable.count >= self._settings.index_records_max
            or self._clock.monotonic_ms() >= self._next_commit_ms
        )

    async def tick(self, *, commit: bool = True) -> bool:
        """Commit if asked, cascade one step or compact a slot, load; returns True if there is more to do."""
        async with self.turn:
            more = False
            ended_by_ms = self._ages.unstepped_now_ms(KEY_KEPT_MS)
            try:
                if commit:
                    await self._commit()
                more = (
                    await self._cascade()
                    or await self._threads.index(self._index.compact)
                    or await self._threads.index(self._index.merge_keys, ended_by_ms) > 0
                )
            except NoSpaceError as error:
                # Timers in memory and in second slots still fire; the next tick tries again.
                self._refused = error
                self._log_refusal(error)
            await self._load()
            await self._keep_sidecars()
        return more

    def _refusal(self) -> IndexFullError | None:
        """Return why new messages are refused: the index had no room, and much waits for it; else None.

        What is due, acknowledged or recalled is still stored, and waits as well.
        """
        if self._refused is None:
            return None
        immutable = self._state.immutable
        waiting = self._state.memtable.count + (immutable.count if immutable is not None else 0)
        if waiting < WAITING_TIMES * self._settings.index_records_max:
            return None
        return IndexFullError(waiting, str(self._refused))

    def _log_refusal(self, error: NoSpaceError) -> None:
        text = "no space for the index; %d records wait in memory: %s"
        self._no_space.warning(logger, text, self._state.memtable.count, error)

    def _log_end(self) -> None:
        if (lasted_ms := self._no_space.over()) is not None:
            logger.warning("the index has space again after %d s", lasted_ms // 1000)

    async def _cascade(self) -> bool:
        # After the clock steps back, the wheel stays in place, see `_load`.
        now_ms = max(self._clock.now_ms(), self._state.fired_until_ms)
        with self._counters.cascade_s.timing():
            step = self._settings.cascade_entries_max
            moved = await self._threads.index(self._index.cascade, now_ms, step)
        self._counters.cascaded += moved
        if moved:
            self._log_end()
        return moved > 0

    def stop(self) -> None:
        """Let `run` return after its current tick: the outcome of a commit in progress must be known."""
        self._stopping = True
        if self._warming is not None:
            self._warming.cancel()
        self.wake.set()

    async def finish(self) -> None:
        """Run the last commit and write the sidecars that are due."""
        async with self.turn:
            await self._commit()
            await self._keep_sidecars()

    async def commit(self) -> None:
        """Bring the index up to date with the state.

        Shielded: the index thread cannot be stopped in a commit. A cancelled caller must not make the
        memtable look unwritten, or it would be written twice.
        """
        await asyncio.shield(asyncio.ensure_future(self._commit_in_turn()))

    async def _commit_in_turn(self) -> None:
        async with self.turn:
            await self._commit()

    async def _commit(self) -> None:
        if self._state.memtable.until == self._index.state.until:
            return
        memtable, snapshot = self._state.freeze()
        try:
            await self._threads.log(self._log.sync)
            with self._counters.index_commit_s.timing():
                await self._threads.index(self._index.commit, memtable, snapshot)
        except BaseException:
            self._state.thaw()
            raise
        self._state.committed()
        self._refused = None
        self._log_end()
        self._next_commit_ms = self._clock.monotonic_ms() + self._settings.index_interval_ms

    async def _load(self) -> None:
        """Extend the near wheel towards `near_ms` ahead of the clock, as far as slots are complete.

        It always comes to cover every due time that ever fired. So a timer due before `until_ms` that is not
        here was delivered, and a timer due later was not, whatever the clock did.
        """
        near = self._near
        wanted = max(self._clock.now_ms() + self._settings.near_ms, self._state.fired_until_ms)
        behind = near.until_ms < self._state.fired_until_ms
        room = UNBOUNDED if behind else self._room()
        if wanted <= near.until_ms or room <= 0:
            return
        entries, until_ms, checkpoint = await self._threads.index(
            self._index.load, near.until_ms, round_up(wanted, 1000), room
        )
        if until_ms <= near.until_ms:
            return
        rows = join(self._state.unindexed_rows(checkpoint), ROW_DTYPE)
        within = _within(rows["due_ms"], near.until_ms, until_ms)
        within |= _within(rows["prior_due_ms"], near.until_ms, until_ms)
        staged = memtable_entries([rows.compress(within)])
        staged = staged.compress(_within(staged["due_ms"], near.until_ms, until_ms))
        entries = slot_table.net(join([entries, staged], slot_table.ENTRY_DTYPE))
        if len(self._in_flight) and len(entries):
            entries = entries[~np.isin(entries["offset"], self._in_flight.offsets())]
        near.add_run(entries)
        near.until_ms = until_ms
        self._near_changed.set()
        self._warm(entries)

    def _room(self) -> int:
        """Return how many more timers may be loaded.

        A second with very many timers must not block those after it when they fall due. So of the next
        seconds one is always loaded, unless the overdue timers alone would take too much memory.
        """
        near, limit = self._near, self._settings.near_entries_max
        if near.overdue > OVERDUE_TIMES * limit:
            return 0
        soon = near.until_ms < self._clock.now_ms() + SOON_MS
        return max(limit - (len(near) - near.overdue), 1 if soon else 0)

    def _warm(self, entries: slot_table.Entries) -> None:
        """Read the records of the coming seconds ahead, so that a cold log makes no timer late."""
        within = np.cumsum(entries["size"].astype(np.int64)) <= self._settings.readahead_bytes_max
        entries = entries[within & (entries["due_ms"] > self._clock.now_ms())]
        if not len(entries) or (self._warming is not None and not self._warming.done()):
            return
        self._warming = in_background(self._warm_in_steps(entries), "reading records ahead")

    async def _warm_in_steps(self, entries: slot_table.Entries) -> None:
        """Best effort: a record that cannot be read now is read, or reported, when it is due."""
        for at in range(0, len(entries), WARM_RECORDS):
            part = entries[at : at + WARM_RECORDS]
            with contextlib.suppress(OSError, StoreError):
                await self._threads.read(self._log.warm, part["offset"], part["size"])

    def keep(self, rows: np.ndarray) -> None:
        """Remember applied rows for the sidecar of their segment."""
        for base, low, high in parts_of(rows["offset"], self._log.bases):
            self.active_rows.setdefault(base, []).append(rows[low:high])

    def find_missing_sidecars(self) -> None:
        """Schedule a scan of each segment that lacks a sidecar; of the last one, when it is sealed."""
        there = set(self._log.files.names(self._log.directory))
        for base in self._log.bases:
            if self._log.sidecar_path(base).name not in there:
                self.active_rows.setdefault(base, [])

    async def _keep_sidecars(self) -> None:
        """Write the sidecars of the segments that were sealed since the last call."""
        for base in [b for b in self.active_rows if b != self._log.bases[-1]]:
            rows = self.active_rows.pop(base)
            names = [topic.name for topic in self._state.topics_by_id]
            try:
                await self._threads.index(self._write_sidecar, base, rows, names)
            except OffsetError:
                continue  # retention has removed the segment
            except (OSError, CorruptionError) as error:
                # Derived and dispensable: without it the segment is scanned. The next start retries.
                logger.warning("cannot write the sidecar of segment %d: %s", base, error)

    def _write_sidecar(self, base: int, parts: list[np.ndarray], names: list[str]) -> None:
        rows = join(parts, ROW_DTYPE)
        whole = self._log.end_of(base) - base - SEGMENT_HEADER_SIZE
        if not parts or int(rows["size"].sum(dtype=np.int64)) != whole:
            self._log.write_sidecar(base, None)  # the segment was begun before this process
            return
        topics = rows["topic"]
        if (topics == topics[0]).all():  # sorting would hold up the other threads
            used = [int(topics[0])]
            topics[:] = 0
        else:
            found, topics[:] = np.unique(topics, return_inverse=True)
            used = found.tolist()
        self._log.write_sidecar(base, Table(rows, [names[number] for number in used]))
