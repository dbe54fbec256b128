"""The body of every message of a load: number and due time, padded to 200 bytes.

From it any consumer of any system knows which message arrived, whether it is a duplicate, and how late it is,
without metadata of the system. Layout, ASCII: 12 digits number, a space, 16 digits due time in microseconds
since 1970, a space, padding.
"""

from collections.abc import Sequence

import numpy as np

BODY_BYTES = 200
NUMBER_DIGITS = 12
DUE_DIGITS = 16
HEAD_BYTES = NUMBER_DIGITS + 1 + DUE_DIGITS + 1
_FILLING = b"x" * (BODY_BYTES - HEAD_BYTES)


def body(number: int, due_us: int) -> bytes:
    """Message `number` of its load, due at `due_us` (microseconds since 1970)."""
    return b"%012d %016d %b" % (number, due_us, _FILLING)


def read_heads(heads: Sequence[bytes]) -> tuple["np.ndarray", "np.ndarray"]:
    """Numbers and due times (int64, microseconds) of bodies, or of at least their first HEAD_BYTES."""
    if not heads:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    characters = np.frombuffer(b"".join(head[:HEAD_BYTES] for head in heads), np.uint8)
    digits = characters.reshape(len(heads), HEAD_BYTES).astype(np.int64) - ord("0")

    def number(begin: int, count: int) -> "np.ndarray":
        return digits[:, begin : begin + count] @ 10 ** np.arange(count - 1, -1, -1, dtype=np.int64)

    return number(0, NUMBER_DIGITS), number(NUMBER_DIGITS + 1, DUE_DIGITS)
