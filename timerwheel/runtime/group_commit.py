"""Group commit: units of records from many requests share one append and one sync.

    submit -> queue -> [log thread: write, fdatasync] -> Engine._apply -> the submitters' futures

While one batch is being synced, the next one collects, so batches grow with the load by themselves. Callers
that the last batch has answered often have more to store at once: the next one leaves them some turns of the
event loop, which cost next to nothing when nobody comes. With `gather_ms`, each batch waits that long for
more records: fewer syncs, each of which writes whole pages, for later answers. Without it, patient units,
those of batches over remoting, wait a little for as many units as there were lately: the callers of the last
write, who send again when they have their answers, and those who came during its sync. Nothing else waits.
Records take effect in log order and only once they are stored. A unit that could not be stored has no effect.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from timerwheel.clock import Clock
from timerwheel.errors import UnitTooLargeError
from timerwheel.runtime.counters import Counters
from timerwheel.runtime.outcome import CALL
from timerwheel.runtime.threads import Threads
from timerwheel.settings import Settings
from timerwheel.state.key_columns import KeyColumns, KnownKeys, key_rows
from timerwheel.state.state import ReadRecords
from timerwheel.store.block import Block
from timerwheel.store.errors import CorruptionError, LogFailedError, NoSpaceError, WriteUnknownError
from timerwheel.store.journaled_log import largest_unit_bytes
from timerwheel.store.log import CommitLog
from timerwheel.store.table import Table, merge, table_of

GATHERED_BYTES = 32 * 1024
GATHER_TURNS = 4
"""Turns of the event loop that a batch waits for more records."""
GATHER_TURNS_MS = 2
"""The turns end after about this time: a loop that has much to do must not hold up a batch for long."""
PATIENCE_S = 0.001
"""The longest time that patient units wait for others. Of the loop, as turns are, and not of the clock."""
_NEVER = 1 << 63


class Columns(NamedTuple):
    """The records of a send in columns, and the deduplication keys that they register."""

    block: Block
    keys: KeyColumns | None


class Unit:
    """Records that are stored together or not at all, and the future of their submitter.

    Once stored, the last record may be a padded one: see `CommitLog.append`.
    """

    __slots__ = (
        *("columns", "dues_ms", "first_due_ms", "is_patient", "on_effect", "records", "size"),
        *("stored", "topics"),
    )

    def __init__(
        self,
        records: list[bytes],
        topics: Sequence[str],
        stored: asyncio.Future[int],
        on_effect: Callable[[], None] | None,
        dues_ms: Sequence[int],
        columns: Columns | None = None,
    ) -> None:
        self.columns = columns
        self.dues_ms = dues_ms
        self.first_due_ms = min(dues_ms, default=_NEVER)
        self.is_patient = False
        self.on_effect = on_effect
        self.records = records
        self.topics = topics
        self.stored = stored
        self.size = sum(map(len, records))


class GroupCommit:
    """The only writer of the log. Belongs to the event loop."""

    def __init__(
        self,
        log: CommitLog,
        threads: Threads,
        clock: Clock,
        settings: Settings,
        apply: Callable[[Table, int, ReadRecords, Sequence[KnownKeys]], None],
        measures: Counters,
    ) -> None:
        self._log = log
        self._threads = threads
        self._clock = clock
        self._settings = settings
        self._sync = settings.flush == "sync"
        self._batch_bytes_max = settings.batch_bytes_max
        self._apply = apply
        self._measures = measures
        self.queued: deque[Unit] = deque()
        self._batch: list[Unit] = []  # units that are being written
        self._wake = asyncio.Event()
        self._enough: asyncio.Future[None] | None = None  # ends the gathering early
        self._company = 0  # units that may soon be there: of the last batch, and what came during its sync
        self._failure: str | None = None
        self._closing = False

    def submit(
        self,
        records: list[bytes],
        topics: Sequence[str],
        on_effect: Callable[[], None] | None = None,
        dues_ms: Sequence[int] = (),
        columns: Columns | None = None,
        *,
        is_patient: bool = False,
    ) -> asyncio.Future[int]:
        """Queue a unit; the future gives the log offset of its first record once it is stored.

        Then `records` has the records as they were stored.

        `on_effect` is called in the step of the loop in which the records take effect, just before; `dues_ms`
        are the due times of the unit's timers of messages. The future fails with NoSpaceError (nothing
        stored, try again later), UnitTooLargeError (nothing stored, ever), WriteUnknownError (the log has
        failed; the unit may be stored) or another LogFailedError (the log has failed; the unit is not
        stored). A unit of thousands of records comes as `columns`, the parts of whose block are then the
        `records`. A patient one waits for others, at most for PATIENCE_S.
        """
        stored: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if self._failure is not None:
            stored.set_exception(LogFailedError(self._failure))
            return stored
        limit = self._log.unit_bytes_max
        if sum(map(len, records)) > limit and (size := largest_unit_bytes(records)) > limit:
            stored.set_exception(UnitTooLargeError(size, limit))
            return stored
        if (call := CALL.get()) is not None:
            call.note(stored)
        unit = Unit(records, topics, stored, on_effect, dues_ms, columns)
        unit.is_patient = is_patient
        self.queued.append(unit)
        self._wake.set()
        if self._enough is not None and self._is_enough():
            _end(self._enough)
        return stored

    def is_storing(self, due_ms: int) -> bool:
        """Whether a timer with this due time is on its way into the log."""
        return any(
            unit.first_due_ms <= due_ms and due_ms in unit.dues_ms
            for unit in itertools.chain(self._batch, self.queued)
        )

    async def run(self) -> None:
        """Store batches until `close`; raises LogFailedError when the log can no longer be written."""
        while True:
            if not self.queued:
                if self._closing:
                    self._failure = "it is stopping"
                    return
                self._wake.clear()
                await self._wake.wait()
                continue
            await self._gather()
            batch = self._batch = self._take()
            try:
                with self._measures.append_s.timing():
                    done = await self._threads.log(
                        self._log.append,
                        [unit.records for unit in batch],
                        sync=self._sync,
                        now_ms=self._clock.now_ms(),
                    )
                stored = batch[: len(done.offsets)]
                if stored:
                    self._take_effect(stored, done.offsets)
            except BaseException as error:
                self._fail(batch, error)  # nobody may wait for a log that is no longer written
                raise
            self._batch = []
            self._company = len(batch) + len(self.queued)
            if done.error is not None:
                self._refuse(batch[len(done.offsets) :], done.error)

    async def _gather(self) -> None:
        """Wait for more records, unless those in the queue already fill enough pages."""
        until_ms = self._clock.monotonic_ms() + GATHER_TURNS_MS
        for _ in range(GATHER_TURNS):
            if self._closing or self._fills_pages() or self._clock.monotonic_ms() >= until_ms:
                break
            await asyncio.sleep(0)  # noqa: TID251 - a turn, however long: no time passes for it
        if self._closing or self._is_enough():
            return
        loop = asyncio.get_running_loop()
        self._enough = loop.create_future()
        if self._settings.gather_ms:
            await self._clock.wait_for(self._enough, self._settings.gather_ms)
        else:
            timer = loop.call_later(PATIENCE_S, _end, self._enough)
            try:
                await self._enough
            finally:
                timer.cancel()
        self._enough = None

    def _is_enough(self) -> bool:
        """Whether the units in the queue need not wait for more."""
        if self._fills_pages():
            return True
        if self._settings.gather_ms:
            return False
        queued = self.queued
        return len(queued) >= self._company or not all(unit.is_patient for unit in queued)

    def _fills_pages(self) -> bool:
        return sum(unit.size for unit in self.queued) >= min(GATHERED_BYTES, self._batch_bytes_max)

    def _refuse(self, rest: list[Unit], error: NoSpaceError) -> None:
        """Fail the units that were not stored, and the queue: nothing may overtake a due message."""
        for unit in [*rest, *self.queued]:
            if not unit.stored.cancelled():
                unit.stored.set_exception(NoSpaceError(str(error)))
        self.queued.clear()

    def _take(self) -> list[Unit]:
        batch = [self.queued.popleft()]
        size = batch[0].size
        while self.queued and size + self.queued[0].size <= self._batch_bytes_max:
            batch.append(self.queued.popleft())
            size += batch[-1].size
        return batch

    def _take_effect(self, units: list[Unit], firsts: list[int]) -> None:
        self._measures.batch_bytes.observe(sum([unit.size for unit in units]))
        for unit in units:
            if unit.on_effect is not None:
                unit.on_effect()
            if unit.columns is not None:
                unit.columns.block.padded()
        has_blocks = any(unit.columns is not None for unit in units)
        table, read = _with_blocks(units, firsts) if has_blocks else _of_records(units, firsts)
        known = _known_keys(units, firsts) if has_blocks else ()
        self._measures.batch_records.observe(len(table.rows))
        self._apply(table, self._log.tail, read, known)
        for unit, first in zip(units, firsts, strict=True):
            if not unit.stored.cancelled():
                unit.stored.set_result(first)

    def _fail(self, batch: list[Unit], error: BaseException) -> None:
        """Fail a batch, whose outcome only the next start knows, and the queue, which was never written."""
        self._failure = str(error) or type(error).__name__
        for units, kind in ((batch, WriteUnknownError), (self.queued, LogFailedError)):
            for unit in units:
                if not unit.stored.done():
                    unit.stored.set_exception(kind(self._failure))
                    unit.stored.exception()  # marks the error as retrieved, waiter or not
        self.queued.clear()

    def close(self) -> None:
        """Let `run` return once the queue is empty."""
        self._closing = True
        self._wake.set()
        if self._enough is not None:
            _end(self._enough)


def _end(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


def _of_records(units: Sequence[Unit], firsts: Sequence[int]) -> tuple[Table, ReadRecords]:
    """Return the table of the records of all units, and what reads them."""
    records = list(itertools.chain.from_iterable([unit.records for unit in units]))
    topics = list(itertools.chain.from_iterable([unit.topics for unit in units]))
    offsets: list[int] = []
    for unit, first in zip(units, firsts, strict=True):
        # Offsets are contiguous within a unit; between units a new segment may begin.
        offsets += accumulate(map(len, unit.records[:-1]), initial=first)
    return table_of(records, topics, offsets), lambda places: [records[place] for place in places.tolist()]


def _with_blocks(units: Sequence[Unit], firsts: Sequence[int]) -> tuple[Table, ReadRecords]:
    """Return the same of units some of which are blocks."""
    parts: list[tuple[Table, ReadRecords]] = []
    for unit, first in zip(units, firsts, strict=True):
        block = None if unit.columns is None else unit.columns.block
        of_block = None if block is None else (block.table(first), block.records)
        parts.append(of_block or _of_records([unit], [first]))
    if len(parts) == 1:
        return parts[0]
    ends = np.cumsum([len(table.rows) for table, _ in parts])

    def read(places: np.ndarray) -> list[bytes | CorruptionError]:
        cuts = np.searchsorted(places, ends).tolist()
        found: list[bytes | CorruptionError] = []
        for (table, read_part), begin, end, upto in zip(parts, [0, *cuts], cuts, ends.tolist(), strict=False):
            found += read_part(places[begin:end] - (upto - len(table.rows)))
        return found

    return merge([table for table, _ in parts]), read


def _known_keys(units: Sequence[Unit], firsts: Sequence[int]) -> list[KnownKeys]:
    """Return the keys that blocks register, whose records need not be read again."""
    known: list[KnownKeys] = []
    begin = 0
    for unit, first in zip(units, firsts, strict=True):
        if unit.columns is None:
            begin += len(unit.records)
            continue
        block, keys = unit.columns
        if keys is not None:
            crcs, dues_ms = (block.headers[name][keys.rows] for name in ("crc", "due_ms"))
            rows = key_rows(keys, block.offsets(first)[keys.rows], crcs, dues_ms)
            known.append(KnownKeys(keys.rows + begin, keys.digests, rows))
        begin += len(block.headers)
    return known
