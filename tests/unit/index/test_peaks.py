"""Which second is the next peak."""

import numpy as np

from timerwheel.index.peaks import candidates, earliest_peak, fullest_second
from timerwheel.model.messages import SlotInfo

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000


def _peak(*groups):
    """The peak among groups of (level, slot ms, start ms from now, due times from the start)."""
    slots = []
    dues = []
    for level, width_ms, start_ms, offsets in groups:
        slots.append(SlotInfo(level, NOW_MS + start_ms, NOW_MS + start_ms + width_ms, len(offsets)))
        dues += [NOW_MS + start_ms + offset for offset in offsets]
    all_due = np.array(sorted(dues), np.int64)
    read = [
        fullest_second(all_due[(all_due >= max(slot.start_ms, NOW_MS)) & (all_due < slot.end_ms)])
        for slot in candidates(slots, NOW_MS)
    ]
    return earliest_peak(read)


def test_a_second_full_of_messages_hours_away_is_the_rush_and_not_the_trickle_before_it():
    trickle = [("second", 1000, n * 1000, [0, 500]) for n in range(5)]
    peak = _peak(*trickle, ("hour", HOUR_MS, 5 * HOUR_MS, [1_800_000] * 100))
    assert peak == SlotInfo("second", NOW_MS + 5 * HOUR_MS + 1_800_000, peak.start_ms + 1000, 100)


def test_messages_spread_over_an_hour_are_no_peak():
    spread = ("hour", HOUR_MS, 5 * HOUR_MS, range(0, HOUR_MS, 10_000))
    assert _peak(("second", 1000, 2000, [0] * 5), spread).start_ms == NOW_MS + 2000


def test_of_two_like_rushes_the_first_is_the_next():
    assert _peak(("minute", 60_000, 0, [7000] * 60), ("hour", HOUR_MS, HOUR_MS, [0] * 100)).count == 60


def test_overdue_messages_are_no_peak():
    assert _peak(("second", 1000, -5000, [0] * 9)) is None
    assert _peak() is None
