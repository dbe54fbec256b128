"""The age of messages, whatever is done to the wall clock."""

from tests.harness.clock import ManualClock
from timerwheel.groups.parts import STEPS_MAX, Ages

HOUR_MS = 3_600_000


def test_a_step_forward_makes_no_earlier_message_older():
    clock = ManualClock()
    ages, first_ms = Ages(clock), clock.now_ms()
    clock.advance(1_000)
    clock.step(HOUR_MS)
    ages.look()
    clock.advance(1_000)
    assert ages.age_ms(first_ms) == 2_000
    assert ages.age_ms(clock.now_ms() - 500) == 500


def test_however_often_the_clock_is_stepped_what_is_remembered_is_bounded_and_no_message_is_older():
    clock = ManualClock()
    ages, first_ms = Ages(clock), clock.now_ms()
    for _ in range(3 * STEPS_MAX):
        clock.advance(1_000)
        clock.step(HOUR_MS)
        ages.look()
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
    clock.step(-HOUR_MS)
    ages.look()
    clock.advance(1_000)
    clock.step(HOUR_MS + 60_000)
    ages.look()
    clock.advance(1_000)
    assert ages.age_ms(first_ms) <= 3_000
    assert ages.age_ms(clock.now_ms() - 500) == 500
