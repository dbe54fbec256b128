"""What records mean, as questions to rows of a record table (`timerwheel.store.table.ROW_DTYPE`). Pure.

The service (`timerwheel.state.state`), its check (`timerwheel.offline.fsck`) and the jobs on Spark ask the
same ones.
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
    """What the rows of one batch have in common, found out once: most batches are of one sort.

    The masks say which rows are timers, are messages, end or replace an earlier record; `flags` are all
    flags that occur, `shared_flags` those that every row has.
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
        """Answer for a single row without asking numpy, which takes 1 µs for each question."""
        timer, message, ends = kind == _TIMER, kind == _MESSAGE, origin != NO_OFFSET
        self.flags = self.shared_flags = flags
        self.timers, self.messages, self.ends = _ONE[timer], _ONE[message], _ONE[ends]
        self.has_timers = self.all_timers = timer
        self.has_messages = self.all_messages = message
        self.has_ends = self.all_ends = ends

    def of_timers(self, name: str) -> np.ndarray:
        """A column of the rows that are timers."""
        column: np.ndarray = self.rows[name]
        return column if self.all_timers else column[self.timers] if self.has_timers else column[:0]

    def of_ends(self, name: str) -> np.ndarray:
        """A column of the rows that end or replace an earlier record."""
        column: np.ndarray = self.rows[name]
        return column if self.all_ends else column[self.ends] if self.has_ends else column[:0]

    @property
    def all_visible(self) -> bool:
        """Whether consumers can read all of them."""
        return self.all_messages and not self.flags & FLAG_LEASE

    @property
    def visible(self) -> np.ndarray:
        """Which rows are of messages that consumers can read."""
        if self.has_messages and self.flags & FLAG_LEASE:
            shown: np.ndarray = self.messages & (self.rows["flags"] & FLAG_LEASE == 0)
            return shown
        return self.messages

    @property
    def pointing(self) -> Rows:
        """The rows that speak for their message from now on: all but ordinary deliveries, and leases."""
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
        """One past the latest due time of the timers that fired when they were due; 0 if none did."""
        if not self.has_messages or not self.has_ends:
            return 0
        dues_ms = self.rows["due_ms"]
        if not self.all_messages or self.flags & FLAG_EARLY or not self.all_ends:
            dues_ms = dues_ms[self.messages & self.ends & (self.rows["flags"] & FLAG_EARLY == 0)]
        return int(dues_ms.max()) + 1 if len(dues_ms) else 0


def visible_rows(rows: Rows) -> Rows:
    """The rows of messages that consumers can read."""
    visible: Rows = rows[(rows["kind"] == _MESSAGE) & (rows["flags"] & FLAG_LEASE == 0)]
    return visible


def has_origin(rows: Rows) -> np.ndarray:
    """Which rows end or replace an earlier record."""
    found: np.ndarray = rows["origin"] != _NONE
    return found


def forget_lost_origins(rows: Rows, lost: Sequence[tuple[int, int]]) -> None:
    """For a log from which damage took the stretches [from, to): nothing is known of what began there."""
    for start, end in lost:
        rows["origin"][(rows["origin"] >= start) & (rows["origin"] < end)] = _NONE


def outlives(rows: Rows) -> np.ndarray:
    """Which rows have a deduplication key that outlives its message: those of clients.

    The setting of a schedule says what it has sent, so the key of a run is needed only while the run waits.
    """
    chosen: np.ndarray = rows["flags"] & (FLAG_KEYED | FLAG_RUN) == FLAG_KEYED
    return chosen


def forget_origins(rows: Rows, floor: int) -> None:
    """For a log that begins at `floor`: what a timer replaced before that is as if it had never been."""
    rows["origin"][rows["origin"] < floor] = _NONE


def parts_of(offsets: np.ndarray, bases: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Offsets in log order by segment: the base of each segment, and the places [low, high) in it."""
    low = 0
    while low < len(offsets):
        place = bisect_right(bases, int(offsets[low])) - 1
        high = len(offsets)
        if place + 1 < len(bases) and int(offsets[-1]) >= bases[place + 1]:
            high = int(np.searchsorted(offsets, np.uint64(bases[place + 1])))
        yield bases[place], low, high
        low = high


def tally_segments(offsets: np.ndarray, bases: Sequence[int]) -> list[tuple[int, int]]:
    """The base of each segment that these offsets, in any order, lie in, and how many do.

    Those of segments that are no longer kept are left out.
    """
    if not len(offsets):
        return []
    first, last = (bisect_right(bases, int(edge)) - 1 for edge in (offsets.min(), offsets.max()))
    if first == last:
        return [(bases[first], len(offsets))] if first >= 0 else []
    places = np.searchsorted(np.array(bases, np.uint64), offsets, side="right") - 1
    return [(bases[place], count) for place, count in tally(places) if place >= 0]


def tally(values: np.ndarray) -> list[tuple[int, int]]:
    """Each distinct value and how often it occurs."""
    if not len(values):
        return []
    first = values[0]
    if len(values) == 1 or (values == first).all():
        return [(int(first), len(values))]
    found, counts = np.unique(values, return_counts=True)
    return list(zip(found.tolist(), counts.tolist(), strict=True))
