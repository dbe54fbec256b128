"""What records mean, as questions to rows of a record table (`timerwheel.store.table.ROW_DTYPE`). Pure.

The service (`timerwheel.state.state`), its check (`timerwheel.offline.fsck`) and the jobs on Spark share
these functions.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import numpy as np

from timerwheel.store.record import FLAG_EARLY, FLAG_KEYED, FLAG_LEASE, FLAG_RUN, NO_OFFSET, Kind
from timerwheel.store.table import Rows

_NONE = np.uint64(NO_OFFSET)
# Plain numbers: numpy takes five times as long to compare a column with a member of an enumeration.
_MESSAGE = int(Kind.MESSAGE)
_TIMER = int(Kind.TIMER)
_ONE = (np.zeros(1, bool), np.ones(1, bool))  # masks of one row
for _mask in _ONE:
    _mask.flags.writeable = False


class Batch:
    """The rows of one batch, classified once: most batches have records of one kind.

    The masks mark the rows that are timers, that are messages, and that end or replace an earlier record.
    `flags` has every flag that occurs, `shared_flags` those that all rows have.
    """

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        kinds = rows["kind"]
        if len(rows) == 1:
            self._be_one(kinds.item(), rows["flags"].item(), rows["origin"].item())
            return
        self.flags = int(np.bitwise_or.reduce(rows["flags"]))
        self.shared_flags = int(np.bitwise_and.reduce(rows["flags"])) if self.flags & FLAG_LEASE else 0
        self.timers: np.ndarray = kinds == _TIMER
        self.messages: np.ndarray = kinds == _MESSAGE
        self.ends = has_origin(rows)
        self.has_timers = bool(self.timers.any())
        self.has_messages = bool(self.messages.any())
        self.has_ends = bool(self.ends.any())
        self.all_ends = self.has_ends and bool(self.ends.all())
        self.all_timers = self.has_timers and bool(self.timers.all())
        self.all_messages = self.has_messages and bool(self.messages.all())

    def _be_one(self, kind: int, flags: int, origin: int) -> None:
        """Classify a single row without numpy, which takes 1 µs for each call."""
        timer, message, ends = kind == _TIMER, kind == _MESSAGE, origin != NO_OFFSET
        self.flags = self.shared_flags = flags
        self.timers, self.messages, self.ends = _ONE[timer], _ONE[message], _ONE[ends]
        self.has_timers = self.all_timers = timer
        self.has_messages = self.all_messages = message
        self.has_ends = self.all_ends = ends

    def of_timers(self, name: str) -> np.ndarray:
        """Return a column of the rows that are timers."""
        column: np.ndarray = self.rows[name]
        return column if self.all_timers else column[self.timers] if self.has_timers else column[:0]

    def of_ends(self, name: str) -> np.ndarray:
        """Return a column of the rows that end or replace an earlier record."""
        column: np.ndarray = self.rows[name]
        return column if self.all_ends else column[self.ends] if self.has_ends else column[:0]

    @property
    def all_visible(self) -> bool:
        """Whether consumers can read all rows."""
        return self.all_messages and not self.flags & FLAG_LEASE

    @property
    def visible(self) -> np.ndarray:
        """Return the mask of the messages that consumers can read."""
        if self.has_messages and self.flags & FLAG_LEASE:
            shown: np.ndarray = self.messages & (self.rows["flags"] & FLAG_LEASE == 0)
            return shown
        return self.messages

    @property
    def pointing(self) -> Rows:
        """Return the rows that become a message's current record: all but ordinary deliveries and leases."""
        if not self.has_ends or (self.all_messages and not self.flags & FLAG_EARLY):
            return self.rows[:0]
        if len(self.rows) == 1:
            return self.rows[:0] if self.flags & FLAG_LEASE else self.rows
        flags = self.rows["flags"]
        leads = ~self.messages | (flags & FLAG_EARLY != 0)
        leads &= self.ends & (flags & FLAG_LEASE == 0)
        pointing: Rows = self.rows[leads]
        return pointing

    @property
    def fired_until_ms(self) -> int:
        """Return one past the latest due time of the timers that fired when due; 0 if none did."""
        if not self.has_messages or not self.has_ends:
            return 0
        dues_ms = self.rows["due_ms"]
        if not self.all_messages or self.flags & FLAG_EARLY or not self.all_ends:
            dues_ms = dues_ms[self.messages & self.ends & (self.rows["flags"] & FLAG_EARLY == 0)]
        return int(dues_ms.max()) + 1 if len(dues_ms) else 0


def visible_rows(rows: Rows) -> Rows:
    """Return the rows of messages that consumers can read."""
    visible: Rows = rows[is_visible(rows)]
    return visible


def is_visible(rows: Rows) -> np.ndarray:
    """Return the mask of the rows of messages that consumers can read."""
    found: np.ndarray = (rows["kind"] == _MESSAGE) & (rows["flags"] & FLAG_LEASE == 0)
    return found


def has_origin(rows: Rows) -> np.ndarray:
    """Return the mask of the rows that end or replace an earlier record."""
    found: np.ndarray = rows["origin"] != _NONE
    return found


def forget_lost_origins(rows: Rows, lost: Sequence[tuple[int, int]]) -> None:
    """Clear the origins in the ranges [from, to) that damage took from the log: those records are unknown."""
    for start, end in lost:
        rows["origin"][(rows["origin"] >= start) & (rows["origin"] < end)] = _NONE


def outlives(rows: Rows) -> np.ndarray:
    """Return the mask of the rows whose deduplication key outlives its message: the keys of clients.

    A schedule's setting records what it has sent, so a run's key is needed only while the run is pending.
    """
    chosen: np.ndarray = rows["flags"] & (FLAG_KEYED | FLAG_RUN) == FLAG_KEYED
    return chosen


def forget_origins(rows: Rows, floor: int) -> None:
    """Clear the origins before `floor`, where the log begins: those records are gone."""
    rows["origin"][rows["origin"] < floor] = _NONE


def parts_of(offsets: np.ndarray, bases: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Split offsets in log order by segment: yields its base, and the places [low, high) in it."""
    low = 0
    while low < len(offsets):
        place = bisect_right(bases, int(offsets[low])) - 1
        high = len(offsets)
        if place + 1 < len(bases) and int(offsets[-1]) >= bases[place + 1]:
            high = int(np.searchsorted(offsets, np.uint64(bases[place + 1])))
        yield bases[place], low, high
        low = high


def tally_segments(offsets: np.ndarray, bases: Sequence[int]) -> list[tuple[int, int]]:
    """Count offsets, in any order, by segment: returns (base, count).

    Offsets of segments that are gone are left out.
    """
    if not len(offsets):
        return []
    first, last = (bisect_right(bases, int(edge)) - 1 for edge in (offsets.min(), offsets.max()))
    if first == last:
        return [(bases[first], len(offsets))] if first >= 0 else []
    places = np.searchsorted(np.array(bases, np.uint64), offsets, side="right") - 1
    return [(bases[place], count) for place, count in tally(places) if place >= 0]


def tally(values: np.ndarray) -> list[tuple[int, int]]:
    """Return each distinct value and how often it occurs."""
    if not len(values):
        return []
    first = values[0]
    if len(values) == 1 or (values == first).all():
        return [(int(first), len(values))]
    found, counts = np.unique(values, return_counts=True)
    return list(zip(found.tolist(), counts.tolist(), strict=True))
