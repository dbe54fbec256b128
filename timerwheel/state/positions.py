"""Positions: where the messages of a consume queue are in the log. Pure."""

from __future__ import annotations

import numpy as np

POSITION_DTYPE = np.dtype(
    [("offset", "<u8"), ("root", "<u8"), ("store_ms", "<i8"), ("size", "<u4"), ("zero", "<u4")]
)


Positions = np.ndarray


def positions_of(rows: np.ndarray) -> Positions:
    """Return the queue positions of record rows."""
    positions = np.zeros(len(rows), POSITION_DTYPE)
    for name in ("offset", "root", "store_ms", "size"):
        positions[name] = rows[name]
    return positions
