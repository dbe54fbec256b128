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
import zlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import orjson

from store.errors import IndexDamagedError, LogFailedError, NoSpaceError, StoreError
from store.files import DiskFiles, Files
from store.lock import DirectoryLock
from store.record import FLAG_EARLY, FLAG_MORE, NO_OFFSET, Header, Kind, encode, replace
from store.table import Table
from timerwheel import admission
from timerwheel.admission import Plan, Rules
from timerwheel.clock import Clock, SystemClock
from timerwheel.commit import GroupCommit
from timerwheel.congestion import Congestion
from timerwheel.durations import format_ms
from timerwheel.errors import (
    AdmissionError,
    AlreadyDeliveredError,
    AlreadyRecalledError,
    DiskReserveError,
    Fault,
    NotReadyError,
    RefusedError,
)
from timerwheel.firing import Firing
from timerwheel.indexer import Indexer
from timerwheel.message import MessageView, Outgoing, Receipt, State
from timerwheel.near import NearWheel
from timerwheel.queries import Current, Queries
from timerwheel.recovery import REBUILD_MARK, Recovered, recover
from timerwheel.retention import Retention
from timerwheel.settings import Settings
from timerwheel.threads import Threads
from timerwheel.wheel import ENTRY_DTYPE, entries_of

logger = logging.getLogger("timerwheel")

_NONE = np.uint64(NO_OFFSET)
_CHECK_INTERVAL_MS = 1_000
_CLOCK_STEP_MS = 1_000
_BREATHE_MESSAGES = 500


@dataclass
class _Parts:
    """What an open engine is made of."""

    recovered: Recovered
    near: NearWheel
    commit: GroupCommit
    firing: Firing
    indexer: Indexer
    retention: Retention


class Engine(Queries):
    """One data directory, open for work. Make it with `Engine.open`."""

    def __init__(self, settings: Settings, clock: Clock, files: Files, threads: Threads) -> None:
        self.settings = settings.check()
        self.clock = clock
        self.rules = Rules.of(settings)
        self.status = "starting"
        self._files = files
        self._threads = threads
        self._tasks: list[asyncio.Task[None]] = []
        self._failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._in_flight: dict[int, asyncio.Future[None]] = {}
        self._round_robin = 0
        self._level_due_ms: dict[int, int] = {}
        self._free_bytes = 1 << 62
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
    ) -> "Engine":
        """Lock the directory, recover, start the loops.

        Raises LockedError, SettingsError, CorruptionError (the log is damaged before its tail).
        """
        clock, files = clock or SystemClock(), files or DiskFiles()
        engine = cls(settings, clock, files, Threads(inline=not threads))
        try:
            await engine.start()
        except IndexDamagedError:
            # It is marked now, and the second try makes it anew from the log.
            engine = cls(settings, clock, files, Threads(inline=not threads))
            await engine.start()
        return engine

    async def start(self) -> None:
        """Recover and begin; `status` and `progress` tell how far it is."""
        settings, clock, threads = self.settings, self.clock, self._threads
        now_ms = clock.now_ms()
        self._lock = DirectoryLock(settings.data, purpose="timerwheel", now_text=format_ms(now_ms))
        try:
            recovered = await threads.index(recover, settings, self._files, now_ms, self._on_progress)
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

    async def _begin(self, recovered: Recovered) -> None:
        """Load the near wheel, then start the loops."""
        settings, clock, threads = self.settings, self.clock, self._threads
        if settings.slot_messages_max:
            await threads.read(self.congestion.count_all, recovered.writer.index)
        self._free_bytes = self._files.free_bytes(settings.data)
        self._parts.indexer.find_missing_sidecars()
        await self._parts.indexer.tick()
        while self._parts.near.until_ms < recovered.view.fired_until_ms:
            await self._parts.indexer.tick()
        self._last_wall_ms, self._last_monotonic_ms = clock.now_ms(), clock.monotonic_ms()
        self._spawn(self._parts.commit.run)
        await self._guard_levels()
        for loop in (
            self._parts.indexer.run,
            self._parts.firing.run,
            self._parts.retention.run,
            self._watch,
            self._flush,
            self._feed,
        ):
            self._spawn(loop)
        self.status = "ready"

    def _spawn(self, loop: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(asyncio.create_task(self._guarded(loop)))

    def _assemble(self, recovered: Recovered) -> None:
        near = NearWheel()
        log, view, writer = recovered.log, recovered.view, recovered.writer
        common: dict[str, Any] = {"clock": self.clock, "settings": self.settings, "threads": self._threads}
        commit = GroupCommit(log, self._threads, self.clock, self.settings, self._apply)
        shared: dict[str, Any] = {"view": view, "near": near, "log": log, "in_flight": self._in_flight}
        firing = Firing(commit=commit, **shared, **common)
        indexer = Indexer(writer=writer, loaded=firing.wake, **shared, **common)
        retention = Retention(files=self._files, indexer=indexer, commit=commit, **shared, **common)
        self._parts = _Parts(recovered, near, commit, firing, indexer, retention)
        self.congestion = Congestion(self.settings.slot_messages_max)
        self._bind(view=view, log=log, near=near, firing=firing, writer=writer)

    def _on_progress(self, at: int, end: int) -> None:
        self.progress = (at, end)

    async def _guarded(self, loop: Callable[[], Awaitable[None]]) -> None:
        """Run one of the loops; what it cannot go on after ends the engine, said once."""
        try:
            await loop()
        except asyncio.CancelledError:
            raise
        except IndexDamagedError as error:
            (self.settings.data / REBUILD_MARK).touch()
            self._fail_index(str(error))
        except StoreError as error:
            self._fail(str(error))
        except Exception as error:
            logger.exception("a loop of the engine failed")
            self._fail(f"{type(error).__name__}: {error}")

    def _on_index_damage(self, loop: asyncio.AbstractEventLoop) -> Callable[[str], None]:
        """Whoever meets the damage, a loop or a question: the index must not go on in use."""

        def report(reason: str) -> None:
            (self.settings.data / REBUILD_MARK).touch()
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
        commit, indexing, *others = self._tasks
        self._parts.indexer.stop()
        await asyncio.gather(indexing, return_exceptions=True)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._parts.firing.settle()
        self._parts.commit.close()
        await asyncio.gather(commit, return_exceptions=True)
        if was_ready:
            with contextlib.suppress(StoreError):
                await self._parts.indexer.finish()
        await self.abandon()

    async def abandon(self) -> None:
        """Let go of everything as a crash would: nothing more is written."""
        self.status = "closed"
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._threads.close()
        self._parts.recovered.writer.index.close()
        self._parts.recovered.log.close()
        self._lock.release()

    # ------------------------------------------------------------------ taking effect

    def _apply(self, table: Table, until: int) -> None:
        """Let stored records take effect: in the view, the near wheel and the waiting readers."""
        rows = self._parts.recovered.view.apply(table, until)
        near, indexer = self._parts.near, self._parts.indexer
        indexer.keep(rows)
        timers = rows[(rows["kind"] == Kind.TIMER) & (rows["due_ms"] < near.until_ms)]
        if len(timers):
            before = near.next_due_ms()
            near.add(entries_of(timers, removed=False))
            if before is None or int(timers["due_ms"].min()) < before:
                self._parts.firing.wake.set()
        self.congestion.apply(rows)
        visible = rows[rows["kind"] == Kind.MESSAGE]
        if len(visible) and self._readers:
            names = self._parts.recovered.view.topics_by_id
            keys = set(zip(visible["topic"].tolist(), visible["queue"].tolist(), strict=True))
            self._wake_readers([(names[topic].name, queue) for topic, queue in keys])
        if self._parts.recovered.view.stage.count >= self.settings.index_records_max:
            indexer.wake.set()

    # ------------------------------------------------------------------ sending

    def check(self, messages: Sequence[Outgoing]) -> list[Fault]:
        """What `send` would refuse these messages for; stores nothing."""
        return self._admit(messages, self.clock.now_ms())[1]

    def _admit(self, messages: Sequence[Outgoing], now_ms: int) -> tuple[list[Plan], list[Fault]]:
        plans: list[Plan] = []
        faults: list[Fault] = []
        admit, rules = admission.admit, self.rules
        for index, message in enumerate(messages):
            try:
                plans.append(admit(message, now_ms, rules))
            except AdmissionError as error:
                faults.append(Fault(index, error.code, error.detail))
        return plans, faults

    async def send(self, messages: Sequence[Outgoing]) -> list[Receipt]:
        """Store messages as one unit and return a receipt for each, once durable.

        Raises RefusedError with every fault, CongestedError, DiskReserveError, NotReadyError, NoSpaceError;
        then nothing is stored.
        """
        self._check_accepting()
        if not messages:
            return []
        now_ms = self.clock.now_ms()
        plans: list[Plan] = []
        faults: list[Fault] = []
        for at in range(0, len(messages), _BREATHE_MESSAGES):
            if at:
                await self.clock.breathe()  # a large array must not make a due message late
            more, wrong = self._admit(messages[at : at + _BREATHE_MESSAGES], now_ms)
            plans += map(self._in_level_order, more)
            faults += [Fault(fault.index + at, fault.code, fault.detail) for fault in wrong]
        if faults:
            raise RefusedError(faults)
        self._check_topics(messages)
        topics = [message.topic for message in messages]
        let_go = self.congestion.admit([plan.due_ms for plan in plans if plan.waits])
        try:
            records = await self._encode_unit(messages, plans, now_ms)
        except BaseException:
            let_go()
            raise
        submitted = self._parts.commit.submit(records, topics, let_go)
        submitted.add_done_callback(lambda _: let_go())
        offset = await self._stored(submitted)
        receipts: list[Receipt] = []
        for record, plan, topic in zip(records, plans, topics, strict=True):
            crc = int.from_bytes(record[4:8], "little")
            state = State.SCHEDULED if plan.waits else State.DELIVERED
            receipts.append(Receipt(self._ids.encode(offset, crc), topic, plan.due_ms, state))
            offset += len(record)
        return receipts

    async def _encode_unit(self, messages: Sequence[Outgoing], plans: list[Plan], now_ms: int) -> list[bytes]:
        """The records; all but the last say that more follows, so that a torn unit is cut whole."""
        records: list[bytes] = []
        last = len(messages) - 1
        for place, (message, plan) in enumerate(zip(messages, plans, strict=True)):
            if place and place % _BREATHE_MESSAGES == 0:
                await self.clock.breathe()
            records.append(self._encode(message, plan, now_ms, 0 if place == last else FLAG_MORE))
        return records

    def _encode(self, message: Outgoing, plan: Plan, now_ms: int, flags: int) -> bytes:
        properties = plan.properties
        return encode(
            Kind.TIMER if plan.waits else Kind.MESSAGE,
            message.topic.encode(),
            orjson.dumps(properties) if properties else b"",
            message.body,
            store_ms=now_ms,
            due_ms=plan.due_ms,
            enqueue_ms=now_ms,
            flags=flags,
            level=plan.level if plan.waits else 0,
            queue=self._queue_for(properties),
        )

    def _in_level_order(self, plan: Plan) -> Plan:
        """Within one level messages keep the order stored, also if the clock steps back a little.

        A larger step makes `_guard_levels` deliver what waits, so it cannot be overtaken.
        """
        if not plan.level or not plan.waits:
            return plan
        last_ms = self._level_due_ms.get(plan.level, 0)
        if 0 < last_ms - plan.due_ms <= _CLOCK_STEP_MS:
            return msgspec.structs.replace(plan, due_ms=last_ms)
        self._level_due_ms[plan.level] = plan.due_ms
        return plan

    def _queue_for(self, properties: dict[str, str]) -> int:
        """By sharding key if there is one, so that a key keeps its order; else in turn."""
        count = self.settings.queues_per_topic
        if count == 1:
            return 0
        key = properties.get("__SHARDINGKEY")
        if key is not None:
            return zlib.crc32(key.encode()) % count
        self._round_robin += 1
        return self._round_robin % count

    def _check_accepting(self) -> None:
        if self.status != "ready":
            raise NotReadyError(f"the service is {self.status}")
        if self._free_bytes < self.settings.disk_reserve_bytes:
            raise DiskReserveError(self._free_bytes, self.settings.disk_reserve_bytes)

    def _check_topics(self, messages: Sequence[Outgoing]) -> None:
        known = self._parts.recovered.view.topics
        new = {message.topic for message in messages if message.topic not in known}
        if len(known) + len(new) > self.settings.topics_max:
            detail = f"there are topics_max = {self.settings.topics_max} topics already"
            first = next(i for i, message in enumerate(messages) if message.topic in new)
            raise RefusedError([Fault(first, "too_many_topics", detail)])

    async def _stored(self, stored: asyncio.Future[int]) -> int:
        try:
            return await stored
        except NoSpaceError:
            self._free_bytes = self._files.free_bytes(self.settings.data)
            raise
        except LogFailedError as error:
            raise NotReadyError(f"the service has failed: {error}") from error

    # ------------------------------------------------------------------ recall and reschedule

    async def recall(self, message_id: str) -> MessageView:
        """End a waiting message for good; final when this returns.

        Raises UnknownMessageError, AlreadyDeliveredError, AlreadyRecalledError: each is the truth.
        """
        current = await self._leave(message_id)
        header = current.record.header
        now_ms = self.clock.now_ms()
        cancel = encode(
            Kind.CANCEL,
            current.record.topic.encode(),
            b"",
            b"",
            store_ms=now_ms,
            due_ms=header.due_ms,
            enqueue_ms=header.enqueue_ms,
            queue=header.queue,
            root=current.root,
            root_crc=current.root_crc,
            origin=current.offset,
            prior_due_ms=header.due_ms,
            prior_level=header.level,
        )
        await self._replace_timer(current, cancel)
        return self.view_of(current, State.RECALLED, recalled_ms=now_ms)

    async def reschedule(self, message_id: str, properties: dict[str, str]) -> Receipt:
        """Give a waiting message another due time, keeping its id.

        The new time follows the rules of admission; a time that has come delivers at once. Raises
        AdmissionError, CongestedError, DiskReserveError and what `recall` raises.
        """
        self._check_accepting()
        admission.admit_delay(properties, self.clock.now_ms(), self.rules)
        current = await self._leave(message_id)
        now_ms = self.clock.now_ms()
        try:
            plan = admission.admit_delay(properties, now_ms, self.rules)
            let_go = self.congestion.admit([plan.due_ms] if plan.waits else [], current.record.header.due_ms)
        except BaseException:
            self._stay(current)
            raise
        record = replace(
            current.data,
            current.record.header,
            kind=Kind.TIMER if plan.waits else Kind.MESSAGE,
            origin=current.offset,
            root=current.root,
            root_crc=current.root_crc,
            store_ms=now_ms,
            due_ms=plan.due_ms,
            rolls=current.record.header.rolls,
            level=plan.level if plan.waits else 0,
            flags=0 if plan.waits else FLAG_EARLY,
        )
        await self._replace_timer(current, record, let_go)
        state = State.SCHEDULED if plan.waits else State.DELIVERED
        return Receipt(message_id, current.record.topic, plan.due_ms, state)

    async def _leave(self, message_id: str) -> Current:
        """Take a waiting timer out of the near wheel and put it in flight, in one step of the loop."""
        if self.status != "ready":
            raise NotReadyError(f"the service is {self.status}")
        current = await self.settled(message_id)
        if current.state is State.DELIVERED:
            raise AlreadyDeliveredError(message_id)
        if current.state is State.RECALLED:
            raise AlreadyRecalledError(message_id)
        self._in_flight[current.offset] = asyncio.get_running_loop().create_future()
        self._parts.near.remove(current.offset, current.record.header.due_ms)
        return current

    async def _replace_timer(
        self, current: Current, record: bytes, let_go: Callable[[], None] | None = None
    ) -> None:
        submitted = self._parts.commit.submit([record], [current.record.topic], let_go)
        if let_go is not None:
            submitted.add_done_callback(lambda _: let_go())
        try:
            # Shielded: a caller that goes away must not leave a timer half out of the wheel.
            await asyncio.shield(self._stored_or_back(submitted, current))
        except NoSpaceError:
            self._free_bytes = self._files.free_bytes(self.settings.data)
            raise
        except LogFailedError as error:
            raise NotReadyError(f"the service has failed: {error}") from error

    async def _stored_or_back(self, submitted: asyncio.Future[int], current: Current) -> None:
        try:
            await submitted
        except BaseException:
            self._stay(current)
            raise
        self._arrive(current.offset)

    def _stay(self, current: Current) -> None:
        """The operation failed: the timer waits on."""
        header: Header = current.record.header
        if current.offset not in self._parts.firing.set_aside:
            entry = np.zeros(1, ENTRY_DTYPE)
            entry["due_ms"], entry["root"], entry["offset"] = header.due_ms, current.root, current.offset
            entry["size"], entry["queue"], entry["level"] = header.size, header.queue, header.level
            entry["topic"] = self._parts.recovered.view.topic(current.record.topic).id
            self._parts.near.put_back(entry)
            self._parts.firing.wake.set()
        self._arrive(current.offset)

    def _arrive(self, offset: int) -> None:
        waiting = self._in_flight.pop(offset, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

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
        if abs(step_ms) >= _CLOCK_STEP_MS:
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
            if generation != self._view.generation:
                found, generation = await self.overlong_levels()
            found = self.still_waiting(found)
            part, found = found[:step], found[step:]
            for offset, due_ms in zip(part["offset"].tolist(), part["due_ms"].tolist(), strict=True):
                self._parts.near.remove(offset, due_ms)
            await self._parts.firing.fire(part, early=True)
