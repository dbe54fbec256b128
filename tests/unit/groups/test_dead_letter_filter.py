"""Which dead letters meet the conditions of a filter."""

import pytest

from timerwheel.groups.dead_letter_filter import DeadLetterFilter
from timerwheel.model.listing import Times
from timerwheel.model.messages import DeadLetter, MessageView, State
from timerwheel.model.tags import IllegalFilterError


def letter(reason="No database", dead_ms=1_000, topic="orders", **properties):
    view = MessageView("0" * 24, "%DLQ%g", 0, State.DELIVERED, dead_ms, 0, dead_ms, properties, b"x")
    return DeadLetter(view, 0, topic, "1" * 24, reason, 1, dead_ms)


@pytest.mark.parametrize(
    ("wanted", "is_meant"),
    [
        (DeadLetterFilter(), True),
        (DeadLetterFilter(reason="database"), True),
        (DeadLetterFilter(reason="NO DATA"), True),
        (DeadLetterFilter(reason="printer"), False),
        (DeadLetterFilter(key="order-17"), True),
        (DeadLetterFilter(key="4711"), True),
        (DeadLetterFilter(key="471"), False),
        (DeadLetterFilter(died=Times(1_000, 1_001)), True),
        (DeadLetterFilter(died=Times(0, 1_000)), False),
        (DeadLetterFilter(died=Times(1_001)), False),
        (DeadLetterFilter(reason="database", key="471"), False),
    ],
)
def test_a_letter_is_meant_if_it_meets_every_condition(wanted, is_meant):
    assert wanted.admits(letter(KEYS="4711 4712", DEDUP_KEY="order-17")) is is_meant


def test_a_letter_without_keys_has_none():
    assert not DeadLetterFilter(key="4711").admits(letter())


def test_topics_are_those_of_the_groups_that_gave_up():
    assert DeadLetterFilter(topics={"orders"}).has_topic(letter())
    assert not DeadLetterFilter(topics={"mail"}).has_topic(letter())


@pytest.mark.parametrize("wrong", [{"reason": ""}, {"key": ""}, {"reason": "x" * 501}, {"key": "x" * 16_385}])
def test_a_condition_that_means_nothing_is_refused(wrong):
    with pytest.raises(IllegalFilterError, match="must have 1 to"):
        DeadLetterFilter(**wrong).check()
