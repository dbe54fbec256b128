"""The next peak: the second, not just the slot, in which most messages fall due. Pure.

A coarse slot hides whether its messages fall due together or spread over it. So the due times in the fullest
slots of each level are read, and counted by second.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from timerwheel.model.messages import SlotInfo

SLOTS_PER_LEVEL = 3
"""Slots of each level whose due times are read: bounds the work on a large wheel."""
_SECOND_MS = 1_000


def candidates(slots: Sequence[SlotInfo], now_ms: int) -> list[SlotInfo]:
    """Return the fullest slots of each level that do not end before now."""
    found: list[SlotInfo] = []
    for level in {slot.level for slot in slots}:
        own = [slot for slot in slots if slot.level == level and slot.end_ms > now_ms]
        found += sorted(own, key=lambda slot: -slot.count)[:SLOTS_PER_LEVEL]
    return found


def fullest_second(due_ms: np.ndarray) -> SlotInfo | None:
    """Return the first second with most of these due times; None if there are none."""
    if not len(due_ms):
        return None
    seconds, counts = np.unique(due_ms // _SECOND_MS, return_counts=True)
    place = int(np.argmax(counts))
    start_ms = int(seconds[place]) * _SECOND_MS
    return SlotInfo("second", start_ms, start_ms + _SECOND_MS, int(counts[place]))


def earliest_peak(seconds: Iterable[SlotInfo | None]) -> SlotInfo | None:
    """Return the earliest of the seconds with at least half as many messages as the fullest; None of none."""
    found = [second for second in seconds if second is not None]
    most = max((second.count for second in found), default=0)
    return min((one for one in found if 2 * one.count >= most), key=lambda one: one.start_ms, default=None)
