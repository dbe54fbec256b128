"""Timers that are due, when there are more than can be fired at once: each topic gets its turn.

A topic with a million timers at one millisecond must not delay the others, and no consumer can observe in
which order two topics were served. So due timers wait in one lane for each topic, in (due time, root) order.
A batch takes an equal share from each lane in turn.

Invariants:
1. Timers of one topic come out in (due time, root) order.
2. A batch of n timers gives each of k topics at least n // k of its timers, or all that it has.
"""

import itertools
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable

import numpy as np

from timerwheel.store.rows import join
from timerwheel.wheel.slot_table import ENTRY_DTYPE, Entries

FEW_PIECES = 4
CROWD = 64
"""From how many timers due at one millisecond on these are searched by their roots, too."""


def sort(entries: Entries) -> Entries:
    """Return the entries sorted by (due time, root)."""
    return entries[np.lexsort((entries["root"], entries["due_ms"]))]


def in_order(parts: list[Entries]) -> Entries:
    """Merge several non-empty arrays of entries, each in order, into one."""
    if not parts:
        return np.zeros(0, ENTRY_DTYPE)
    if len(parts) == 1:
        return parts[0]
    parts = sorted(parts, key=lambda part: key_of(part[0]))
    joined = join(parts, ENTRY_DTYPE)
    # Consecutive arrays for one moment need no sorting: a million entries would take a quarter of a second.
    follow = all(key_of(one[-1]) <= key_of(next_[0]) for one, next_ in itertools.pairwise(parts))
    return joined if follow else sort(joined)


def key_of(entry: np.void) -> tuple[int, int]:
    """Return the sort key of entries."""
    return int(entry["due_ms"]), int(entry["root"])


def holds(entries: Entries, offset: int, due_ms: int, root: int) -> bool:
    """Tell whether this timer is among entries that are in order: a search, however many are due with it."""
    low, high = np.searchsorted(entries["due_ms"], (due_ms, due_ms + 1)).tolist()
    if high - low > CROWD:
        roots = np.array((root, root + 1), np.uint64)
        first, last = np.searchsorted(entries["root"][low:high], roots).tolist()
        low, high = low + first, low + last
    return low < high and bool((entries["offset"][low:high] == offset).any())


class TopicQueue:
    """The due timers of one topic: non-empty pieces, in order."""

    def __init__(self) -> None:
        self.pieces: deque[Entries] = deque()

    def add(self, entries: Entries) -> None:
        """Add timers that are in order; mostly they follow the present ones."""
        if not self.pieces or key_of(self.pieces[-1][-1]) <= key_of(entries[0]):
            self.pieces.append(entries)
        elif key_of(entries[-1]) <= key_of(self.pieces[0][0]):
            self.pieces.appendleft(entries)
        else:
            self.pieces = deque([in_order([*self.pieces, entries])])

    def contains(self, offset: int, due_ms: int, root: int) -> bool:
        """Tell whether this timer is here."""
        key = due_ms, root
        pieces: Iterable[Entries] = self.pieces
        if len(self.pieces) > FEW_PIECES:
            place = bisect_left(self.pieces, key, key=lambda piece: key_of(piece[-1]))
            rest = itertools.islice(self.pieces, place, None)
            pieces = itertools.takewhile(lambda piece: key_of(piece[0]) <= key, rest)
        return any(holds(piece, offset, due_ms, root) for piece in pieces)

    def has_due(self, due_ms: int) -> bool:
        """Tell whether a timer with this due time is here."""
        place = bisect_left(self.pieces, due_ms, key=lambda piece: int(piece["due_ms"][-1]))
        if place == len(self.pieces):
            return False
        dues = self.pieces[place]["due_ms"]
        return int(dues[bisect_left(dues, due_ms)]) == due_ms

    def take(self, count_max: int) -> Entries:
        """Take the first timers: this many, or all."""
        parts: list[Entries] = []
        while self.pieces and count_max:
            piece = self.pieces.popleft()
            if len(piece) > count_max:
                self.pieces.appendleft(piece[count_max:])
            parts.append(piece[:count_max])
            count_max -= len(parts[-1])
        return parts[0] if len(parts) == 1 else join(parts, ENTRY_DTYPE)


class Overdue:
    """The lanes of all topics that have due timers."""

    def __init__(self) -> None:
        self._lanes: dict[int, TopicQueue] = {}
        self._turns: deque[int] = deque()
        self.count = 0
        self.first_ms = 0
        """No timer here is due before this."""
        self.last_ms = 0
        """No timer here is due after this."""

    def add(self, entries: Entries) -> None:
        """Add timers that are in order, of any topics."""
        if not len(entries):
            return
        first_ms, last_ms = int(entries["due_ms"][0]), int(entries["due_ms"][-1])
        self.first_ms = min(self.first_ms, first_ms) if self.count else first_ms
        self.last_ms = max(self.last_ms, last_ms) if self.count else last_ms
        self.count += len(entries)
        for topic, part in _by_topic(entries):
            lane = self._lanes.get(topic)
            if lane is None:
                lane = self._lanes[topic] = TopicQueue()
                self._turns.append(topic)
            lane.add(part)

    def take(self, count_max: int, bytes_max: int) -> Entries:
        """Take a batch, from each topic in turn; at least one timer if there is any, whatever its size."""
        parts: list[Entries] = []
        room = count_max
        share = max(count_max // max(len(self._turns), 1), 1)
        while self._turns and room > 0 and bytes_max > 0:
            topic = self._turns.popleft()
            lane = self._lanes[topic]
            part = lane.take(min(share, room))
            sizes = np.cumsum(part["size"].astype(np.int64))
            fit = max(int(np.searchsorted(sizes, bytes_max, side="right")), 0 if parts else 1)
            if fit < len(part):
                lane.pieces.appendleft(part[fit:])
                bytes_max = 0
            else:
                bytes_max -= int(sizes[-1])
            if fit:
                parts.append(part[:fit])
            room -= fit
            if not lane.pieces:
                del self._lanes[topic]
            elif fit:
                self._turns.append(topic)
            else:
                self._turns.appendleft(topic)  # its turn has not come yet
        taken = join(parts, ENTRY_DTYPE)
        self.count -= len(taken)
        return taken

    def take_all(self) -> Entries:
        """Return everything, in order."""
        found = in_order([piece for lane in self._lanes.values() for piece in lane.pieces])
        self._lanes.clear()
        self._turns.clear()
        self.count = 0
        return found

    def contains(self, offset: int, due_ms: int, root: int, topic: int) -> bool:
        """Tell whether this timer is here."""
        lane = self._lanes.get(topic)
        return lane is not None and lane.contains(offset, due_ms, root)

    def has_due(self, topic: int, due_ms: int) -> bool:
        """Tell whether a timer of this topic and due time is here."""
        lane = self._lanes.get(topic)
        if lane is None or not self.first_ms <= due_ms <= self.last_ms:
            return False
        return lane.has_due(due_ms)


def _by_topic(entries: Entries) -> list[tuple[int, Entries]]:
    """Split the entries by topic; each part keeps its order."""
    topics = entries["topic"]
    if (topics == topics[0]).all():
        return [(int(topics[0]), entries)]
    entries = entries[np.argsort(topics, kind="stable")]
    topics = entries["topic"]
    edges = np.flatnonzero(np.diff(topics)) + 1
    firsts = [0, *edges.tolist()]
    return list(zip(topics[firsts].tolist(), np.split(entries, edges), strict=True))
