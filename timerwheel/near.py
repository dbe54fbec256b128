"""The near wheel: the timers of the coming seconds, in memory, taken out at their millisecond.

Two parts: *runs*, the second slots loaded from the index, sorted arrays with a read position; and a heap
for timers that arrive with a due time already inside the loaded range. A timer is removed by noting its
offset in `gone`; the note is dropped when the timer is met.

Invariants:
1. Every pending timer with due < `until_ms` is here, being fired, or set aside. None other is here.
2. Timers come out in (due time, root offset) order.

Belongs to the event loop.
"""

import heapq

import numpy as np

from timerwheel.wheel import ENTRY_DTYPE, Entries


class Run:
    """A sorted array of entries and how far it has been taken."""

    def __init__(self, entries: Entries) -> None:
        self.entries = entries
        self.position = 0

    @property
    def rest(self) -> Entries:
        """What has not been taken."""
        return self.entries[self.position :]


class NearWheel:
    """Pending timers with due < `until_ms`."""

    def __init__(self) -> None:
        self.until_ms = 0
        self._runs: list[Run] = []
        self._heap: list[tuple[int, int, bytes]] = []
        self._heap_offsets: set[int] = set()
        self._gone: set[int] = set()

    def __len__(self) -> int:
        """Timers held, less those noted as gone."""
        return sum(len(run.rest) for run in self._runs) + len(self._heap) - len(self._gone)

    def add(self, entries: Entries) -> None:
        """Take in timers in any order: few go to the heap, many become a run."""
        if len(entries) > 32:  # noqa: PLR2004 - where sorting an array becomes cheaper than pushing
            self.add_run(entries[np.lexsort((entries["root"], entries["due_ms"]))])
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
        """Take in timers that are sorted by (due time, root)."""
        if len(entries):
            self._runs.append(Run(entries))

    def remove(self, offset: int, due_ms: int) -> bool:
        """Forget a timer; False if it is not here."""
        if not self.contains(offset, due_ms):
            return False
        self._gone.add(offset)
        return True

    def put_back(self, entry: Entries) -> None:
        """Undo a `remove`: the one timer in `entry` waits on, whether or not its note was met meanwhile."""
        offset = int(entry["offset"][0])
        if offset in self._gone:
            self._gone.discard(offset)
        elif int(entry["due_ms"][0]) < self.until_ms:
            self.add(entry)

    def contains(self, offset: int, due_ms: int) -> bool:
        """Whether this timer waits here."""
        if due_ms >= self.until_ms or offset in self._gone:
            return False
        if offset in self._heap_offsets:
            return True
        for run in self._runs:
            rest = run.rest
            low, high = np.searchsorted(rest["due_ms"], (due_ms, due_ms + 1))
            if (rest["offset"][low:high] == offset).any():
                return True
        return False

    def next_due_ms(self) -> int | None:
        """The earliest due time here; may be that of a timer noted as gone."""
        dues = [int(run.entries["due_ms"][run.position]) for run in self._runs]
        if self._heap:
            dues.append(self._heap[0][0])
        return min(dues, default=None)

    def pop_due(self, now_ms: int, count_max: int) -> Entries:
        """Take out at most about `count_max` timers with due ≤ now, in order."""
        parts: list[Entries] = []
        for run in self._runs:
            rest = run.rest
            due = int(np.searchsorted(rest["due_ms"], now_ms, side="right"))
            if due:
                parts.append(rest[: min(due, count_max)])
        heaped: list[bytes] = []
        while self._heap and self._heap[0][0] <= now_ms and len(heaped) < count_max:
            heaped.append(heapq.heappop(self._heap)[2])
        if heaped:
            parts.append(np.frombuffer(b"".join(heaped), ENTRY_DTYPE))
        if not parts:
            return np.zeros(0, ENTRY_DTYPE)
        if len(parts) == 1:
            taken = parts[0][:count_max]
        else:
            taken = np.concatenate(parts)
            taken = taken[np.lexsort((taken["root"], taken["due_ms"]))][:count_max]
        self._put_back(taken, heaped)
        return self._without_gone(taken)

    def _put_back(self, taken: Entries, heaped: list[bytes]) -> None:
        """Move the runs' positions past what is taken; return to the heap what was popped too far."""
        offsets = np.sort(taken["offset"])
        for run in self._runs:
            head = run.rest[: len(taken)]
            run.position += int(np.count_nonzero(_in_sorted(head["offset"], offsets)))
        self._runs = [run for run in self._runs if run.position < len(run.entries)]
        for raw in heaped:
            entry = np.frombuffer(raw, ENTRY_DTYPE)
            offset = int(entry["offset"][0])
            if _in_sorted(entry["offset"], offsets)[0]:
                self._heap_offsets.discard(offset)
            else:
                heapq.heappush(self._heap, (int(entry["due_ms"][0]), int(entry["root"][0]), raw))

    def _without_gone(self, taken: Entries) -> Entries:
        if not self._gone:
            return taken
        gone = np.isin(taken["offset"], np.fromiter(self._gone, np.uint64, len(self._gone)))
        self._gone.difference_update(taken["offset"][gone].tolist())
        return taken[~gone]


def _in_sorted(values: np.ndarray, ordered: np.ndarray) -> np.ndarray:
    """Which values are in a sorted array."""
    places = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    found: np.ndarray = ordered[places] == values
    return found
