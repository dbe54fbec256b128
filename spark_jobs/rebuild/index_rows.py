"""Builds the rows of an index from the tables of segments. Runs in executors.

A row is an entry of LMDB: table, key, value. `sequenced` keys lack the sequence of their page, which the
loader adds. No two segments produce the same key, so rows may come in any order and from any attempt of a
task.
"""

from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from timerwheel.index import forwarding, queues
from timerwheel.spark_jobs.columns import arrow_schema
from timerwheel.spark_jobs.storage import join, write_atomically
from timerwheel.spark_jobs.tables import arrow_file
from timerwheel.state.batch import Batch, has_origin, visible_rows
from timerwheel.state.positions import positions_of
from timerwheel.store import pages
from timerwheel.store.keys import queue_prefix, sequence_key
from timerwheel.store.record import Kind
from timerwheel.store.table import Table
from timerwheel.wheel import slot_table
from timerwheel.wheel.geometry import Horizons

COLLECTED = "stats binary"
ROWS = arrow_schema("name string, key binary, value binary, sequenced boolean")
BATCH_ROWS = 256
_END, _MARK = 0, 1


def rows_file(staging: str, number: int) -> str:
    """The file for the rows of a segment."""
    return join(staging, "rows", f"{number:08d}.arrow")


class SegmentPlan(NamedTuple):
    """The data that a task needs about a segment besides its table."""

    log: int
    begin: int  # where the kept log begins
    topics: dict[str, int]  # the ids that the index gives to topics
    firsts: dict[tuple[str, int], int]  # the queue offset of the segment's first message of (topic, queue)


class SegmentStats(msgspec.Struct, frozen=True):
    """Counts of the rows of one segment."""

    number: int
    pending: int
    topics: list[tuple[int, int]]  # topic id, pending timers
    levels: list[tuple[int, int]]  # legacy delay level, pending timers
    last_end_ms: int  # when one of its timers was last delivered or recalled
    digest: int
    positions: int
    marks: int


class IndexRows:
    """The two halves of `shuffle` for a rebuild; rows go to files in `staging`."""

    def __init__(self, plans: list[SegmentPlan], horizons: Horizons, staging: str) -> None:
        self._plans = plans
        self._horizons = horizons
        self._staging = staging

    def emit(self, number: int, table: Table) -> dict[str, np.ndarray]:
        """The timers that the segment's records end, and the messages whose current record they become."""
        rows = table.rows
        marked = Batch(rows).pointing
        ends = rows[has_origin(rows) & (rows["origin"] >= self._plans[number].begin)]
        over = np.where(ends["kind"] == Kind.TIMER, 0, ends["store_ms"])
        what = np.repeat(np.array([_END, _MARK], np.int8), (len(ends), len(marked)))
        return {
            "about": np.concatenate([ends["origin"], marked["root"]]).astype(np.int64),
            "what": what,
            "target": np.concatenate([ends["offset"], marked["offset"]]).astype(np.int64),
            "ended_ms": np.concatenate([over, np.zeros(len(marked), np.int64)]),
        }

    def collect(self, number: int, table: Table, references: pa.Table) -> pa.Table:
        """The rows of a segment: its pending timers, positions of its messages, and marks of its roots."""
        plan = self._plans[number]
        rows = table.rows
        ids = np.array([plan.topics.get(name, 0) for name in table.topics], np.uint32)
        what, about = references["what"].to_numpy(), references["about"].to_numpy().astype(np.uint64)
        ended = about[what == _END]
        timers = rows.compress(rows["kind"] == Kind.TIMER)
        pending = timers.compress(~np.isin(timers["offset"], ended))
        pending["topic"] = ids[pending["topic"]]
        made = _Made()
        for page in slot_table.slot_pages(slot_table.entries_of(pending, removed=False), self._horizons):
            made.page(slot_table.TABLE, page.prefix, page.rows, weight=page.weight, mask=page.mask)
        positions = self._queues(made, plan, table)
        marked = _last_marks(about[what == _MARK], references["target"].to_numpy()[what == _MARK])
        for prefix, chunk in forwarding.mark_pages(marked) if len(marked) else ():
            made.page(forwarding.TABLE, prefix, chunk)
        stats = SegmentStats(
            number=number,
            pending=len(pending),
            topics=_counts(pending["topic"]),
            levels=_counts(pending["level"][pending["level"] > 0]),
            last_end_ms=int(references["ended_ms"].to_numpy().max(initial=0)),
            digest=pages.digest_of(pending["offset"], pending["due_ms"]),
            positions=positions,
            marks=len(marked),
        )
        write_atomically(rows_file(self._staging, number), made.packed())
        return pa.table({"stats": pa.array([msgspec.msgpack.encode(stats)], pa.binary())})

    def _queues(self, made: "_Made", plan: SegmentPlan, table: Table) -> int:
        visible = visible_rows(table.rows)
        keys = visible["topic"].astype(np.int64) << 16 | visible["queue"]
        for key in np.unique(keys).tolist():
            name, queue = table.topics[key >> 16], key & 0xFFFF
            prefix, first = queue_prefix(plan.topics[name], queue), plan.firsts[name, queue]
            for chunk in pages.chunks(positions_of(visible.compress(keys == key))):
                made.row(queues.TABLE, prefix + sequence_key(first), pages.pack(chunk))
                first += len(chunk)
        return len(visible)


class _Made:
    """Collects rows."""

    def __init__(self) -> None:
        self._columns: tuple[list[str], list[bytes], list[bytes], list[bool]] = ([], [], [], [])

    def row(self, name: str, key: bytes, value: bytes, *, sequenced: bool = False) -> None:
        for column, cell in zip(self._columns, (name, key, value, sequenced), strict=True):
            column.append(cell)  # type: ignore[attr-defined]

    def page(self, name: str, prefix: bytes, rows: np.ndarray, *, weight: int = 0, mask: int = 0) -> None:
        self.row(name, prefix, pages.pack(rows, weight=weight, mask=mask), sequenced=True)

    def packed(self) -> pa.Buffer:
        """The rows as an Arrow file (ROWS)."""
        return arrow_file(pa.table(list(self._columns), schema=ROWS), batch_rows=BATCH_ROWS)


def _last_marks(roots: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """One mark for each root: the last that the log has."""
    order = np.lexsort((targets, roots))
    roots, targets = roots[order], targets[order]
    last = np.append(roots[1:] != roots[:-1], [True]) if len(roots) else np.zeros(0, bool)
    rows = np.zeros(int(last.sum()), forwarding.MARK_DTYPE)
    rows["root"], rows["target"] = roots[last], targets[last]
    return rows


def _counts(values: np.ndarray) -> list[tuple[int, int]]:
    found, counts = np.unique(values, return_counts=True)
    return list(zip(found.tolist(), counts.tolist(), strict=True))
