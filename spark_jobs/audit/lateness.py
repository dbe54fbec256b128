"""Lateness of deliveries, counted in buckets that can be added up.

Pure. The buckets are those of an HDR histogram: one for each millisecond below 32, then sixteen in every
power of two. A percentile is the top of the bucket that holds it: never too low, and at most a sixteenth too
high.
"""

from collections.abc import Iterable

import msgspec
import numpy as np

SUB_BITS = 4
_SUB = 1 << SUB_BITS
_MS_MAX = 1 << 52  # exact in float64; about 142,000 years
PERCENTILES = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99, "p999_ms": 0.999}


class Lateness(msgspec.Struct, frozen=True):
    """Milliseconds from the due time to the delivery. All are 0 if nothing was delivered."""

    count: int
    p50_ms: int
    p90_ms: int
    p99_ms: int
    p999_ms: int
    max_ms: int


def buckets_of(late_ms: np.ndarray) -> np.ndarray:
    """The bucket of each lateness (int64, not negative), as int32."""
    values = np.minimum(late_ms, _MS_MAX).astype(np.int64)
    exponents = np.frexp(np.maximum(values, 1).astype(np.float64))[1] - 1
    shifts = np.maximum(exponents - SUB_BITS, 0)
    found: np.ndarray = (shifts * _SUB + (values >> shifts)).astype(np.int32)
    return found


def top_ms(bucket: int) -> int:
    """The largest lateness that a bucket holds."""
    if bucket < 2 * _SUB:
        return bucket
    shift = (bucket >> SUB_BITS) - 1
    return ((bucket % _SUB + _SUB + 1) << shift) - 1


def lateness_of(counted: Iterable[tuple[int, int, int]]) -> Lateness:
    """Sums up (bucket, deliveries, longest lateness) in any order; buckets may repeat."""
    rows = sorted(counted)
    if not rows:
        return Lateness(0, 0, 0, 0, 0, 0)
    most_ms = max(longest for _, _, longest in rows)
    sums = np.cumsum([deliveries for _, deliveries, _ in rows])
    total = int(sums[-1])
    percentiles = {}
    for name, share in PERCENTILES.items():
        # The delivery of this rank, counted from 1.
        rank = -(-total * round(share * 1_000) // 1_000)
        percentiles[name] = min(top_ms(rows[int(np.searchsorted(sums, rank))][0]), most_ms)
    return Lateness(count=total, **percentiles, max_ms=most_ms)
