"""The two halves of the audit's shuffle: references of each piece, and its judgement. Runs in executors.

Executors write a file of each table per piece (`spark_jobs.audit.plan`). A repeated task writes the same file
again.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timerwheel.spark_jobs.audit.checkpoint import Generation
from timerwheel.spark_jobs.audit.findings import SCHEMA, Finding, Heads, findings_of, table_of
from timerwheel.spark_jobs.audit.ledger import (
    DELIVERED,
    OF_TIMER,
    OUTCOMES,
    PENDING,
    Bounds,
    Judgement,
    Ledger,
    earlier_references,
    references_of,
)
from timerwheel.spark_jobs.audit.plan import Piece, Plan
from timerwheel.spark_jobs.audit.tallies import in_segment, tallies, tallies_of_ends, tallies_of_piece
from timerwheel.spark_jobs.columns import arrow_schema
from timerwheel.spark_jobs.segments import Segment, SegmentReader
from timerwheel.spark_jobs.storage import join, write_atomically
from timerwheel.spark_jobs.tables import parquet_file
from timerwheel.store import sidecar
from timerwheel.store.record import FLAG_LEASE
from timerwheel.store.table import Table

TIMERS = "timers"
FINDINGS = "findings"
TIMERS_SCHEMA = arrow_schema(
    "node string, segment bigint, offset bigint, root bigint, topic string, queue int, due_ms bigint, "
    "stored_ms bigint, outcome string, ended_ms bigint, end_offset bigint, lateness_ms bigint"
)


class Log(NamedTuple):
    """One of the logs: the segments that it has now, and where the checkpoint keeps dropped timers."""

    log_id: bytes
    segments: Sequence[Segment]
    bounds: Bounds
    dropped: list[Segment]


class Auditor:
    """Audits pieces of the logs on executors, with the data that it needs there of segments and topics.

    With `out`, a directory or URL that every executor can write to, timers and findings are stored there.
    With `checkpoint`, open timers and records of dropped ones are stored in that directory or URL.
    `findings_max` limits the findings that a segment returns, and those with ids if nothing is stored.
    """

    def __init__(
        self, plan: Plan, out: str | None, findings_max: int, *, checkpoint: Generation | None = None
    ) -> None:
        self.names = plan.topics
        self._numbers = {name: number for number, name in enumerate(self.names)}
        # Executors need no counts of open timers: these grow with the topics of each piece.
        self._pieces = [
            piece._replace(open=piece.open and msgspec.structs.replace(piece.open, counts=[]))
            for piece in plan.pieces
        ]
        self._first = next(number for number, piece in enumerate(plan.pieces) if piece.open is None)
        self._logs: list[Log] = []
        for one in plan.logs:
            dropped: list[Segment] = []
            if checkpoint is not None:
                dropped = [
                    Segment(one.log.node, "", file.base, file.until, checkpoint.file(file.path), file.until)
                    for file in one.dropped
                ]
            self._logs.append(Log(one.log.log_id, one.log.segments, one.bounds, dropped))
        self._out = out
        self._findings_max = findings_max
        self._checkpoint = checkpoint

    def emit(self, number: int, table: Table) -> dict[str, np.ndarray]:
        """The references of a piece to earlier records, for `shuffle`."""
        return references_of(table.rows, self._numbers_of(table), self._logs[self._pieces[number].log].bounds)

    def collect(self, number: int, table: Table, references: pa.Table) -> pa.Table:
        """Judges a piece, for `shuffle`: writes its tables, returns its tallies."""
        piece = self._pieces[number]
        log = self._logs[piece.log]
        node, before = piece.read.node, piece.open is not None
        references = self._with_earlier(log, references)
        numbers = self._numbers_of(table)
        judged = Ledger(table, numbers, self.names, log.bounds, before=before).judge(references)
        if piece.out_of_order is not None:
            judged = judged._replace(out_of_order=piece.out_of_order)
        ids_max = self._findings_max if self._out is None else len(judged.faults)
        with Heads(log.segments, log.log_id) as heads:
            findings = findings_of(node, judged.faults, heads, ids_max)
        if self._out is not None:
            self._write_tables(number, table.topics, judged, findings)
        count = tallies_of_ends if before else tallies
        found = count(node, table, judged, findings, log.bounds, self._findings_max)
        found = in_segment(found, piece.segment)
        if self._checkpoint is None:
            return found
        return pa.concat_tables([found, self._keep(self._checkpoint, number, table, judged)])

    def _with_earlier(self, log: Log, references: pa.Table) -> pa.Table:
        """Adds the earlier references to the same dropped timers; a sound log has no new ones."""
        if not log.dropped or not pc.any(pc.not_equal(references["sort"], OF_TIMER)).as_py():
            return references
        parts = [references]
        for file in log.dropped:
            table = SegmentReader(file).table()
            parts.append(earlier_references(table.rows, self._numbers_of(table), references))
        return pa.concat_tables([part.select(references.column_names) for part in parts]).combine_chunks()

    def _write_tables(
        self, number: int, topics: list[str], judged: Judgement, findings: Sequence[Finding]
    ) -> None:
        assert self._out is not None
        name = f"part-{number:06d}.parquet"
        with parquet_file(join(self._out, TIMERS, name), TIMERS_SCHEMA) as writer:
            writer.write_table(_timers(self._pieces[number], topics, judged))
        if findings or number == self._first:  # a table without any file could not be read
            with parquet_file(join(self._out, FINDINGS, name), SCHEMA) as writer:
                writer.write_table(table_of(findings))

    def _keep(self, checkpoint: Generation, number: int, table: Table, judged: Judgement) -> pa.Table:
        """Stores what the next audit needs of a piece; returns the tallies that say so."""
        piece = self._pieces[number]
        read = piece.read
        assert read.until is not None
        pending = judged.outcomes == PENDING
        timers = None if piece.open is not None and pending.all() else judged.timers[pending]
        if timers is not None and len(timers):
            data = sidecar.encode(Table(timers, table.topics), read.base, read.until)
            write_atomically(checkpoint.file(checkpoint.open_path(number)), data)
        dropped = table.rows[judged.carried]
        if len(dropped):
            data = sidecar.encode(Table(dropped, table.topics), read.base, read.until)
            write_atomically(checkpoint.file(checkpoint.dropped_path(number)), data)
        return tallies_of_piece(
            read.node, number, table.topics, timers, dropped=len(dropped), strange=judged.strange
        )

    def _numbers_of(self, table: Table) -> np.ndarray:
        # A sidecar may name topics without records.
        return np.array([self._numbers.get(name, -1) for name in table.topics], np.int32)


def _timers(piece: Piece, topics: list[str], judged: Judgement) -> pa.Table:
    """The timers of clients; of those that an earlier audit wrote, only the ones that have ended since."""
    chosen = judged.timers["flags"] & FLAG_LEASE == 0
    if piece.open is not None:
        chosen &= judged.outcomes != PENDING
    rows = judged.timers[chosen]
    outcomes, ended_by, ended_ms = judged.outcomes[chosen], judged.ended_by[chosen], judged.ended_ms[chosen]
    waits = outcomes == PENDING
    columns = {
        "node": pa.repeat(pa.scalar(piece.read.node), len(rows)),
        "segment": pa.repeat(pa.scalar(piece.segment, pa.int64()), len(rows)),
        "offset": rows["offset"].astype(np.int64),
        "root": rows["root"].astype(np.int64),
        "topic": pa.array(topics, pa.string()).take(pa.array(rows["topic"])),
        "queue": rows["queue"].astype(np.int32),
        "due_ms": rows["due_ms"],
        "stored_ms": rows["store_ms"],
        "outcome": pa.array(OUTCOMES).take(pa.array(outcomes)),
        "ended_ms": pa.array(ended_ms, mask=waits),
        "end_offset": pa.array(ended_by, mask=waits),
        "lateness_ms": pa.array(ended_ms - rows["due_ms"], mask=outcomes != DELIVERED),
    }
    return pa.table(columns, schema=TIMERS_SCHEMA)
