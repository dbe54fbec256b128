"""The two halves of the audit's shuffle: references of each segment, and its judgement. Runs in executors.

Executors write a file of each table per segment. A repeated task writes the same file again.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from timerwheel.spark_jobs.audit.findings import SCHEMA, Heads, findings_of, table_of
from timerwheel.spark_jobs.audit.ledger import (
    DELIVERED,
    OUTCOMES,
    PENDING,
    Bounds,
    Judgement,
    Ledger,
    references_of,
)
from timerwheel.spark_jobs.audit.tallies import tallies
from timerwheel.spark_jobs.columns import arrow_schema
from timerwheel.spark_jobs.segment_stats import Survey
from timerwheel.spark_jobs.segments import Segment
from timerwheel.spark_jobs.storage import join
from timerwheel.spark_jobs.tables import parquet_file
from timerwheel.store.record import FLAG_LEASE
from timerwheel.store.segment import SEGMENT_HEADER_SIZE
from timerwheel.store.table import Table

TIMERS = "timers"
FINDINGS = "findings"
TIMERS_SCHEMA = arrow_schema(
    "node string, segment bigint, offset bigint, root bigint, topic string, queue int, due_ms bigint, "
    "stored_ms bigint, outcome string, ended_ms bigint, end_offset bigint, lateness_ms bigint"
)


class Log(NamedTuple):
    """One of the logs."""

    log_id: bytes
    segments: list[Segment]
    bounds: Bounds


class Books:
    """The data that executors need in advance; grows with segments and topics.

    With `out`, a directory or URL that every executor can write to, timers and findings are stored there.
    `findings_max` limits the findings that a segment returns, and those with ids if nothing is stored.
    """

    def __init__(self, survey: Survey, out: str | None, findings_max: int) -> None:
        self.names = sorted({topic for found in survey.found for topic in found.topics})
        self._numbers = {name: number for number, name in enumerate(self.names)}
        self._logs: list[Log] = []
        self._log_of: list[int] = []
        for log in survey.logs:
            found = survey.of(log)
            segments = [segment for segment, _ in found]
            damaged = [one for _, segment in found for one in segment.damaged if not one.torn]
            bounds = Bounds(
                begin=segments[0].base + SEGMENT_HEADER_SIZE,
                whole=segments[0].base == 0,
                last_ms=max(segment.last_store_ms for _, segment in found),
                bases=np.array([segment.base for segment in segments], np.int64),
                damaged=[(one.offset, one.end) for one in damaged],
            )
            self._log_of += [len(self._logs)] * len(segments)
            self._logs.append(Log(log.log_id, segments, bounds))
        self._segments = survey.segments
        self._out = out
        self._findings_max = findings_max

    def emit(self, number: int, table: Table) -> dict[str, np.ndarray]:
        """The references of a segment to earlier records, for `shuffle`."""
        return references_of(table.rows, self._numbers_of(table), self._logs[self._log_of[number]].bounds)

    def collect(self, number: int, table: Table, references: pa.Table) -> pa.Table:
        """Judges a segment, for `shuffle`: writes its tables, returns its tallies."""
        log = self._logs[self._log_of[number]]
        segment = self._segments[number]
        judged = Ledger(table, self._numbers_of(table), self.names, log.bounds).judge(references)
        ids_max = self._findings_max if self._out is None else len(judged.faults)
        with Heads(log.segments, log.log_id) as heads:
            findings = findings_of(segment.node, judged.faults, heads, ids_max)
        if self._out is not None:
            name = f"part-{number:06d}.parquet"
            with parquet_file(join(self._out, TIMERS, name), TIMERS_SCHEMA) as writer:
                writer.write_table(_timers(segment, table.topics, judged))
            if findings or number == 0:  # a table without any file could not be read
                with parquet_file(join(self._out, FINDINGS, name), SCHEMA) as writer:
                    writer.write_table(table_of(findings))
        return tallies(segment.node, table, judged, findings, log.bounds, self._findings_max)

    def _numbers_of(self, table: Table) -> np.ndarray:
        # A sidecar may name topics without records.
        return np.array([self._numbers.get(name, -1) for name in table.topics], np.int32)


def _timers(segment: Segment, topics: list[str], judged: Judgement) -> pa.Table:
    """The timers of clients."""
    chosen = judged.timers["flags"] & FLAG_LEASE == 0
    rows = judged.timers[chosen]
    outcomes, ended_by, ended_ms = judged.outcomes[chosen], judged.ended_by[chosen], judged.ended_ms[chosen]
    waits = outcomes == PENDING
    columns = {
        "node": pa.repeat(pa.scalar(segment.node), len(rows)),
        "segment": pa.repeat(pa.scalar(segment.base, pa.int64()), len(rows)),
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
