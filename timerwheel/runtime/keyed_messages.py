"""Finds the messages that have a key, by the registers, in the order in which they were sent.

A message has an entry in each segment that holds one of its records, all with the same root, and a root never
changes. So a walk along the roots meets each message once, whatever becomes of it in the meantime.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from timerwheel.model.ids import Ids
from timerwheel.runtime.ended_messages import Range
from timerwheel.state.register_rows import hash_of, is_of_topic, keys_in, offsets_of
from timerwheel.store.errors import CorruptionError, OffsetError
from timerwheel.store.log import CommitLog
from timerwheel.store.record import Record, decode
from timerwheel.store.register import KEY_DTYPE, Lookup, Rows, Source
from timerwheel.store.rows import join

SOURCES_AT_ONCE = 64
"""Registers that one step looks into."""


class Candidate(NamedTuple):
    """The newest record of a message in the registers, which has the key."""

    root: int
    offset: int
    record: Record
    message_id: str


Roots: TypeAlias = Sequence[tuple[int, list[int]]]
"""Roots in the order of the walk, each with the log offsets of records of its message, newest first."""


def entries(
    sources: Sequence[Source], key: str, topic: str | None, wanted: Range, count: int
) -> tuple[Rows, Range]:
    """Return the entries of a key at the beginning of a range of roots, and the part that they cover."""
    parts: list[Rows] = []
    for source in sources:
        lookup = Lookup(hash_of(key), wanted.low, wanted.high, count, wanted.newest)
        rows = source.find_keys(lookup)
        if len(rows) == count:
            wanted = wanted.cut(int(rows["order"][0]) if wanted.newest else int(rows["order"][-1]) + 1)
        if topic is not None:
            rows = rows[is_of_topic(rows["place"], hash_of(topic))]
        parts.append(rows)
    return within(join(parts, KEY_DTYPE), wanted), wanted


def within(rows: Rows, wanted: Range) -> Rows:
    """Return the entries whose root is in a range."""
    found: Rows = rows[(rows["order"] >= wanted.low) & (rows["order"] < wanted.high)]
    return found


def roots_of(rows: Rows, *, newest: bool) -> Roots:
    """Return the roots of entries in the order of the walk."""
    offsets: dict[int, list[int]] = {}
    rows = rows[np.argsort(rows["place"])[::-1]]
    for root, offset in zip(rows["order"].tolist(), offsets_of(rows["place"]).tolist(), strict=True):
        offsets.setdefault(root, []).append(offset)
    return sorted(offsets.items(), reverse=newest)


def read_candidates(log: CommitLog, ids: Ids, roots: Roots, key: str) -> list[Candidate | None]:
    """Return the messages, None for one that does not have the key or cannot be read; in a reader thread."""
    return [_candidate(log, ids, root, offsets, key) for root, offsets in roots]


def _candidate(log: CommitLog, ids: Ids, root: int, offsets: Sequence[int], key: str) -> Candidate | None:
    """Return a message by its newest record that can be read."""
    for offset in offsets:
        try:
            data = log.read(offset)
        except (OffsetError, CorruptionError):
            continue  # retention removed it, or it is damaged
        record = decode(data)
        identity = record.header.identity(offset)
        if identity.root == root and key in keys_in(record.properties):
            return Candidate(root, offset, record, ids.encode(*identity))
        return None
    return None
