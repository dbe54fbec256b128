"""Writes the index: the changes of a memtable in one transaction, with the checkpoint that covers them.

One thread writes. The caller syncs the log before it commits a memtable, so the index is never ahead of
what is durable.
"""

import struct
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from hashlib import blake2s

import msgspec
import numpy as np

from timerwheel.index import dedup, forwarding, key_runs, queues
from timerwheel.state.config_table import Put
from timerwheel.state.groups import Writes
from timerwheel.state.memtable import IndexState, Kept, Memtable, QueuePages, Snapshot
from timerwheel.state.positions import POSITION_DTYPE
from timerwheel.store.index import INDEX_FORMAT, Index, IndexTransaction
from timerwheel.store.record import NO_OFFSET, Kind
from timerwheel.store.rows import join
from timerwheel.store.table import ROW_DTYPE
from timerwheel.wheel import slot_table
from timerwheel.wheel.geometry import Horizons

STATE_KEY = b"state"
ITEM_KEY = struct.Struct(">IQ")


def read_state(txn: IndexTransaction) -> IndexState | None:
    """Return the checkpoint and the values beside it; None in a new index."""
    raw = txn.get("meta", STATE_KEY)
    return None if raw is None else msgspec.msgpack.decode(raw, type=IndexState)


def read_kept(txn: IndexTransaction) -> Kept:
    """Return the tables that a start loads into memory."""
    return Kept(
        [raw for _, raw in txn.items("topics")],
        {int.from_bytes(key, "big"): raw for key, raw in txn.items("segments")},
        [msgspec.json.decode(raw, type=Put) for _, raw in txn.items("control")],
        [(int.from_bytes(key, "big"), raw) for key, raw in txn.items("groups")],
        [(*ITEM_KEY.unpack(key), raw) for key, raw in txn.items("leases")],
        [(int.from_bytes(key, "big"), raw) for key, raw in txn.items("dead")],
    )


def _put_settings(txn: IndexTransaction, puts: Iterable[Put]) -> None:
    for put in puts:
        # LMDB's keys are short; the value has the names.
        key = blake2s(f"{put.table}\0{put.key}".encode(), digest_size=16).digest()
        _put_or_delete(txn, "control", key, None if put.value is None else msgspec.json.encode(put))


def _put_groups(txn: IndexTransaction, writes: Writes) -> None:
    for number, raw in writes.groups.items():
        _put_or_delete(txn, "groups", number.to_bytes(4, "big"), raw)
    for place, raw in writes.items.items():
        _put_or_delete(txn, "leases", ITEM_KEY.pack(*place), raw)
    for number, raw in writes.dead.items():
        txn.put("dead", number.to_bytes(4, "big"), raw)


def _put_or_delete(txn: IndexTransaction, table: str, key: bytes, raw: bytes | None) -> None:
    if raw is None:
        txn.delete(table, key)
    else:
        txn.put(table, key, raw)


class IndexWriter:
    """Writes memtables and cascade steps. Belongs to the index thread."""

    def __init__(self, index: Index, state: IndexState) -> None:
        self.index = index
        self.state = state
        self._crowded: set[slot_table.Slot] = set()

    def read(self) -> AbstractContextManager[IndexTransaction]:
        """Begin a read transaction: the index as of its last commit."""
        return self.index.read()

    def write(self) -> AbstractContextManager[IndexTransaction]:
        """Begin a write transaction, on the index thread."""
        return self.index.write()

    def commit(self, memtable: Memtable, snapshot: Snapshot) -> None:
        """Commit a memtable's changes and the checkpoint that covers them, in one transaction."""
        entries = memtable_entries(memtable.rows)
        horizons, sequence = self.state.horizons, self.state.sequence
        with self.index.write() as txn:
            sequence, lost = slot_table.put(txn, entries, horizons, sequence)
            slot_table.drop_empty(txn, lost, horizons)
            crowded = slot_table.crowded(txn, lost, horizons)
            for pages in joined(memtable.queues):
                queues.put(txn, *pages)
            sequence = forwarding.put(txn, memtable.pointers.items(), sequence)
            for topic_id, raw in snapshot.topics.items():
                txn.put("topics", topic_id.to_bytes(4, "big"), raw)
            for base, raw in snapshot.segments.items():
                txn.put("segments", base.to_bytes(8, "big"), raw)
            sequence = dedup.put(txn, memtable.keys, sequence)
            _put_settings(txn, memtable.control.values())
            _put_groups(txn, snapshot.groups)
            state = msgspec.structs.replace(
                self.state,
                format=INDEX_FORMAT,
                until=memtable.until,
                sequence=sequence,
                fired_until_ms=snapshot.fired_until_ms,
                level_pending=snapshot.level_pending,
            )
            self._put_state(txn, state)
        self.state = state
        self._crowded |= crowded

    def cascade(self, now_ms: int, entries_max: int) -> int:
        """Run one bounded step; returns how many entries it moved. If it moved any, there may be more to do.

        Horizons that passed only empty slots are written with the next change; the old ones are still valid.
        """
        with self.index.write() as txn:
            horizons, sequence, moved = slot_table.cascade(
                txn, self.state.horizons, now_ms, entries_max=entries_max, sequence=self.state.sequence
            )
            state = msgspec.structs.replace(self.state, horizons=horizons, sequence=sequence)
            if moved:
                self._put_state(txn, state)
        self.state = state
        return moved

    def compact(self) -> bool:
        """Drop what was added and removed from one crowded slot; returns whether there was one."""
        if not self._crowded:
            return False
        slot = min(self._crowded)
        with self.index.write() as txn:
            sequence = slot_table.compact(txn, slot, self.state.horizons, self.state.sequence)
            state = msgspec.structs.replace(self.state, sequence=sequence)
            self._put_state(txn, state)
        self.state = state
        self._crowded.discard(slot)
        return True

    def merge_keys(self, now_ms: int) -> int:
        """Take one step of merging runs of deduplication keys; returns about how many rows it wrote."""
        state = self.state
        with self.index.write() as txn:
            written = key_runs.merge(txn, now_ms, state.sequence)
            if written:
                state = msgspec.structs.replace(state, sequence=state.sequence + 1)
                self._put_state(txn, state)
        self.state = state
        return written

    def sweep_keys(self, now_ms: int) -> None:
        """Have the run of whose keys most have ended written again; `merge_keys` takes the steps."""
        state = self.state
        with self.index.write() as txn:
            if key_runs.sweep(txn, now_ms, state.sequence):
                state = msgspec.structs.replace(state, sequence=state.sequence + 1)
                self._put_state(txn, state)
        self.state = state

    def load(self, from_ms: int, to_ms: int, entries_max: int) -> tuple[slot_table.Entries, int, int]:
        """Return entries for the near wheel, the time up to which they are complete, and their checkpoint."""
        with self.index.read() as txn:
            to_ms = min(to_ms, slot_table.loadable_until(txn, self.state.horizons))
            if to_ms <= from_ms:
                return np.zeros(0, slot_table.ENTRY_DTYPE), from_ms, self.state.until
            entries, until_ms = slot_table.load(txn, from_ms, to_ms, entries_max)
        return entries, until_ms, self.state.until

    def _put_state(self, txn: IndexTransaction, state: IndexState) -> None:
        txn.put("meta", STATE_KEY, msgspec.msgpack.encode(state))


def new_state(log_id: bytes, horizons: Horizons, start: int) -> IndexState:
    """Return the state of an empty index that begins at a log offset."""
    return IndexState(INDEX_FORMAT, log_id, start, horizons, 0, 0, {})


def joined(parts: Iterable[QueuePages]) -> Iterator[QueuePages]:
    """Join the positions of each queue over many batches: hundreds of small pages would cost far more."""
    by_queue: dict[tuple[int, int], list[QueuePages]] = {}
    for part in parts:
        by_queue.setdefault((part.topic_id, part.queue), []).append(part)
    for (topic_id, queue), found in by_queue.items():
        positions = join([part.positions for part in found], POSITION_DTYPE)
        yield QueuePages(topic_id, queue, found[0].first, positions)


def memtable_entries(parts: list[np.ndarray]) -> slot_table.Entries:
    """Return the wheel entries of applied rows, without timers that they both add and end."""
    if not parts:
        return np.zeros(0, slot_table.ENTRY_DTYPE)
    rows = join(parts, ROW_DTYPE)
    # `compress` moves rows whole; indexing by a mask moves them field by field, three times as slowly.
    adds = slot_table.entries_of(rows.compress(rows["kind"] == int(Kind.TIMER)), removed=False)
    removes = slot_table.entries_of(rows.compress(rows["origin"] != np.uint64(NO_OFFSET)), removed=True)
    return slot_table.cancel_out(join([adds, removes], slot_table.ENTRY_DTYPE))
