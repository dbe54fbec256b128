"""Sums up the tallies of all segments in one pass over them, and writes the table of lateness on the way.

Spark adds up equal tallies. Then a few tasks get all tallies of their topics, add up what differs in the node
alone, and return what may be among the most busy topics, the last hours and the first findings. The driver
merges these parts. So no limit depends on how the tallies were distributed: a topic is whole in one task, and
the last hours of all are among the last of each.

With a checkpoint, the tallies of earlier audits are added (`spark_jobs.audit.sums`), and the tasks write the
sums of all to it. Hours that are one row there cannot be among the last ones again, and the document of the
checkpoint knows all hours.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
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

from timerwheel.spark_jobs.audit.checkpoint import Sums
from timerwheel.spark_jobs.audit.findings import Finding
from timerwheel.spark_jobs.audit.lateness import top_ms
from timerwheel.spark_jobs.audit.sums import (
    ABSENT,
    KEYS,
    NEW,
    SOURCE,
    Keep,
    KeptFinding,
    added,
    first_findings,
)
from timerwheel.spark_jobs.audit.tallies import LATENESS, PIECE
from timerwheel.spark_jobs.columns import arrow_schema, filled
from timerwheel.spark_jobs.storage import join, names_in
from timerwheel.spark_jobs.tables import parquet_file

LATENESS_SCHEMA = arrow_schema(
    "node string, segment bigint, topic string, hour_ms bigint, bucket int, bucket_top_ms bigint, "
    "delivered bigint, latest_ms bigint"
)
TASKS_MAX = 8  # each returns as much as the caps allow
ROWS_MAX = 1_000_000  # held by a task before it adds them up
Totals = dict[tuple[str, str], tuple[int, int | None]]  # (sort, what): count, most_ms
Counted = tuple[int, int, int]  # bucket, deliveries, latest_ms

_PART = "part string, node string, lease boolean, topic string, sort string, what string, hour_ms bigint, "
_PART += "bucket int, count bigint, most_ms bigint, at bigint, packed binary"
_PART_SCHEMA = arrow_schema(_PART)
_PIECE = ["node", "lease", "topic", "what", "at", "count", "most_ms"]


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


class Earlier(NamedTuple):
    """What earlier audits counted, and how to store the sums of all.

    `tallies` are rows of TALLIES and their source. `hours` are those with deliveries, by node.
    """

    tallies: DataFrame
    hours: dict[str, np.ndarray]
    keep: Keep


class PieceRow(msgspec.Struct, frozen=True):
    """One row about a piece: see `spark_jobs.audit.tallies`."""

    node: str
    lease: bool | None
    topic: str | None
    what: str
    at: int
    count: int
    most_ms: int | None


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
    findings_new: int  # of this run
    hours_by_node: dict[str, np.ndarray]
    pieces: list[PieceRow]
    sums: list[Sums]


def summarize(tallies: DataFrame, caps: Caps, out: str | None, earlier: Earlier | None = None) -> Summary:
    """Sum up rows of TALLIES; with `out`, write the table LATENESS of this run there."""
    keep = None if earlier is None else earlier.keep

    def part(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        url = None if out is None else lateness_file(out, task.partitionId())
        yield from _part(batches, caps, url, keep, task.partitionId()).to_batches()

    context = tallies.sparkSession.sparkContext
    rows = tallies.withColumn(SOURCE, sql.lit(NEW))
    if earlier is not None:
        rows = rows.union(earlier.tallies)
    sums = rows.groupBy("node", *KEYS, "at", "finding", SOURCE).agg(
        sql.sum("count").alias("count"), sql.max("most_ms").alias("most_ms")
    )
    tasks = min(context.defaultParallelism, TASKS_MAX)
    found = sums.repartition(tasks, "topic").mapInArrow(part, _PART).toArrow()
    summary = _merged(found, caps, {} if earlier is None else earlier.hours)
    if out is not None and not names_in(join(out, LATENESS)):  # a table without any file could not be read
        with parquet_file(lateness_file(out, 0), LATENESS_SCHEMA):
            pass
    return summary


def lateness_file(out: str, number: int) -> str:
    """The URL of one file of the table LATENESS."""
    return join(out, LATENESS, f"part-{number:06d}.parquet")


# ---------------------------------------------------------------------- in executors


def _part(
    batches: Iterable[pa.RecordBatch], caps: Caps, url: str | None, keep: Keep | None, task: int
) -> pa.Table:
    """The sums of the topics of one task, as rows of _PART. Memory grows with topics, hours and buckets."""
    held, kept, hours = _Rows(KEYS), _Rows(["node", *KEYS]), _Rows(["node", "hour_ms"])
    findings: list[KeptFinding] = []
    parts: list[pa.Table] = []
    with ExitStack() as stack:
        writer: pq.ParquetWriter | None = None
        for batch in map(pa.Table.from_batches, ([one] for one in batches)):
            about = batch.filter(pc.equal(batch["sort"], PIECE))
            parts.append(_named("piece", about.select(_PIECE)))
            found = batch.filter(pc.equal(batch["sort"], "finding")).select(
                ["source", "node", "at", "finding"]
            )
            findings += [KeptFinding(*row.values()) for row in found.to_pylist()]
            findings = first_findings(findings, caps.findings)
            counts = batch.filter(pc.invert(pc.is_in(batch["sort"], pa.array(["finding", PIECE]))))
            if keep is not None:
                kept.add(counts)
            counts = counts.filter(pc.not_equal(counts[SOURCE], ABSENT))
            held.add(counts)
            late = counts.filter(pc.equal(counts["sort"], LATENESS))
            hours.add(late)
            late = late.filter(pc.equal(late[SOURCE], NEW))
            new = counts.filter(pc.and_(pc.equal(counts[SOURCE], NEW), pc.equal(counts["sort"], "rule")))
            parts.append(_named("new", added(new, ["sort"])))
            if url is not None and len(late):
                writer = writer or stack.enter_context(parquet_file(url, LATENESS_SCHEMA))
                writer.write_table(_lateness_rows(late))
    if not parts:
        return _PART_SCHEMA.empty_table()
    if keep is not None:
        packed = msgspec.msgpack.encode(keep.write(kept.added(), findings, task))
        parts.append(_named("sums", pa.table({"packed": pa.array([packed], pa.binary())})))
    rows, by_node = held.added(), hours.added()
    own = [one.finding for one in findings if one.source != ABSENT][: caps.findings]
    late = rows.filter(pc.equal(rows["sort"], LATENESS))
    last = np.sort(pc.unique(by_node["hour_ms"]).drop_null().to_numpy(zero_copy_only=False))[-caps.hours :]
    parts += [
        _named("total", added(rows, ["lease", "sort", "what", "bucket"])),
        _named("hour", _of_hours(added(late, ["hour_ms", "bucket"]), last)),
        _named("hours", _packed_hours(by_node)),
        _named("finding", pa.table({"packed": pa.array(own, pa.binary())})),
    ]
    for lease, count_max in ((False, caps.topics), (True, caps.groups)):
        names, total = _busiest(rows, count_max, lease=lease)
        chosen = rows.filter(pc.and_(pc.equal(rows["lease"], lease), pc.is_in(rows["topic"], names)))
        parts.append(_named("topic", added(chosen, ["lease", "topic", "sort", "what", "bucket"])))
        parts.append(_named("topics", pa.table({"lease": [lease], "count": [total]})))
    return pa.concat_tables(parts)


class _Rows:
    """Rows that are added up by some of their columns whenever they have become many."""

    def __init__(self, keys: list[str]) -> None:
        self._keys = keys
        self._held: list[pa.Table] = []
        self._held_max = ROWS_MAX

    def add(self, rows: pa.Table) -> None:
        self._held.append(rows.select([*self._keys, "count", "most_ms"]))
        if sum(map(len, self._held)) > self._held_max:
            self._held = [self.added()]
            self._held_max = max(ROWS_MAX, 2 * len(self._held[0]))

    def added(self) -> pa.Table:
        return added(pa.concat_tables(self._held), self._keys)


def _lateness_rows(late: pa.Table) -> pa.Table:
    tops = pa.array([top_ms(bucket) for bucket in late["bucket"].to_pylist()], pa.int64())
    columns = [late["node"], late["at"], late["topic"], late["hour_ms"], late["bucket"], tops, late["count"]]
    return pa.table([*columns, late["most_ms"]], schema=LATENESS_SCHEMA)


def _busiest(rows: pa.Table, count_max: int, *, lease: bool) -> tuple[pa.Array, int]:
    """The topics with the most records, and how many there are."""
    chosen = rows.filter(
        pc.and_(
            pc.and_(pc.equal(rows["lease"], lease), pc.equal(rows["sort"], "record")),
            pc.is_valid(rows["topic"]),
        )
    )
    sizes = added(chosen, ["topic"])
    order = [("count", "descending"), ("topic", "ascending")]
    return sizes.sort_by(order)["topic"].combine_chunks().slice(0, count_max), len(sizes)


def _of_hours(rows: pa.Table, hours: np.ndarray) -> pa.Table:
    return rows.filter(pc.is_in(rows["hour_ms"], pa.array(hours, pa.int64())))


def _packed_hours(by_node: pa.Table) -> pa.Table:
    """The hours of each node in one row."""
    known = by_node.filter(pc.is_valid(by_node["hour_ms"]))
    found = known.group_by("node").aggregate([("hour_ms", "list")])
    packed = [np.array(hours, np.int64).tobytes() for hours in found["hour_ms_list"].to_pylist()]
    return pa.table({"node": found["node"], "packed": pa.array(packed, pa.binary())})


def _named(part: str, rows: pa.Table) -> pa.Table:
    """Rows with all columns of _PART."""
    return filled(rows, _PART_SCHEMA, part=part)


# ---------------------------------------------------------------------- on the driver


def _merged(found: pa.Table, caps: Caps, hours_before: Mapping[str, np.ndarray]) -> Summary:
    """The whole from the parts of the tasks."""
    parts = {name: found.filter(pc.equal(found["part"], name)) for name in _NAMES}
    totals: dict[bool | None, Totals] = {False: {}, True: {}, None: {}}
    overall: list[Counted] = []
    for row in added(parts["total"], ["lease", "sort", "what", "bucket"]).to_pylist():
        if row["sort"] == LATENESS:
            overall.append(_counted(row))
        else:
            totals[row["lease"]][row["sort"], row["what"]] = (row["count"], row["most_ms"])
    by_node = _hours_by_node(parts["hours"], hours_before)
    hours = np.unique(np.concatenate([np.zeros(0, np.int64), *by_node.values()]))
    by_hour: dict[int, list[Counted]] = {hour_ms: [] for hour_ms in hours[-caps.hours :].tolist()}
    rows = _of_hours(added(parts["hour"], ["hour_ms", "bucket"]), hours[-caps.hours :])
    for row in rows.to_pylist():
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
        findings_new=sum(parts["new"]["count"].to_pylist()),
        hours_by_node=by_node,
        pieces=[PieceRow(**row) for row in parts["piece"].select(_PIECE).to_pylist()],
        sums=[msgspec.msgpack.decode(one, type=Sums) for one in parts["sums"]["packed"].to_pylist()],
    )


_NAMES = ("total", "topic", "topics", "hour", "hours", "finding", "new", "piece", "sums")


def _hours_by_node(rows: pa.Table, before: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    found: defaultdict[str, list[np.ndarray]] = defaultdict(list)
    for node, hours in before.items():
        found[node].append(hours)
    for row in rows.select(["node", "packed"]).to_pylist():
        found[row["node"]].append(np.frombuffer(row["packed"], np.int64))
    return {node: np.unique(np.concatenate(hours)) for node, hours in found.items()}


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
