"""The age of what was stored, whatever is done to the wall clock."""

import random

import pytest

from tests.harness.clock import ManualClock
from timerwheel.clock import CLOCK_STEP_MS
from timerwheel.runtime.ages import STEPS_MAX, Ages

HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS


def stepped(clock: ManualClock, ages: Ages, by_ms: int) -> None:
    clock.step(by_ms)
    ages.look()


def test_a_step_forward_makes_no_earlier_message_older():
    clock = ManualClock()
    ages, first_ms = Ages(clock), clock.now_ms()
    clock.advance(1_000)
    stepped(clock, ages, HOUR_MS)
    clock.advance(1_000)
    assert ages.age_ms(first_ms) == 2_000
    assert ages.age_ms(clock.now_ms() - 500) == 500


def test_however_often_the_clock_is_stepped_what_is_remembered_is_bounded_and_no_message_is_older():
    clock = ManualClock()
    ages, first_ms = Ages(clock), clock.now_ms()
    for _ in range(3 * STEPS_MAX):
        clock.advance(1_000)
        stepped(clock, ages, HOUR_MS)
    assert ages.remembered == STEPS_MAX
    assert ages.age_ms(first_ms) == 3 * STEPS_MAX * 1_000
    for ago in range(STEPS_MAX - 1):  # those from between the last steps are as old as they are
        stepped_ms = ago * (HOUR_MS + 1_000)
        assert ages.age_ms(clock.now_ms() - stepped_ms) == ago * 1_000
    assert ages.age_ms(clock.now_ms() - 2 * STEPS_MAX * (HOUR_MS + 1_000)) <= 2 * STEPS_MAX * 1_000


def test_a_step_back_and_a_longer_one_forward_make_no_message_older_than_it_is():
    clock = ManualClock()
    ages = Ages(clock)
    clock.advance(10_000)
    first_ms = clock.now_ms()
    clock.advance(1_000)
    stepped(clock, ages, -HOUR_MS)
    clock.advance(1_000)
    stepped(clock, ages, HOUR_MS + 60_000)
    clock.advance(1_000)
    assert ages.age_ms(first_ms) <= 3_000
    assert ages.age_ms(clock.now_ms() - 500) == 500


@pytest.mark.parametrize("ahead_ms", [HOUR_MS, 10 * YEAR_MS, -HOUR_MS])
def test_a_clock_that_was_wrong_for_a_while_changes_no_age_once_it_is_right(ahead_ms):
    clock = ManualClock()
    ages, before_ms = Ages(clock), clock.now_ms()
    clock.advance(60_000)
    stepped(clock, ages, ahead_ms)
    while_wrong_ms = clock.now_ms()
    clock.advance(60_000)
    stepped(clock, ages, -ahead_ms)
    after_ms = clock.now_ms()
    clock.advance(60_000)
    found = [ages.age_ms(at_ms) for at_ms in (before_ms, while_wrong_ms, after_ms)]
    assert found == [180_000, 120_000, 60_000]


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_older_than_it_is_and_all_grows_old_in_the_end(seed):
    rng = random.Random(seed)
    clock = ManualClock()
    ages = Ages(clock)
    stamps: list[tuple[int, int]] = []
    for _ in range(60):
        ages.look()
        clock.advance(rng.randint(1, 1_000))
        if rng.random() < 0.3:
            ages.look()
            stepped(clock, ages, rng.choice((-1, 1)) * rng.choice((1_500, 60_000, HOUR_MS, YEAR_MS)))
        stamps.append((clock.now_ms(), clock.monotonic_ms()))
        for stamp_ms, at_ms in stamps:
            assert ages.age_ms(stamp_ms) <= clock.monotonic_ms() - at_ms + CLOCK_STEP_MS
    clock.advance(100 * YEAR_MS)
    assert min(ages.age_ms(stamp_ms) for stamp_ms, _ in stamps) > YEAR_MS


def test_a_time_that_the_clock_has_not_reached_is_to_come():
    clock = ManualClock()
    ages = Ages(clock)
    assert ages.age_ms(clock.now_ms() + HOUR_MS) == -HOUR_MS


def test_what_was_stored_before_a_start_at_which_the_clock_was_behind_is_as_old_as_the_right_clock_says():
    clock = ManualClock()
    stored_ms = clock.now_ms()
    clock.step(-10 * YEAR_MS)
    ages = Ages(clock)
    assert ages.age_ms(stored_ms) < 0
    clock.advance(1_000)
    stepped(clock, ages, 10 * YEAR_MS + HOUR_MS)
    clock.advance(5_000)
    assert ages.age_ms(stored_ms) == HOUR_MS + 6_000


def test_a_step_forward_counts_once_the_time_has_passed():
    clock = ManualClock()
    ages, start_ms = Ages(clock), clock.now_ms()
    stepped(clock, ages, 10 * HOUR_MS)
    clock.advance(1_000)
    assert ages.unstepped_now_ms(HOUR_MS) == start_ms + 1_000
    clock.advance(HOUR_MS)
    assert ages.unstepped_now_ms(HOUR_MS) == clock.now_ms()
    stepped(clock, ages, -10 * HOUR_MS)
    assert ages.unstepped_now_ms(HOUR_MS) == clock.now_ms()
