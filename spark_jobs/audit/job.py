"""The audit: proves from the logs alone what the service did with every timer.

    survey -> judge: references go to the segments of their timers, are checked there, and are summed up

With a checkpoint, an audit reads only what is new, and adds it to what earlier ones counted
(`spark_jobs.audit.plan`, `checkpoint`, `sums`). A record that refers to an earlier one in a way that the
checkpoint cannot explain makes it judge that log from its beginning instead.

The caps below bound the data that returns to the driver, however long the logs are.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np
from pyspark.sql import SparkSession

from timerwheel.spark_jobs.audit.auditor import FINDINGS, TIMERS, Auditor
from timerwheel.spark_jobs.audit.checkpoint import (
    FORMAT,
    Checkpoint,
    Document,
    DroppedTimers,
    Generation,
    JudgedLog,
    OpenTimers,
    hour_runs,
    hours_of,
)
from timerwheel.spark_jobs.audit.findings import Finding
from timerwheel.spark_jobs.audit.kafka import KafkaAudit
from timerwheel.spark_jobs.audit.lateness import Lateness, lateness_of, top_ms
from timerwheel.spark_jobs.audit.ledger import OUTCOMES
from timerwheel.spark_jobs.audit.plan import Plan, plan_since, whole_plan
from timerwheel.spark_jobs.audit.summary import (
    Caps,
    Earlier,
    PieceRow,
    Summary,
    TopicSums,
    Totals,
    summarize,
)
from timerwheel.spark_jobs.audit.sums import Keep, earlier_tallies, pending_before
from timerwheel.spark_jobs.audit.tallies import LATENESS, TALLIES
from timerwheel.spark_jobs.live_logs import LiveLogs, Removed
from timerwheel.spark_jobs.logs import NodeLog
from timerwheel.spark_jobs.progress import JobProgress
from timerwheel.spark_jobs.segment_stats import ReadOptions, Survey, survey
from timerwheel.spark_jobs.segments import Damaged
from timerwheel.spark_jobs.shuffle import shuffle
from timerwheel.spark_jobs.storage import join, make_directories, remove

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
    """One log: the range of offsets judged, and its latest store time. `sidecars` are those read now."""

    node: str
    begin: int
    until: int
    segments: int
    sidecars: int
    records: int
    last_store_ms: int


class TopicAccounts(msgspec.Struct, frozen=True):
    """One topic over all nodes."""

    topic: str
    accounts: Accounts
    lateness: Lateness


class HourLateness(msgspec.Struct, frozen=True):
    """The deliveries whose due time was in one hour (UTC)."""

    hour_ms: int
    lateness: Lateness


class Histogram(msgspec.Struct, frozen=True):
    """Deliveries on time with a lateness up to `top_ms` and above that of the one before."""

    top_ms: int
    delivered: int


class NodeReading(msgspec.Struct, frozen=True):
    """What an audit with a checkpoint read of one log.

    `why_whole` says why it was read from its beginning although there was a checkpoint.
    """

    node: str
    since: int
    until: int
    segments: int
    why_whole: str | None


class Reading(msgspec.Struct, frozen=True):
    """What an audit with a checkpoint read, and what it took from there.

    `judged_ms` is when the last audit with it ended, None if there was none; `absent` are logs that the
    checkpoint has and this audit was not given. `findings_new` were not among those of earlier audits.
    """

    judged_ms: int | None
    nodes: list[NodeReading]
    absent: list[str]
    findings_new: int


class Audit(msgspec.Struct, frozen=True):
    """The result, over all audits with one checkpoint if there is one: then `reading` is set.

    `rules` counts the violations of each rule; the totals count shortened lists in full. `removed` is what
    retention removed while the audit ran.
    """

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
    topics: list[TopicAccounts]
    topics_total: int
    groups: list[TopicAccounts]
    groups_total: int
    hours: list[HourLateness]
    hours_total: int
    rules: dict[str, int]
    findings: list[Finding]
    findings_total: int
    damaged: list[Damaged]
    damaged_total: int
    torn: list[Damaged]
    removed: list[Removed] = []
    reading: Reading | None = None
    kafka: KafkaAudit | None = None


def audit_live(live: LiveLogs, progress: JobProgress, options: ReadOptions, out: str | None) -> Audit:
    """Audit whole logs while retention may remove segments: the result covers what is left of them.

    Raises what `survey` and `audit` raise.
    """
    found: Survey | None = None

    def work(logs: Sequence[NodeLog]) -> Audit:
        nonlocal found
        if out is not None:
            _clear_tables(out)
        with progress.stage("survey"):
            found = survey(live.spark, logs, options, known=found)
        return audit(live.spark, progress, found, out)

    return msgspec.structs.replace(live.read(work), removed=live.removed)


def audit(spark: SparkSession, progress: JobProgress, surveyed: Survey, out: str | None) -> Audit:
    """Audit surveyed logs. With `out`, store the tables in that directory, which has TABLES.

    Findings are part of the result, not errors. Raises the errors of Spark and the storage.
    """
    plan = whole_plan(surveyed)
    auditor = Auditor(plan, out, FINDINGS_MAX)
    with progress.stage("judge"):
        tallies = shuffle(spark, plan.segments, auditor.emit, auditor.collect, TALLIES)
        return _audit_of(summarize(tallies, _caps(), out), plan, None)


def audit_since(
    live: LiveLogs,
    progress: JobProgress,
    checkpoint: Checkpoint,
    options: ReadOptions,
    out: str | None,
    *,
    now_ms: int,
) -> tuple[Audit, Document]:
    """Audit what is new in these logs since the checkpoint; `out` gets the tables of that.

    Returns the result of all audits with this checkpoint, and what to commit to it. Raises JobError if a file
    of the checkpoint is damaged, and the errors of `survey`, Spark and the storage.
    """

    def work(logs: Sequence[NodeLog]) -> tuple[Audit, Document]:
        if out is not None:
            _clear_tables(out)
        plan, summary, generation = _judge_new(live.spark, progress, checkpoint, logs, options, out)
        absent = _absent(checkpoint, plan)
        judged = [_judged(number, plan, summary, generation) for number in range(len(plan.logs))]
        following = Document(format=FORMAT, ended_ms=now_ms, logs=[*judged, *absent], sums=summary.sums)
        return _audit_of(summary, plan, _reading(checkpoint, plan, summary)), following

    result, following = live.read(work)
    return msgspec.structs.replace(result, removed=live.removed), following


def _judge_new(
    spark: SparkSession,
    progress: JobProgress,
    checkpoint: Checkpoint,
    logs: Sequence[NodeLog],
    options: ReadOptions,
    out: str | None,
) -> tuple[Plan, Summary, Generation]:
    """Judge what is new, and logs from their beginning that turn out not to go on from the checkpoint."""
    whole: dict[str, str] = {}
    while True:
        with checkpoint.checked():
            with progress.stage("survey"):
                plan = plan_since(spark, checkpoint, logs, options, whole)
            with progress.stage("judge"):
                summary, generation = _judge_since(spark, checkpoint, plan, out)
        strange: Counter[str] = Counter()
        for one in summary.pieces:
            if one.what == "strange":
                strange[one.node] += one.count
        whole = {log.log_id: log.why_whole for log in plan.logs if log.why_whole is not None}
        for log in plan.logs:
            if strange[log.log.node]:
                what = f"{strange[log.log.node]} new records refer to earlier ones that are not open timers"
                whole[log.log_id] = what
        if not strange:
            return plan, summary, generation
        if out is not None:
            _clear_tables(out)


def _reading(checkpoint: Checkpoint, plan: Plan, summary: Summary) -> Reading:
    document = checkpoint.document
    return Reading(
        judged_ms=None if document is None else document.ended_ms,
        nodes=[
            NodeReading(one.log.node, one.since, one.until, len(one.found), one.why_whole)
            for one in plan.logs
        ],
        absent=sorted(one.node for one in _absent(checkpoint, plan)),
        findings_new=summary.findings_new,
    )


def _caps() -> Caps:
    return Caps(FINDINGS_MAX, TOPICS_MAX, GROUPS_MAX, HOURS_MAX)


def _judge_since(
    spark: SparkSession, checkpoint: Checkpoint, plan: Plan, out: str | None
) -> tuple[Summary, Generation]:
    generation = checkpoint.new_generation()
    auditor = Auditor(plan, out, FINDINGS_MAX, checkpoint=generation)
    tallies = shuffle(spark, plan.segments, auditor.emit, auditor.collect, TALLIES, quiet=plan.quiet)
    document, absent = checkpoint.document, _absent(checkpoint, plan)
    known = {log.log.node: log.earlier for log in plan.logs if log.earlier is not None}
    hours = {node: hours_of(log.hours) for node, log in known.items()}
    every = hours | {log.log_id: hours_of(log.hours) for log in absent}
    unfolded = {node: int(found[-HOURS_MAX]) for node, found in every.items() if len(found) >= HOURS_MAX}
    keep = Keep(generation, {log.log.node: log.log_id for log in plan.logs}, unfolded)
    earlier = Earlier(
        earlier_tallies(
            spark,
            [] if document is None else [(checkpoint.file(one.path), one) for one in document.sums],
            pending_before(known),
            {log.log_id: node for node, log in known.items()},
            [log.log_id for log in absent],
        ),
        hours,
        keep,
    )
    return summarize(tallies, _caps(), out, earlier), generation


def _absent(checkpoint: Checkpoint, plan: Plan) -> list[JudgedLog]:
    """Logs of the checkpoint that this run was not given, but for one whose place another has taken."""
    if checkpoint.document is None:
        return []
    ids, nodes = {log.log_id for log in plan.logs}, {log.log.node for log in plan.logs}
    return [one for one in checkpoint.document.logs if one.log_id not in ids and one.node not in nodes]


def _clear_tables(out: str) -> None:
    for table in TABLES:
        remove(join(out, table))
        make_directories(join(out, table))


def _judged(number: int, plan: Plan, summary: Summary, generation: Generation) -> JudgedLog:
    """What the next run has to know about a log."""
    log = plan.logs[number]
    pieces = {place: piece for place, piece in enumerate(plan.pieces) if piece.log == number}
    changed: dict[int, list[PieceRow]] = {}
    dropped = list(log.dropped)
    for row in summary.pieces:
        if row.at in pieces and row.what == "open":
            changed.setdefault(row.at, []).append(row)
        elif row.at in pieces and row.what == "dropped":
            read = pieces[row.at].read
            assert read.until is not None
            dropped.append(DroppedTimers(generation.dropped_path(row.at), read.base, read.until))
    timers = [piece.open for place, piece in pieces.items() if piece.open and place not in changed]
    for place, rows in changed.items():
        piece, counted = pieces[place], [row for row in rows if row.topic is not None]
        if counted:
            assert piece.read.until is not None
            timers.append(
                OpenTimers(
                    path=generation.open_path(place),
                    segment=piece.segment,
                    base=piece.read.base,
                    until=piece.read.until,
                    least_due_ms=min(row.most_ms or 0 for row in counted),
                    counts=sorted((row.topic or "", bool(row.lease), row.count) for row in counted),
                )
            )
    return JudgedLog(
        log_id=log.log_id,
        node=log.log.node,
        began=log.began,
        until=log.until,
        last_base=log.found[-1][0].base,
        last_digest=log.last_digest,
        segments=log.segments,
        records=log.records,
        last_store_ms=log.bounds.last_ms,
        hours=hour_runs(summary.hours_by_node.get(log.log.node, np.zeros(0, np.int64))),
        damaged=log.damaged,
        open=sorted(timers, key=lambda one: one.base),
        dropped=dropped,
    )


def _audit_of(summary: Summary, plan: Plan, reading: Reading | None) -> Audit:
    totals = summary.totals
    rules: dict[str, int] = defaultdict(int)
    for (sort, what), (count, _) in [*totals[False].items(), *totals[True].items()]:
        if sort == "rule":
            rules[what] += count
    damaged = [one for log in plan.logs for one in log.damaged]
    unproved = totals[None]["log", "unproved"][0]
    return Audit(
        balanced=not (rules or damaged or unproved),
        nodes=_nodes(plan),
        records=sum(log.records for log in plan.logs),
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
        hours=[HourLateness(hour_ms, lateness_of(counted)) for hour_ms, counted in summary.hours.items()],
        hours_total=summary.hours_total,
        rules=dict(sorted(rules.items())),
        findings=summary.findings,
        findings_total=sum(rules.values()),
        damaged=damaged[:DAMAGED_MAX],
        damaged_total=len(damaged),
        torn=[one for log in plan.logs for one in log.torn],
        reading=reading,
    )


def _topic(sums: TopicSums) -> TopicAccounts:
    return TopicAccounts(sums.topic, _accounts(sums.totals), lateness_of(sums.lateness))


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


def _nodes(plan: Plan) -> list[Node]:
    return [
        Node(
            node=log.log.node,
            begin=log.bounds.begin,
            until=log.until,
            segments=log.segments,
            sidecars=sum(found.source == "sidecar" for _, found in log.found),
            records=log.records,
            last_store_ms=log.bounds.last_ms,
        )
        for log in plan.logs
    ]
