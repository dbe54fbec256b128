"""Sums up the tallies of all segments in one pass over them, and writes the table of lateness on the way.

Spark adds up equal tallies. Then a few tasks get all tallies of their topics, add up what differs in the node
alone, and return what may be among the most busy topics, the last hours and the first findings. The driver
merges these parts. So no limit depends on how the tallies were distributed: a topic is whole in one task, and
the last hours of all are among the last of each.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from timerwheel.spark_jobs.audit.findings import Finding
from timerwheel.spark_jobs.audit.lateness import top_ms
from timerwheel.spark_jobs.columns import arrow_schema
from timerwheel.spark_jobs.storage import join
from timerwheel.spark_jobs.tables import parquet_file

LATENESS = "lateness"
LATENESS_SCHEMA = arrow_schema(
    "node string, topic string, hour_ms bigint, bucket int, bucket_top_ms bigint, delivered bigint, "
    "latest_ms bigint"
)
TASKS_MAX = 8  # each returns as much as the caps allow
ROWS_MAX = 1_000_000  # held by a task before it adds them up
Totals = dict[tuple[str, str], tuple[int, int | None]]  # (sort, what): count, most_ms
Counted = tuple[int, int, int]  # bucket, deliveries, latest_ms

_KEYS = ["lease", "topic", "sort", "what", "hour_ms", "bucket"]
_PART = "part string, lease boolean, topic string, sort string, what string, hour_ms bigint, bucket int, "
_PART += "count bigint, most_ms bigint, packed binary"
_PART_SCHEMA = arrow_schema(_PART)


class Caps(NamedTuple):
    """How many of each are listed."""

    findings: int
    topics: int
    groups: int
    hours: int


class TopicSums(NamedTuple):
    """The tallies of one topic over all nodes."""

    topic: str
    totals: Totals
    lateness: list[Counted]


class Summary(NamedTuple):
    """The tallies of all logs, added up. The lists of topics and groups begin with those of most records."""

    totals: dict[bool | None, Totals]  # by `lease`
    lateness: list[Counted]
    topics: list[TopicSums]
    topics_total: int
    groups: list[TopicSums]
    groups_total: int
    hours: dict[int, list[Counted]]
    hours_total: int
    findings: list[Finding]


def summarize(tallies: DataFrame, caps: Caps, out: str | None) -> Summary:
    """Sum up rows of TALLIES; with `out`, write the table LATENESS there."""

    def part(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        url = None if out is None else lateness_file(out, task.partitionId())
        yield from _part(batches, caps, url).to_batches()

    context = tallies.sparkSession.sparkContext
    added = tallies.groupBy("node", *_KEYS, "at", "finding").agg(
        sql.sum("count").alias("count"), sql.max("most_ms").alias("most_ms")
    )
    tasks = min(context.defaultParallelism, TASKS_MAX)
    found = added.repartition(tasks, "topic").mapInArrow(part, _PART).toArrow()
    summary = _merged(found, caps)
    if out is not None and not summary.lateness:  # a table without any file could not be read
        with parquet_file(lateness_file(out, 0), LATENESS_SCHEMA):
            pass
    return summary


def lateness_file(out: str, number: int) -> str:
    """The URL of one file of the table LATENESS."""
    return join(out, LATENESS, f"part-{number:06d}.parquet")


# ---------------------------------------------------------------------- in executors


def _part(batches: Iterable[pa.RecordBatch], caps: Caps, url: str | None) -> pa.Table:
    """The sums of the topics of one task, as rows of _PART. Memory grows with topics, hours and buckets."""
    held: list[pa.Table] = []
    held_max = ROWS_MAX
    findings: list[tuple[str, int, bytes]] = []
    with ExitStack() as stack:
        writer: pq.ParquetWriter | None = None
        for batch in map(pa.Table.from_batches, ([one] for one in batches)):
            found = batch.filter(pc.equal(batch["sort"], "finding")).select(["node", "at", "finding"])
            findings += [tuple(row.values()) for row in found.to_pylist()]
            findings = sorted(findings)[: caps.findings]
            counts = batch.filter(pc.not_equal(batch["sort"], "finding"))
            held.append(counts.select([*_KEYS, "count", "most_ms"]))
            if sum(map(len, held)) > held_max:
                held = [_added(pa.concat_tables(held), _KEYS)]
                held_max = max(ROWS_MAX, 2 * len(held[0]))
            if url is not None and len(late := counts.filter(pc.equal(counts["sort"], LATENESS))):
                writer = writer or stack.enter_context(parquet_file(url, LATENESS_SCHEMA))
                writer.write_table(_lateness_rows(late))
    if not held:
        return _PART_SCHEMA.empty_table()
    rows = _added(pa.concat_tables(held), _KEYS)
    late = rows.filter(pc.equal(rows["sort"], LATENESS))
    hours = pc.unique(late["hour_ms"]).to_numpy(zero_copy_only=False)
    parts = [
        _named("total", _added(rows, ["lease", "sort", "what", "bucket"])),
        _named("hour", _last_hours(_added(late, ["hour_ms", "bucket"]), hours, caps.hours)),
        _named("hours", pa.table({"packed": pa.array([hours.astype(np.int64).tobytes()], pa.binary())})),
        _named("finding", pa.table({"packed": pa.array([one[2] for one in findings], pa.binary())})),
    ]
    for lease, count_max in ((False, caps.topics), (True, caps.groups)):
        names, total = _busiest(rows, count_max, lease=lease)
        chosen = rows.filter(pc.and_(pc.equal(rows["lease"], lease), pc.is_in(rows["topic"], names)))
        parts.append(_named("topic", _added(chosen, ["lease", "topic", "sort", "what", "bucket"])))
        parts.append(_named("topics", pa.table({"lease": [lease], "count": [total]})))
    return pa.concat_tables(parts)


def _added(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Rows with equal keys become one."""
    found = rows.group_by(keys).aggregate([("count", "sum"), ("most_ms", "max")])
    return found.rename_columns({"count_sum": "count", "most_ms_max": "most_ms"})


def _lateness_rows(late: pa.Table) -> pa.Table:
    tops = pa.array([top_ms(bucket) for bucket in late["bucket"].to_pylist()], pa.int64())
    columns = [late["node"], late["topic"], late["hour_ms"], late["bucket"], tops, late["count"]]
    return pa.table([*columns, late["most_ms"]], schema=LATENESS_SCHEMA)


def _busiest(rows: pa.Table, count_max: int, *, lease: bool) -> tuple[pa.Array, int]:
    """The topics with the most records, and how many there are."""
    chosen = rows.filter(
        pc.and_(
            pc.and_(pc.equal(rows["lease"], lease), pc.equal(rows["sort"], "record")),
            pc.is_valid(rows["topic"]),
        )
    )
    sizes = _added(chosen, ["topic"])
    order = [("count", "descending"), ("topic", "ascending")]
    return sizes.sort_by(order)["topic"].combine_chunks().slice(0, count_max), len(sizes)


def _last_hours(rows: pa.Table, hours: np.ndarray, count_max: int) -> pa.Table:
    last = np.sort(hours)[-count_max:]
    return rows.filter(pc.is_in(rows["hour_ms"], pa.array(last, pa.int64())))


def _named(part: str, rows: pa.Table) -> pa.Table:
    """Rows with all columns of _PART."""
    columns = []
    for field in _PART_SCHEMA:
        if field.name == "part":
            columns.append(pa.repeat(pa.scalar(part), len(rows)))
        elif field.name in rows.column_names:
            columns.append(rows[field.name].cast(field.type))
        else:
            columns.append(pa.nulls(len(rows), field.type))
    return pa.table(columns, schema=_PART_SCHEMA)


# ---------------------------------------------------------------------- on the driver


def _merged(found: pa.Table, caps: Caps) -> Summary:
    """The whole from the parts of the tasks."""
    parts = {name: found.filter(pc.equal(found["part"], name)) for name in _NAMES}
    totals: dict[bool | None, Totals] = {False: {}, True: {}, None: {}}
    overall: list[Counted] = []
    for row in _added(parts["total"], ["lease", "sort", "what", "bucket"]).to_pylist():
        if row["sort"] == LATENESS:
            overall.append(_counted(row))
        else:
            totals[row["lease"]][row["sort"], row["what"]] = (row["count"], row["most_ms"])
    hours = np.unique(np.concatenate([np.zeros(0, np.int64), *map(_unpacked, parts["hours"]["packed"])]))
    by_hour: dict[int, list[Counted]] = {hour_ms: [] for hour_ms in hours[-caps.hours :].tolist()}
    for row in _last_hours(_added(parts["hour"], ["hour_ms", "bucket"]), hours, caps.hours).to_pylist():
        by_hour[row["hour_ms"]].append(_counted(row))
    findings = [msgspec.msgpack.decode(one, type=Finding) for one in parts["finding"]["packed"].to_pylist()]
    findings.sort(key=lambda one: (one.node, one.offset))
    topics, topics_total = _topics(parts, caps.topics, lease=False)
    groups, groups_total = _topics(parts, caps.groups, lease=True)
    return Summary(
        totals=totals,
        lateness=overall,
        topics=topics,
        topics_total=topics_total,
        groups=groups,
        groups_total=groups_total,
        hours=by_hour,
        hours_total=len(hours),
        findings=findings[: caps.findings],
    )


_NAMES = ("total", "topic", "topics", "hour", "hours", "finding")


def _topics(parts: dict[str, pa.Table], count_max: int, *, lease: bool) -> tuple[list[TopicSums], int]:
    counts = parts["topics"].filter(pc.equal(parts["topics"]["lease"], lease))["count"]
    about = parts["topic"]
    names, _ = _busiest(about, count_max, lease=lease)
    found = {name: TopicSums(name, {}, []) for name in names.to_pylist()}
    chosen = about.filter(pc.and_(pc.equal(about["lease"], lease), pc.is_in(about["topic"], names)))
    for row in chosen.to_pylist():
        sums = found[row["topic"]]
        if row["sort"] == LATENESS:
            sums.lateness.append(_counted(row))
        else:
            sums.totals[row["sort"], row["what"]] = (row["count"], row["most_ms"])
    return list(found.values()), sum(counts.to_pylist())


def _counted(row: dict[str, int]) -> Counted:
    return row["bucket"], row["count"], row["most_ms"]


def _unpacked(packed: pa.Scalar) -> np.ndarray:
    return np.frombuffer(packed.as_py(), np.int64)
