"""Clocks of a node and of brokers that differ are reported, and those that only answer late are not."""

import re

import pytest

from timerwheel.kafka.broker_clock import DIFFERENCE_MS_MAX, SAID_MS, BrokerClock


@pytest.mark.parametrize(
    ("sent_ms", "answered_ms", "stamped_ms"),
    [
        (100_000, 100_002, 100_001),
        (100_000, 115_000, 114_999),  # the append took long
        (100_000, 100_000, 100_000 - DIFFERENCE_MS_MAX),
        (100_000, 100_000, 100_000 + DIFFERENCE_MS_MAX),
    ],
)
def test_clocks_that_may_agree_are_not_reported(sent_ms: int, answered_ms: int, stamped_ms: int) -> None:
    assert BrokerClock().compare(sent_ms, answered_ms, stamped_ms, 0) is None


@pytest.mark.parametrize(
    ("stamped_ms", "told"),
    [
        (100_000 - DIFFERENCE_MS_MAX - 1, r"is 1\.0 s ahead of .* too early"),
        (40_000, r"is 60\.0 s ahead of .* too early"),
        (160_005, r"is 60\.0 s behind .* too late"),
    ],
)
def test_by_how_much_they_differ_and_what_comes_of_it_is_told(stamped_ms: int, told: str) -> None:
    found = BrokerClock().compare(100_000, 100_005, stamped_ms, 0)
    assert found is not None
    assert re.search(told, found)


def test_it_is_told_again_after_a_while_and_at_once_if_it_was_well_in_between() -> None:
    clock = BrokerClock()
    differ, well = (100_000, 100_000, 0), (100_000, 100_000, 100_000)
    assert clock.compare(*differ, 0) is not None
    assert clock.compare(*differ, SAID_MS - 1) is None
    assert clock.compare(*differ, SAID_MS) is not None
    assert clock.compare(*well, SAID_MS + 1) is None
    assert clock.compare(*differ, SAID_MS + 2) is not None
