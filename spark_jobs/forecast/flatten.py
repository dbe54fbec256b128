"""Finds the jitter that flattens a peak: the seconds over which to spread messages. Pure.

The model: each due time gets a random whole number of seconds from 0 to J - 1 added. A second then expects
the mean of the counts of the J seconds that end with it, so the busiest expects M(J) / J, where M(J) is
the most that any J consecutive seconds hold. We want the smallest J with M(J) ≤ rate x J.

M(J) / J is not monotone: 10 seconds flatten two peaks ten seconds apart better than 11 do. So bisection does
not work. Known windows rule out others, and the rest are tried in order:

1. M never falls, so after a J that is too small nothing below M(J) / rate can do.
2. A run of L seconds with W messages is covered by ⌈L / J⌉ windows of J. If J ≤ W / rate - L, one of them
   holds more than rate x J. (The largest W / rate - L is the longest wait behind a server with this rate.)
3. The windows that begin or end where a J was found too small are looked at for all J at once.
"""

from enum import StrEnum

import msgspec
import numpy as np


class Outcome(StrEnum):
    """The possible results."""

    WITHIN = "within"  # no second is over the rate to begin with
    SPREAD = "spread"  # a jitter keeps all seconds at the rate
    OVER = "over"  # no jitter helps: the mean of all seconds is over the rate


class Flattening(msgspec.Struct, frozen=True):
    """The jitter needed to bring the counts of some seconds down to a rate."""

    outcome: Outcome
    rate: int  # most messages per second wanted
    jitter_s: int  # seconds over which to spread each message: 1 leaves it where it is, 0 if OVER
    peak: int  # messages in the busiest second now
    peak_expected: float  # expected messages in the busiest second after the jitter; the mean of all if OVER


def flatten(counts: np.ndarray, rate: int) -> Flattening:
    """The smallest jitter, whole seconds, after which no second expects more than `rate` messages.

    `counts` has the messages of each second of a span, whole numbers from 0; a jitter longer than the span is
    not an answer. `rate` is at least 1. Up to 0.3 s for 31 days as they come; counts could be made for which
    it takes much longer.
    """
    assert rate >= 1
    span = len(counts)
    total, peak = int(counts.sum()), int(counts.max(initial=0))
    if peak <= rate:
        return Flattening(Outcome.WITHIN, rate, 1, peak, float(peak))
    if total > rate * span:
        return Flattening(Outcome.OVER, rate, 0, peak, total / span)
    jitter_s, most = _smallest(counts, rate)
    return Flattening(Outcome.SPREAD, rate, jitter_s, peak, most / jitter_s)


def spread(counts: np.ndarray, jitter_s: int) -> np.ndarray:
    """Expected messages per second after a jitter, `jitter_s` - 1 seconds longer than `counts`."""
    sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
    ends = np.minimum(np.arange(1, len(counts) + jitter_s), len(counts))
    begins = np.maximum(np.arange(1, len(counts) + jitter_s) - jitter_s, 0)
    expected: np.ndarray = (sums[ends] - sums[begins]) / jitter_s
    return expected


def _smallest(counts: np.ndarray, rate: int) -> tuple[int, int]:
    """The smallest J, which exists, and M(J)."""
    span = len(counts)
    sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
    # A window [i, j) is too full if surplus[j] > surplus[i].
    surplus = sums - rate * np.arange(span + 1, dtype=np.int64)
    too_small = np.zeros(span + 1, bool)
    windows = np.empty(span + 1, np.int64)
    jitter_s = int((surplus - np.minimum.accumulate(surplus)).max()) // rate + 1
    while True:
        held = np.subtract(sums[jitter_s:], sums[:-jitter_s], out=windows[: span + 1 - jitter_s])
        begin = int(held.argmax())
        most = int(held[begin])
        if most <= rate * jitter_s:
            return jitter_s, most
        end = begin + jitter_s
        too_small[1 : span + 1 - begin] |= surplus[begin + 1 :] > surplus[begin]
        too_small[1 : end + 1] |= surplus[end] > surplus[end - 1 :: -1]
        jitter_s = max(jitter_s + 1, -(-most // rate))
        jitter_s += int(too_small[jitter_s:].argmin())
