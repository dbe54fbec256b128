"""What a bulk call does to each pending message: it ends the message, or gives it another due time.

A change makes the record that follows the current one. That happens in reader threads, for a part of the
messages at a time.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from timerwheel.errors import AdmissionError
from timerwheel.model import admission
from timerwheel.model.admission import Rules
from timerwheel.runtime.current_record import CurrentRecord, Successor, cancel_of, current_record_of
from timerwheel.store.record import HEADER_SIZE, Header, Kind, replace


class Change(Protocol):
    """What is done to each message of a bulk call."""

    def successor(self, data: bytes, header: Header, root: int, offset: int, now_ms: int) -> Successor:
        """Return what follows the timer `data` at `offset`; AdmissionError if it must stay as it is."""


def changed(data: bytes, root: int, offset: int, change: Change, now_ms: int) -> CurrentRecord:
    """Return the current record of a message with its successor, if it is a timer that can be changed."""
    current = current_record_of(data, root, offset)
    if current.record.header.kind != Kind.TIMER:
        return current
    try:
        successor = change.successor(data, current.record.header, root, offset, now_ms)
    except AdmissionError as error:
        return current._replace(successor=error.code)
    return current._replace(successor=successor)


class Ending:
    """Ends messages: each is followed by a CANCEL."""

    def successor(self, data: bytes, header: Header, root: int, offset: int, now_ms: int) -> Successor:
        """See `Change`."""
        topic = data[HEADER_SIZE : HEADER_SIZE + header.topic_len]
        return Successor(cancel_of(header, topic, root, offset, now_ms), None)


class NewTime(NamedTuple):
    """A due time and the delay level that it comes from, 0 if none."""

    due_ms: int
    level: int


TimeOf = Callable[[int, int], NewTime]
"""The new time of a message that is due at the first argument, at the moment of the second."""


class Rescheduling:
    """Gives messages another due time. One in the past is now: such a message fires next."""

    def __init__(self, time_of: TimeOf, max_delay_ms: int) -> None:
        self._time_of = time_of
        self._max_delay_ms = max_delay_ms

    def successor(self, data: bytes, header: Header, root: int, offset: int, now_ms: int) -> Successor:
        """See `Change`; AdmissionError delay_too_long."""
        due_ms, level = self._time_of(header.due_ms, now_ms)
        if due_ms > now_ms + self._max_delay_ms:
            limit = self._max_delay_ms
            raise AdmissionError("delay_too_long", f"due more than max_delay = {limit} ms from now")
        due_ms = max(due_ms, now_ms)
        record = replace(
            data,
            header,
            kind=Kind.TIMER,
            origin=offset,
            root=root,
            root_crc=header.identity(root).root_crc,
            store_ms=now_ms,
            due_ms=due_ms,
            rolls=header.rolls,
            level=level,
        )
        return Successor(record, due_ms)


def shifted(shift_ms: int) -> TimeOf:
    """Return the time that is so much later, or earlier, than each message's own."""
    return lambda due_ms, _now_ms: NewTime(due_ms + shift_ms, 0)


def moved_to(properties: dict[str, str], rules: Rules) -> TimeOf:
    """Return the time that delay properties say, for every message; a relative one counts from the change."""
    known: dict[int, NewTime] = {}

    def time_of(_due_ms: int, now_ms: int) -> NewTime:
        if now_ms not in known:
            known.clear()
            plan = admission.admit_delay(properties, now_ms, rules)
            known[now_ms] = NewTime(plan.due_ms, plan.level if plan.waits else 0)
        return known[now_ms]

    return time_of
