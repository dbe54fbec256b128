"""Limits on the requests of a token."""

import pytest

from tests.harness.clock import ManualClock
from tests.unit.test_tokens import make
from timerwheel.api.security.rates import LOOKED_UP_MAX, Rates
from timerwheel.tokens import Tokens


@pytest.fixture
def clock():
    return ManualClock()


def test_a_second_of_requests_may_come_at_once_and_then_the_rate_holds(clock):
    rates, token = Rates(clock), make(rate_per_s=10.0)
    assert [rates.take(token) for _ in range(10)] == [0] * 10
    assert rates.take(token) == 100
    clock.advance(99)
    assert rates.take(token) == 1
    clock.advance(1)
    assert rates.take(token) == 0
    assert rates.take(token) == 100


def test_a_rate_below_one_a_second_lets_one_through_and_then_makes_it_wait(clock):
    rates, token = Rates(clock), make(rate_per_s=0.1)
    assert rates.take(token) == 0
    assert rates.take(token) == 10_000
    clock.advance(10_000)
    assert rates.take(token) == 0


def test_what_is_not_used_adds_up_to_one_second_only(clock):
    rates, token = Rates(clock), make(rate_per_s=2.0)
    clock.advance(3_600_000)
    assert [rates.take(token) for _ in range(3)] == [0, 0, 500]


def test_refused_requests_cost_nothing(clock):
    rates, token = Rates(clock), make(rate_per_s=1.0)
    rates.take(token)
    for _ in range(100):
        assert rates.take(token) == 1000
    clock.advance(1000)
    assert rates.take(token) == 0


def test_a_look_up_and_the_call_of_the_same_request_are_one_call(clock):
    rates, token = Rates(clock), make(rate_per_s=1.0)
    assert rates.take_look_up(token, "r1") == 0
    assert rates.has_looked_up(token, "r1")
    assert not rates.has_looked_up(token, "r1"), "it is free once"
    assert rates.take(token) == 1000
    assert rates.take_look_up(token, "r2") == 1000
    assert not rates.has_looked_up(token, "r2"), "a look-up that was refused pays for nothing"


def test_a_look_up_pays_for_no_call_of_another_token_or_request(clock):
    rates, one, other = Rates(clock), make("one", "s1", rate_per_s=1.0), make("two", "s2", rate_per_s=1.0)
    assert rates.take_look_up(one, "r") == 0
    assert not rates.has_looked_up(other, "r")
    assert not rates.has_looked_up(one, "another")


def test_of_look_ups_without_a_call_the_oldest_are_forgotten(clock):
    rates, token = Rates(clock), make(rate_per_s=1e6)
    for number in range(LOOKED_UP_MAX + 1):
        assert rates.take_look_up(token, str(number)) == 0
    assert not rates.has_looked_up(token, "0")
    assert rates.has_looked_up(token, "1")


def test_each_token_has_a_bucket_of_its_own_and_none_without_a_rate(clock):
    rates, one, other = Rates(clock), make("one", "s1", rate_per_s=1.0), make("two", "s2", rate_per_s=1.0)
    free = make("free", "s3")
    assert rates.take(one) == 0
    assert rates.take(one) > 0
    assert rates.take(other) == 0
    assert [rates.take(free) for _ in range(1000)] == [0] * 1000


def test_a_token_that_is_gone_leaves_nothing_behind(clock):
    rates, one = Rates(clock), make("one", "s1", rate_per_s=1.0)
    rates.take(one)
    rates.keep(Tokens([one]))
    assert rates.take(one) > 0
    rates.keep(Tokens())
    assert rates.take(one) == 0


def test_an_array_is_taken_whole_and_paid_for_by_the_calls_after_it(clock):
    rates, token = Rates(clock), make(rate_per_s=10.0)
    assert rates.take(token) == 0
    rates.charge(token, 999)
    assert rates.take(token) == (999 - 10 + 1 + 1) * 100
    clock.advance(99_100)
    assert rates.take(token) == 0
    rates.charge(make("free", "s2"), 1_000)  # without a rate there is nothing to pay
