"""The limit of requests in a second, as their receiver counts them."""

import pytest

from timerwheel.push.rate_limit import ARRIVAL_MS_MAX, RateLimit


def test_a_request_counts_until_a_second_after_its_answer():
    limit = RateLimit(1)
    request = limit.begin()
    assert limit.room(5_000) == 0
    limit.end(request, 5_000)
    assert (limit.room(6_000), limit.wait_ms(6_000)) == (0, 1)
    assert (limit.room(6_001), limit.wait_ms(6_001)) == (1, 0)


def test_a_request_without_an_answer_counts_from_when_it_can_last_have_arrived():
    limit = RateLimit(1)
    request = limit.begin()
    limit.sent(request, 100)
    limit.sent(request, 300)  # the rest of its body
    assert limit.room(300 + ARRIVAL_MS_MAX + 1_000) == 0
    assert limit.room(300 + ARRIVAL_MS_MAX + 1_001) == 1
    limit.end(request, 9_000)
    assert limit.room(9_000) == 1


@pytest.mark.parametrize(
    ("per_second", "count", "stretch_ms"), [(0.2, 1, 5_001), (1.5, 1, 668), (2.5, 2, 801)]
)
def test_a_fraction_is_a_whole_number_over_a_longer_stretch(per_second: float, count: int, stretch_ms: int):
    limit = RateLimit(per_second)
    assert limit.room(0) == count
    for request in [limit.begin() for _ in range(count)]:
        limit.end(request, 0)
    assert (limit.room(stretch_ms - 1), limit.wait_ms(0)) == (0, stretch_ms)
    assert limit.room(stretch_ms) == count


def test_after_a_restart_the_limit_is_used_up():
    limit = RateLimit(20, full_ms=0)
    assert (limit.room(1_000), limit.room(1_001)) == (0, 20)
    assert RateLimit(None, full_ms=0).room(0) is None


def test_what_is_under_way_counts_under_a_limit_that_is_set_meanwhile():
    limit = RateLimit(5)
    before = [limit.begin() for _ in range(3)]
    limit.change(4, 0)
    assert limit.room(0) == 1
    for request in before:
        limit.end(request, 10)
    assert (limit.room(1_010), limit.room(1_011)) == (1, 4)


def test_a_limit_is_used_up_when_there_was_none_before():
    limit = RateLimit(None)
    limit.end(limit.begin(), 0)
    limit.change(2, 500)
    assert (limit.room(1_500), limit.room(1_501)) == (0, 2)


def test_a_lower_limit_counts_the_last_request_over_its_longer_stretch():
    limit = RateLimit(20)
    limit.end(limit.begin(), 0)
    assert limit.room(1_900) == 20
    limit.change(0.5, 1_900)
    assert (limit.room(2_000), limit.room(2_001)) == (0, 1)
