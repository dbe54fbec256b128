"""Counting over columns of record tables. Pure."""

import numpy as np


def bases_of(offsets: np.ndarray, bases: np.ndarray) -> np.ndarray:
    """The base of the segment of each offset, without those that are no longer kept."""
    places = np.searchsorted(bases, offsets, side="right") - 1
    found: np.ndarray = bases[places[places >= 0]]
    return found


def tally(values: np.ndarray) -> list[tuple[int, int]]:
    """Each distinct value and how often it occurs."""
    if not len(values):
        return []
    if (values == values[0]).all():
        return [(int(values[0]), len(values))]
    found, counts = np.unique(values, return_counts=True)
    return list(zip(found.tolist(), counts.tolist(), strict=True))
