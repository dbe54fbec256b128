import bisect
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.clock import ManualClock
from timerwheel.runtime.counters import RECENT_PART_MS, RECENT_PARTS, Counters, Histogram, Recent
from timerwheel.state.batch import Batch
from timerwheel.store.record import FLAG_EARLY, FLAG_ENDED, FLAG_LEASE, NO_OFFSET, Kind
from timerwheel.store.table import ROW_DTYPE

BOUNDS = (0, 1, 5, 20)
values = st.lists(st.integers(0, 30), max_size=40)

# What a record is, by what is counted of it.
ROWS = {
    "waiting": {"kind": Kind.TIMER},
    "at_once": {"kind": Kind.MESSAGE},
    "due": {"kind": Kind.MESSAGE, "origin": 64},
    "early": {"kind": Kind.MESSAGE, "origin": 64, "flags": FLAG_EARLY},
    "recalled": {"kind": Kind.CANCEL, "origin": 64},
    "rescheduled": {"kind": Kind.TIMER, "origin": 64, "prior_due_ms": 9},
    "moved": {"kind": Kind.TIMER, "origin": 64, "rolls": 1},
    "retried": {"kind": Kind.TIMER, "flags": FLAG_LEASE, "root": 4096, "offset": 4096, "rolls": 1},
    "lease without receipt": {"kind": Kind.TIMER, "flags": FLAG_LEASE | FLAG_ENDED, "root": 1, "offset": 1},
    "lease extended": {"kind": Kind.TIMER, "flags": FLAG_LEASE, "origin": 64, "root": 64, "offset": 128},
    "came back": {"kind": Kind.MESSAGE, "flags": FLAG_LEASE, "origin": 64},
    "acknowledged": {"kind": Kind.ACK, "flags": FLAG_LEASE},
    "acknowledged after a retry": {"kind": Kind.CANCEL, "flags": FLAG_LEASE, "origin": 64},
    "held": {"kind": Kind.HOLD, "flags": FLAG_LEASE},
    "setting": {"kind": Kind.CONTROL},
}


def batch_of(names: list[str]) -> Batch:
    rows = np.zeros(len(names), ROW_DTYPE)
    rows["origin"] = NO_OFFSET
    for place, name in enumerate(names):
        for field, value in ROWS[name].items():
            rows[place][field] = value
    return Batch(rows)


def counts_of(measures: Counters) -> dict[str, int]:
    return {
        "waiting": measures.accepted_waiting,
        "at_once": measures.accepted_at_once,
        "due": measures.fired_due,
        "early": measures.fired_early,
        "recalled": measures.recalled,
        "rescheduled": measures.rescheduled,
        "moved": measures.moved,
        "came back": measures.leases_back,
    }


@given(values)
def test_a_histogram_counts_each_value_below_the_first_bound_that_is_not_under_it(given_values):
    one_by_one, at_once = Histogram(BOUNDS), Histogram(BOUNDS)
    for value in given_values:
        one_by_one.observe(value)
    at_once.observe_many(np.array(given_values, np.int64))
    expected = [0] * (len(BOUNDS) + 1)
    for value in given_values:
        expected[bisect.bisect_left(BOUNDS, value)] += 1
    assert one_by_one.counts == at_once.counts == expected
    assert one_by_one.sum == at_once.sum == sum(given_values)
    assert at_once.cumulative()[-1] == len(given_values)


def test_a_block_that_fails_is_not_timed():
    histogram = Histogram(BOUNDS)
    with histogram.timing():
        pass
    with pytest.raises(ValueError, match="oops"), histogram.timing():
        raise ValueError("oops")
    assert histogram.cumulative()[-1] == 1


@given(st.lists(st.integers(0, 20), min_size=1, max_size=60), st.floats(0.01, 1))
def test_a_quantile_lies_between_the_bounds_around_the_true_one(given_values, share):
    recent = Recent(BOUNDS, ManualClock())
    recent.observe_many(np.array(given_values))
    ordered = sorted(given_values)
    true = ordered[int(np.ceil(share * len(ordered))) - 1]
    place = bisect.bisect_left(BOUNDS, true)
    low = BOUNDS[place - 1] if place else 0
    assert low <= recent.quantile(share) <= BOUNDS[place]


def test_quantiles_forget_what_is_older_than_a_minute_and_the_histogram_does_not():
    clock = ManualClock()
    recent = Recent(BOUNDS, clock)
    assert recent.quantile(0.5) == 0
    recent.observe_many(np.array([20] * 10))
    clock.advance(RECENT_PART_MS * (RECENT_PARTS - 1))
    recent.observe_many(np.array([1]))
    assert recent.quantile(0.9) > 5
    clock.advance(RECENT_PART_MS)
    assert recent.quantile(0.9) <= 1
    clock.advance(RECENT_PART_MS * RECENT_PARTS)
    assert recent.quantile(0.9) == 0
    assert recent.all.cumulative()[-1] == 11


def test_values_above_every_bound_give_the_last_bound():
    recent = Recent(BOUNDS, ManualClock())
    recent.observe_many(np.array([1_000]))
    assert recent.quantile(0.5) == BOUNDS[-1]


@pytest.mark.parametrize("name", ROWS)
def test_each_record_is_counted_where_it_belongs(name):
    measures = Counters(ManualClock())
    measures.applied(batch_of([name]))
    assert counts_of(measures) == {counted: int(counted == name) for counted in counts_of(measures)}


@given(st.lists(st.sampled_from(list(ROWS)), min_size=1, max_size=30))
def test_a_batch_counts_what_its_records_count_one_by_one(names):
    together, apart = Counters(ManualClock()), Counters(ManualClock())
    together.applied(batch_of(names))
    for name in names:
        apart.applied(batch_of([name]))
    assert counts_of(together) == counts_of(apart)
    for one, other in (
        (together.lateness_ms.all, apart.lateness_ms.all),
        (together.delay_s, apart.delay_s),
    ):
        assert one.counts == other.counts


def test_lateness_is_from_the_due_time_to_the_moment_of_effect_and_never_below_nothing():
    clock = ManualClock(1_000)
    measures = Counters(clock)
    for due_ms in (1_000, 993, 1_200):  # the last as after a step back of the clock
        batch = batch_of(["due"])
        batch.rows["due_ms"] = due_ms
        measures.applied(batch)
    assert measures.lateness_ms.all.sum == 7
    assert measures.lateness_ms.all.counts[0] == 2


def test_the_snapshot_is_plain_numbers():
    measures = Counters(ManualClock())
    measures.applied(batch_of(["waiting", "waiting", "at_once", "due", "early", "recalled"]))
    measures.attempted("failed", 30)
    found = json.loads(json.dumps(measures.snapshot()))
    assert (found["accepted_total"], found["fired_total"], found["recalled_total"]) == (3, 2, 1)
    assert found["push_attempts_total"] == 1
    assert {"lateness_ms_p50", "lateness_ms_p99"} <= found.keys()
