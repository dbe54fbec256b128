"""Counting over columns of record tables. Pure.

`bases` are a snapshot of the log's segments, which does not change during a call.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import numpy as np


def parts_of(offsets: np.ndarray, bases: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Offsets in log order by segment: the base of each segment, and the places [low, high) in it."""
    low = 0
    while low < len(offsets):
        place = bisect_right(bases, int(offsets[low])) - 1
        high = len(offsets)
        if place + 1 < len(bases) and int(offsets[-1]) >= bases[place + 1]:
            high = int(np.searchsorted(offsets, np.uint64(bases[place + 1])))
        yield bases[place], low, high
        low = high


def tally_segments(offsets: np.ndarray, bases: Sequence[int]) -> list[tuple[int, int]]:
    """The base of each segment that these offsets, in any order, lie in, and how many do.

    Those of segments that are no longer kept are left out.
    """
    if not len(offsets):
        return []
    first, last = (bisect_right(bases, int(edge)) - 1 for edge in (offsets.min(), offsets.max()))
    if first == last:
        return [(bases[first], len(offsets))] if first >= 0 else []
    places = np.searchsorted(np.array(bases, np.uint64), offsets, side="right") - 1
    return [(bases[place], count) for place, count in tally(places) if place >= 0]


def tally(values: np.ndarray) -> list[tuple[int, int]]:
    """Each distinct value and how often it occurs."""
    if not len(values):
        return []
    first = values[0]
    if len(values) == 1 or (values == first).all():
        return [(int(first), len(values))]
    found, counts = np.unique(values, return_counts=True)
    return list(zip(found.tolist(), counts.tolist(), strict=True))
