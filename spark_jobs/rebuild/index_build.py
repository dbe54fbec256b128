"""Loads and checks a new index from the rows that executors wrote. Runs on the driver.

Memory: one batch of rows, however large the index becomes.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from timerwheel.index import dedup, forwarding, key_runs, queues
from timerwheel.index.writer import IndexWriter, new_state
from timerwheel.spark_jobs.errors import JobError
from timerwheel.spark_jobs.rebuild.index_rows import SegmentStats
from timerwheel.spark_jobs.tables import open_arrow
from timerwheel.state.dedup_key import unpack
from timerwheel.state.key_columns import NewKeys
from timerwheel.state.positions import POSITION_DTYPE
from timerwheel.state.state import LogState
from timerwheel.store import pages
from timerwheel.store.files import make_directory
from timerwheel.store.index import Index, IndexTransaction
from timerwheel.store.keys import sequence_key, sequence_of, slot_of
from timerwheel.store.rows import join
from timerwheel.wheel import slot_table
from timerwheel.wheel.geometry import Horizons, place

BATCH_ENTRIES = 100_000
COMMIT_BYTES = 64 << 20


class IndexSummary(NamedTuple):
    """Counts and digests of an index, for comparison."""

    pending: int
    digest: int  # of the pending timers, see `pages.digest_of`
    slots: int
    positions: int
    marks: int
    keys: int
    key_ends: int


def load_rows(index: Index, urls: list[str], report: Callable[[int, int], None]) -> int:
    """Put the rows of segments into an empty index; returns how many of them got a sequence.

    Calls `report(files done, files)`.
    """
    sequence = 0
    for done, url in enumerate(urls):
        report(done, len(urls))
        with open_arrow(url) as rows:
            for portion in _portions(rows):
                with index.write() as txn:
                    for table, key, value, sequenced in portion:
                        if sequenced:
                            key += sequence_key(sequence)  # noqa: PLW2901 - the rest of the key
                            sequence += 1
                        txn.put(table, key, value)
    report(len(urls), len(urls))
    return sequence


def _portions(file: pa.RecordBatchFileReader) -> Iterator[list[tuple[str, bytes, bytes, bool]]]:
    """Yields batches of rows, each sized for one transaction."""
    portion: list[tuple[str, bytes, bytes, bool]] = []
    size = 0
    for number in range(file.num_record_batches):
        batch = file.get_batch(number)
        portion += zip(*(column.to_pylist() for column in batch.columns), strict=True)
        size += batch.nbytes
        if size >= COMMIT_BYTES:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def load_keys(index: Index, urls: list[str], sequence: int) -> int:
    """Put the deduplication keys into an index, many at a time; returns the next sequence."""
    keys = NewKeys()
    for url in urls:
        with open_arrow(url) as rows:
            for number in range(rows.num_record_batches):
                digests, values = (column.to_pylist() for column in rows.get_batch(number).columns)
                keys.put(dict(zip(digests, map(unpack, values), strict=True)))
                if len(keys) >= BATCH_ENTRIES:
                    sequence = _put_keys(index, keys, sequence)
                    keys = NewKeys()
    return _put_keys(index, keys, sequence)


def _put_keys(index: Index, keys: NewKeys, sequence: int) -> int:
    with index.write() as txn:
        return dedup.put(txn, keys, sequence)


def complete(index: Index, log_state: LogState, log_id: bytes, horizons: Horizons, sequence: int) -> None:
    """Write the tables of the log state, and the checkpoint `view.until`."""
    state = new_state(log_id, horizons, log_state.until)
    writer = IndexWriter(index, msgspec.structs.replace(state, sequence=sequence))
    memtable, snapshot = log_state.freeze()
    writer.commit(memtable, snapshot)
    log_state.committed()


def summarize_index(index: Index, *, check: Horizons | None = None) -> IndexSummary:
    """Read every page and sum up; with `check`, raises JobError for a misplaced entry."""
    with index.read() as txn:
        pending, digest, slots = _read_wheel(txn, check)
        in_runs = key_runs.proved_count(txn)
        return IndexSummary(
            pending,
            digest,
            slots,
            _read_queues(txn, check=check is not None),
            sum(len(page.rows(forwarding.MARK_DTYPE)) for _, page in txn.pages(forwarding.TABLE, b"")),
            sum(1 for _ in txn.items(dedup.TABLE)) + in_runs,
            sum(1 for _ in txn.items(dedup.ENDS_TABLE)) + in_runs,
        )


def _read_wheel(txn: IndexTransaction, check: Horizons | None) -> tuple[int, int, int]:
    pending = digest = 0
    slots: set[tuple[int, int]] = set()
    for keys, parts in _wheel_batches(txn):
        slots |= set(keys)
        rows = join(parts, slot_table.ENTRY_DTYPE)
        adds = rows["op"] == slot_table.ADD
        pending += 2 * int(np.count_nonzero(adds)) - len(rows)
        digest += pages.digest_of(rows["offset"][adds], rows["due_ms"][adds])
        digest -= pages.digest_of(rows["offset"][~adds], rows["due_ms"][~adds])
        if check is not None:
            found = place(rows["due_ms"], check)
            stated = np.repeat(np.array(keys), [len(part) for part in parts], axis=0)
            wrong = np.flatnonzero((found[0] != stated[:, 0]) | (found[1] != stated[:, 1]))
            if len(wrong):
                level, start_ms = stated[wrong[0]].tolist()
                raise JobError(f"the new index has timers in the wrong slot: level {level}, {start_ms} ms")
    return pending, digest % (1 << 64), len(slots)


def _wheel_batches(txn: IndexTransaction) -> Iterator[tuple[list[tuple[int, int]], list[np.ndarray]]]:
    """Yields (slot, entries) of many pages at a time, since most pages are short."""
    keys: list[tuple[int, int]] = []
    parts: list[np.ndarray] = []
    count = 0
    for key, page in txn.pages(slot_table.TABLE, b""):
        keys.append(slot_of(key))
        parts.append(page.rows(slot_table.ENTRY_DTYPE))
        count += len(parts[-1])
        if count >= BATCH_ENTRIES:
            yield keys, parts
            keys, parts, count = [], [], 0
    if parts:
        yield keys, parts


def _read_queues(txn: IndexTransaction, *, check: bool) -> int:
    positions = 0
    queue, following, before = b"", 0, 0
    for key, page in txn.pages(queues.TABLE, b""):
        rows = page.rows(POSITION_DTYPE)
        first = sequence_of(key)
        same = key[:-8] == queue
        if check and same and (first != following or int(rows["offset"][0]) <= before):
            raise JobError(f"the new index has a gap in queue {queue.hex()} at queue offset {following}")
        queue, following, before = key[:-8], first + len(rows), int(rows["offset"][-1])
        positions += len(rows)
    return positions


def check_complete(found: IndexSummary, stats: list[SegmentStats], keys: int) -> None:
    """Raises JobError if the new index does not hold all rows of the executors."""
    counts = {
        "pending": sum(one.pending for one in stats),
        "digest": sum(one.digest for one in stats) % (1 << 64),
        "positions": sum(one.positions for one in stats),
        "marks": sum(one.marks for one in stats),
        "keys": keys,
        "key_ends": keys,
    }
    for name, count in counts.items():
        if getattr(found, name) != count:
            raise JobError(
                f"the new index was not swapped in: it has {name} = {getattr(found, name)}, the log {count}"
            )


def open_new(path: Path, map_size_bytes: int) -> Index:
    """An empty environment; removes the leftovers of an earlier attempt."""
    shutil.rmtree(path, ignore_errors=True)
    make_directory(path)
    return Index(path, map_size_bytes)
