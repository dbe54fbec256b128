"""Builds the MESSAGE records of firing timers: same topic, properties and body, with a new header.

Works on a batch: headers change as columns, so that a message costs little more than its CRC.
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
    sizes_without_padding,
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
    """The messages, visible from now on, whose origins are these timers.

    The timers are at `offsets` in the log; `roots` are the first records of their messages, which ids name,
    and `dues_ms` the due times to record. About 0.5 µs for one.
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
    for timer, size in zip(timers, sizes_without_padding(old).tolist(), strict=True):
        rest = heads[at + _CRC_FROM : at + HEADER_SIZE] + timer[HEADER_SIZE:size]
        records.append(pack_start(size, crc32(rest)) + rest)
        at += HEADER_SIZE
    return records
