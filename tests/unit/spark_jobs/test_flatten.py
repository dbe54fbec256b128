import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from timerwheel.spark_jobs.forecast.flatten import Flattening, Outcome, flatten, spread

COUNTS = st.lists(st.one_of(st.just(0), st.integers(0, 30)), min_size=1, max_size=40)


def expected_after(counts, jitter_s):
    """The fullest second after a jitter, by spreading each second's messages by hand."""
    shares = [0] * (len(counts) + jitter_s)
    for second, count in enumerate(counts):
        for later in range(jitter_s):
            shares[second + later] += count
    return max(shares)


def smallest_by_trying_all(counts, rate):
    return next(j for j in range(1, len(counts) + 1) if expected_after(counts, j) <= rate * j)


@given(COUNTS, st.integers(1, 12))
@example([10] * 40, 10)
@example([0, 9, 0, 0, 9, 0, 0], 3)
@example([14, 0, 7, 0, 3, 0, 0, 12, 1, 17, 2], 5)
def test_the_jitter_is_the_smallest_that_keeps_every_second_within_the_rate(counts, rate):
    found = flatten(np.array(counts), rate)
    assert found.peak == max(counts)
    if sum(counts) > rate * len(counts):
        assert (found.outcome, found.jitter_s) == (Outcome.OVER, 0)
        assert found.peak_expected == sum(counts) / len(counts)
        return
    assert found.jitter_s == smallest_by_trying_all(counts, rate)
    assert found.peak_expected == expected_after(counts, found.jitter_s) / found.jitter_s
    assert found.outcome is (Outcome.WITHIN if max(counts) <= rate else Outcome.SPREAD)


@given(COUNTS, st.integers(1, 50))
def test_spreading_loses_no_message_and_shows_the_fullest_second(counts, jitter_s):
    expected = spread(np.array(counts), jitter_s)
    assert len(expected) == len(counts) + jitter_s - 1
    assert np.isclose(expected.sum(), sum(counts))
    assert np.isclose(expected.max(), expected_after(counts, jitter_s) / jitter_s)


def test_a_wider_jitter_may_flatten_less():
    counts = np.zeros(60, np.int64)
    counts[[5, 15]] = 100
    assert spread(counts, 10).max() < spread(counts, 11).max()
    assert flatten(counts, 10).jitter_s == 10


def test_one_rush_needs_its_size_over_the_rate():
    counts = np.zeros(31 * 86_400, np.int64)
    counts[1_000_000] = 1_000_001
    found = flatten(counts, 100)
    assert (found.outcome, found.jitter_s, found.peak) == (Outcome.SPREAD, 10_001, 1_000_001)
    assert 99.9 < found.peak_expected <= 100


def test_days_a_little_over_the_rate_are_flattened_into_the_quiet_ones_behind_them():
    counts = np.full(31 * 86_400, 20)
    counts[: 10 * 86_400] = 101
    found = flatten(counts, 100)
    # The days hold 864,000 more than they may; each second of jitter beyond them has room for 80.
    assert found.jitter_s == 10 * 86_400 + 864_000 // 80


def test_a_span_without_messages_is_within_any_rate():
    assert flatten(np.zeros(10, np.int64), 1) == Flattening(Outcome.WITHIN, 1, 1, 0, 0.0)
