"""The slot limit: how many messages may be due in one second, counted exactly.

It is off by default (`slot_messages_max = 0`) and then costs nothing. When it is on, it keeps a counter for
each second that has pending messages, about 100 bytes per second: the only structure that grows with the
backlog.
"""

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from timerwheel.errors import CongestedError
from timerwheel.store.index import Index
from timerwheel.store.record import FLAG_LEASE, NO_OFFSET, Kind
from timerwheel.wheel import slot_table
from timerwheel.wheel.geometry import SECOND_MS, Level

LOOKED_AT_SECONDS = 3_600
"""How far after a full second to look for one with room."""


def _nothing() -> None:
    """Release nothing: no place was held."""


class SlotLimit:
    """Counts per second of due time. Belongs to the event loop."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.waiting: Counter[int] = Counter()
        self.arriving: Counter[int] = Counter()

    def count_all(self, index: Index, internal_ids: tuple[int, ...]) -> None:
        """Take the counts of a recovered index, without those of leases."""
        for level in Level:
            with index.read() as txn:
                for start_ms, _, _ in slot_table.slot_weights(txn, level, 0, 1 << 62):
                    entries = slot_table.slot_entries(txn, level, start_ms)
                    entries = entries[~np.isin(entries["topic"], internal_ids)]
                    steps = np.where(entries["op"] == slot_table.ADD, 1, -1)
                    seconds = (entries["due_ms"] // SECOND_MS).tolist()
                    for second, step in zip(seconds, steps.tolist(), strict=True):
                        self.waiting[second] += step

    def admit(self, due_ms: list[int], leaving_ms: Sequence[int] = ()) -> Callable[[], None]:
        """Hold a place for each due time; CongestedError if one second is full.

        `leaving_ms` are the due times that rescheduled or replaced messages give up. The returned function
        releases the places. Call it when the records take effect, or when they could not be stored; a second
        call has no effect.
        """
        if not self._limit:
            return _nothing
        wanted = Counter(due // SECOND_MS for due in due_ms)
        leaving = Counter(due // SECOND_MS for due in leaving_ms)
        for second, count in wanted.items():
            if self.waiting[second] + self.arriving[second] + count - leaving[second] > self._limit:
                raise CongestedError(second * SECOND_MS, self._limit, self._free_ms(second, count))
        self.arriving.update(wanted)

        def release() -> None:
            self.arriving.subtract(wanted)
            self.arriving = +self.arriving
            wanted.clear()

        return release

    def _free_ms(self, full: int, count: int) -> int | None:
        """Return the start of the next second with room for this many."""
        for second in range(full + 1, full + 1 + LOOKED_AT_SECONDS):
            if self.waiting[second] + self.arriving[second] + count <= self._limit:
                return second * SECOND_MS
        return None

    def apply(self, rows: np.ndarray) -> None:
        """Follow stored records."""
        if not self._limit:
            return
        rows = rows[rows["flags"] & FLAG_LEASE == 0]  # leases are not new work
        timers = rows["due_ms"][rows["kind"] == Kind.TIMER] // SECOND_MS
        ended = rows["prior_due_ms"][rows["origin"] != np.uint64(NO_OFFSET)] // SECOND_MS
        self.waiting.update(timers.tolist())
        self.waiting.subtract(ended.tolist())
        for second in ended.tolist():
            if self.waiting[second] <= 0:
                del self.waiting[second]
