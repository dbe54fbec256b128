"""Answers about messages by id, pending messages, the wheel and the levels.

State changes only on the event loop; disk reads run in reader threads. An answer joins the two so that it is
true of one moment: the memtables complete what was read from the index, and the read is repeated if an index
commit came in between.
"""

import asyncio
import itertools
import re
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np
import orjson

from timerwheel.errors import DeletedMessageError, IllegalCursorError, UnknownMessageError
from timerwheel.index import forwarding, lookups, peaks, queues
from timerwheel.index.lookups import IndexReader, Window
from timerwheel.model.admission import HALF_DUE_MS
from timerwheel.model.delay_levels import LevelTable
from timerwheel.model.ids import root_of
from timerwheel.model.messages import (
    LevelInfo,
    MessageView,
    PendingPage,
    SlotInfo,
    State,
    WheelInfo,
)
from timerwheel.runtime.core import Core
from timerwheel.runtime.firing import Firing
from timerwheel.runtime.message_views import damaged_id, damaged_view, id_of, message_view, rows_within
from timerwheel.runtime.queue_reader import SYSTEM_TOPICS
from timerwheel.state.memtable import QueueTail, Topic
from timerwheel.state.positions import Positions
from timerwheel.store.errors import CorruptionError, OffsetError
from timerwheel.store.record import Kind, Record, decode
from timerwheel.wheel.geometry import Horizons
from timerwheel.wheel.slot_table import Entries

LOOKS_MAX = 3
PEAK_ENTRIES_MAX = 200_000
"""Due times of one slot that are read to find the next peak."""
_CURSOR = re.compile(r"[0-9a-f]{1,16}\.[0-9a-f]{1,16}", re.ASCII)
T = TypeVar("T")


def _fullest_second(window: Window, index: IndexReader) -> SlotInfo | None:
    return peaks.fullest_second(index.pending(window, PEAK_ENTRIES_MAX)["due_ms"])


class Current(NamedTuple):
    """The current record of a message, and the state that follows from it."""

    message_id: str
    root: int
    root_crc: int
    offset: int
    data: bytes
    record: Record
    state: State


class MessageReader:
    """Answers questions about messages and the wheel. Belongs to the event loop."""

    def __init__(self, core: Core, firing: Firing, levels: LevelTable) -> None:
        self._threads = core.threads
        self._clock = core.clock
        self._state = core.state
        self._log = core.log
        self._ids = core.ids
        self._near = core.near
        self._index = core.index
        self._in_flight = core.in_flight
        self._firing = firing
        self._levels = levels

    # ------------------------------------------------------------------ one message

    async def get(self, message_id: str) -> MessageView:
        """Return the message as of now; UnknownMessageError."""
        try:
            current = await self.current(message_id)
        except CorruptionError as error:
            view = damaged_view(self._ids, root_of(message_id), error)
            return msgspec.structs.replace(view, id=message_id)
        return await self.view(current)

    async def view(self, current: Current) -> MessageView:
        """Return the view of a message by its current record; UnknownMessageError, CorruptionError."""
        if current.state is State.SCHEDULED:
            return self.view_of(current, State.SCHEDULED)
        if current.state is State.RECALLED:
            return await self._recalled(current)
        return await self._delivered(current)

    async def current(self, message_id: str) -> Current:
        """Return the current record, once no operation on the message is in progress; UnknownMessageError."""
        while True:
            current = await self._resolve(message_id)
            under_way = self._in_flight.outcome(current.offset)
            if under_way is None:
                return current
            await asyncio.shield(under_way)

    async def _resolve(self, message_id: str) -> Current:
        root = root_of(message_id)

        async def read(known: int | None) -> tuple[int, bytes]:
            return await self._threads.read(self._read_current, root, known)

        try:
            offset, data = await self._state.consistent_read(read, lambda: self._state.pointer_of(root))
        except OffsetError as error:
            raise UnknownMessageError(message_id) from error
        except CorruptionError as error:
            if error.remains and damaged_id(self._ids, root, error.remains) != message_id:
                raise UnknownMessageError(message_id) from error
            raise
        record = decode(data)
        found = record.header.identity(offset)
        if found.root != root or self._ids.encode(*found) != message_id:
            raise UnknownMessageError(message_id)
        if (end := self._state.end_of(record.topic, root)) is not None:
            raise DeletedMessageError(message_id, record.topic, end.at_ms)
        return Current(
            *(message_id, root, found.root_crc, offset, data, record), self.state_of(record, offset, root)
        )

    def _read_current(self, root: int, known: int | None) -> tuple[int, bytes]:
        if known is None:
            with self._index.read() as txn:
                known = forwarding.find(txn, root)
        offset = root if known is None else known
        return offset, self._log.read(offset)

    def state_of(self, record: Record, offset: int, root: int) -> State:
        """Derive the state, which is never stored: see `NearWheel` invariant 1."""
        if record.header.kind == Kind.MESSAGE:
            return State.DELIVERED
        if record.header.kind == Kind.CANCEL:
            return State.RECALLED
        due_ms, topic = record.header.due_ms, self._state.topics.get(record.topic)
        waits = (
            due_ms >= self._near.until_ms
            or (topic is not None and self._near.contains(offset, due_ms, root, topic.id))
            or offset in self._firing.quarantined
        )
        return State.SCHEDULED if waits else State.DELIVERED

    async def _recalled(self, current: Current) -> MessageView:
        header = current.record.header
        timer = current._replace(record=await self._recalled_timer(current), offset=header.origin)
        return self.view_of(timer, State.RECALLED, recalled_ms=header.store_ms)

    async def recalled_properties(self, message_id: str) -> dict[str, str]:
        """Return the stored properties of a recalled message; UnknownMessageError, CorruptionError."""
        record = await self._recalled_timer(await self.current(message_id))
        properties: dict[str, str] = orjson.loads(record.properties)
        return properties

    async def _recalled_timer(self, current: Current) -> Record:
        try:
            return decode(await self._threads.read(self._log.read, current.record.header.origin))
        except OffsetError as error:
            raise UnknownMessageError(current.message_id) from error

    async def _delivered(self, current: Current) -> MessageView:
        header = current.record.header
        topic = self._state.topics[current.record.topic]
        tail = list(topic.queues.get(header.queue, QueueTail()).tail)
        found = await self._threads.read(
            self._find_delivered, topic, header.queue, tail, current.root, header.due_ms
        )
        if found is None:
            raise UnknownMessageError(current.message_id)
        queue_offset, log_offset = found
        record = decode(await self._threads.read(self._log.read, log_offset))
        return message_view(
            record,
            current.message_id,
            State.DELIVERED,
            delivered_ms=record.header.store_ms,
            queue_offset=queue_offset,
        )

    def _find_delivered(
        self,
        topic: Topic,
        queue: int,
        tail: list[tuple[int, Positions]],
        root: int,
        due_ms: int,
    ) -> tuple[int, int] | None:
        """Return (queue offset, log offset) of a delivered message, near its due time or anywhere.

        None if it is hidden: pages, also those in memory, may begin before the first message that is not.
        """
        bounds = topic.queues.get(queue, QueueTail())
        end = tail[0][0] if tail else bounds.next_offset
        with self._index.read() as txn:
            kept = queues.around(txn, topic.id, queue, (bounds.min_offset, end), due_ms)
            for first, positions in itertools.chain(tail, kept):
                places = np.flatnonzero(positions["root"] == root)
                if len(places):
                    queue_offset = first + int(places[0])
                    is_hidden = queue_offset < bounds.min_offset
                    return None if is_hidden else (queue_offset, int(positions["offset"][places[0]]))
        return None

    def view_of(self, current: Current, state: State, *, recalled_ms: int | None = None) -> MessageView:
        """Return the view of a pending or recalled timer."""
        return message_view(current.record, current.message_id, state, recalled_ms=recalled_ms)

    # ------------------------------------------------------------------ pending timers

    async def pending(
        self,
        topic: str | None = None,
        due_from_ms: int | None = None,
        due_to_ms: int | None = None,
        limit: int = 100,
        cursor: str | None = None,
        *,
        reserved: bool = True,
    ) -> PendingPage:
        """Return pending messages with due_from_ms ≤ due < due_to_ms, in due order; IllegalCursorError.

        Without `topic` and `reserved`, those of reserved topics are left out.
        """
        after_due_ms, after_root = _decode_cursor(cursor)
        if due_from_ms is not None and due_from_ms > after_due_ms:
            after_due_ms, after_root = due_from_ms, -1
        to_ms = lookups.FAR_MS if due_to_ms is None else max(due_to_ms, 0)
        hidden = self._state.internal_ids if reserved or topic is not None else self._state.unlisted_ids
        window = lookups.Window(after_due_ms, after_root, to_ms, hidden=hidden)
        if topic in SYSTEM_TOPICS:
            window = window._replace(levels_only=SYSTEM_TOPICS[topic])
        elif topic is not None:
            if topic not in self._state.topics:
                return PendingPage([], None)
            window = window._replace(topic_id=self._state.topics[topic].id)
        entries, records, more = await self._read_pending(window, limit)
        found: list[MessageView] = []
        for entry, data in zip(entries, records, strict=True):
            if isinstance(data, bytes):
                record = decode(data)
                message_id = id_of(self._ids, record, int(entry["root"]))
                found.append(message_view(record, message_id, State.SCHEDULED))
                continue
            view = damaged_view(self._ids, int(entry["root"]), data)
            found.append(msgspec.structs.replace(view, due_ms=int(entry["due_ms"])))
        last = f"{int(entries['due_ms'][-1]):x}.{int(entries['root'][-1]):x}" if more else None
        return PendingPage(found, last)

    async def _read_pending(
        self, window: lookups.Window, limit: int
    ) -> tuple[Entries, list[bytes | CorruptionError], bool]:
        """Return the entries of a window, their records, and whether there are more.

        Between the look at the index and the read, retention may move a timer and drop the segment that held
        it. Then the index is read again.
        """
        for looks_left in reversed(range(LOOKS_MAX)):
            staged = self._state.unindexed_rows(0)
            entries = await self._threads.read(self._pending_entries, staged, window, limit + 1)
            fit = min(limit, rows_within(entries["size"]))
            more = len(entries) > fit
            entries = entries[:fit]
            if not len(entries):
                return entries, [], more
            records = await self._threads.read(self._log.read_many, entries["offset"], entries["size"])
            if not looks_left or int(entries["offset"].min()) >= self._log.start:
                return entries, records, more
        raise AssertionError

    def _pending_entries(self, rows: list[np.ndarray], window: lookups.Window, limit: int) -> Entries:
        with self._index.read() as txn:
            return lookups.IndexReader.of(txn, rows).pending(window, limit)

    async def _ask(self, question: Callable[[lookups.IndexReader], T]) -> T:
        """Run `question` in a reader thread, on the index completed by the memtables."""
        rows = self._state.unindexed_rows(0)

        def ask() -> T:
            with self._index.read() as txn:
                return question(lookups.IndexReader.of(txn, rows))

        return await self._threads.read(ask)

    async def slots(self, level: str | None, from_ms: int, to_ms: int) -> list[SlotInfo]:
        """Return the slots in use that start in [from_ms, to_ms), finest level first."""
        return await self._ask(lambda index: index.slots(level, from_ms, to_ms))

    async def peak(self) -> SlotInfo | None:
        """Return the next second in which most messages fall due; see `timerwheel.index.peaks`.

        Of each slot that is read, the first PEAK_ENTRIES_MAX messages count, one slot in each step.
        """
        now_ms, hidden = self._clock.now_ms(), self._state.internal_ids
        seconds: list[SlotInfo | None] = []
        for slot in peaks.candidates(await self.slots(None, 0, HALF_DUE_MS), now_ms):
            window = Window(max(slot.start_ms, now_ms) - 1, -1, slot.end_ms, hidden=hidden)
            seconds.append(await self._ask(partial(_fullest_second, window)))
        return peaks.earliest_peak(seconds)

    @property
    def horizons(self) -> Horizons:
        """The due times up to which slots have cascaded, as of the last commit of the index."""
        return self._index.state.horizons

    async def wheel(self) -> WheelInfo:
        """Return the counts per level, the next due time, and what is overdue or quarantined."""
        now_ms = self._clock.now_ms()
        hidden = self._state.internal_ids
        levels, next_due_ms, overdue = await self._ask(
            lambda index: (index.levels(), index.next_due_ms(hidden), index.count_before(now_ms))
        )
        return WheelInfo(
            now_ms,
            self._state.pending,
            overdue,
            next_due_ms,
            levels,
            list(self._firing.quarantined.values()),
            self._state.leases,
        )

    async def levels(self) -> list[LevelInfo]:
        """Return the delay levels with pending count and next due time."""
        counts = self._state.level_pending
        wanted = {level for level, count in counts.items() if count > 0}
        dues = await self._ask(lambda index: index.next_due_of_levels(wanted)) if wanted else {}
        return [
            LevelInfo(level, text, self._levels.delay_ms(level), counts.get(level, 0), dues.get(level))
            for level, text in enumerate(self._levels.texts, start=1)
        ]

    async def overlong_levels(self) -> tuple[Entries, int]:
        """Return level timers due later than now + their level's delay, and the generation of this answer."""
        table = self._levels
        while True:
            generation, now_ms = self._state.generation, self._clock.now_ms()

            def question(index: lookups.IndexReader, now_ms: int = now_ms) -> Entries:
                return index.overlong(now_ms, lambda level: table.delay_ms(table.clamp(level)))

            found = await self._ask(question)
            if generation == self._state.generation:
                return found, generation

    def still_waiting(self, found: Entries) -> Entries:
        """Return the entries, read in this generation, that are still pending and not in flight."""
        waits = (found["due_ms"] >= self._near.until_ms) | self._near.contains_each(found)
        columns = (found["offset"].tolist(), found["root"].tolist())
        still = [
            offset not in self._in_flight and self._state.pointer_of(root) in (None, offset)
            for offset, root in zip(*columns, strict=True)
        ]
        free: Entries = found[waits & np.array(still, bool)]
        return free


def cursor_behind(message: MessageView) -> str:
    """Return the cursor of a page of pending messages that ends with this one."""
    return f"{message.due_ms:x}.{root_of(message.id):x}"


def _decode_cursor(cursor: str | None) -> tuple[int, int]:
    if cursor is None:
        return -1, -1
    if _CURSOR.fullmatch(cursor) is None:
        raise IllegalCursorError(cursor)
    due, _, root = cursor.partition(".")
    return int(due, 16), int(root, 16)
