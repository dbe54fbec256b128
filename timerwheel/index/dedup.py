"""Deduplication keys in the index: the message of each, and when to check whether it still counts.

Many keys of one commit are a run, see `timerwheel.index.key_runs`. Few, and carried keys, are stored one by
one, each with the time of the next check.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from timerwheel.index import key_runs
from timerwheel.state.dedup_key import KeyEntry, pack, unpack
from timerwheel.state.key_columns import NewKeys, newest_of

if TYPE_CHECKING:
    from timerwheel.store.index import IndexTransaction

TABLE = "keys"
ENDS_TABLE = "key_ends"
END = struct.Struct(">Q")


def put(txn: IndexTransaction, keys: NewKeys, sequence: int) -> int:
    """Register keys: many as a run, which takes a sequence, and few one by one; returns the next sequence."""
    if len(keys) >= key_runs.RUN_KEYS_MIN:
        rows, single = keys.rows_and_carried()
        if len(rows):
            key_runs.put(txn, newest_of(rows), sequence)
            sequence += 1
    else:
        single = keys.all_entries()
    for digest, entry in single.items():
        value, row = packed(digest, entry)
        txn.put(TABLE, digest, value)
        txn.put(ENDS_TABLE, row, b"")
    return sequence


def packed(digest: bytes, entry: KeyEntry) -> tuple[bytes, bytes]:
    """Return how the index stores a key: its value, and its row in the table of ends."""
    return pack(entry), END.pack(entry.last_ms) + digest


def find(txn: IndexTransaction, digests: Sequence[bytes]) -> dict[bytes, KeyEntry]:
    """Return the entries of those of these keys that the index has."""
    found = key_runs.find(txn, digests)
    for digest in digests:
        single, of_run = _single(txn, digest), found.get(digest)
        # If both are of one message, the single one is carried.
        if single is not None and (of_run is None or of_run.root <= single.root):
            found[digest] = single
    return found


def _single(txn: IndexTransaction, digest: bytes) -> KeyEntry | None:
    """Return the entry of a key that was stored by itself."""
    raw = txn.get(TABLE, digest)
    return None if raw is None else unpack(raw)


def has_any(txn: IndexTransaction, digests: list[bytes]) -> bool:
    """Whether there is an entry of any of these keys, which are in order."""
    return txn.has_any(TABLE, digests) or key_runs.has_any(txn, digests)


def ending(txn: IndexTransaction, now_ms: int, count_max: int) -> list[tuple[bytes, KeyEntry | None]]:
    """Return the first single keys whose end may have come, as (row in the table of ends, entry)."""
    found: list[tuple[bytes, KeyEntry | None]] = []
    for row, _ in txn.items(ENDS_TABLE, b"", END.pack(now_ms)):
        found.append((row, _single(txn, row[END.size :])))
        if len(found) == count_max:
            break
    return found


def end(txn: IndexTransaction, row: bytes, entry: KeyEntry | None, ends_ms: int | None) -> None:
    """Remove a key, or check it again at `ends_ms`; a key that was registered again since then stays."""
    txn.delete(ENDS_TABLE, row)
    digest = row[END.size :]
    if entry is None or _single(txn, digest) != entry:
        return
    if ends_ms is None:
        txn.delete(TABLE, digest)
    else:
        txn.put(ENDS_TABLE, END.pack(ends_ms) + digest, b"")
