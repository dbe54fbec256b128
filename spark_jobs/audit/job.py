"""The audit: proves from the logs alone what the service did with every timer.

    survey -> judge: references go to the segments of their timers and are checked there -> sum up

The caps below bound the data that returns to the driver, however long the logs are.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from timerwheel.spark_jobs.audit.books import FINDINGS, TIMERS, Books, parquet_file
from timerwheel.spark_jobs.audit.findings import Finding
from timerwheel.spark_jobs.audit.lateness import Lateness, lateness_of, top_ms
from timerwheel.spark_jobs.audit.ledger import OUTCOMES
from timerwheel.spark_jobs.audit.tallies import TALLIES
from timerwheel.spark_jobs.columns import arrow_schema
from timerwheel.spark_jobs.progress import JobProgress
from timerwheel.spark_jobs.segment_stats import Survey
from timerwheel.spark_jobs.segments import Damaged
from timerwheel.spark_jobs.shuffle import shuffle
from timerwheel.spark_jobs.storage import join

LATENESS = "lateness"
TABLES = (TIMERS, FINDINGS, LATENESS)
FINDINGS_MAX = 1_000
TOPICS_MAX = 200
GROUPS_MAX = 200
HOURS_MAX = 168
DAMAGED_MAX = 1_000
Totals = dict[tuple[str, str], tuple[int, int | None]]  # (sort, what): count, most_ms
Counted = tuple[int, int, int]  # bucket, deliveries, latest_ms
LATENESS_SCHEMA = arrow_schema(
    "node string, topic string, hour_ms bigint, bucket int, bucket_top_ms bigint, delivered bigint, "
    "latest_ms bigint"
)


class Accounts(msgspec.Struct, frozen=True):
    """Two sides that must be equal: scheduled + carried = delivered + early + recalled + pending.

    `carried` come from timers that retention removed: they were replaced or ended in the kept part. `early`
    were delivered before their time on purpose: rescheduled to now, or after a clock change.
    `overdue` are among `pending`, and `overdue_ms` is the longest of their delays. `direct` messages were due
    when they were sent. `replaced` counts timers that stand for earlier ones, rescheduled or moved.
    """

    scheduled: int
    carried: int
    delivered: int
    early: int
    recalled: int
    pending: int
    overdue: int
    overdue_ms: int
    direct: int
    replaced: int

    @property
    def difference(self) -> int:
        """The surplus of one side."""
        ended = self.delivered + self.early + self.recalled + self.pending
        return self.scheduled + self.carried - ended


class Node(msgspec.Struct, frozen=True):
    """One log: the range of offsets read, and its latest store time."""

    node: str
    begin: int
    until: int
    segments: int
    sidecars: int
    records: int
    last_store_ms: int


class TopicBooks(msgspec.Struct, frozen=True):
    """One topic over all nodes."""

    topic: str
    accounts: Accounts
    lateness: Lateness


class HourBooks(msgspec.Struct, frozen=True):
    """The deliveries whose due time was in one hour (UTC)."""

    hour_ms: int
    lateness: Lateness


class Histogram(msgspec.Struct, frozen=True):
    """Deliveries on time with a lateness up to `top_ms` and above that of the one before."""

    top_ms: int
    delivered: int


class Audit(msgspec.Struct, frozen=True):
    """The result. `rules` counts the violations of each rule; the totals count shortened lists in full."""

    balanced: bool
    nodes: list[Node]
    records: int
    timers: dict[str, int]
    messages: Accounts
    leases: Accounts
    out_of_order: int
    unproved: int
    lateness: Lateness
    histogram: list[Histogram]
    topics: list[TopicBooks]
    topics_total: int
    groups: list[TopicBooks]
    groups_total: int
    hours: list[HourBooks]
    hours_total: int
    rules: dict[str, int]
    findings: list[Finding]
    findings_total: int
    damaged: list[Damaged]
    damaged_total: int
    torn: list[Damaged]


def audit(spark: SparkSession, progress: JobProgress, survey: Survey, out: str | None) -> Audit:
    """Audit surveyed logs. With `out`, store the tables in that directory, which has TABLES.

    Findings are part of the result, not errors. Raises the errors of Spark and the storage.
    """
    books = Books(survey, out, FINDINGS_MAX)
    tallies = shuffle(spark, survey, books.emit, books.collect, TALLIES).persist()
    try:
        with progress.stage("judge"):
            tallies.count()
        with progress.stage("sum up"):
            if out is not None:
                _keep_lateness(tallies, join(out, LATENESS, "part-000000.parquet"))
            return _sum_up(tallies, survey)
    finally:
        tallies.unpersist()


def _sum_up(tallies: DataFrame, survey: Survey) -> Audit:
    # Each query costs about half a second, however little it reads: hence few of them.
    totals: dict[bool | None, Totals] = defaultdict(dict)
    overall = []
    for row in _counted(tallies.where("sort != 'finding'"), "lease", "sort", "what", "bucket").collect():
        if row.sort == "lateness":
            overall.append(_late(row))
        else:
            totals[row.lease][row.sort, row.what] = (row.count_, row.most_ms)
    rules: dict[str, int] = defaultdict(int)
    for (sort, what), (count, _) in [*totals[False].items(), *totals[True].items()]:
        if sort == "rule":
            rules[what] += count
    findings = _findings(tallies, FINDINGS_MAX) if rules else []
    damaged = [one for one in survey.damaged if not one.torn]
    topics, topics_total = _topics(tallies, lease=False, count_max=TOPICS_MAX)
    groups, groups_total = _topics(tallies, lease=True, count_max=GROUPS_MAX) if totals[True] else ([], 0)
    hours, hours_total = _hours(tallies) if overall else ([], 0)
    unproved = totals[None]["log", "unproved"][0]
    return Audit(
        balanced=not (rules or damaged or unproved),
        nodes=_nodes(survey),
        records=sum(found.records for found in survey.found),
        timers={outcome: totals[False].get(("timer", outcome), (0, 0))[0] for outcome in OUTCOMES},
        messages=_accounts(totals[False]),
        leases=_accounts(totals[True]),
        out_of_order=totals[None]["log", "out_of_order"][0],
        unproved=unproved,
        lateness=lateness_of(overall),
        histogram=[Histogram(top_ms(bucket), count) for bucket, count, _ in sorted(overall)],
        topics=topics,
        topics_total=topics_total,
        groups=groups,
        groups_total=groups_total,
        hours=hours,
        hours_total=hours_total,
        rules=dict(sorted(rules.items())),
        findings=findings,
        findings_total=sum(rules.values()),
        damaged=damaged[:DAMAGED_MAX],
        damaged_total=len(damaged),
        torn=[one for one in survey.damaged if one.torn],
    )


def _counted(rows: DataFrame, *by: str) -> DataFrame:
    return rows.groupBy(*by).agg(sql.sum("count").alias("count_"), sql.max("most_ms").alias("most_ms"))


def _late(row: Any) -> Counted:  # noqa: ANN401 - a row of Spark
    return row.bucket, row.count_, row.most_ms


def _accounts(totals: Totals) -> Accounts:

    def count(sort: str, what: str) -> int:
        return totals.get((sort, what), (0, 0))[0]

    return Accounts(
        scheduled=count("record", "scheduled"),
        carried=count("record", "carried"),
        delivered=count("record", "delivered"),
        early=count("record", "early"),
        recalled=count("record", "recalled"),
        pending=count("timer", "pending"),
        overdue=count("timer", "overdue"),
        overdue_ms=totals.get(("timer", "overdue"), (0, 0))[1] or 0,
        direct=count("record", "direct"),
        replaced=count("record", "replaced"),
    )


def _topics(tallies: DataFrame, *, lease: bool, count_max: int) -> tuple[list[TopicBooks], int]:
    """The topics with the most records, and how many there are."""
    about = tallies.where(sql.col("topic").isNotNull() & (sql.col("lease") == lease))
    sizes = about.where("sort = 'record'").groupBy("topic").agg(sql.sum("count").alias("records"))
    names = [row.topic for row in sizes.orderBy(sql.desc("records"), "topic").limit(count_max).collect()]
    totals: dict[str, Totals] = defaultdict(dict)
    buckets: dict[str, list[Counted]] = defaultdict(list)
    chosen = about.where(sql.col("topic").isin(names))
    for row in _counted(chosen, "topic", "sort", "what", "bucket").collect():
        if row.sort == "lateness":
            buckets[row.topic].append(_late(row))
        else:
            totals[row.topic][row.sort, row.what] = (row.count_, row.most_ms)
    found = [TopicBooks(name, _accounts(totals[name]), lateness_of(buckets[name])) for name in names]
    return found, len(names) if len(names) < count_max else sizes.count()


def _hours(tallies: DataFrame) -> tuple[list[HourBooks], int]:
    """The last hours in which something was due and was delivered, and how many there are."""
    late = tallies.where("sort = 'lateness'")
    known = late.select("hour_ms").distinct()
    last = [row.hour_ms for row in known.orderBy(sql.desc("hour_ms")).limit(HOURS_MAX).collect()]
    buckets: dict[int, list[Counted]] = defaultdict(list)
    for row in _counted(late.where(sql.col("hour_ms") >= last[-1]), "hour_ms", "bucket").collect():
        buckets[row.hour_ms].append(_late(row))
    found = [HourBooks(hour_ms, lateness_of(buckets[hour_ms])) for hour_ms in sorted(buckets)]
    return found, len(last) if len(last) < HOURS_MAX else known.count()


def _findings(tallies: DataFrame, count_max: int) -> list[Finding]:
    rows = (
        tallies.where("sort = 'finding'").orderBy("node", "at").limit(count_max).select("finding").collect()
    )
    return [msgspec.msgpack.decode(bytes(row.finding), type=Finding) for row in rows]


def _nodes(survey: Survey) -> list[Node]:
    nodes = []
    for log in survey.logs:
        found = [one for _, one in survey.of(log)]
        nodes.append(
            Node(
                node=log.node,
                begin=log.begin,
                until=found[-1].until,
                segments=len(found),
                sidecars=sum(one.source == "sidecar" for one in found),
                records=sum(one.records for one in found),
                last_store_ms=max(one.last_store_ms for one in found),
            )
        )
    return nodes


def _keep_lateness(tallies: DataFrame, url: str) -> None:
    """Write the table of lateness: one file, a batch at a time."""

    def keep(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = 0
        with parquet_file(url, LATENESS_SCHEMA) as writer:
            for batch in batches:
                tops = pa.array([top_ms(bucket) for bucket in batch["bucket"].to_pylist()], pa.int64())
                columns = [
                    batch["node"],
                    batch["topic"],
                    batch["hour_ms"],
                    batch["bucket"],
                    tops,
                    batch["count_"],
                    batch["most_ms"],
                ]
                writer.write_batch(pa.record_batch(columns, schema=LATENESS_SCHEMA))
                rows += len(batch)
        yield pa.record_batch({"rows": [rows]})

    late = _counted(tallies.where("sort = 'lateness'"), "node", "topic", "hour_ms", "bucket")
    if not late.coalesce(1).mapInArrow(keep, "rows bigint").collect():
        # Spark runs no task where it knows that there are no rows.
        list(keep([]))
