"""Forwarding pointers: the current records of messages whose first record is out of date.

A pointer leads from a message's root offset to its current record: the timer that replaced it, the cancel
that ended it, or the early delivery. Ordinary deliveries leave no pointer. Pointers of one mebibyte of log
share pages, and the last pointer of a root wins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from timerwheel.store import pages
from timerwheel.store.keys import block_prefix, sequence_key

if TYPE_CHECKING:
    from timerwheel.store.index import IndexTransaction

MARK_DTYPE = np.dtype([("root", "<u8"), ("target", "<u8")])
TABLE = "marks"


def put(txn: IndexTransaction, pointers: Iterable[tuple[int, int]], sequence: int) -> int:
    """Add (root, target) pairs, one page for each block of the log; returns the next sequence."""
    pairs = dict(pointers)
    if not pairs:
        return sequence
    rows = np.zeros(len(pairs), MARK_DTYPE)
    rows["root"] = np.fromiter(pairs.keys(), np.uint64, len(pairs))
    rows["target"] = np.fromiter(pairs.values(), np.uint64, len(pairs))
    for prefix, chunk in mark_pages(rows):
        txn.put_page(TABLE, prefix, sequence, chunk)
        sequence += 1
    return sequence


def mark_pages(rows: np.ndarray) -> Iterator[tuple[bytes, np.ndarray]]:
    """Yield pointers (MARK_DTYPE, one for each root) as pages: the key without its sequence, and the rows."""
    blocks = rows["root"] >> np.uint64(20)
    order = np.argsort(blocks, kind="stable")
    edges = np.flatnonzero(np.diff(blocks[order])) + 1
    for part in np.split(rows[order], edges):
        for chunk in pages.chunks(part):
            yield block_prefix(int(part["root"][0])), chunk


def find(txn: IndexTransaction, root: int) -> int | None:
    """Return the target of this root's pointer, None if it has none."""
    target = None
    for _, page in txn.prefix(TABLE, block_prefix(root)):
        rows = page.rows(MARK_DTYPE)
        hits = np.flatnonzero(rows["root"] == root)
        if len(hits):
            target = int(rows["target"][hits[-1]])
    return target


def find_many(txn: IndexTransaction, roots: np.ndarray) -> dict[int, int]:
    """Return the targets of these roots' pointers; roots without one are left out."""
    found: dict[int, int] = {}
    roots = np.unique(roots)
    edges = np.flatnonzero(np.diff(roots >> np.uint64(20))) + 1
    for part in np.split(roots, edges) if len(roots) else []:
        for _, page in txn.prefix(TABLE, block_prefix(int(part[0]))):
            rows = page.rows(MARK_DTYPE)
            rows = rows[np.isin(rows["root"], part)]
            found.update(zip(rows["root"].tolist(), rows["target"].tolist(), strict=True))
    return found


def drop_before(txn: IndexTransaction, offset: int) -> None:
    """Remove the pointers of dropped roots whose target is dropped too."""
    stop = block_prefix(offset)
    found = [(key, page.rows(MARK_DTYPE)) for key, page in txn.pages(TABLE, b"", stop + sequence_key(0))]
    for key, rows in found:
        kept = rows[rows["target"] >= offset]
        if len(kept) == len(rows):
            continue
        txn.remove(TABLE, [key])
        if len(kept):
            txn.put(TABLE, key, pages.pack(kept))
