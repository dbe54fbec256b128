"""Firing: at its millisecond a timer is read, re-injected with its origin, and becomes visible.

    near wheel -> record cache -> new header, same payload -> group commit -> LogState.apply

Invariants:
1. A timer being fired is in flight from the moment it leaves the near wheel until its record is stored or it
   is back in the near wheel. A recall in between waits for the outcome.
2. A timer that cannot be written stays pending and is retried. One that cannot be read, or is larger than the
   journal takes at once, is quarantined, counted and reported, and never blocks those behind it.
"""

import asyncio
import logging
from collections.abc import Iterable

import numpy as np

from timerwheel.model.messages import SetAsideInfo
from timerwheel.runtime.core import Core
from timerwheel.runtime.in_flight import Held
from timerwheel.runtime.message_views import damaged_id
from timerwheel.state.lease_records import ready_again
from timerwheel.store.errors import CorruptionError, LogFailedError, NoSpaceError
from timerwheel.store.record import FLAG_EARLY
from timerwheel.store.reinjection import reinjected
from timerwheel.store.rows import join
from timerwheel.telemetry.throttled_log import ThrottledLog
from timerwheel.wheel.slot_table import ENTRY_DTYPE, Entries

logger = logging.getLogger("timerwheel")

RETRY_MS = 500
BATCHES_IN_FLIGHT_MAX = 2
FIRST_BATCH = 64


class Firing:
    """The loop that fires. Belongs to the event loop."""

    def __init__(self, core: Core) -> None:
        self._near = core.near
        self._near_changed = core.near_changed
        self._state = core.state
        self._log = core.log
        self._ids = core.ids
        self._commit = core.commit
        self._record_cache = core.record_cache
        self._clock = core.clock
        self._settings = core.settings
        self._in_flight = core.in_flight
        self.quarantined: dict[int, SetAsideInfo] = {}
        self.starved = asyncio.Event()
        self.retries = 0
        self._slots = asyncio.Semaphore(BATCHES_IN_FLIGHT_MAX)
        self._hold_until_ms = 0
        self._failure: Exception | None = None  # what a batch met that nothing here knows of
        self._refused = ThrottledLog(core.clock)
        self._tasks: set[asyncio.Task[None]] = set()
        self._leaving: list[Entries] = []  # taken from the near wheel, not yet submitted

    async def run(self) -> None:
        """Fire timers when they are due, until cancelled; raises every error of a batch but a lack of space.

        Batches begin small and double, so that the first of many timers does not wait for the others.
        """
        batch_max = first = min(FIRST_BATCH, self._settings.fire_records_max)
        while True:
            if self._failure is not None:
                raise self._failure
            held_ms = self._hold_until_ms - self._clock.monotonic_ms()
            if held_ms > 0:
                await self._clock.sleep_for(held_ms)
                continue
            now_ms = self._clock.now_ms()
            entries = self._near.pop_due(now_ms, batch_max, self._settings.batch_bytes_max)
            if not len(entries) and self._near.overdue:
                # All that it came upon are gone: recalled, say. Those behind them may not be.
                batch_max = min(2 * batch_max, self._settings.fire_records_max)
                await self._clock.breathe()
                continue
            if not len(entries):
                batch_max = first
                if self._near.until_ms < now_ms:
                    self.starved.set()
                self._near_changed.clear()
                await self._clock.wait_until(self._near.next_due_ms(), self._near_changed)
                continue
            batch_max = min(2 * batch_max, self._settings.fire_records_max)
            await self.fire(entries)

    async def fire(self, entries: Entries, *, early: bool = False) -> None:
        """Re-inject these timers, which the caller has taken; returns once they are submitted."""
        held = self._in_flight.hold(entries)
        self._leaving.append(entries)
        try:
            await self._submit(entries, held, early=early)
        finally:
            self._leaving = [batch for batch in self._leaving if batch is not entries]

    @property
    def is_busy(self) -> bool:
        """Whether any timers were taken from the near wheel and not submitted yet."""
        return bool(self._leaving)

    def is_leaving(self, topic: int, due_ms: int) -> bool:
        """Whether a timer of this topic and due time is about to be submitted."""
        return any(
            bool(((batch["due_ms"] == due_ms) & (batch["topic"] == topic)).any()) for batch in self._leaving
        )

    async def _submit(self, entries: Entries, held: Held, *, early: bool) -> None:
        failures = self.retries
        try:
            await self._slots.acquire()
        except BaseException:
            self._return(entries, early=early)
            held.release()
            raise
        try:
            timers, back = self._split_by_kind(entries)
            found = await self._record_cache.read(timers["offset"], timers["size"], due=True)
            if failures != self.retries:
                # An earlier batch could not be stored, and this one must not overtake it.
                self._return(entries, early=early)
                self._land(held)
                return
            records, timers = self._reinjected(timers, found, early=early)
            records += self._lease_expired(back)
            sent = join([timers, back], ENTRY_DTYPE) if len(back) else timers
        except NoSpaceError as error:
            # No descriptor is free to read them; that is temporary.
            self._return(entries, early=early)
            self._hold(error, len(entries))
            self._land(held)
            return
        except BaseException:
            # They stay pending: waiters for the outcome must not take them for delivered.
            self._return(entries, early=early)
            self._land(held)
            raise
        names = self._state.topics_by_id
        topics = [names[topic].name for topic in sent["topic"].tolist()]
        stored = self._commit.submit(records, topics) if records else None
        task = asyncio.create_task(self._finish(stored, sent, held, early=early))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _split_by_kind(self, entries: Entries) -> tuple[Entries, Entries]:
        """Split entries into timers of messages and timers of leases."""
        if not self._state.internal_ids:
            return entries, entries[:0]
        leases = np.isin(entries["topic"], self._state.internal_ids)
        return entries[~leases], entries[leases]

    def _reinjected(
        self, timers: Entries, found: list[bytes | CorruptionError], *, early: bool
    ) -> tuple[list[bytes], Entries]:
        """Build the messages of these timers; returns them with their entries.

        Those that cannot be read, or never be stored, are quarantined.
        """
        records = [record for record in found if isinstance(record, bytes)]
        limit = self._log.unit_bytes_max
        if len(records) < len(found) or (len(timers) and int(timers["size"].max()) > limit):
            records, timers = self._sound(timers, found, limit)
        now_ms = self._clock.now_ms()
        dues_ms = np.minimum(timers["due_ms"], now_ms) if early else timers["due_ms"]
        flags = FLAG_EARLY if early else 0
        offsets, roots = timers["offset"], timers["root"]
        return reinjected(records, offsets, roots, dues_ms, now_ms=now_ms, flags=flags), timers

    def _sound(
        self, timers: Entries, found: list[bytes | CorruptionError], bytes_max: int
    ) -> tuple[list[bytes], Entries]:
        """Return the records that can be stored, with their entries; quarantine the others."""
        records: list[bytes] = []
        places: list[int] = []
        for place, (entry, record) in enumerate(zip(timers, found, strict=True)):
            if isinstance(record, CorruptionError):
                self._quarantine(entry, str(record), record.remains)
            elif len(record) > bytes_max:
                reason = (
                    f"the record at log offset {entry['offset']} has {len(record)} bytes, and the journal "
                    f"takes {bytes_max} at once by now; start again once it takes more"
                )
                self._quarantine(entry, reason, record)
            else:
                records.append(record)
                places.append(place)
        return records, timers[places]

    def _lease_expired(self, leases: Entries) -> list[bytes]:
        """Build the lease-expired records; the wheel entry holds all they need."""
        now_ms = self._clock.now_ms()
        names = self._state.topics_by_id
        columns = (leases[name].tolist() for name in ("topic", "queue", "root", "offset", "due_ms"))
        return [
            ready_again(names[topic].name.encode(), queue, root, offset, due_ms, now_ms)
            for topic, queue, root, offset, due_ms in zip(*columns, strict=True)
        ]

    def _quarantine(self, entry: np.void, reason: str, remains: bytes) -> None:
        """Set a timer aside; `remains` are what was read of its record."""
        offset, root = int(entry["offset"]), int(entry["root"])
        logger.error("quarantined a timer: %s", reason)
        message_id = damaged_id(self._ids, root, remains)
        self.quarantined[offset] = SetAsideInfo(message_id, int(entry["due_ms"]), offset, reason)

    def ended(self, offsets: Iterable[int]) -> None:
        """Forget those of these timers that are quarantined: they ended, or others replace them."""
        for offset in offsets:
            self.quarantined.pop(offset, None)

    async def _finish(
        self,
        stored: asyncio.Future[int] | None,
        sent: Entries,
        held: Held,
        *,
        early: bool,
    ) -> None:
        try:
            if stored is not None:
                await stored
                self._log_end()
        except (NoSpaceError, LogFailedError) as error:
            # It stays pending: back into the near wheel, and retried until it can be written.
            self._return(sent, early=early)
            self._hold(error, len(sent))
        except BaseException as error:
            # They stay pending too. Why is unknown, so the loop must not go on as if they had fired.
            self._return(sent, early=early)
            if not isinstance(error, Exception):
                raise
            self._failure = error
            self._near_changed.set()
        finally:
            self._land(held)

    def _hold(self, error: NoSpaceError | LogFailedError, count: int) -> None:
        """Pause firing, and retry after RETRY_MS."""
        self.retries += 1
        self._hold_until_ms = self._clock.monotonic_ms() + RETRY_MS
        self._log_refusal(count + self._near.overdue, error)

    def _log_refusal(self, waiting: int, error: NoSpaceError | LogFailedError) -> None:
        text = "cannot write %d due messages to the log; retrying: %s"
        self._refused.warning(logger, text, waiting, error)

    def _log_end(self) -> None:
        if (lasted_ms := self._refused.over()) is not None:
            logger.warning("due messages are written again after %d s", lasted_ms // 1000)

    def _return(self, entries: Entries, *, early: bool) -> None:
        if early:  # taken out by `NearWheel.remove`, if they were in it
            self._in_flight.put_back(entries)
        else:
            self._near.add(entries)
            self._near_changed.set()

    def _land(self, held: Held) -> None:
        held.release()
        self._slots.release()

    async def drain(self) -> None:
        """Wait for the batches in progress."""
        while self._tasks:
            await asyncio.wait(self._tasks)
