"""The tables of deduplication keys: the message of each, and when to check whether it still counts."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from timerwheel.state.dedup_key import KeyEntry, pack, unpack

if TYPE_CHECKING:
    from timerwheel.store.index import IndexTransaction

TABLE = "keys"
ENDS_TABLE = "key_ends"
END = struct.Struct(">Q")


def put(txn: IndexTransaction, keys: dict[bytes, KeyEntry]) -> None:
    """Register keys."""
    for digest, entry in keys.items():
        value, row = packed(digest, entry)
        txn.put(TABLE, digest, value)
        txn.put(ENDS_TABLE, row, b"")


def packed(digest: bytes, entry: KeyEntry) -> tuple[bytes, bytes]:
    """Return how the index stores a key: its value, and its row in the table of ends."""
    return pack(entry), END.pack(entry.last_ms) + digest


def find(txn: IndexTransaction, digest: bytes) -> KeyEntry | None:
    """Return the entry of a key, None if the index has none."""
    raw = txn.get(TABLE, digest)
    return None if raw is None else unpack(raw)


def ending(txn: IndexTransaction, now_ms: int, count_max: int) -> list[tuple[bytes, KeyEntry | None]]:
    """Return the first keys whose end may have come, as (row in the table of ends, entry)."""
    found: list[tuple[bytes, KeyEntry | None]] = []
    for row, _ in txn.items(ENDS_TABLE, b"", END.pack(now_ms)):
        found.append((row, find(txn, row[END.size :])))
        if len(found) == count_max:
            break
    return found


def end(txn: IndexTransaction, row: bytes, entry: KeyEntry | None, ends_ms: int | None) -> None:
    """Remove a key, or check it again at `ends_ms`; a key that was registered again since then stays."""
    txn.delete(ENDS_TABLE, row)
    digest = row[END.size :]
    if entry is None or find(txn, digest) != entry:
        return
    if ends_ms is None:
        txn.delete(TABLE, digest)
    else:
        txn.put(ENDS_TABLE, END.pack(ends_ms) + digest, b"")
