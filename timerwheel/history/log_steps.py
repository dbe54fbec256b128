"""Reads the history of one message from the log: sent, moved, due, delivered, and what groups did with it.

No row is kept for a history. Each record of a message names the previous one (`origin`), so the message's own
events are read backwards from its current record. Group records come after the delivery. They are searched
for in the record tables from there on, in at most RECORDS_MAX records.

`steps` is a generator that pauses after each table, so the caller can do other work in between. At some
pauses it yields a question that only the index can answer.
"""

from collections.abc import Generator, Iterator
from typing import NamedTuple

from timerwheel.history.groups import Follower, event_at
from timerwheel.history.history import Event, Found, GroupPart, MessageHistory, Question, What
from timerwheel.model.admission import HALF_DUE_MS
from timerwheel.model.messages import State
from timerwheel.store.errors import CorruptionError, OffsetError
from timerwheel.store.log_reader import LogReader
from timerwheel.store.record import FLAG_EARLY, NO_OFFSET, Kind, Record, decode
from timerwheel.store.segment import resume
from timerwheel.wheel.geometry import LEVEL_NAMES, SLOT_MS

RECORDS_MAX = 5_000_000
CHAIN_RECORDS_MAX = 1_000
_EARLY = "before its due time: it was rescheduled to now, or the clock or the delay levels were changed"

Steps = Generator[Question | None, int | None, MessageHistory]


def steps(log: LogReader, found: Found, records_max: int = RECORDS_MAX) -> Steps:
    """Read the history in steps of at most one table of the log; the caller sends the answer to a `Question`.

    Returns the MessageHistory. Damage behind the current record ends in `problem`; damage in that record
    raises CorruptionError.
    """
    chain, problem = _chain(log, found.current)
    newest = chain[-1].record
    header = newest.header
    events = list(_own_events(log, chain, found))
    groups: list[GroupPart] = []
    until, complete = log.tail, True
    if found.queue_offset is not None:
        follower = Follower(log, newest.topic, header.queue, found)
        place = chain[-1].offset + header.size
        until, complete, damage = yield from _follow(log, follower, place, records_max)
        problem = problem or damage
        events += follower.events
        groups = follower.parts(complete=complete)
    headers = [one.record.header for one in reversed(chain)]
    timed = next((one for one in headers if one.kind == Kind.TIMER), header)
    return MessageHistory(
        found.message_id,
        newest.topic,
        header.queue,
        found.state,
        header.due_ms,
        header.enqueue_ms,
        timed.level,
        timed.size,
        events,
        groups,
        until,
        complete,
        slot=found.slot,
        problem=problem,
    )


def step(reading: Steps, answer: int | None) -> Question | MessageHistory | None:
    """Run one step; returns the history at the end. A future cannot carry a StopIteration out of a thread."""
    try:
        return reading.send(answer)
    except StopIteration as end:
        history: MessageHistory = end.value
        return history


def slot_starts(due_ms: int) -> Iterator[tuple[str, int]]:
    """Yield (level, start_ms) of the slots that may hold a due time, finest first; the first in use does."""
    for level, width_ms in zip(LEVEL_NAMES, SLOT_MS, strict=True):
        yield level, due_ms // width_ms * width_ms


# ---------------------------------------------------------------------- the message's own records


class _Link(NamedTuple):
    offset: int
    record: Record


def _chain(log: LogReader, current: int) -> tuple[list[_Link], str | None]:
    """Return the kept records of a message, oldest first, and what could not be read, None if nothing.

    Raises OffsetError or CorruptionError if the current record itself cannot be read.
    """
    found = [_Link(current, decode(log.read(current)))]
    while (origin := found[-1].record.header.origin) != NO_OFFSET:
        if len(found) == CHAIN_RECORDS_MAX:
            return found[::-1], f"only the last {CHAIN_RECORDS_MAX} changes of the due time are listed"
        try:
            found.append(_Link(origin, decode(log.read(origin))))
        except OffsetError:
            break
        except CorruptionError as error:
            return found[::-1], str(error)
    return found[::-1], None


def _own_events(log: LogReader, chain: list[_Link], found: Found) -> Iterator[Event]:
    first, last = chain[0].record.header, chain[-1].record.header
    if first.origin != NO_OFFSET:
        yield Event(first.enqueue_ms, What.FORGOTTEN)
    before: Record | None = None
    for offset, record in chain:
        header = record.header
        if header.kind == Kind.TIMER:
            half = header.due_ms == HALF_DUE_MS
            sent = What.BEGUN if half else What.SENT
            what = sent if header.origin == NO_OFFSET else _change(record, before)
            yield event_at(log, header.store_ms, what, offset, due_ms=None if half else header.due_ms)
        elif header.kind == Kind.CANCEL:
            half = header.prior_due_ms == HALF_DUE_MS
            yield event_at(log, header.store_ms, What.ROLLED_BACK if half else What.RECALLED, offset)
        else:
            yield from _delivery(log, offset, record, found)
        before = record
    if found.state is State.SCHEDULED and last.due_ms != HALF_DUE_MS:
        yield Event(last.due_ms, What.DUE)


def _change(record: Record, before: Record | None) -> What:
    header = record.header
    if _commits(record):
        return What.COMMITTED
    if before is not None:
        moved = header.rolls > before.header.rolls
    else:
        moved = header.rolls > 0 and header.due_ms == header.prior_due_ms
    return What.MOVED if moved else What.RESCHEDULED


def _commits(record: Record) -> bool:
    """Whether this record of a message committed its transaction."""
    header = record.header
    return header.prior_due_ms == HALF_DUE_MS and header.due_ms != HALF_DUE_MS


def _delivery(log: LogReader, offset: int, record: Record, found: Found) -> Iterator[Event]:
    header = record.header
    committed = _commits(record)
    early = bool(header.flags & FLAG_EARLY) and not committed
    if committed:
        yield event_at(log, header.store_ms, What.COMMITTED, offset)
    elif header.origin == NO_OFFSET:
        yield event_at(log, header.store_ms, What.SENT, offset)
    elif not early:
        yield Event(header.due_ms, What.DUE)
    yield event_at(
        log,
        header.store_ms,
        What.DELIVERED,
        offset,
        lateness_ms=header.store_ms - header.due_ms,
        queue_offset=found.queue_offset,
        reason=_EARLY if early else None,
    )


# ---------------------------------------------------------------------- what comes after it


def _follow(
    log: LogReader, follower: Follower, start: int, records_max: int
) -> Generator[Question | None, int | None, tuple[int, bool, str | None]]:
    """Feed the log from `start` on; returns (offset reached, whether that is the end, what was damaged)."""
    seen, until = 0, start
    tables = log.tables(start)
    while True:
        try:
            table = next(tables, None)
        except OffsetError:
            return until, False, "retention has just removed part of the log; try again"
        except CorruptionError as error:
            torn = error.offset >= log.bases[-1] and _is_tail(log, error.offset)
            return error.offset, torn, None if torn else str(error)
        if table is None:
            return log.tail, True, None
        yield from follower.feed(table)
        last = table.rows[-1]
        until = int(last["offset"]) + int(last["size"])
        seen += len(table.rows)
        if seen >= records_max:
            return until, until >= log.tail, None
        yield None


def _is_tail(log: LogReader, offset: int) -> bool:
    """Whether no whole record follows: the damage is a record that is being written, or a torn tail."""
    base = log.bases[-1]
    return resume(log.file(base), base, offset, log.tail) is None
