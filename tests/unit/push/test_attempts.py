"""The log of attempts: how many are kept of one subscription and of all, and whose go first."""

from timerwheel.push.attempts import ATTEMPTS_MAX, Attempt, AttemptLog
from timerwheel.push.outcome import Outcome

OK = Outcome("delivered", "HTTP 200", 200, None, 3, "thanks")


def attempt(number):
    return Attempt.of(OK, f"m{number}", 1, number)


def test_an_attempt_has_what_the_endpoint_answered():
    made = attempt(7)
    assert (made.kind, made.status, made.answer, made.latency_ms) == ("delivered", 200, "thanks", 3)
    assert (made.at_ms, made.message_id, made.next_attempt_ms) == (7, "m7", None)


def test_the_last_attempts_are_kept_newest_first():
    log = AttemptLog()
    assert log.page("s")[0] == []
    for number in range(ATTEMPTS_MAX + 3):
        log.add("s", attempt(number))
    kept = [one.at_ms for one in log.page("s")[0]]
    assert kept == list(range(ATTEMPTS_MAX + 2, 2, -1))


def test_above_the_limit_of_all_the_one_that_was_called_longest_ago_loses_its_attempts():
    log = AttemptLog(total_max=4)
    for number, name in enumerate(("a", "a", "b", "a", "c")):
        log.add(name, attempt(number))
    assert log.page("b")[0] == []
    assert len(log.page("a")[0]) == 3
    log.add("d", attempt(9))
    assert [len(log.page(name)[0]) for name in "abcd"] == [0, 0, 1, 1]


def test_attempts_of_a_subscription_that_is_deleted_make_room():
    log = AttemptLog(total_max=2)
    log.add("a", attempt(1))
    log.add("a", attempt(2))
    log.forget("a")
    log.forget("never called")
    log.add("b", attempt(3))
    log.add("c", attempt(4))
    assert [len(log.page(name)[0]) for name in "abc"] == [0, 1, 1]


def test_pages_go_from_the_newest_attempt_back_and_new_ones_move_nothing():
    log = AttemptLog()
    for number in range(5):
        log.add("s", attempt(number))
    first, cursor = log.page("s", 2)
    log.add("s", attempt(5))
    second, cursor = log.page("s", 2, cursor)
    third, cursor = log.page("s", 2, cursor)
    assert [[one.at_ms for one in page] for page in (first, second, third)] == [[4, 3], [2, 1], [0]]
    assert cursor is None
