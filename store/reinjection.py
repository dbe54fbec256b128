"""The record that a timer becomes when it fires: the same topic, properties and body under a new header.

A batch at a time: the headers change as columns, so that a message costs little more than its CRC.
"""

from collections.abc import Sequence
from zlib import crc32

import numpy as np

from timerwheel.store.record import (
    FLAGS_KEPT,
    FORMAT_VERSION,
    HEADER_DTYPE,
    HEADER_SIZE,
    NO_OFFSET,
    Kind,
    pack_start,
)

_CRC_FROM = 8


def reinjected(
    timers: Sequence[bytes],
    offsets: np.ndarray,
    roots: np.ndarray,
    dues_ms: np.ndarray,
    *,
    now_ms: int,
    flags: int,
) -> list[bytes]:
    """Messages, visible from now on, whose origin are these timers.

    The timers lie at `offsets` in the log; `roots` are where their messages began, which an id names, and
    `dues_ms` when they are told to have been due. About 0.5 µs for one.
    """
    old = np.frombuffer(b"".join([timer[:HEADER_SIZE] for timer in timers]), HEADER_DTYPE)
    new = old.copy()
    new["version"] = FORMAT_VERSION
    new["kind"] = Kind.MESSAGE
    new["flags"] = old["flags"] & FLAGS_KEPT | flags
    new["prior_level"] = old["level"]
    new["root_crc"] = np.where(old["root"] == np.uint64(NO_OFFSET), old["crc"], old["root_crc"])
    new["root"] = roots
    new["origin"] = offsets
    new["store_ms"] = now_ms
    new["due_ms"] = dues_ms
    new["prior_due_ms"] = old["due_ms"]
    heads = new.tobytes()
    records: list[bytes] = []
    at = 0
    for timer in timers:
        rest = heads[at + _CRC_FROM : at + HEADER_SIZE] + timer[HEADER_SIZE:]
        records.append(pack_start(len(timer), crc32(rest)) + rest)
        at += HEADER_SIZE
    return records
