from bisect import bisect_left, bisect_right, insort

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from timerwheel.wheel.geometry import (
    DAY_MS,
    HOUR_MS,
    HOURS_AHEAD_MS,
    MINUTE_MS,
    MINUTES_AHEAD_MS,
    SECONDS_AHEAD_MS,
    SLOT_MS,
    Cascade,
    Horizons,
    Level,
    first_horizons,
    next_cascade,
    place,
    round_up,
)


def level_of(due_ms: int, horizons: Horizons) -> Level:
    return Level(bisect_right(horizons, due_ms))


NOW_MS = 1_750_000_000_123
YEAR_MS = 365 * DAY_MS
TIMES = st.integers(0, 2 * NOW_MS)
DELAYS = st.one_of(
    st.integers(-DAY_MS, 5 * MINUTE_MS),
    st.integers(0, 5 * HOUR_MS),
    st.integers(0, 5 * DAY_MS),
    st.integers(0, 12 * YEAR_MS),
)


def in_order(horizons: Horizons) -> bool:
    second, minute, hour = horizons
    return (
        second <= minute <= hour and second % MINUTE_MS == 0 and minute % HOUR_MS == 0 and hour % DAY_MS == 0
    )


@st.composite
def any_horizons(draw):
    """Horizons that keep invariant 1, also with levels that are empty or very wide."""
    hour = draw(st.integers(0, 2 * NOW_MS // DAY_MS)) * DAY_MS
    minute = draw(
        st.integers(max(hour - draw(st.sampled_from([0, 3, 400])) * DAY_MS, 0) // HOUR_MS, hour // HOUR_MS)
    )
    minute *= HOUR_MS
    second = draw(
        st.integers(
            max(minute - draw(st.sampled_from([0, 3, 400])) * HOUR_MS, 0) // MINUTE_MS, minute // MINUTE_MS
        )
    )
    return Horizons(second * MINUTE_MS, minute, hour)


@given(st.integers(0, 2**53), st.sampled_from([1, 1000, DAY_MS]))
def test_round_up_is_the_first_multiple_that_is_not_before(value, width):
    found = round_up(value, width)
    assert found % width == 0
    assert value <= found < value + width


@given(TIMES)
def test_first_horizons_are_in_order_and_have_their_lead(now_ms):
    horizons = first_horizons(now_ms)
    assert in_order(horizons)
    assert next_cascade(horizons, now_ms, lambda _: None) is None


@given(any_horizons(), st.lists(TIMES, min_size=1, max_size=20))
def test_each_due_time_has_one_slot_which_holds_it_and_lies_within_its_level(horizons, dues):
    edges = (0, *horizons, 1 << 62)
    dues += [edge + step for edge in horizons for step in (-1, 0, 1) if edge + step >= 0]
    levels, starts = place(np.array(dues, np.int64), horizons)
    for due_ms, level, start_ms in zip(dues, levels.tolist(), starts.tolist(), strict=True):
        width = SLOT_MS[level]
        assert level == level_of(due_ms, horizons)
        assert start_ms % width == 0
        assert start_ms <= due_ms < start_ms + width
        assert edges[level] <= start_ms
        assert start_ms + width <= edges[level + 1]


@pytest.mark.parametrize("level", [Level.SECOND, Level.MINUTE, Level.HOUR])
def test_due_time_at_a_horizon_belongs_to_the_coarser_level(level):
    horizons = first_horizons(NOW_MS)
    assert level_of(horizons[level] - 1, horizons) == level
    assert level_of(horizons[level], horizons) == level + 1


class Slots:
    """A wheel as sorted due times per level, driven by the geometry alone."""

    def __init__(self, now_ms: int) -> None:
        self.horizons = first_horizons(now_ms)
        self.levels: list[list[tuple[int, int]]] = [[], [], [], []]
        self.moves: dict[int, int] = {}

    def add(self, due_ms: int) -> None:
        number = len(self.moves)
        self.moves[number] = 0
        insort(self.levels[level_of(due_ms, self.horizons)], (due_ms, number))

    def first_slot(self, level: Level) -> int | None:
        found = self.levels[level]
        return found[0][0] // SLOT_MS[level] * SLOT_MS[level] if found else None

    def catch_up(self, now_ms: int, steps_max: int) -> int:
        """Cascade until there is nothing to do; returns the number of steps."""
        for steps in range(steps_max):
            step = next_cascade(self.horizons, now_ms, self.first_slot)
            if step is None:
                return steps
            after = step.after if isinstance(step, Cascade) else step
            assert in_order(after)
            assert all(new >= old for new, old in zip(after, self.horizons, strict=True))
            assert after != self.horizons
            if isinstance(step, Cascade):
                assert step.start_ms == self.horizons[step.level - 1]
                self.move_down(step)
            self.horizons = after
            for level, found in enumerate(self.levels):
                assert all(level_of(due_ms, after) == level for due_ms, _ in found)
        raise AssertionError(f"more than {steps_max} steps")

    def move_down(self, step: Cascade) -> None:
        found = self.levels[step.level]
        end = bisect_left(found, (step.start_ms + SLOT_MS[step.level], -1))
        moved, self.levels[step.level] = found[:end], found[end:]
        assert moved, "an empty slot was cascaded"
        for due_ms, number in moved:
            assert due_ms >= step.start_ms
            self.moves[number] += 1
            assert level_of(due_ms, step.after) < step.level
            insort(self.levels[level_of(due_ms, step.after)], (due_ms, number))


@settings(max_examples=150)
@given(
    st.lists(
        st.tuples(st.lists(DELAYS, max_size=8), DELAYS | st.integers(-30 * DAY_MS, 0)), min_size=1, max_size=8
    )
)
@example([([0, MINUTE_MS, HOUR_MS, DAY_MS, YEAR_MS], 20 * YEAR_MS)])
@example([([10 * YEAR_MS], 0), ([1], 3 * YEAR_MS), ([], -3 * YEAR_MS), ([5], 7 * YEAR_MS)])
def test_cascading_ends_keeps_the_lead_and_moves_each_entry_down_at_most_three_times(turns):
    now_ms = NOW_MS
    slots = Slots(now_ms)
    for delays, step_ms in turns:
        for delay_ms in delays:
            slots.add(max(now_ms + delay_ms, 0))
        before = slots.horizons
        now_ms = max(now_ms + step_ms, 0)
        # An entry costs at most a step and a skip on each level; a horizon may stop at those above it.
        slots.catch_up(now_ms, 12 * (len(slots.moves) + 4))
        second, minute, hour = slots.horizons
        assert second >= now_ms + SECONDS_AHEAD_MS
        assert minute >= now_ms + MINUTES_AHEAD_MS
        assert hour >= now_ms + HOURS_AHEAD_MS
        assert all(new >= old for new, old in zip(slots.horizons, before, strict=True))
        assert max(slots.moves.values(), default=0) <= 3


def test_empty_outage_of_a_thousand_years_is_skipped_in_a_few_steps():
    slots = Slots(NOW_MS)
    assert slots.catch_up(NOW_MS + 1000 * YEAR_MS, 20) < 20


@pytest.mark.parametrize("level", [Level.MINUTE, Level.HOUR, Level.DAY])
def test_a_slot_that_begins_at_its_horizon_is_cascaded_and_never_waited_for(level):
    """A step that neither cascades nor moves a horizon would be taken for ever."""
    horizons = first_horizons(NOW_MS)
    at = horizons[level - 1]
    now_ms = at + DAY_MS
    behind = {Level.MINUTE: horizons, Level.HOUR: horizons._replace(second_until=horizons.minute_until)}.get(
        level, Horizons(horizons.hour_until, horizons.hour_until, horizons.hour_until)
    )
    step = next_cascade(behind, now_ms, lambda asked: at if asked == level else None)
    assert isinstance(step, Cascade)
    assert (step.level, step.start_ms) == (level, at)
    assert step.after[level - 1] == at + SLOT_MS[level]


def test_clock_that_steps_back_moves_nothing():
    slots = Slots(NOW_MS)
    for delay_ms in (HOUR_MS, 3 * HOUR_MS, 5 * DAY_MS):
        slots.add(NOW_MS + delay_ms)
    slots.catch_up(NOW_MS, 50)
    assert slots.catch_up(NOW_MS - YEAR_MS, 1) == 0


def test_lead_is_kept_as_the_clock_runs_minute_by_minute():
    slots = Slots(NOW_MS)
    for number in range(400):
        slots.add(NOW_MS + number * 7 * MINUTE_MS)
    for minutes in range(0, 3 * 24 * 60, 5):
        now_ms = NOW_MS + minutes * MINUTE_MS
        slots.catch_up(now_ms, 100)
        assert not [due for level in slots.levels[1:] for due, _ in level if due < now_ms + SECONDS_AHEAD_MS]
