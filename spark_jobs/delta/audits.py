"""The tables of audits as Delta tables, for questions over many nights.

    URL/timers     partitioned by the day (UTC) on which the timer was stored
    URL/findings   by the day of the due time
    URL/lateness   by the day of the due time
    URL/audits     which audit accounts for which part of which log; written first

Each row has `audit`, an id that follows from the audit's document, and `audited_ms`, when it ended. An audit
is one transaction for each table, so a table has all of its rows or none. To repeat a call changes nothing,
and one that was killed is continued by the next.

A replacement empties `audits` first, and fills it when the other tables have the rows of the first audit. So
`audits` is empty only if a replacement was killed. Until it is repeated nothing else can be added, since the
tables may still have rows of audits that `audits` no longer names.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from timerwheel.spark_jobs.audit.auditor import FINDINGS, TIMERS, TIMERS_SCHEMA
from timerwheel.spark_jobs.audit.findings import SCHEMA as FINDINGS_SCHEMA
from timerwheel.spark_jobs.audit.output import (
    AuditRun,
    Covered,
    Superseded,
    files_of,
    read_run,
    superseded,
    without,
)
from timerwheel.spark_jobs.audit.report import DOCUMENT
from timerwheel.spark_jobs.audit.summary import LATENESS_SCHEMA
from timerwheel.spark_jobs.audit.tallies import LATENESS
from timerwheel.spark_jobs.columns import filled
from timerwheel.spark_jobs.delta.tables import (
    DeltaTableError,
    delta_errors,
    open_table,
    options_of,
    place_of_table,
)
from timerwheel.spark_jobs.storage import join, open_binary, read_bytes, shown

AUDITS = "audits"
DAY = "day"
AUDIT = "audit"
AUDITED = "audited_ms"
_AUDITS_SCHEMA = pa.schema(
    [("node", pa.string()), ("begin", pa.int64()), ("until", pa.int64()), ("whole", pa.bool_())]
)
# The schema of each table, the column with the time that gives the day, and that of the place in the log.
_TABLES = {
    TIMERS: (TIMERS_SCHEMA, "stored_ms", "segment"),
    FINDINGS: (FINDINGS_SCHEMA, "due_ms", "offset"),
    LATENESS: (LATENESS_SCHEMA, "hour_ms", "segment"),
}


class Published(NamedTuple):
    """What came of one audit; `rows` by table, without tables that had it before."""

    audit: str
    rows: dict[str, int]


def publish_audits(
    urls: list[str], to: str, *, replace: bool, note: Callable[[str], None]
) -> list[Published]:
    """Add audits to the Delta tables below `to`, or with `replace` put them in the place of all others.

    Of what several audits judged, the tables have the rows of the latest. `note` is called with each table
    before it is written. Raises AuditOutputError for what is not the directory of an audit, or shares a part
    of a log with another one that it cannot be separated from; DeltaTableError, also after a replacement that
    was killed.
    """
    runs = [read_run(url) for url in dict.fromkeys(urls)]
    earlier = [] if replace else _published(to)
    ids = {run.url: _id_of(run) for run in runs}
    others = [run for run in earlier if run.url not in ids.values()]
    every = [*others, *(msgspec.structs.replace(run, url=ids[run.url]) for run in runs)]
    again = superseded(every)
    adding = [_Adding(run, ids[run.url], to, again) for run in runs]
    for add in adding:
        add.check()
    if replace:
        _forget(to)
    found = []
    for number, (run, add) in enumerate(zip(runs, adding, strict=True)):
        first = replace and number == 0
        rows = {}
        for name in (*_TABLES, AUDITS) if first else (AUDITS, *_TABLES):
            note(f"{ids[run.url]}: {name}")
            if (count := add.table(name, replace=first and name != AUDITS)) is not None:
                rows[name] = count
        found.append(Published(run.url, rows))
    return found


def _id_of(run: AuditRun) -> str:
    return hashlib.sha256(read_bytes(join(run.url, DOCUMENT))).hexdigest()[:16]


def _published(to: str) -> list[AuditRun]:
    """The audits that the tables have, by their ids."""
    table = open_table(place_of_table(join(to, AUDITS)))
    if table is None:
        return []
    ranges: dict[tuple[str, int], list[Covered]] = {}
    rows = table.to_pyarrow_table().to_pylist()
    if not rows:
        raise DeltaTableError(
            f"{shown(to)}: a replacement of the audits was not finished; repeat it (--replace)"
        )
    for row in rows:
        ranges.setdefault((row["audit"], row[AUDITED]), []).append(
            Covered(row["node"], row["begin"], row["until"], bool(row.get("whole")))
        )
    return [AuditRun(audit, ended_ms, nodes) for (audit, ended_ms), nodes in ranges.items()]


def _forget(to: str) -> None:
    """Empty the table `audits`, if there is one."""
    place = place_of_table(join(to, AUDITS))
    if (table := open_table(place)) is not None:
        with delta_errors(place):
            write_deltalake(table, _schema_of(AUDITS).empty_table(), mode="overwrite")


def _schema_of(name: str) -> pa.Schema:
    schema, _, _ = _TABLES.get(name, (_AUDITS_SCHEMA, None, None))
    schema = schema.append(pa.field(AUDIT, pa.string())).append(pa.field(AUDITED, pa.int64()))
    return schema if name == AUDITS else schema.append(pa.field(DAY, pa.date32()))


class _Adding:
    """One audit on its way into the tables. `again` says what of each audit later ones judged again."""

    def __init__(self, run: AuditRun, audit: str, to: str, again: Mapping[str, Sequence[Superseded]]) -> None:
        self._run = run
        self._audit = audit
        self._to = to
        self._again = again

    def check(self) -> None:
        """Raise AuditOutputError if a table is missing, or rows cannot be left out of it."""
        for name, (_, _, column) in _TABLES.items():
            for url in files_of(self._run.url, name):
                with open_binary(url) as file:
                    empty = pq.read_schema(file).empty_table()
                without(empty, self._again[self._audit], column, self._run.url)

    def table(self, name: str, *, replace: bool) -> int | None:
        """Add the rows of one table, or `replace` all others; how many, None if it lacks nothing."""
        place = place_of_table(join(self._to, name))
        known = open_table(place)
        count = len(self._run.nodes) if name == AUDITS else self._count(name)
        if known is not None and not replace:
            self._remove_superseded(known, name, place)
            if not count or self._has(known):
                return None
        rows = self._audits() if name == AUDITS else self._rows(name)
        with delta_errors(place):
            write_deltalake(
                place if known is None else known,
                pa.RecordBatchReader.from_batches(_schema_of(name), rows),
                partition_by=None if name == AUDITS else [DAY],
                mode="overwrite" if replace else "append",
                schema_mode="overwrite" if replace else "merge",
                name=f"timerwheel_{name}",
                storage_options=options_of(place),
                # Of two calls that add it at the same time, one fails.
                commit_properties=CommitProperties(app_transactions=[Transaction(self._audit, 1)]),
            )
        return count

    def _remove_superseded(self, table: DeltaTable, name: str, place: str) -> None:
        """Remove the rows of other audits about what this one or a later one judged again."""
        if name == AUDITS:
            return
        column = _TABLES[name][2]
        if column not in {field.name for field in table.schema().fields}:
            return  # rows of an earlier version, which say nothing about segments
        for audit, parts in self._again.items():
            for node, base in parts if audit != self._audit else ():
                named = node.replace("'", "''")
                with delta_errors(place):
                    table.delete(f"{AUDIT} = '{audit}' AND node = '{named}' AND {column} >= {base}")

    def _count(self, name: str) -> int:
        if self._again[self._audit]:
            return sum(len(batch) for batch in self._rows(name))
        count = 0
        for url in files_of(self._run.url, name):
            with open_binary(url) as file:
                count += pq.ParquetFile(file).metadata.num_rows
        return count

    def _has(self, table: DeltaTable) -> bool:
        return bool(table.to_pyarrow_dataset().count_rows(filter=pc.field(AUDIT) == self._audit))

    def _rows(self, name: str) -> Iterator[pa.RecordBatch]:
        schema, column, place = _TABLES[name]
        for url in files_of(self._run.url, name):
            with open_binary(url) as file:
                for part in pq.ParquetFile(file).iter_batches():
                    batch = self._kept(part, schema, place)
                    times = pc.cast(batch[column], pa.timestamp("ms"))
                    day = pc.cast(pc.floor_temporal(times, unit="day"), pa.date32())
                    yield self._marked(batch).append_column(DAY, day)

    def _audits(self) -> Iterator[pa.RecordBatch]:
        rows = [msgspec.structs.asdict(one) for one in self._run.nodes]
        yield self._marked(pa.RecordBatch.from_pylist(rows, _AUDITS_SCHEMA))

    def _kept(self, batch: pa.RecordBatch, schema: pa.Schema, column: str) -> pa.RecordBatch:
        """The rows without those about what a later audit judged again."""
        rows = without(pa.Table.from_batches([batch]), self._again[self._audit], column, self._run.url)
        rows = filled(rows, schema)
        return rows.combine_chunks().to_batches()[0] if len(rows) else pa.RecordBatch.from_pylist([], schema)

    def _marked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        audits = pa.repeat(pa.scalar(self._audit), len(batch))
        times = pa.repeat(pa.scalar(self._run.ended_ms, pa.int64()), len(batch))
        return batch.append_column(AUDIT, audits).append_column(AUDITED, times)
