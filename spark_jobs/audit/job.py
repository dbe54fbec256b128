"""The audit: proves from the logs alone what the service did with every timer.

    survey -> judge: references go to the segments of their timers, are checked there, and are summed up

The caps below bound the data that returns to the driver, however long the logs are.
"""

from collections import defaultdict

import msgspec
from pyspark.sql import SparkSession

from timerwheel.spark_jobs.audit.books import FINDINGS, TIMERS, Books
from timerwheel.spark_jobs.audit.findings import Finding
from timerwheel.spark_jobs.audit.lateness import Lateness, lateness_of, top_ms
from timerwheel.spark_jobs.audit.ledger import OUTCOMES
from timerwheel.spark_jobs.audit.summary import LATENESS, Caps, Summary, TopicSums, Totals, summarize
from timerwheel.spark_jobs.audit.tallies import TALLIES
from timerwheel.spark_jobs.progress import JobProgress
from timerwheel.spark_jobs.segment_stats import Survey
from timerwheel.spark_jobs.segments import Damaged
from timerwheel.spark_jobs.shuffle import shuffle

TABLES = (TIMERS, FINDINGS, LATENESS)
FINDINGS_MAX = 1_000
TOPICS_MAX = 200
GROUPS_MAX = 200
HOURS_MAX = 168
DAMAGED_MAX = 1_000


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
    caps = Caps(FINDINGS_MAX, TOPICS_MAX, GROUPS_MAX, HOURS_MAX)
    with progress.stage("judge"):
        tallies = shuffle(spark, survey, books.emit, books.collect, TALLIES)
        return _audit_of(summarize(tallies, caps, out), survey)


def _audit_of(summary: Summary, survey: Survey) -> Audit:
    totals = summary.totals
    rules: dict[str, int] = defaultdict(int)
    for (sort, what), (count, _) in [*totals[False].items(), *totals[True].items()]:
        if sort == "rule":
            rules[what] += count
    damaged = [one for one in survey.damaged if not one.torn]
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
        lateness=lateness_of(summary.lateness),
        histogram=[Histogram(top_ms(bucket), count) for bucket, count, _ in sorted(summary.lateness)],
        topics=[_topic(one) for one in summary.topics],
        topics_total=summary.topics_total,
        groups=[_topic(one) for one in summary.groups],
        groups_total=summary.groups_total,
        hours=[HourBooks(hour_ms, lateness_of(counted)) for hour_ms, counted in summary.hours.items()],
        hours_total=summary.hours_total,
        rules=dict(sorted(rules.items())),
        findings=summary.findings,
        findings_total=sum(rules.values()),
        damaged=damaged[:DAMAGED_MAX],
        damaged_total=len(damaged),
        torn=[one for one in survey.damaged if one.torn],
    )


def _topic(sums: TopicSums) -> TopicBooks:
    return TopicBooks(sums.topic, _accounts(sums.totals), lateness_of(sums.lateness))


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
