"""Recall or reschedule in bulk: many ids at once, or all pending messages that meet a condition.

Both work in parts. A reader thread reads a part: the current record of each message, whether it matches, and
what follows it: a CANCEL, or the timer with another due time. Then one step of the loop checks that each
timer is still pending, takes it, and submits what follows as one unit. So every answer is as exact as that
of a single call, and firing waits for one part at most. If a timer is in flight, the call waits for the
outcome and looks again.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from timerwheel.errors import (
    AlreadyDeliveredError,
    AlreadyRecalledError,
    CongestedError,
    DeletedMessageError,
    Fault,
    OpenTransactionError,
    RefusedError,
    TimerwheelError,
    TopicEndingError,
    UnknownMessageError,
)
from timerwheel.index import forwarding, lookups
from timerwheel.index.lookups import Place, Window
from timerwheel.index.writer import memtable_entries
from timerwheel.model.admission import HALF_DUE_MS
from timerwheel.model.ids import root_in
from timerwheel.model.messages import MessageView, State
from timerwheel.runtime.bulk_changes import Change, Ending, Rescheduling, TimeOf, changed
from timerwheel.runtime.core import Core
from timerwheel.runtime.current_record import CurrentRecord, Successor, cancel_of, read_at
from timerwheel.runtime.firing import Firing
from timerwheel.runtime.message_reader import MessageReader
from timerwheel.runtime.message_views import PAGE_BYTES_MAX, damaged_id, rows_within
from timerwheel.runtime.outcome import failure_of
from timerwheel.runtime.queue_reader import SYSTEM_TOPICS
from timerwheel.runtime.recall_filter import (
    Matches,
    RecallCount,
    RecallFilter,
    RecallResult,
    RescheduleCount,
    matcher,
)
from timerwheel.runtime.topic_options import TopicOptions
from timerwheel.store.errors import CorruptionError, LogFailedError, NoSpaceError, StoreError
from timerwheel.store.record import HEADER_SIZE, Kind, Record, header_in
from timerwheel.store.rows import join
from timerwheel.wheel.slot_table import ADD, ENTRY_DTYPE, Entries

logger = logging.getLogger("timerwheel")

PART_MESSAGES = 1_000
NEAR_PART_MESSAGES = 250  # each timer of the near wheel is searched for
STEP_ROWS = 65_536
WHOLE_PART_MESSAGES = 32  # by id, of those whose bodies are copied
UNITS_IN_FLIGHT_MAX = 2  # due messages wait for them in the queue

ENDING = Ending()
_CANCEL_BYTES_MAX = HEADER_SIZE + 128  # including the longest topic name
_ENDED = {
    State.DELIVERED: AlreadyDeliveredError.code,
    State.RECALLED: AlreadyRecalledError.code,
}


@dataclass
class _Tally:
    """A recall by condition in progress: what it looks for, and what it has done so far."""

    matches: Matches | None
    change: Change = ENDING
    dry_run: bool = field(kw_only=True)
    unlisted: bool = True
    """Whether messages count that lists leave out, because their topics have reserved names."""
    of_topic: str | None = None
    """All timers of this topic are ended, those that cannot be read too."""
    damaged_root: int | None = None
    """Only the timer of this root is ended, if it cannot be read."""
    ended: list[CurrentRecord] = field(default_factory=list)
    """The timer of `damaged_root`, once it was taken."""
    counted: int = 0
    recalled: int = 0
    missed: int = 0
    refused: int = 0
    units: deque[tuple[int, asyncio.Future[int]]] = field(default_factory=deque)
    stored: list[tuple[int, int]] = field(default_factory=list)
    """From which offset to which this call has stored timers."""

    @property
    def matched(self) -> int:
        return self.counted + self.recalled + self.missed + self.refused

    @property
    def ends_damaged(self) -> bool:
        return self.of_topic is not None or self.damaged_root is not None

    def note(self, unit: "_Unit") -> None:
        """Remember where the timers of a unit are once it is stored, so that the walk passes them over."""
        size = sum(len(successor.record) for successor in unit.successors)

        def remember(done: asyncio.Future[int]) -> None:
            if not done.cancelled() and done.exception() is None:
                self.stored.append((done.result(), done.result() + size))

        unit.stored.add_done_callback(remember)

    def is_own(self, offsets: np.ndarray, stored: Sequence[tuple[int, int]]) -> np.ndarray:
        """Return which of these records this call has stored itself."""
        if not stored:
            return np.zeros(len(offsets), bool)
        bounds = np.array(stored, np.uint64)
        places = np.searchsorted(bounds[:, 0], offsets, side="right") - 1
        found: np.ndarray = (places >= 0) & (offsets < bounds[places, 1])
        return found


class _Unit(NamedTuple):
    """Timers that were taken, what follows them, and the outcome."""

    currents: list[CurrentRecord]
    successors: list[Successor]
    stored: asyncio.Future[int]


class BulkRecalls:
    """Recalls and reschedules many messages. Belongs to the event loop."""

    def __init__(self, core: Core, messages: MessageReader, firing: Firing, topics: TopicOptions) -> None:
        self._clock = core.clock
        self._settings = core.settings
        self._threads = core.threads
        self._life = core.life
        self._disk = core.disk
        self._state = core.state
        self._near = core.near
        self._log = core.log
        self._ids = core.ids
        self._index = core.index
        self._in_flight = core.in_flight
        self._slot_limit = core.slot_limit
        self._messages = messages
        self._firing = firing
        self._topics = topics
        self.turn = asyncio.Lock()

    @property
    def _part_messages(self) -> int:
        """The number of CANCELs per unit, which must fit a batch of the log."""
        return min(PART_MESSAGES, max(self._settings.batch_bytes_max // _CANCEL_BYTES_MAX, 1))

    # ------------------------------------------------------------------ by id

    async def recall_many(self, ids: Sequence[str]) -> list[RecallResult]:
        """Recall those of these messages that are pending; returns one result per id, in the order given.

        The codes are those of `recall`'s errors: already_delivered, already_recalled (also if an id is in the
        array twice), open_transaction, unknown_message, message_deleted, corruption. It is not all or
        nothing: if the log had no room for a part, its messages stay pending and have the code no_space.
        Raises RefusedError for more than messages_per_request_max ids; NotReadyError or NoSpaceError if no
        recall at all could be stored. After the code outcome_unknown, or an OutcomeUnknownError for all, they
        may have been recalled.
        """
        answers = await self._change_many(ids, ENDING)
        results: list[RecallResult] = []
        for message_id in ids:
            result = answers[message_id]
            results.append(result)
            if result.code is None:
                answers[message_id] = RecallResult(message_id, AlreadyRecalledError.code, State.RECALLED)
        return results

    async def reschedule_many(self, ids: Sequence[str], time_of: TimeOf) -> list[RecallResult]:
        """Reschedule those of these messages that are pending, as `recall_many` recalls them.

        Further codes: delay_too_long, slot_congested, topic_ending. An id that is in the array twice is
        rescheduled once, and both results say so.
        """
        change = Rescheduling(time_of, self._settings.max_delay_ms)
        answers = await self._change_many(ids, change)
        return [answers[message_id] for message_id in ids]

    async def _change_many(self, ids: Sequence[str], change: Change) -> dict[str, RecallResult]:
        limit = self._settings.messages_per_request_max
        if len(ids) > limit:
            detail = f"{len(ids)} ids, more than messages_per_request_max = {limit}"
            raise RefusedError([Fault(limit, "too_many_messages", detail)])
        self._life.check_ready()
        answers: dict[str, RecallResult] = {}
        units: list[tuple[dict[str, int | None], asyncio.Future[int]]] = []
        distinct = list(dict.fromkeys(ids))
        step = self._part_messages if change is ENDING else WHOLE_PART_MESSAGES
        for at in range(0, len(distinct), step):
            await self._clock.breathe()
            await self._change_part(distinct[at : at + step], change, answers, units)
            if len(units) > UNITS_IN_FLIGHT_MAX:
                await asyncio.wait([units[-1 - UNITS_IN_FLIGHT_MAX][1]])
        await self._stored_units(units, answers)
        return answers

    async def _change_part(
        self,
        todo: list[str],
        change: Change,
        answers: dict[str, RecallResult],
        units: list[tuple[dict[str, int | None], asyncio.Future[int]]],
    ) -> None:
        while todo:
            found = await self._current_records(todo, change)
            busy: dict[str, asyncio.Future[None]] = {}
            ready: dict[str, CurrentRecord] = {}
            for message_id, current in zip(todo, found, strict=True):
                if isinstance(current, str):
                    answers[message_id] = RecallResult(message_id, current, None)
                    continue
                under_way = self._in_flight.outcome(current.offset)
                if under_way is not None:
                    busy[message_id] = under_way
                    continue
                if (refusal := self._refusal(message_id, current)) is not None:
                    answers[message_id] = refusal
                else:
                    ready[message_id] = current
            ids = {current.root: message_id for message_id, current in ready.items()}
            done, refused = self._change(list(ready.values()))
            for current, code in refused:
                message_id = ids[current.root]
                answers[message_id] = RecallResult(message_id, code, State.SCHEDULED)
            for unit in done:
                pairs = zip(unit.currents, unit.successors, strict=True)
                units.append(({ids[one.root]: following.due_ms for one, following in pairs}, unit.stored))
            if busy:
                await asyncio.wait(set(busy.values()))
            todo = list(busy)

    def _refusal(self, message_id: str, current: CurrentRecord) -> RecallResult | None:
        """Return why a message that is not in flight cannot be changed now; None if it can."""
        if self._state.end_of(current.record.topic, current.root) is not None:
            return RecallResult(message_id, DeletedMessageError.code, None)
        state = self._state_of(current)
        if state is not State.SCHEDULED:
            return RecallResult(message_id, _ENDED[state], state)
        if current.record.header.due_ms == HALF_DUE_MS:
            return RecallResult(message_id, OpenTransactionError.code, state)
        return None

    def _state_of(self, current: CurrentRecord) -> State:
        return self._messages.state_of(current.record, current.offset, current.root)

    async def _stored_units(
        self,
        units: list[tuple[dict[str, int | None], asyncio.Future[int]]],
        answers: dict[str, RecallResult],
    ) -> None:
        outcomes = await asyncio.gather(*(stored for _, stored in units), return_exceptions=True)
        errors = [self._store_error(outcome) for outcome in outcomes if isinstance(outcome, Exception)]
        if errors and len(errors) == len(units):
            raise errors[0]
        for (dues_ms, _), outcome in zip(units, outcomes, strict=True):
            code = self._store_error(outcome).code if isinstance(outcome, Exception) else None
            for one, due_ms in dues_ms.items():
                is_over = code is None and due_ms is None
                state = State.RECALLED if is_over else State.SCHEDULED
                answers[one] = RecallResult(one, code, state, due_ms if code is None else None)

    def _store_error(self, error: Exception) -> StoreError | TimerwheelError:
        if isinstance(error, NoSpaceError):
            self._disk.refresh()
            return error
        if isinstance(error, LogFailedError):
            return failure_of(error)
        raise error

    async def _current_records(self, ids: list[str], change: Change) -> list[CurrentRecord | str]:
        """Return the current record of each message, or the code of why it has none."""
        roots = {message_id: root for message_id in ids if (root := root_in(message_id)) is not None}
        distinct = set(roots.values())

        async def read(known: dict[int, int]) -> dict[str, CurrentRecord | str]:
            return await self._threads.read(self._read_ids, roots, known, change, self._clock.now_ms())

        found = await self._state.consistent_read(read, lambda: self._state.pointers_of(distinct))
        return [found.get(message_id, UnknownMessageError.code) for message_id in ids]

    def _read_ids(
        self, roots: dict[str, int], known: dict[int, int], change: Change, now_ms: int
    ) -> dict[str, CurrentRecord | str]:
        with self._index.read() as txn:
            leads = forwarding.find_many(txn, np.array(list(roots.values()), np.uint64)) | known
        offsets = [leads.get(root, root) for root in roots.values()]
        found: dict[str, CurrentRecord | str] = {}
        for (message_id, root), offset, data in zip(
            roots.items(), offsets, read_at(self._log, offsets), strict=True
        ):
            if isinstance(data, bytes):
                found[message_id] = self._checked(message_id, changed(data, root, offset, change, now_ms))
            elif isinstance(data, CorruptionError):
                found[message_id] = self._damaged(message_id, root, data)
        return found

    def _checked(self, message_id: str, current: CurrentRecord) -> CurrentRecord | str:
        found = current.record.header.identity(current.offset)
        if found.root != current.root or self._ids.encode(*found) != message_id:
            return UnknownMessageError.code
        return current

    def _damaged(self, message_id: str, root: int, error: CorruptionError) -> str:
        """Return the code for a damaged record: corruption unless its header shows that the id is invalid."""
        if not error.remains:
            return CorruptionError.code
        is_whose = damaged_id(self._ids, root, error.remains) == message_id
        return CorruptionError.code if is_whose else UnknownMessageError.code

    # ------------------------------------------------------------------ by condition

    async def recall_where(self, condition: RecallFilter, *, dry_run: bool = False) -> RecallCount:
        """Recall the pending messages that meet a condition, earliest first; a dry run only counts.

        Without a topic, and with the same `reserved`, these are the messages that `Listings` lists. Messages
        that arrive after the call began are left alone; rescheduled ones may be. One such call runs at a
        time, others wait. A caller that goes away ends it between two parts. The count of a dry run can
        include messages twice that the wheel or retention moved during the count. Raises IllegalFilterError;
        NoSpaceError or NotReadyError, after which a part may have been recalled.
        """
        tally = await self._change_where(condition, ENDING, dry_run=dry_run)
        return RecallCount(tally.matched, tally.recalled, tally.missed)

    async def reschedule_where(
        self, condition: RecallFilter, time_of: TimeOf, *, dry_run: bool = False
    ) -> RescheduleCount:
        """Reschedule the pending messages that meet a condition; each once, whatever its new time is.

        As `recall_where`. `refused` ones stay as they are: their new time is too far away, its second is
        full, or their topic is being deleted.
        """
        change = Rescheduling(time_of, self._settings.max_delay_ms)
        tally = await self._change_where(condition, change, dry_run=dry_run)
        return RescheduleCount(tally.matched, tally.recalled, tally.missed, tally.refused)

    async def _change_where(self, condition: RecallFilter, change: Change, *, dry_run: bool) -> _Tally:
        unlisted = condition.reserved or condition.topic is not None
        tally = _Tally(matcher(condition), change, dry_run=dry_run, unlisted=unlisted)
        async with self.turn:
            self._life.check_ready()
            window = self._window(condition)
            if window is not None:
                await self._sweep(window, tally)
        return tally

    async def end_timers(
        self, topic: str, *, with_transactions: bool = False, dry_run: bool = False
    ) -> RecallCount:
        """End the timers of a topic, also those that cannot be read and, if wanted, of open transactions.

        As `recall_where`, which leaves out those: some may be left that were replaced in between. Raises
        NoSpaceError, NotReadyError.
        """
        topic_id = self._state.topics[topic].id if topic in self._state.topics else None
        if topic_id is None:
            return RecallCount(0, 0, 0)
        async with self.turn:
            self._life.check_ready()
            tally = _Tally(None, dry_run=dry_run, of_topic=topic)
            to_ms = lookups.FAR_MS if with_transactions else HALF_DUE_MS
            await self._sweep(Window(0, -1, to_ms, topic_id=topic_id), tally)
        return RecallCount(tally.matched, tally.recalled, tally.missed)

    async def end_damaged(self, message_id: str) -> MessageView | None:
        """End the pending timer of a message whose record cannot be read, by what the wheel has of it.

        Also that of an open transaction. None, and nothing is done, if the wheel has no such timer, or it can
        be read. Raises NoSpaceError, NotReadyError.
        """
        root = root_in(message_id)
        if root is None:
            return None
        async with self.turn:
            self._life.check_ready()
            tally = _Tally(_matches_nothing, dry_run=False, damaged_root=root)
            await self._sweep(Window(0, -1, lookups.FAR_MS), tally)
        if not tally.ended:
            return None
        timer = tally.ended[0].record.header
        problem = "its record could not be read, so it was recalled unread"
        logger.warning("message %s is recalled: %s", message_id, problem)
        return MessageView(
            *(message_id, tally.ended[0].record.topic, timer.queue, State.RECALLED, timer.due_ms),
            *(timer.level, 0, {}, b""),
            recalled_ms=self._clock.now_ms(),
            problem=problem,
        )

    def _window(self, condition: RecallFilter) -> Window | None:
        """Return the due times and the topic of a condition; None if no message can meet it.

        Open transactions meet none.
        """
        from_ms, to_ms = condition.due_from_ms, condition.due_to_ms
        window = Window(
            after_due_ms=0 if from_ms is None else max(from_ms, 0),
            after_root=-1,
            to_ms=HALF_DUE_MS if to_ms is None else min(max(to_ms, 0), HALF_DUE_MS),
        )
        if condition.topic is None:
            return window
        if condition.topic in SYSTEM_TOPICS:
            return window._replace(levels_only=SYSTEM_TOPICS[condition.topic])
        topic = self._state.topics.get(condition.topic)
        return None if topic is None or topic.internal else window._replace(topic_id=topic.id)

    async def _sweep(self, window: Window, tally: _Tally) -> None:
        """Process the timers that are pending now: the memtables, then the wheel.

        The index may commit a memtable in between, so timers from a memtable are skipped in the wheel.
        """
        since, until = (self._state.immutable or self._state.memtable).start, self._state.until
        window = window._replace(hidden=self._hidden(tally))
        rows = self._state.unindexed_rows(0)
        near_ms = self._near.until_ms
        await self._recall_entries(await self._threads.read(_staged, rows, window, near_ms), tally)
        at: Place | None = lookups.walk_from(window)
        while at is not None:
            self._life.check_ready()
            window = window._replace(hidden=self._hidden(tally))
            near_ms = self._near.until_ms
            entries, at = await self._threads.read(self._walk, at, window, (since, until), near_ms)
            entries = entries[~tally.is_own(entries["offset"], tally.stored)]
            await self._recall_entries(entries, tally)
        while tally.units:
            await self._count_unit(tally)

    def _hidden(self, tally: _Tally) -> tuple[int, ...]:
        """Return the ids of the topics that are passed over; more may come while a call goes on."""
        return self._state.internal_ids if tally.unlisted else self._state.unlisted_ids

    def _walk(
        self, at: Place, window: Window, staged: tuple[int, int], near_ms: int
    ) -> tuple[Entries, Place | None]:
        with self._index.read() as txn:
            found, following = lookups.walk(txn, at, window, STEP_ROWS)
        since, until = staged
        was_staged = (found["offset"] >= since) & (found["offset"] < until)
        return _in_order(found[(found["root"] < until) & ~was_staged], near_ms), following

    async def _recall_entries(self, entries: Entries, tally: _Tally) -> None:
        if tally.damaged_root is not None:
            entries = entries[entries["root"] == tally.damaged_root]
        at = 0
        while at < len(entries):
            await self._clock.breathe()
            self._life.check_ready()
            near = int(entries["due_ms"][at]) < self._near.until_ms
            fit = min(NEAR_PART_MESSAGES if near else PART_MESSAGES, self._part_messages)
            part = entries[at : at + fit]
            bytes_max = PAGE_BYTES_MAX if tally.change is ENDING else self._settings.batch_bytes_max
            part = part[: rows_within(part["size"], bytes_max)]
            at += len(part)
            await self._recall_waiting(part[self._wait_now(part)], tally)

    def _wait_now(self, entries: Entries) -> np.ndarray:
        """Return which entries are pending or in flight by due time; a forwarding pointer may overrule it."""
        waits: np.ndarray = entries["due_ms"] >= self._near.until_ms
        near = entries[~waits]
        elsewhere = [
            offset in self._in_flight or offset in self._firing.quarantined
            for offset in near["offset"].tolist()
        ]
        waits[~waits] = self._near.contains_each(near) | np.array(elsewhere, bool)
        return waits

    async def _recall_waiting(self, part: Entries, tally: _Tally) -> None:
        while len(part):
            found = await self._matching(part, tally)
            if tally.dry_run:
                tally.counted += len(found)
                return
            busy: dict[int, asyncio.Future[None]] = {}
            ready: list[CurrentRecord] = []
            for place, current in found:
                under_way = None if current is None else self._in_flight.outcome(current.offset)
                if under_way is not None:
                    busy[place] = under_way
                elif current is None or self._state_of(current) is not State.SCHEDULED:
                    tally.missed += 1
                else:
                    ready.append(current)
            if tally.damaged_root is not None:
                tally.ended += ready
            done, refused = self._change(ready)
            tally.refused += len(refused)
            for unit in done:
                tally.note(unit)
                tally.units.append((len(unit.currents), unit.stored))
            while len(tally.units) > UNITS_IN_FLIGHT_MAX:
                await self._count_unit(tally)
            if busy:
                await asyncio.wait(set(busy.values()))
            part = part[list(busy)]

    async def _count_unit(self, tally: _Tally) -> None:
        count, stored = tally.units.popleft()
        try:
            await stored
        except (NoSpaceError, LogFailedError) as error:
            raise self._store_error(error) from error
        tally.recalled += count

    async def _matching(self, part: Entries, tally: _Tally) -> list[tuple[int, CurrentRecord | None]]:
        """Return (place, record) of the entries that are current and match; record is None if unreadable."""
        roots = set(part["root"].tolist())

        async def read(known: dict[int, int]) -> list[tuple[int, CurrentRecord | None]]:
            return await self._threads.read(self._read_matching, part, known, tally, self._clock.now_ms())

        return await self._state.consistent_read(read, lambda: self._state.pointers_of(roots))

    def _read_matching(
        self, part: Entries, known: dict[int, int], tally: _Tally, now_ms: int
    ) -> list[tuple[int, CurrentRecord | None]]:
        with self._index.read() as txn:
            leads = forwarding.find_many(txn, part["root"]) | known
        pairs = enumerate(zip(part["root"].tolist(), part["offset"].tolist(), strict=True))
        speaking = [place for place, (root, offset) in pairs if leads.get(root, root) == offset]
        if tally.dry_run and tally.matches is None:
            return [(place, None) for place in speaking]
        part = part[speaking]
        found: list[tuple[int, CurrentRecord | None]] = []
        records = self._log.read_many(part["offset"], part["size"])
        columns = (speaking, part["root"].tolist(), part["offset"].tolist(), records)
        for number, (place, root, offset, data) in enumerate(zip(*columns, strict=True)):
            if isinstance(data, CorruptionError) and tally.ends_damaged:
                found.append((place, self._current_damaged(part[number], data, now_ms)))
            elif not isinstance(data, bytes):
                if tally.matches is None:
                    found.append((place, None))
            elif tally.matches is None or tally.matches(data):
                found.append(
                    (place, None if tally.dry_run else changed(data, root, offset, tally.change, now_ms))
                )
        return found

    def _current_damaged(self, entry: np.void, error: CorruptionError, now_ms: int) -> CurrentRecord:
        """Build the CurrentRecord of a timer that cannot be read, from its wheel entry."""
        topic = self._state.topics_by_id[int(entry["topic"])].name
        offset, root, due_ms = int(entry["offset"]), int(entry["root"]), int(entry["due_ms"])
        header = header_in(error.remains)._replace(
            kind=int(Kind.TIMER),
            size=int(entry["size"]),
            due_ms=due_ms,
            queue=int(entry["queue"]),
            level=int(entry["delay_level"]),
        )
        cancel = cancel_of(header, topic.encode(), root, offset, now_ms)
        return CurrentRecord(root, offset, Record(header, topic, b"", b""), Successor(cancel, None))

    # ------------------------------------------------------------------ both

    def _change(self, currents: list[CurrentRecord]) -> tuple[list[_Unit], list[tuple[CurrentRecord, str]]]:
        """Take these timers, which are known to be pending in this step of the loop, and store what follows.

        That is submitted in units that fit a batch of the log, but without FLAG_MORE: after a crash, a part
        of a unit may count. Also returns those that stay as they are, each with the code of why.
        """
        done: list[_Unit] = []
        refused: list[tuple[CurrentRecord, str]] = []
        chosen: list[CurrentRecord] = []
        successors: list[Successor] = []
        size_bytes = 0
        for current in currents:
            successor = current.successor
            if isinstance(successor, str):
                refused.append((current, successor))
                continue
            if successor.due_ms is not None and current.record.topic in self._topics.ending:
                refused.append((current, TopicEndingError.code))
                continue
            if chosen and size_bytes + len(successor.record) > self._settings.batch_bytes_max:
                done += self._submit(chosen, successors, refused)
                chosen, successors, size_bytes = [], [], 0
            chosen.append(current)
            successors.append(successor)
            size_bytes += len(successor.record)
        if chosen:
            done += self._submit(chosen, successors, refused)
        return done, refused

    def _submit(
        self,
        currents: list[CurrentRecord],
        successors: list[Successor],
        refused: list[tuple[CurrentRecord, str]],
    ) -> list[_Unit]:
        """Take and submit one unit, without those whose new second is full, which are added to `refused`."""
        dues_ms = [one.due_ms for one in successors if one.due_ms is not None]
        release = _release_nothing
        if dues_ms:
            try:
                release = self._slot_limit.admit(dues_ms, [one.record.header.due_ms for one in currents])
            except CongestedError:
                if len(currents) == 1:
                    refused.append((currents[0], CongestedError.code))
                    return []
                half = len(currents) // 2
                return [
                    unit
                    for part in (slice(0, half), slice(half, None))
                    for unit in self._submit(currents[part], successors[part], refused)
                ]
        headers = [current.record.header for current in currents]
        topics = [current.record.topic for current in currents]
        ids = {name: self._state.topic(name).id for name in set(topics)}
        entries = np.zeros(len(currents), ENTRY_DTYPE)
        for name in ("root", "offset"):
            entries[name] = [getattr(current, name) for current in currents]
        for name in ("due_ms", "size", "queue"):
            entries[name] = [getattr(header, name) for header in headers]
        entries["delay_level"] = [header.level for header in headers]
        entries["topic"] = [ids[name] for name in topics]
        records = [one.record for one in successors]
        stored = self._in_flight.take(entries).submit(records, topics, release, dues_ms)
        stored.add_done_callback(lambda _: release())
        return [_Unit(currents, successors, stored)]


def _release_nothing() -> None:
    """Release nothing: no place was held."""


def _matches_nothing(_record: bytes) -> bool:
    """Match no record that can be read."""
    return False


def _staged(rows: list[np.ndarray], window: Window, near_ms: int) -> Entries:
    entries = memtable_entries(rows)
    return _in_order(lookups.chosen(entries[entries["op"] == ADD], window), near_ms)


def _in_order(entries: Entries, near_ms: int) -> Entries:
    """Sort: first entries due before `near_ms`, in due order; then the rest, in log order of the messages."""
    near = entries["due_ms"] < near_ms
    soon, far = entries[near], entries[~near]
    # Neighbours are read together: records, and forwarding pointers that share a page.
    return join([soon[np.argsort(soon["due_ms"])], far[np.argsort(far["root"])]], ENTRY_DTYPE)
