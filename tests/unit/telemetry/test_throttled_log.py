import logging

from tests.harness.clock import ManualClock
from timerwheel.telemetry.throttled_log import LOG_EACH_MS, ThrottledLog, Troubles

logger = logging.getLogger("timerwheel")


def test_it_is_logged_at_its_beginning_then_each_minute_with_how_often_and_at_its_end():
    clock = ManualClock()
    trouble = ThrottledLog(clock)
    assert trouble.over() is None
    told = []
    for _ in range(240):
        told.append(trouble.met())
        clock.advance(500)
    assert [(place, times) for place, times in enumerate(told) if times] == [(0, 1), (120, 120)]
    assert trouble.over() == 2 * LOG_EACH_MS
    assert trouble.over() is None


def test_what_comes_and_goes_is_logged_no_more_often():
    clock = ManualClock()
    trouble = ThrottledLog(clock)
    told = []
    for _ in range(240):
        told.append((trouble.met(), trouble.over()))
        clock.advance(500)
    assert [one for one in told if one != (0, None)] == [(1, 0), (120, 0)]


def test_what_begins_again_after_a_minute_is_logged_at_once():
    clock = ManualClock()
    trouble = ThrottledLog(clock)
    assert (trouble.met(), trouble.over()) == (1, 0)
    clock.advance(LOG_EACH_MS)
    assert trouble.met() == 1
    clock.advance(7)
    assert trouble.over() == 7


def test_each_of_many_things_is_logged_for_itself_and_the_oldest_are_forgotten():
    clock = ManualClock()
    troubles = Troubles(clock, names_max=2)
    assert [troubles.met(name) for name in "aabab"] == [1, 0, 1, 0, 0]
    clock.advance(LOG_EACH_MS)
    assert [troubles.met(name) for name in "ab"] == [3, 2]
    assert [troubles.met(name) for name in "cba"] == [1, 0, 1]


def test_a_warning_says_how_often_the_problem_occurred_since_the_last_one(caplog):
    clock = ManualClock()
    trouble, troubles = ThrottledLog(clock), Troubles(clock, names_max=2)
    for _ in range(3):
        trouble.warning(logger, "no room: %s", "100%")
        troubles.warning("a", logger, "refused %s: %d", "a", 7)
        clock.advance(LOG_EACH_MS // 2)
    again = " (2 times since the last report)"
    first = ["no room: 100%", "refused a: 7"]
    assert caplog.messages == [*first, *(line + again for line in first)]
