"""Where the next rush is: the second, not just the slot, in which most messages fall due.

A coarse slot hides whether its messages are due in one second or spread over it, so the due times of the
fullest slots of each level are looked at.
"""

from collections.abc import Callable, Sequence

import numpy as np

from timerwheel.model.messages import SlotInfo

# Slots of each level that are looked into, and entries read of each: it bounds the work on a large wheel.
_SLOTS_PER_LEVEL = 3
ENTRIES_MAX = 1_000_000
_SECOND_MS = 1_000

DueTimes = Callable[[int, int], np.ndarray]


def next_rush(slots: Sequence[SlotInfo], now_ms: int, due_times: DueTimes) -> SlotInfo | None:
    """The earliest second to come that holds at least half as many messages as the fullest one.

    `due_times(from_ms, to_ms)` gives the due times of what waits there, milliseconds. None if nothing is
    to come.
    """
    seconds = [
        second
        for slot in _candidates(slots, now_ms)
        if (second := _fullest_second(due_times(max(slot.start_ms, now_ms), slot.end_ms))) is not None
    ]
    most = max((second.count for second in seconds), default=0)
    return min((s for s in seconds if 2 * s.count >= most), key=lambda s: s.start_ms, default=None)


def _candidates(slots: Sequence[SlotInfo], now_ms: int) -> list[SlotInfo]:
    found: list[SlotInfo] = []
    for level in {slot.level for slot in slots}:
        own = [slot for slot in slots if slot.level == level and slot.end_ms > now_ms]
        found += sorted(own, key=lambda slot: -slot.count)[:_SLOTS_PER_LEVEL]
    return found


def _fullest_second(due_ms: np.ndarray) -> SlotInfo | None:
    if not len(due_ms):
        return None
    seconds, counts = np.unique(due_ms // _SECOND_MS, return_counts=True)
    place = int(np.argmax(counts))
    start_ms = int(seconds[place]) * _SECOND_MS
    return SlotInfo("second", start_ms, start_ms + _SECOND_MS, int(counts[place]))
