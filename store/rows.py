"""Packed rows: one-dimensional structured arrays with the exact byte layout of the format."""

from collections.abc import Iterable
from typing import Any, cast

import numpy as np


def join(parts: Iterable[np.ndarray], dtype: np.dtype[np.void]) -> np.ndarray:
    """Copies the rows of all parts, contiguous and of `dtype`, into one array.

    `np.concatenate` derives the common type of the parts and copies field by field: it takes 10 µs per small
    part and twenty times as long for large ones.
    """
    return np.frombuffer(bytearray().join(cast("Any", parts)), dtype)
