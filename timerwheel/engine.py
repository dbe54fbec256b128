"""The engine: sends, recalls, reschedules, answers; and starts and stops the loops that do the rest.

The three paths, each on one line:

    write     admit -> encode -> group commit -> View.apply -> receipt; later the indexer stores the stage
    fire      near wheel -> read -> re-inject with origin -> group commit -> View.apply -> consumers wake
    recovery  open log and index -> cut the torn tail -> replay from the checkpoint through View.apply

Everything here runs on one event loop; state changes only in `_apply`, in log order. What blocks is done in
`Threads`. One timer has at most one operation in flight (`in_flight`); whoever comes second waits for its
outcome and looks again, so a recall and a firing can never both succeed.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

from timerwheel.clock import Clock, SystemClock
from timerwheel.groups.groups import Groups
from timerwheel.groups.parts import GroupParts
from timerwheel.groups.receipts import Receipts
from timerwheel.model.admission import Rules
from timerwheel.model.durations import format_ms
from timerwheel.runtime.bulk_recall import Bulk
from timerwheel.runtime.counters import Counters
from timerwheel.runtime.data_directory import close_to_others
from timerwheel.runtime.dedup_keys import Keys
from timerwheel.runtime.firing import Firing
from timerwheel.runtime.gauges import Gauges
from timerwheel.runtime.group_commit import GroupCommit
from timerwheel.runtime.in_flight import Timers
from timerwheel.runtime.indexer import Indexer
from timerwheel.runtime.parts import Parts
from timerwheel.runtime.record_cache import RecordCache, read_ahead
from timerwheel.runtime.recovery import REBUILD_MARK, Recovered, recover
from timerwheel.runtime.retention import Retention
from timerwheel.runtime.scrub import check_log
from timerwheel.runtime.sender import CLOCK_STEP_MS
from timerwheel.runtime.threads import Threads
from timerwheel.schedules.scheduler import Scheduler
from timerwheel.settings import Settings
from timerwheel.state.config_table import Control
from timerwheel.state.state import ReadRecords
from timerwheel.store.errors import IndexDamagedError, StoreError
from timerwheel.store.files import FILE_MODE, DiskFiles, Files
from timerwheel.store.lock import DirectoryLock
from timerwheel.store.log import OnDamage
from timerwheel.store.record import NO_OFFSET
from timerwheel.store.table import Table
from timerwheel.wheel.near import NearWheel
from timerwheel.wheel.slot_limit import SlotLimit
from timerwheel.wheel.slot_table import entries_of

logger = logging.getLogger("timerwheel")

_NONE = np.uint64(NO_OFFSET)
_CHECK_INTERVAL_MS = 1_000


class Engine(Bulk):
    """One data directory, open for work. Make it with `Engine.open`."""

    def __init__(self, settings: Settings, clock: Clock, files: Files, threads: Threads) -> None:
        self.settings = settings.check()
        self.clock = clock
        self.rules = Rules.of(settings)
        self.measures = Counters(clock)
        self.status = "starting"
        self._files = files
        self._threads = threads
        self._tasks: list[asyncio.Task[None]] = []
        self._failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._in_flight: dict[int, asyncio.Future[None]] = {}
        self._round_robin = 0
        self._level_due_ms: dict[int, int] = {}
        self._free_bytes = 1 << 62
        self._stored_until = 0
        self.progress: tuple[int, int] = (0, 0)

    # ------------------------------------------------------------------ opening and closing

    @classmethod
    async def open(
        cls,
        settings: Settings,
        clock: Clock | None = None,
        files: Files | None = None,
        *,
        threads: bool = True,
        on_damage: OnDamage = OnDamage.REFUSE,
    ) -> "Engine":
        """Lock the directory, recover, start the loops.

        Raises LockedError, SettingsError, CorruptionError, and LogDamagedError for damage to the log about
        which `on_damage` has to decide.
        """
        clock, files = clock or SystemClock(), files or DiskFiles()
        engine = cls(settings, clock, files, Threads(inline=not threads))
        try:
            await engine.start(on_damage)
        except IndexDamagedError:
            # It is marked now, and the second try makes it anew from the log.
            engine = cls(settings, clock, files, Threads(inline=not threads))
            await engine.start(on_damage)
        return engine

    async def start(self, on_damage: OnDamage = OnDamage.REFUSE) -> None:
        """Recover and begin; `status` and `progress` tell how far it is."""
        settings, clock, threads = self.settings, self.clock, self._threads
        now_ms = clock.now_ms()
        self._lock = DirectoryLock(settings.data, purpose="timerwheel", now_text=format_ms(now_ms))
        try:
            await threads.index(close_to_others, settings.data)
            recovered = await threads.index(
                recover, settings, self._files, now_ms, self._on_progress, on_damage
            )
        except BaseException:
            self._lock.release()
            raise
        self._assemble(recovered)
        recovered.writer.index.on_damage = self._on_index_damage(asyncio.get_running_loop())
        try:
            await self._begin(recovered)
        except BaseException:
            await self.abandon()
            raise
        logger.info(
            "the engine is ready after %d ms, %d records replayed",
            clock.now_ms() - now_ms,
            recovered.replayed_records,
            extra={"log_bytes": recovered.log.tail, "index_rebuilt": recovered.rebuilt is not None},
        )

    async def _begin(self, recovered: Recovered) -> None:
        """Load the near wheel, then start the loops."""
        settings, clock, threads = self.settings, self.clock, self._threads
        if settings.slot_messages_max:
            await threads.read(self.congestion.count_all, recovered.writer.index, recovered.view.internal_ids)
        self._free_bytes = self._files.free_bytes(settings.data)
        self._stored_until = recovered.log.tail
        self._parts.indexer.find_missing_sidecars()
        await self._parts.indexer.tick()
        while self._parts.near.until_ms < recovered.view.fired_until_ms:
            await self._parts.indexer.tick()
        self._last_wall_ms, self._last_monotonic_ms = clock.now_ms(), clock.monotonic_ms()
        self._spawn(self._parts.commit.run)
        await self._guard_levels()
        self._spawn(self._parts.indexer.run)
        self.status = "ready"
        # Before anything fires: a run of a schedule that came due while the service was down may be unwanted.
        await self.schedules.at_start()
        self.groups.at_start()
        for loop in (
            self._parts.firing.run,
            self._parts.retention.run,
            self.keys.run,
            self._watch,
            self._flush,
            self._feed,
            self.schedules.run,
            lambda: read_ahead(self._at_hand, self._parts.near, self.clock),
        ):
            self._spawn(loop)
        if recovered.rebuilt is not None:
            self._spawn(lambda: check_log(recovered.log, self._threads))

    def _spawn(self, loop: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(asyncio.create_task(self._guarded(loop)))

    def _assemble(self, recovered: Recovered) -> None:
        near = NearWheel()
        log, view, writer = recovered.log, recovered.view, recovered.writer
        log.on_sync = self.measures.sync_s.observe
        common: dict[str, Any] = {"clock": self.clock, "settings": self.settings, "threads": self._threads}
        commit = GroupCommit(log, self._threads, self.clock, self.settings, self._apply, self.measures)
        shared: dict[str, Any] = {"view": view, "near": near, "log": log, "in_flight": self._in_flight}
        at_hand = RecordCache(log, self._threads)
        firing = Firing(commit=commit, at_hand=at_hand, clock=self.clock, settings=self.settings, **shared)
        indexer = Indexer(writer=writer, loaded=firing.wake, measures=self.measures, **shared, **common)
        self.congestion = SlotLimit(self.settings.slot_messages_max)
        self._bind(view=view, log=log, near=near, firing=firing, writer=writer, at_hand=at_hand)
        self.keys = Keys(
            view=view,
            writer=writer,
            threads=self._threads,
            clock=self.clock,
            ids=self._ids,
            messages=self,
            commit=commit,
        )
        retention = Retention(
            files=self._files,
            indexer=indexer,
            commit=commit,
            keys=self.keys,
            wake=firing.wake,
            **shared,
            **common,
        )
        self._parts = Parts(recovered, near, commit, firing, indexer, retention)
        self._timers = timers = Timers(near, self._in_flight, commit, firing.wake)
        self.census = Gauges(
            view=view,
            near=near,
            log=log,
            writer=writer,
            firing=firing,
            threads=self._threads,
            clock=self.clock,
            free_bytes=lambda: self._free_bytes,
        )
        self.control = Control(view.control, lambda puts: self.send((), puts))
        self.groups = Groups(
            GroupParts(
                queues=self,
                tables=view.groups,
                log=log,
                commit=commit,
                timers=timers,
                in_flight=self._in_flight,
                at_hand=at_hand,
                threads=self._threads,
                clock=self.clock,
                settings=self.settings,
                levels=self.rules.levels,
                control=self.control,
                receipts=Receipts(log.log_id),
                ids=self._ids,
            ),
            lambda: self.ready,
        )
        self.schedules = Scheduler(self)

    def _on_progress(self, at: int, end: int) -> None:
        self.progress = (at, end)

    async def _guarded(self, loop: Callable[[], Awaitable[None]]) -> None:
        """Run one of the loops; what it cannot go on after ends the engine, said once."""
        try:
            await loop()
        except asyncio.CancelledError:
            raise
        except IndexDamagedError as error:
            (self.settings.data / REBUILD_MARK).touch(FILE_MODE)
            self._fail_index(str(error))
        except StoreError as error:
            self._fail(str(error))
        except Exception as error:
            logger.exception("a loop of the engine failed")
            self._fail(f"{type(error).__name__}: {error}")

    def _on_index_damage(self, loop: asyncio.AbstractEventLoop) -> Callable[[str], None]:
        """Whoever meets the damage, a loop or a question: the index must not go on in use."""

        def report(reason: str) -> None:
            (self.settings.data / REBUILD_MARK).touch(FILE_MODE)
            loop.call_soon_threadsafe(self._fail_index, reason)

        return report

    def _fail_index(self, reason: str) -> None:
        self._fail(f"the index is damaged and will be rebuilt at the next start: {reason}")

    def _fail(self, reason: str) -> None:
        if not self._failed.done():
            self.status = f"failed: {reason}"
            self._failed.set_result(reason)

    async def failed(self) -> str:
        """Return when the engine can no longer go on, with the reason; close it and start again."""
        return await asyncio.shield(self._failed)

    @property
    def _stopping(self) -> bool:
        return self.status != "ready"

    @property
    def ready(self) -> bool:
        """Recovered and accepting."""
        return self.status == "ready"

    async def close(self) -> None:
        """Stop taking work, store what is queued, bring the index up to the log, free the lock."""
        if self.status == "closed":
            return
        was_ready = self.ready
        self.status = "stopping"
        self._wake_readers()
        self.groups.wake_all()
        await self.groups.close()
        commit, indexing, *others = self._tasks
        self._parts.indexer.stop()
        await asyncio.gather(indexing, return_exceptions=True)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._parts.firing.settle()
        await self.schedules.settle()
        self._parts.commit.close()
        await asyncio.gather(commit, return_exceptions=True)
        if was_ready:
            with contextlib.suppress(StoreError):
                await self._parts.indexer.finish()
        await self.abandon()

    async def abandon(self) -> None:
        """Let go of everything as a crash would: nothing more is written."""
        self.status = "closed"
        await self.groups.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._threads.close()
        self._parts.recovered.writer.index.close()
        self._parts.recovered.log.close()
        self._lock.release()

    # ------------------------------------------------------------------ taking effect

    def _apply(self, table: Table, until: int, read: ReadRecords) -> None:
        """Let stored records take effect: in the view, the near wheel and the waiting readers."""
        batch = self._parts.recovered.view.apply(table, until, read)
        # A fast sender must not use up the reserve before the next look at the disk.
        self._free_bytes -= until - self._stored_until
        self._stored_until = until
        rows = batch.rows
        self.measures.applied(batch)
        near, indexer = self._parts.near, self._parts.indexer
        indexer.keep(rows)
        soon = batch.timers & (rows["due_ms"] < near.until_ms) if batch.has_timers else batch.timers
        shown = batch.visible
        if len(places := np.flatnonzero(soon | shown)):
            self._at_hand.keep(rows["offset"][places], read(places))
        if soon.any():
            timers = rows[soon]
            before = near.next_due_ms()
            near.add(entries_of(timers, removed=False))
            if before is None or int(timers["due_ms"].min()) < before:
                self._parts.firing.wake.set()
        self.congestion.apply(rows)
        self.groups.notice(rows)
        if self._readers and shown.any():
            visible = rows[shown]
            names = self._parts.recovered.view.topics_by_id
            keys = set(zip(visible["topic"].tolist(), visible["queue"].tolist(), strict=True))
            self._wake_readers([(names[topic].name, queue) for topic, queue in keys])
        if self._parts.recovered.view.stage.count >= self.settings.index_records_max:
            indexer.wake.set()

    # ------------------------------------------------------------------ watching

    async def _watch(self) -> None:
        """Each second: free space, and whether the wall clock was stepped."""
        while True:
            await self.clock.sleep_for(_CHECK_INTERVAL_MS)
            await self.watch_once()

    async def watch_once(self) -> None:
        """One look at the disk and the clock."""
        self._free_bytes = await self._threads.read(self._files.free_bytes, self.settings.data)
        wall_ms, monotonic_ms = self.clock.now_ms(), self.clock.monotonic_ms()
        step_ms = (wall_ms - self._last_wall_ms) - (monotonic_ms - self._last_monotonic_ms)
        self._last_wall_ms, self._last_monotonic_ms = wall_ms, monotonic_ms
        if abs(step_ms) >= CLOCK_STEP_MS:
            logger.warning("the wall clock was stepped by %d ms", step_ms)
            self._parts.firing.wake.set()
            self._parts.indexer.wake.set()
            await self._guard_levels()

    async def _flush(self) -> None:
        """With `flush = async`: sync what was acknowledged, at the interval."""
        log = self._parts.recovered.log
        while True:
            await self.clock.sleep_for(self.settings.flush_interval_ms)
            if self.settings.flush == "async" and log.synced < log.tail:
                await self._threads.log(log.sync)

    async def _feed(self) -> None:
        """Let the indexer load at once when the near wheel ran dry behind the clock."""
        hungry = self._parts.firing.hungry
        while True:
            await hungry.wait()
            hungry.clear()
            self._parts.indexer.wake.set()

    async def _guard_levels(self) -> None:
        """Deliver level messages now that are due later than now + their level's delay.

        The clock was stepped back or the table shortened since they were stored: RocketMQ's
        `correctDeliverTimestamp`.
        """
        if not any(self._parts.recovered.view.level_pending.values()):
            return
        step = self.settings.fire_records_max
        found, generation = await self.overlong_levels()
        while len(found):
            if generation != self._state.generation:
                found, generation = await self.overlong_levels()
            found = self.still_waiting(found)
            part, found = found[:step], found[step:]
            for offset, due_ms in zip(part["offset"].tolist(), part["due_ms"].tolist(), strict=True):
                self._parts.near.remove(offset, due_ms)
            await self._parts.firing.fire(part, early=True)
