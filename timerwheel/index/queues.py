"""Consume queues in the index: for each queue of a topic, the log positions of its visible messages.

A page's sequence is the queue offset of its first row, so queue offsets are dense and a page is found by
one seek. Rows are in log order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from timerwheel.state.positions import POSITION_DTYPE, Positions
from timerwheel.store import pages
from timerwheel.store.keys import queue_prefix, sequence_of
from timerwheel.store.rows import join

if TYPE_CHECKING:
    from timerwheel.store.index import IndexTransaction

TABLE = "queues"
_READ_ROWS = 2_048


def put(txn: IndexTransaction, topic_id: int, queue: int, first: int, positions: Positions) -> None:
    """Append positions whose first has queue offset `first`."""
    prefix = queue_prefix(topic_id, queue)
    for chunk in pages.chunks(positions):
        txn.put_page(TABLE, prefix, first, chunk)
        first += len(chunk)


def read(txn: IndexTransaction, topic_id: int, queue: int, first: int, count_max: int) -> Positions:
    """Return the positions from queue offset `first` on, at most `count_max`."""
    prefix = queue_prefix(topic_id, queue)
    parts: list[Positions] = []
    count = 0
    while count < count_max:
        found = txn.page_before(TABLE, prefix, first)
        if found is None:
            break
        start, page = found
        rows = page.rows(POSITION_DTYPE)[first - start :]
        if not len(rows):
            break
        parts.append(rows)
        count += len(rows)
        first += len(rows)
    joined = join(parts, POSITION_DTYPE)
    return joined[:count_max]


def search(low: int, high: int, is_before: Callable[[int], bool]) -> int:
    """Return the first queue offset in [low, high) for which `is_before` is false."""
    while low < high:
        middle = (low + high) // 2
        if is_before(middle):
            low = middle + 1
        else:
            high = middle
    return low


def first_at(txn: IndexTransaction, topic_id: int, queue: int, end: int, log_offset: int) -> int:
    """Return the first queue offset whose message lies at or after a log offset; at most `end`.

    `end` is one past the last message in the index. Messages that readers no longer see count, too.
    """
    begin = next(txn.prefix(TABLE, queue_prefix(topic_id, queue)), None)

    def is_before(middle: int) -> bool:
        rows = read(txn, topic_id, queue, middle, 1)
        return bool(len(rows)) and int(rows["offset"][0]) < log_offset

    return search(end if begin is None else sequence_of(begin[0]), end, is_before)


def around(
    txn: IndexTransaction, topic_id: int, queue: int, bounds: tuple[int, int], store_ms: int
) -> Iterator[tuple[int, Positions]]:
    """Yield positions and the queue offset of the first: from a store time on, then all within `bounds`."""

    def is_before(middle: int) -> bool:
        rows = read(txn, topic_id, queue, middle, 1)
        return bool(len(rows)) and int(rows["store_ms"][0]) < store_ms

    for first in dict.fromkeys((search(*bounds, is_before), bounds[0])):
        at = first
        while len(rows := read(txn, topic_id, queue, at, _READ_ROWS)):
            yield at, rows
            at += len(rows)


def since(
    txn: IndexTransaction, topic_id: int, queue: int, bounds: tuple[int, int], store_ms: int
) -> Iterator[Positions]:
    """Yield the positions within `bounds` from a store time on."""

    def is_before(middle: int) -> bool:
        rows = read(txn, topic_id, queue, middle, 1)
        return bool(len(rows)) and int(rows["store_ms"][0]) < store_ms

    at = search(*bounds, is_before)
    while len(rows := read(txn, topic_id, queue, at, _READ_ROWS)):
        yield rows
        at += len(rows)


def drop_before(txn: IndexTransaction, topic_id: int, queue: int, first: int) -> None:
    """Remove the pages whose every row is before queue offset `first`."""
    prefix = queue_prefix(topic_id, queue)
    doomed: list[bytes] = []
    for key, page in txn.prefix(TABLE, prefix):
        if sequence_of(key) + page.head().rows > first:
            break
        doomed.append(key)
    txn.remove(TABLE, doomed)
