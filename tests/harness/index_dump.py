"""What an index says, however it was made: names for topic ids, settled slots, last marks."""

import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tests.harness.drive import small_settings
from timerwheel.index import dedup, forwarding, key_runs, queues
from timerwheel.index.writer import read_kept, read_state
from timerwheel.runtime.recovery import recover
from timerwheel.state.dedup_key import KeyEntry
from timerwheel.state.positions import POSITION_DTYPE
from timerwheel.state.state import LogState
from timerwheel.store.files import DiskFiles
from timerwheel.store.index import TABLES, Index
from timerwheel.store.keys import queue_prefix
from timerwheel.wheel import slot_table

DUMPED = {
    *("meta", "wheel", "queues", "topics", "marks", "segments"),
    *("control", "groups", "leases", "dead", "keys", "key_ends", "key_parts"),
}
"""The tables that `pending_of` and `dump_index` read: a new one must be added to them first."""


def replay(data: Path, now_ms: int) -> None:
    """Make the index of a data directory in this process, as a start does."""
    shutil.rmtree(data / "index", ignore_errors=True)
    made = recover(small_settings(data), DiskFiles(), now_ms)
    made.writer.index.close()
    made.log.close()


def pending_of(data: Path) -> bytes:
    """The pending timers in the order in which they fire, topics by name: one text line each."""
    index = Index(data / "index", 1 << 28, readonly=True)
    try:
        with index.read() as txn:
            log_state = LogState(tuple)
            state = read_state(txn)
            assert state is not None
            log_state.restore(state, read_kept(txn))
            parts = [v.rows(slot_table.ENTRY_DTYPE) for _, v in txn.pages(slot_table.TABLE, b"")]
            entries = slot_table.net(np.concatenate(parts)) if parts else np.zeros(0, slot_table.ENTRY_DTYPE)
            names = [log_state.topics_by_id[number].name for number in entries["topic"].tolist()]
            rows = [
                b"%d %d %d %d %s %d %d"
                % (e["due_ms"], e["root"], e["offset"], e["size"], n.encode(), e["queue"], e["delay_level"])
                for e, n in zip(entries, names, strict=True)
            ]
            return b"\n".join(rows)
    finally:
        index.close()


def dump_index(data: Path) -> dict[str, Any]:
    """Everything else that the index says."""
    assert set(TABLES) == DUMPED, "dump the new table too, or Spark and replay could differ in it unseen"
    index = Index(data / "index", 1 << 28, readonly=True)
    try:
        with index.read() as txn:
            state = read_state(txn)
            assert state is not None
            log_state = LogState(tuple)
            log_state.restore(state, read_kept(txn))
            dump = log_state.dump_settings()
            return {
                "until": state.until,
                "log_id": state.log_id,
                "fired_until_ms": state.fired_until_ms,
                "levels": {level: count for level, count in state.level_pending.items() if count},
                "topics": {
                    topic.name: (
                        topic.pending,
                        {number: (q.min_offset, q.next_offset) for number, q in topic.queues.items()},
                    )
                    for topic in log_state.topics_by_id
                },
                "segments": {
                    base: (one.pending, one.last_store_ms, one.keyed)
                    for base, one in log_state.segments.items()
                },
                "control": sorted(msgspec.json.encode(put) for put in dump.control),
                "groups": {
                    name: (passed, sorted(items), since)
                    for name, (passed, items, since) in dump.groups.items()
                },
                "dead": dump.dead,
                "queues": {
                    (topic.name, number): np.concatenate(
                        [
                            value.rows(POSITION_DTYPE)
                            for _, value in txn.prefix(queues.TABLE, queue_prefix(topic.id, number))
                        ]
                        or [np.zeros(0, POSITION_DTYPE)]
                    ).tobytes()
                    for topic in log_state.topics_by_id
                    for number in topic.queues
                },
                "marks": _marks(txn),
                "keys": _keys(txn),
                "key_ends": _key_ends(txn),
            }
    finally:
        index.close()


def _key_ends(txn: Any) -> set[bytes]:
    """The rows of keys as they are registered now: replay leaves those of earlier registrations, too."""
    rows = {row for row, _ in txn.items("key_ends")}
    found = dedup.find(txn, [row[8:] for row in rows])
    return {row for row in rows if row[8:] in found and dedup.packed(row[8:], found[row[8:]])[1] == row}


def _keys(txn: Any) -> dict[bytes, KeyEntry]:
    """The message that each key stands for, however it is kept."""
    digests = {key for key, _ in txn.items("keys")}
    for run in key_runs.runs_of(txn).runs:
        digests.update(key_runs.digests(txn, run))
    return dedup.find(txn, sorted(digests))


def _marks(txn: Any) -> dict[int, int]:
    found: dict[int, int] = {}
    for _, value in txn.pages(forwarding.TABLE, b""):
        rows = value.rows(forwarding.MARK_DTYPE)
        found.update(zip(rows["root"].tolist(), rows["target"].tolist(), strict=True))
    return found
