"""Epoch append: in no state is an acknowledged record lost, or unknown to the leader."""

import dataclasses

import pytest

from tests.models.epoch_append import Bounds, EpochAppend, Faults, broken
from tests.models.explore import explore

SMALL = [
    Bounds(writes=(1, 1), in_flight=1, transactions=2, elections=1, expiries=1, time_outs=1, losses=1),
    Bounds(writes=(2, 1), transactions=2, elections=1, expiries=0, time_outs=1),
]
LARGE = [
    Bounds(writes=(2, 1), elections=1, expiries=1, time_outs=1, losses=1),
    Bounds(writes=(2, 2), transactions=2, elections=2, expiries=0, time_outs=1),
    Bounds(writes=(1, 1, 1), in_flight=1, transactions=3, elections=1, expiries=0, time_outs=0),
]
NEEDED = [field.name for field in dataclasses.fields(Faults)]
WITHIN_ONE_LEADER = {"goes_on_after_failure", "no_sequence_numbers"}
STATES_MAX = 5_000_000


def explored(bounds, faults=Faults()):  # noqa: B008 - frozen
    model = EpochAppend(faults, bounds)
    return explore(model.start, model.steps, broken, STATES_MAX)


@pytest.mark.parametrize("bounds", SMALL)
def test_no_state_loses_an_acknowledged_record_or_has_a_leader_that_does_not_know_it(bounds):
    found = explored(bounds)
    assert (found.broken, found.steps) == (None, [])
    assert found.states > 10_000


@pytest.mark.torture
@pytest.mark.parametrize("bounds", LARGE)
def test_no_state_of_more_writes_failures_or_leaders_does_either(bounds):
    assert explored(bounds).broken is None


@pytest.mark.parametrize("fault", NEEDED)
def test_each_thing_that_it_rests_on_is_needed(fault):
    bounds = Bounds(writes=(1, 1), in_flight=1, transactions=2)
    if fault in WITHIN_ONE_LEADER:
        bounds = Bounds(writes=(2,), losses=1)
    found = explored(bounds, Faults(**{fault: True}))
    assert found.broken is not None
    assert found.steps


@pytest.mark.torture
@pytest.mark.parametrize("bounds", SMALL)
@pytest.mark.parametrize("fault", ["no_fence", "reads_before_fence"])
def test_where_brokers_lose_no_marker_the_fence_is_not_needed(bounds, fault):
    bounds = dataclasses.replace(bounds, loses_markers=False)
    assert explored(bounds, Faults(**{fault: True})).broken is None
