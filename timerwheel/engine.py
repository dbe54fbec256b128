"""The engine: opens a data directory, wires its parts, runs their loops, closes it.

    write     admission -> encode -> group commit -> `_apply` -> receipt; later the indexer commits it
    fire      near wheel -> read -> re-inject -> group commit -> `_apply` -> readers are notified
    recover   open log and index -> cut the torn tail -> replay from the checkpoint through `LogState.apply`

Everything here runs on one event loop. Records take effect in `_apply`, in log order: first in the state,
then in the near wheel, the record cache, the groups and the counters. What blocks is done in `Threads`. A
timer has at most one operation in flight (`timerwheel.runtime.in_flight`), so a recall and a firing can
never both succeed.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np

from timerwheel.clock import CLOCK_STEP_MS, Clock, SystemClock
from timerwheel.groups.groups import Groups
from timerwheel.groups.parts import GroupParts
from timerwheel.model.admission import Rules
from timerwheel.model.durations import format_ms
from timerwheel.model.ids import Ids
from timerwheel.model.shards import ALONE, Shard, shard_of_log
from timerwheel.runtime.ages import Ages, LogAges
from timerwheel.runtime.bulk_recall import BulkRecalls
from timerwheel.runtime.column_sender import ColumnSender
from timerwheel.runtime.core import Core, Life, Status
from timerwheel.runtime.counters import Counters
from timerwheel.runtime.data_directory import close_to_others
from timerwheel.runtime.dedup_keys import DedupKeys
from timerwheel.runtime.disk_space import DiskSpace
from timerwheel.runtime.election import Candidate
from timerwheel.runtime.firing import Firing
from timerwheel.runtime.gauges import Gauges
from timerwheel.runtime.group_commit import GroupCommit
from timerwheel.runtime.in_flight import InFlight
from timerwheel.runtime.indexer import Indexer
from timerwheel.runtime.journal_watch import JournalWatch
from timerwheel.runtime.lead import Lead, alone
from timerwheel.runtime.level_guard import deliver_overlong
from timerwheel.runtime.listings import Listings
from timerwheel.runtime.message_reader import MessageReader
from timerwheel.runtime.queue_reader import QueueReader
from timerwheel.runtime.recall import Recalls
from timerwheel.runtime.record_cache import RecordCache, read_ahead
from timerwheel.runtime.recovery import REBUILD_MARK, Recovered, Replica, check_log, recover
from timerwheel.runtime.registers import Registers
from timerwheel.runtime.retention import Retention
from timerwheel.runtime.sender import Sender
from timerwheel.runtime.standby import Standby
from timerwheel.runtime.threads import Threads
from timerwheel.runtime.topic_options import TopicOptions
from timerwheel.runtime.transactions import Transactions
from timerwheel.schedules.scheduler import Scheduler
from timerwheel.settings import Settings
from timerwheel.state.config_table import Control
from timerwheel.state.key_columns import KnownKeys
from timerwheel.state.state import ReadRecords
from timerwheel.store.errors import (
    CopyFullError,
    IndexDamagedError,
    JournalAwayError,
    JournalFencedError,
    StoreError,
)
from timerwheel.store.files import FILE_MODE, DiskFiles, Files
from timerwheel.store.journal import Journal
from timerwheel.store.journaled_log import JournaledLog
from timerwheel.store.lock import DirectoryLock
from timerwheel.store.log import OnDamage
from timerwheel.store.table import Table
from timerwheel.topic_deletion import TopicDeletions
from timerwheel.topic_purge import TopicPurges
from timerwheel.wheel.near import NearWheel
from timerwheel.wheel.slot_limit import SlotLimit
from timerwheel.wheel.slot_table import entries_of

logger = logging.getLogger("timerwheel")

_CHECK_INTERVAL_MS = 1_000


class LogOptions(NamedTuple):
    """How an engine opens its log.

    With a journal, what is stored is durable there, and the directory is a copy; with an election, the engine
    stands by first, until this process is to lead. A new log is that of `shard`, and a log of another one is
    refused.
    """

    on_damage: OnDamage = OnDamage.REFUSE
    journal: Journal | None = None
    election: Candidate | None = None
    shard: Shard | None = None


class Engine:
    """One data directory, open for work. Make it with `Engine.open`.

    What it does is done by its parts, which are there once it has recovered: `sender` takes messages,
    `column_sender` thousands in columns, `messages`, `queues` and `listings` answer questions, `recalls` and
    `bulk_recalls` end pending timers, `transactions` have two steps, `groups` serve consumers, `keys` are the
    deduplication keys, `schedules` send by the calendar, `topics` are the options of topics,
    `topic_deletions` end them, and `topic_purges` take away their messages.
    """

    def __init__(self, settings: Settings, clock: Clock, files: Files, threads: Threads) -> None:
        self.settings = settings.check()
        self.clock = clock
        self.rules = Rules.of(settings)
        self.counters = Counters(clock)
        self.life = Life()
        self.lead = alone(clock)
        self.disk = DiskSpace(files, settings)
        self.progress: tuple[int, int] = (0, 0)
        self._files = files
        self._threads = threads
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._journal_watch: JournalWatch | None = None
        self._failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._stored_until = 0

    @property
    def status(self) -> str:
        """What it is doing, in words."""
        return str(self.life)

    @property
    def ready(self) -> bool:
        """Recovered and accepting."""
        return self.life.ready

    @property
    def journal_lost(self) -> JournalAwayError | JournalFencedError | CopyFullError | None:
        """Why nothing can be stored in the journal and its copy any longer, if that made the engine fail."""
        log = self.core.log
        return log.lost if isinstance(log, JournaledLog) else None

    # ------------------------------------------------------------------ opening and closing

    @classmethod
    async def open(
        cls,
        settings: Settings,
        clock: Clock | None = None,
        files: Files | None = None,
        *,
        threads: bool | Callable[[], Threads] = True,
        log: "LogOptions | None" = None,
    ) -> "Engine":
        """Lock the directory, recover, start the loops.

        With `threads` False every call runs at once in the event loop; it may make the threads, too.
        Raises LockedError, SettingsError, CorruptionError, LogDamagedError for damage to the log that has to
        be decided about, JournalAwayError if the journal does not answer, and JournalMismatchError.
        """
        clock, files = clock or SystemClock(), files or DiskFiles()
        new_threads: Callable[[], Threads] = (
            threads if callable(threads) else partial(Threads, inline=not threads)
        )
        engine = cls(settings, clock, files, new_threads())
        try:
            await engine.start(log)
        except IndexDamagedError:
            # It is marked now, and the second try rebuilds it from the log.
            engine = cls(settings, clock, files, new_threads())
            await engine.start(log)
        return engine

    async def start(self, log: "LogOptions | None" = None) -> None:
        """Recover and begin; `status` and `progress` tell how far it is."""
        log = log or LogOptions()
        settings, clock, threads = self.settings, self.clock, self._threads
        now_ms = clock.now_ms()
        self._lock = DirectoryLock(settings.data, purpose="timerwheel", now_text=format_ms(now_ms))
        try:
            await threads.index(close_to_others, settings.data)
            if log.journal is None:
                recovered = await threads.index(
                    recover, settings, self._files, now_ms, self._on_progress, log.on_damage, log.shard
                )
            else:
                copy = partial(Replica, settings, self._files, log.journal, log.shard)
                standby = Standby(copy, clock, threads)
                recovered = await standby.lead(log.election, self._on_progress)
                now_ms = clock.now_ms()
        except BaseException:
            self._lock.release()
            raise
        self._assemble(recovered, log.election)
        recovered.writer.index.watch_damage(self._on_index_damage(asyncio.get_running_loop()))
        try:
            await self._begin()
        except BaseException as error:
            await self.abandon()
            if self.journal_lost is not None:  # what failed had to store something
                raise self.journal_lost from error
            raise
        logger.info(
            "the engine is ready after %d ms; replayed %d records",
            clock.now_ms() - now_ms,
            recovered.replayed_records,
            extra={"log_bytes": recovered.log.tail, "index_rebuilt": recovered.rebuilt is not None},
        )

    async def _begin(self) -> None:
        """Load the near wheel, then start the loops."""
        core, clock = self.core, self.clock
        if self.settings.slot_messages_max:
            await core.threads.read(core.slot_limit.count_all, core.index.index, core.state.internal_ids)
        self.disk.refresh()
        self._stored_until = core.log.tail
        self.indexer.find_missing_sidecars()
        await self.indexer.tick()
        while core.near.until_ms < core.state.fired_until_ms:
            await self.indexer.tick()
        self._last_wall_ms, self._last_monotonic_ms = clock.now_ms(), clock.monotonic_ms()
        self._spawn("commit", core.commit.run)
        await deliver_overlong(self.core, self.messages, self.firing)
        self._spawn("indexer", self.indexer.run)
        self.life.become(Status.READY)
        await self.topics.at_start()
        # Before anything fires: a run of a schedule that came due while the service was down may be unwanted.
        await self.schedules.at_start()
        await self.groups.at_start()
        self._spawn("firing", self.firing.run)
        self._spawn("retention", self.retention.run)
        self._spawn("registers", self.registers.run)
        self._spawn("keys", self.keys.run)
        self._spawn("watch", self._watch)
        self._spawn("flush", self._flush)
        self._spawn("feed", self._feed)
        if self._journal_watch is not None:
            self._spawn("journal", self._journal_watch.run)
            self._spawn("journal check", self._journal_watch.run_checks)
        self._spawn("schedules", self.schedules.run)
        self._spawn("offsets", self.groups.offsets.run)
        self._spawn("topic deletions", self.topic_deletions.run)
        self._spawn("read ahead", lambda: read_ahead(core.record_cache, core.near, clock))
        if self.recovered.rebuilt is not None:
            self._spawn("scrub", lambda: check_log(core.log, core.threads))
        await self.transactions.at_start()  # beside what fires: it takes a while if very many are open
        self._spawn("transactions", self.transactions.run)

    def _spawn(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        self._tasks[name] = asyncio.create_task(self._guarded(loop), name=f"timerwheel {name}")

    def _assemble(self, recovered: Recovered, election: Candidate | None) -> None:
        self.recovered = recovered
        shard = shard_of_log(recovered.log.log_id)
        self.shard = shard
        self.rules = msgspec.structs.replace(self.rules, shard=None if shard == ALONE else shard)
        log, near, near_changed = recovered.log, NearWheel(), asyncio.Event()
        if isinstance(log, JournaledLog):
            watch = self._journal_watch = JournalWatch(log, self._threads, self.clock, election, self._fail)
            if election is not None:
                self.lead = Lead(self.clock, lambda: election.leads_until_ms, watch.confirm)
        log.time_syncs(self.counters.sync_s.observe)
        ages = Ages(self.clock)
        commit = GroupCommit(log, self._threads, self.clock, self.settings, self._apply, self.counters)
        core = self.core = Core(
            settings=self.settings,
            clock=self.clock,
            threads=self._threads,
            files=self._files,
            life=self.life,
            lead=self.lead,
            disk=self.disk,
            counters=self.counters,
            log=log,
            ids=Ids(log.log_id),
            state=recovered.state,
            index=recovered.writer,
            near=near,
            near_changed=near_changed,
            commit=commit,
            in_flight=InFlight(near, near_changed, commit),
            record_cache=RecordCache(log, self._threads),
            slot_limit=SlotLimit(self.settings.slot_messages_max),
            ages=ages,
            log_ages=LogAges(ages, recovered.state, log),
        )
        self.firing = Firing(core)
        self.indexer = Indexer(core)
        self.messages = MessageReader(core, self.firing, self.rules.levels)
        self.control = Control(core.state.control, lambda puts: self.sender.send((), puts))
        self.topics = TopicOptions(core, self.control)
        self.queues = QueueReader(core, self.topics)
        self.registers = Registers(core)
        self.listings = Listings(core, self.messages, self.queues, self.registers)
        self.keys = DedupKeys(core, self.messages)
        self.retention = Retention(core, self.indexer, self.keys)
        self.sender = Sender(core, self.rules, self.firing, self.keys, self.topics)
        self.column_sender = ColumnSender(core, self.sender, self.keys, self.topics)
        self.recalls = Recalls(core, self.sender, self.messages, self.keys, self.topics)
        self.bulk_recalls = BulkRecalls(core, self.messages, self.firing, self.topics)
        self.transactions = Transactions(core, self.sender, self.recalls, self.messages, self.topics)
        self.groups = Groups(
            GroupParts(
                core,
                self.queues,
                self.topics,
                self.control,
                self.rules.levels,
                secret=log.log_id,
                run=secrets.randbits(32),
            )
        )
        self.topics.watch_resumes(self.groups.resume, self.queues.resume)
        self.gauges = Gauges(core, self.firing, self.groups.counts)
        self.schedules = Scheduler(core, self.sender, self.messages, self.keys, self.recalls, self.control)
        ends = (core, self.control, self.topics, self.queues, self.bulk_recalls)
        self.topic_deletions = TopicDeletions(*ends, self.transactions, self.groups, self.schedules)
        self.topic_purges = TopicPurges(*ends, self.groups)

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
        except Exception as error:  # a fault of ours: without this loop the engine must not go on
            logger.exception("a loop of the engine failed")
            self._fail(f"{type(error).__name__}: {error}")

    def _on_index_damage(self, loop: asyncio.AbstractEventLoop) -> Callable[[str], None]:
        """A loop or a question has met damage: the index must not be used any longer."""

        def report(reason: str) -> None:
            (self.settings.data / REBUILD_MARK).touch(FILE_MODE)
            loop.call_soon_threadsafe(self._fail_index, reason)

        return report

    def _fail_index(self, reason: str) -> None:
        self._fail(f"the index is damaged and will be rebuilt at the next start: {reason}")

    def _fail(self, reason: str) -> None:
        if not self._failed.done():
            self.life.become(Status.FAILED, reason)
            self._failed.set_result(reason)

    async def failed(self) -> str:
        """Return when the engine can no longer go on, with the reason; close it and start again."""
        return await asyncio.shield(self._failed)

    async def close(self) -> None:
        """Stop taking work, store what is queued, bring the index up to the log, free the lock."""
        was_ready = self.ready
        if not self.life.become(Status.STOPPING):
            return
        self.queues.wake()
        self.groups.wake_all()
        await self.groups.close()
        if was_ready:
            await self.groups.keep_leases()
            await self.groups.offsets.flush_at_stop()
        commit, indexing = self._tasks["commit"], self._tasks["indexer"]
        others = [task for task in self._tasks.values() if task not in (commit, indexing)]
        self.indexer.stop()
        await asyncio.gather(indexing, return_exceptions=True)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self.firing.drain()
        await self.schedules.drain()
        self.core.commit.close()
        await asyncio.gather(commit, return_exceptions=True)
        if was_ready:
            await self._finish()
        await self.abandon()

    async def _finish(self) -> None:
        """Bring the index up to the log, and end the log. The next start makes up for what fails here."""
        try:
            await self.indexer.finish()
        except StoreError as error:
            logger.warning("the index lags behind the log, which the next start replays: %s", error)
        try:
            await self._threads.log(self.core.log.finish)
        except StoreError as error:
            logger.error("the end of the log may not be on the disk: %s", error)  # noqa: TRY400

    async def abandon(self) -> None:
        """Stop as a crash would: nothing more is written."""
        self.life.become(Status.CLOSED)
        await self.groups.close()
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._threads.close()
        self.core.index.index.close()
        self.core.log.close()
        self._lock.release()

    # ------------------------------------------------------------------ taking effect

    def _apply(self, table: Table, until: int, read: ReadRecords, known: Sequence[KnownKeys] = ()) -> None:
        """Let stored records take effect: in the state, the near wheel and the waiting readers."""
        core = self.core
        batch = core.state.apply(table, until, read, known)
        core.disk.use(until - self._stored_until)
        self._stored_until = until
        rows = batch.rows
        core.counters.applied(batch)
        self.indexer.keep(rows)
        soon = batch.timers & (rows["due_ms"] < core.near.until_ms) if batch.has_timers else batch.timers
        shown = batch.visible
        any_soon = batch.has_timers and bool(soon.any())
        if any_soon or batch.has_messages:
            places = np.flatnonzero(soon | shown)
            core.record_cache.keep(rows["offset"][places], read(places))
        if any_soon:
            timers = rows[soon]
            before = core.near.next_due_ms()
            core.near.add(entries_of(timers, removed=False))
            if before is None or int(timers["due_ms"].min()) < before:
                core.near_changed.set()
        core.slot_limit.apply(rows)
        if self.firing.quarantined:
            self.firing.ended(rows["origin"].tolist())
        self.groups.notice(batch)
        if self.queues.has_waiting and shown.any():
            visible = rows[shown]
            names = core.state.topics_by_id
            keys = set(zip(visible["topic"].tolist(), visible["queue"].tolist(), strict=True))
            self.queues.wake([(names[topic].name, queue) for topic, queue in keys])
        if core.state.memtable.count >= self.settings.index_records_max:
            self.indexer.wake.set()

    # ------------------------------------------------------------------ watching

    async def _watch(self) -> None:
        """Each second: free space, and whether the wall clock was stepped."""
        while True:
            await self.clock.sleep_for(_CHECK_INTERVAL_MS)
            await self.watch_once()

    async def watch_once(self) -> None:
        """One look at the disk and the clock."""
        self.disk.free_bytes = await self._threads.read(self.disk.look)
        self.groups.look_at_clock()
        wall_ms, monotonic_ms = self.clock.now_ms(), self.clock.monotonic_ms()
        step_ms = (wall_ms - self._last_wall_ms) - (monotonic_ms - self._last_monotonic_ms)
        self._last_wall_ms, self._last_monotonic_ms = wall_ms, monotonic_ms
        if abs(step_ms) >= CLOCK_STEP_MS:
            logger.warning("the wall clock was stepped by %d ms", step_ms)
            self.core.near_changed.set()
            self.indexer.wake.set()
            await deliver_overlong(self.core, self.messages, self.firing)

    async def _flush(self) -> None:
        """With `flush = async`: sync what was acknowledged, at the interval."""
        log = self.core.log
        while True:
            await self.clock.sleep_for(self.settings.flush_interval_ms)
            if self.settings.flush == "async" and log.synced < log.tail:
                await self._threads.log(log.sync)

    async def _feed(self) -> None:
        """Let the indexer load at once when the near wheel ran dry behind the clock."""
        while True:
            await self.firing.starved.wait()
            self.firing.starved.clear()
            self.indexer.wake.set()
