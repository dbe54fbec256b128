"""Wherever a message can say when, it can in each of the same ways, and no two of them at once."""

import itertools

import pytest

from timerwheel.api.http.problems import RequestError
from timerwheel.api.messages.arrow_stream import COLUMNS
from timerwheel.api.messages.delays import new_time
from timerwheel.api.messages.intake import outgoing
from timerwheel.client.drafts import WHEN_FIELDS
from timerwheel.wire.delays import Delays
from timerwheel.wire.messages import NewMessage, NewTime

FIELDS = {
    "delay_ms": 1,
    "delay": "1s",
    "deliver_at_ms": 1,
    "deliver_at": "2026-12-24T18:00:00Z",
    "delay_level": 1,
}


def test_every_way_to_say_when_is_known_to_the_client_to_arrow_and_to_this_test():
    assert set(FIELDS) == set(Delays.__struct_fields__) == set(WHEN_FIELDS)
    assert set(FIELDS) <= set(COLUMNS)


@pytest.mark.parametrize("two", [*itertools.combinations(FIELDS, 2)])
@pytest.mark.parametrize("more", [{}, {"properties": {"a": "b"}}, {"dedup_key": "k"}, {"tags": "t"}])
def test_a_message_with_two_times_is_refused_whatever_else_it_has(two, more):
    when = {name: FIELDS[name] for name in two}
    with pytest.raises(RequestError) as caught:
        outgoing(NewMessage(topic="t", **when, **more))
    assert caught.value.code == "conflicting_delay"


@pytest.mark.parametrize("two", [*itertools.combinations(FIELDS, 2)])
def test_a_reschedule_with_two_times_is_refused(two):
    with pytest.raises(RequestError) as caught:
        new_time(NewTime(**{name: FIELDS[name] for name in two}))
    assert caught.value.code == "conflicting_delay"
