"""The near wheel: the timers of the next seconds, in memory, taken out at their millisecond.

It has three parts. *Runs* are sorted arrays with a read position, from the index or from large sends. A heap
holds timers that arrive a few at a time with a due time inside the loaded range. *Overdue* timers are there
when more are due than one batch takes. Removing a timer adds its offset to `gone`; the entry is dropped when
the timer is reached.

Invariants:
1. Every pending timer with due < `until_ms` is here, being fired, or quarantined. No other timer is here.
2. Timers of one topic come out in (due time, root) order. If all due timers come out at once, all of them do.
3. When a run is added, it is at most half as long as the one before it, so there are few runs.

Belongs to the event loop.
"""

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import numpy as np

from timerwheel.wheel.fair_queue import Overdue, holds, in_order, sort
from timerwheel.wheel.slot_table import ENTRY_DTYPE, Entries

GONE_AT_ONCE = 8_192
"""How many timers one call of `pop_due` may come upon that are gone, and return none: each costs 0.1 µs."""


class Run:
    """A sorted array of entries and its read position."""

    def __init__(self, entries: Entries) -> None:
        self.entries = entries
        self.position = 0

    @property
    def rest(self) -> Entries:
        """The entries that were not taken yet."""
        return self.entries[self.position :]


class NearWheel:
    """Pending timers with due < `until_ms`."""

    def __init__(self) -> None:
        self.until_ms = 0
        self.runs: list[Run] = []
        self._heap: list[tuple[int, int, bytes]] = []
        self._heap_offsets: set[int] = set()
        self._overdue = Overdue()
        self.gone: set[int] = set()

    def __len__(self) -> int:
        """Return the number of timers held, less those noted as gone."""
        held = sum(len(run.entries) - run.position for run in self.runs)
        return held + len(self._heap) + self._overdue.count - len(self.gone)

    @property
    def overdue(self) -> int:
        """Return how many timers are due and wait for their turn."""
        return self._overdue.count

    def add(self, entries: Entries) -> None:
        """Add timers in any order: a few go to the heap, many become a run."""
        if len(entries) > 32:  # noqa: PLR2004 - where sorting an array becomes cheaper than pushing
            self.add_run(sort(entries))
            return
        for due_ms, root, offset, place in zip(
            entries["due_ms"].tolist(),
            entries["root"].tolist(),
            entries["offset"].tolist(),
            range(len(entries)),
            strict=True,
        ):
            heapq.heappush(self._heap, (due_ms, root, entries[place : place + 1].tobytes()))
            self._heap_offsets.add(offset)

    def add_run(self, entries: Entries) -> None:
        """Add timers that are sorted by (due time, root)."""
        if not len(entries):
            return
        parts = [entries]
        count = len(entries)
        while self.runs and len(self.runs[-1].rest) < 2 * count:
            parts.append(self.runs.pop().rest)
            count += len(parts[-1])
        self.runs.append(Run(in_order(parts)))

    def remove(self, offset: int, due_ms: int, root: int, topic: int) -> bool:
        """Remove a timer; False if it is not here."""
        if not self.contains(offset, due_ms, root, topic):
            return False
        self.gone.add(offset)
        return True

    def remove_each(self, entries: Entries) -> None:
        """Remove those of these timers that are here."""
        for timer in _keys(entries):
            self.remove(*timer)

    def put_back(self, entry: Entries) -> None:
        """Undo a `remove`: the one timer in `entry` is pending again, whether or not it was reached since."""
        offset = int(entry["offset"][0])
        if offset in self.gone:
            self.gone.discard(offset)
        elif int(entry["due_ms"][0]) < self.until_ms:
            self.add(entry)

    def contains(self, offset: int, due_ms: int, root: int, topic: int) -> bool:
        """Tell whether this timer is here: some searches, however many are due with it."""
        if due_ms >= self.until_ms or offset in self.gone:
            return False
        if offset in self._heap_offsets or self._overdue.contains(offset, due_ms, root, topic):
            return True
        return any(holds(run.rest, offset, due_ms, root) for run in self.runs)

    def contains_each(self, entries: Entries) -> np.ndarray:
        """Tell which of these timers are here."""
        return np.fromiter((self.contains(*timer) for timer in _keys(entries)), np.bool_, len(entries))

    def has_due(self, topic: int, due_ms: int) -> bool:
        """Tell whether a timer of this topic is here for this millisecond; one that is gone may count."""
        for run in self.runs:
            dues = run.entries["due_ms"]
            low = bisect_left(dues, due_ms, run.position)
            high = bisect_right(dues, due_ms, low)
            if low < high and (run.entries["topic"][low:high] == topic).any():
                return True
        return self._heap_has_due(topic, due_ms) or self._overdue.has_due(topic, due_ms)

    def _heap_has_due(self, topic: int, due_ms: int) -> bool:
        """Search those that are due by then, which are the top of the heap."""
        places = [0]
        while places:
            place = places.pop()
            if place >= len(self._heap) or self._heap[place][0] > due_ms:
                continue
            if self._heap[place][0] == due_ms:
                entry = np.frombuffer(self._heap[place][2], ENTRY_DTYPE)
                if int(entry["topic"][0]) == topic:
                    return True
            places += (2 * place + 1, 2 * place + 2)
        return False

    def next_due_ms(self) -> int | None:
        """Return the earliest due time here; it may be that of a timer that is gone."""
        dues = [int(run.entries["due_ms"][run.position]) for run in self.runs]
        if self._heap:
            dues.append(self._heap[0][0])
        if self._overdue.count:
            dues.append(self._overdue.first_ms)
        return min(dues, default=None)

    def coming(self, from_ms: int, until_ms: int, count_max: int) -> Entries:
        """Return the first timers of the runs that are due in this range, in order; some may be gone."""
        parts: list[Entries] = []
        for run in self.runs:
            low, high = np.searchsorted(run.rest["due_ms"], (from_ms, until_ms)).tolist()
            if low < high:
                parts.append(run.rest[low : min(high, low + count_max)])
        return in_order(parts)[:count_max]

    def pop_due(self, now_ms: int, count_max: int, bytes_max: int = 1 << 62) -> Entries:
        """Take out timers with due ≤ now: all in order, or, if there are too many, some of each topic.

        At most `count_max` timers with records of at most `bytes_max` together, or one. None although some
        are `overdue` if GONE_AT_ONCE of these are gone: the next call goes on behind them.
        """
        if self._overdue.count and now_ms < self._overdue.last_ms:
            self.add_run(self._overdue.take_all())  # the clock was stepped back
        parts = self._take_due(now_ms)
        if not self._overdue.count and sum(map(len, parts)) <= count_max:
            due = in_order(parts)
            if int(due["size"].sum()) <= bytes_max:
                return self._without_gone(due)
            parts = [due]
        for part in parts:
            self._overdue.add(part)
        looked_at = 0
        while True:
            taken = self._overdue.take(count_max, bytes_max)
            found = self._without_gone(taken)
            looked_at += len(taken)
            if len(found) or not len(taken) or looked_at >= GONE_AT_ONCE:
                return found

    def _take_due(self, now_ms: int) -> list[Entries]:
        """Return all due timers, each part in order."""
        parts: list[Entries] = []
        for run in self.runs:
            rest = run.rest
            due = int(np.searchsorted(rest["due_ms"], now_ms, side="right"))
            if due:
                parts.append(rest[:due])
                run.position += due
        if parts:
            self.runs = [run for run in self.runs if run.position < len(run.entries)]
        heaped: list[bytes] = []
        while self._heap and self._heap[0][0] <= now_ms:
            heaped.append(heapq.heappop(self._heap)[2])
        if heaped:
            entries = np.frombuffer(b"".join(heaped), ENTRY_DTYPE)
            self._heap_offsets.difference_update(entries["offset"].tolist())
            parts.append(entries)
        return parts

    def _without_gone(self, taken: Entries) -> Entries:
        """Return these without those that are gone. Costs what `taken` has, however many are gone."""
        if not self.gone:
            return taken
        offsets = taken["offset"].tolist()
        met = self.gone.intersection(offsets)
        if not met:
            return taken
        self.gone -= met
        return taken[[offset not in met for offset in offsets]]


def _keys(entries: Entries) -> Iterator[tuple[int, int, int, int]]:
    """Yield what `NearWheel.contains` takes of each."""
    return zip(*(entries[name].tolist() for name in ("offset", "due_ms", "root", "topic")), strict=True)
