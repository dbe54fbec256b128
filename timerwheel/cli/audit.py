"""`audit`: proves from the logs, on Spark, that the service handled every timer correctly."""

import contextlib
import datetime as dt
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from timerwheel.cli.output import Output, TimeOutput
from timerwheel.cli.spark_options import (
    MASTER_DEFAULT,
    Job,
    KafkaOption,
    KafkaPropertiesOption,
    LogsOption,
    SalvageFlag,
    ScanFlag,
    StagedRunOptions,
    copy_journal,
    find_logs,
    kafka_place,
    listed_again,
    removed_facts,
    reported,
    require_spark,
    spark_job,
)
from timerwheel.clock import SystemClock
from timerwheel.model.durations import format_duration, format_ms
from timerwheel.model.text import printable

if TYPE_CHECKING:
    from timerwheel.spark_jobs.audit.checkpoint import Checkpoint, Document
    from timerwheel.spark_jobs.audit.job import Audit, Reading
    from timerwheel.spark_jobs.audit.kafka import KafkaAudit, KafkaView
    from timerwheel.spark_jobs.live_logs import LiveLogs
    from timerwheel.spark_jobs.progress import JobProgress
    from timerwheel.spark_jobs.segment_stats import ReadOptions

FINDINGS_SHOWN_MAX = 20
INLET_DEFAULT = "timers"


def audit(
    *,
    data: LogsOption,
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="A new or empty directory or URL for the report and tables, reachable by all executors."
            " The default is audit-TIME in the current directory.",
        ),
    ] = None,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Write only the report, no Parquet tables.")
    ] = False,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint",
            metavar="DIR",
            help="A directory or URL, reachable by all executors, that keeps what was judged. The next audit"
            " with it reads only what is new.",
        ),
    ] = None,
    salvage: SalvageFlag = False,
    scan: ScanFlag = False,
    options: StagedRunOptions,
    kafka: KafkaOption = None,
    kafka_inlet: Annotated[
        str, typer.Option("--kafka-inlet", help="The Kafka topic that the service takes records from.")
    ] = INLET_DEFAULT,
    kafka_properties: KafkaPropertiesOption = None,
    output: TimeOutput,
) -> None:
    """Prove from the logs that each timer was delivered once, recalled, or still waits; exit code 1 if not.

    Read-only; the service may be running. With `--kafka`, also compare the logs with the topics that the
    bridge reads and writes.
    """
    clock = SystemClock()
    if out is None:
        out = f"audit-{dt.datetime.fromtimestamp(clock.now_ms() / 1_000, dt.UTC):%Y%m%dT%H%M%SZ}"
    require_spark()
    from timerwheel.spark_jobs.audit.checkpoint import open_checkpoint
    from timerwheel.spark_jobs.audit.job import TABLES
    from timerwheel.spark_jobs.audit.report import Run, versions, write_audit
    from timerwheel.spark_jobs.live_logs import LiveLogs
    from timerwheel.spark_jobs.out_directory import check_unused, out_directory
    from timerwheel.spark_jobs.segment_stats import ReadOptions

    command = _command(
        data, options.master, checkpoint, kafka, scan=scan, salvage=salvage, report_only=report_only
    )
    with contextlib.ExitStack() as stack:
        places = [out] if checkpoint is None else [out, checkpoint]
        this = stack.enter_context(reported("audit", options, data, places))
        directories, view = _directories_and_kafka(data, kafka, kafka_inlet, kafka_properties)
        logs = this.find_logs(directories)
        check_unused(out)
        kept = None
        if checkpoint is not None:
            kept = stack.enter_context(open_checkpoint(checkpoint, format_ms(clock.now_ms())))
            # Again: another run may have read further before this one had the lock.
            logs = this.find_logs(directories)
        written = [("--out", out)] + ([] if kept is None else [("--checkpoint", kept.url)])
        job = stack.enter_context(spark_job(this, logs=logs, out=written))
        live = LiveLogs(job.spark, listed_again(logs))
        with out_directory(out, *(() if report_only else TABLES)) as place:
            tables = None if report_only else place
            reading = ReadOptions(job.staging, salvage=salvage, sidecars=not scan)
            result, following = _judge(live, job.progress, kept, reading, tables, clock.now_ms())
            result = _with_kafka(job, result, view, live, salvage=salvage)
            run = Run(command, clock.now_ms(), dict(job.progress.seconds), versions(), place)
            write_audit(place, result, run)
        _measure(result, job)
        if kept is not None and following is not None:
            kept.commit(following)  # after the report: a run that dies in between judges the same again
    if not output.as_data(msgspec.to_builtins(result) | {"run": run}):
        _show(result, place, output)
    if not result.balanced:
        raise typer.Exit(1)


def _directories_and_kafka(
    data: list[str], kafka: str | None, inlet: str, properties: Path | None
) -> "tuple[list[str], KafkaView | None]":
    """The directories with logs, and what Kafka had before these were read.

    A log that Kafka keeps is copied first. A service that has it there need not have the bridge's topics.
    """
    if kafka is None:
        return data, None
    require_spark()
    place = kafka_place(kafka, properties)
    found = data if place.cluster is None else copy_journal(place, data)
    from timerwheel.spark_jobs.audit.kafka import has_bridge, look
    from timerwheel.spark_jobs.kafka_topics import Brokers

    brokers = Brokers(place.servers, place.properties)
    if place.cluster is not None and inlet == INLET_DEFAULT:
        in_shards = found != data  # then it has no bridge, whatever another service has at these brokers
        if in_shards or not has_bridge(brokers, inlet):
            return found, None
    view = look(brokers, inlet, find_logs(found))
    if place.cluster is not None:
        copy_journal(place, data)  # again: what the topics have by now must be in the copy
    return found, view


def _judge(
    live: "LiveLogs",
    progress: "JobProgress",
    checkpoint: "Checkpoint | None",
    reading: "ReadOptions",
    tables: str | None,
    now_ms: int,
) -> "tuple[Audit, Document | None]":
    """The result, and what to commit to the checkpoint if there is one."""
    from timerwheel.spark_jobs.audit.job import audit_live, audit_since

    if checkpoint is None:
        return audit_live(live, progress, reading, tables), None
    return audit_since(live, progress, checkpoint, reading, tables, now_ms=now_ms)


def _with_kafka(
    job: Job, result: "Audit", view: "KafkaView | None", live: "LiveLogs", *, salvage: bool
) -> "Audit":
    """The result together with what a comparison with Kafka found, if that was asked for."""
    if view is None:
        return result
    from timerwheel.spark_jobs.audit.kafka import audit_kafka

    with job.progress.stage("kafka"):
        compared = live.read(lambda logs: audit_kafka(job.spark, view, logs, salvage=salvage))
    balanced = result.balanced and compared.balanced
    return msgspec.structs.replace(result, kafka=compared, balanced=balanced, removed=live.removed)


def _measure(audit: "Audit", job: Job) -> None:
    from timerwheel.spark_jobs.audit.findings import Rule

    gauges, late = job.metrics, audit.lateness
    gauges.set("timerwheel_audit_balanced", "Whether every timer is accounted for", audit.balanced)
    rules = {str(rule): audit.rules.get(rule, 0) for rule in Rule}
    gauges.set_each("timerwheel_audit_findings", "Records that break a rule", "rule", rules)
    if audit.reading is not None:
        what = "Findings that no earlier audit with the checkpoint had"
        gauges.set("timerwheel_audit_new_findings", what, audit.reading.findings_new)
    gauges.set("timerwheel_audit_damaged_regions", "Parts of the logs without a record", audit.damaged_total)
    gauges.set("timerwheel_audit_records", "Records that were accounted for", audit.records)
    gauges.set_each("timerwheel_audit_timers", "Timers of clients and groups", "outcome", audit.timers)
    gauges.set("timerwheel_audit_overdue", "Messages that should have been delivered", audit.messages.overdue)
    if late.count:
        quantiles = {"0.5": late.p50_ms, "0.9": late.p90_ms, "0.99": late.p99_ms, "0.999": late.p999_ms}
        seconds = {name: ms / 1_000 for name, ms in {**quantiles, "1": late.max_ms}.items()}
        what = "How late messages were delivered"
        gauges.set_each("timerwheel_audit_lateness_seconds", what, "quantile", seconds)


def _command(data: list[str], master: str, checkpoint: str | None, kafka: str | None, **flags: bool) -> str:
    """The command line for the report, without Spark settings or passwords in URLs: reports are shared."""
    from timerwheel.spark_jobs.storage import shown

    words = ["timerwheel", "audit"]
    for url in data:
        words += ["--data", shown(url)]
    if master != MASTER_DEFAULT:
        words += ["--master", shown(master)]
    if checkpoint is not None:
        words += ["--checkpoint", shown(checkpoint)]
    if kafka is not None:
        words += ["--kafka", kafka]
    words += [f"--{name.replace('_', '-')}" for name, given in flags.items() if given]
    return shlex.join(words)


def _show(audit: "Audit", place: str, output: Output) -> None:
    for region in audit.damaged[:FINDINGS_SHOWN_MAX]:
        output.line(
            f"damaged: {region.path} from {region.offset} to {region.end}: {printable(region.reason)}"
        )
    _more(len(audit.damaged[:FINDINGS_SHOWN_MAX]), audit.damaged_total, "damaged regions")
    if audit.findings:
        shown = audit.findings[:FINDINGS_SHOWN_MAX]
        rows = [
            (
                finding.id or "-",
                finding.rule,
                printable(finding.topic),
                output.when(finding.due_ms),
                str(finding.offset),
                printable(finding.node),
                printable(finding.detail),
            )
            for finding in shown
        ]
        output.table(("id", "rule", "topic", "+due", "+#offset", "+node", "=detail"), rows)
        _more(len(shown), audit.findings_total, "findings")
    if audit.kafka is not None and audit.kafka.findings:
        _show_kafka_findings(audit.kafka, output)
    output.facts(_facts(audit, place, output))
    if audit.balanced:
        output.line("the books balance")
    else:
        broken = audit.rules | (audit.kafka.rules if audit.kafka is not None else {})
        rules = ", ".join(f"{count:,} {rule}" for rule, count in broken.items())
        output.line(f"the books do not balance: {rules or 'the log is damaged'}")


def _show_kafka_findings(compared: "KafkaAudit", output: Output) -> None:
    shown = compared.findings[:FINDINGS_SHOWN_MAX]
    rows = [
        (printable(one.what), one.rule, printable(one.topic), output.time(one.due_ms), f"{one.count:,}")
        for one in shown
    ]
    output.table(("message or record", "rule", "Kafka topic", "due", "#found"), rows)
    _more(len(shown), sum(compared.rules.values()), "findings in Kafka")


def _kafka_facts(compared: "KafkaAudit") -> list[tuple[str, str]]:
    facts = []
    if (inlet := compared.inlet) is not None:
        text = (
            f"{inlet.records:,} records of {inlet.topic}: {inlet.messages:,} messages, "
            f"{inlet.recalls:,} recalls, {inlet.rejected:,} rejected"
        )
        if inlet.unchecked:
            text += f"; {inlet.unchecked:,} were taken before the log begins, and not checked"
        facts.append(("from Kafka", text))
    for one in compared.outlets:
        text = f"{one.found:,} of {one.owed:,} that went out"
        if one.deleted:
            text += f"; {one.deleted:,} are older than what the topic keeps"
        if one.behind:
            text += f"; {one.behind:,} did not go out yet"
        facts.append((f"to {printable(one.topic)}", text))
    return facts


def _facts(audit: "Audit", place: str, output: Output) -> list[tuple[str, str]]:
    messages, leases, late = audit.messages, audit.leases, audit.lateness
    ends = ", ".join(f"{count:,} {outcome}" for outcome, count in audit.timers.items() if count)
    facts = [
        ("logs", f"{len(audit.nodes):,}, {audit.records:,} records"),
        ("timers", f"{sum(audit.timers.values()):,}: {ends}" if ends else "0"),
        ("sent when due", f"{messages.direct:,}"),
    ]
    if audit.reading is not None:
        facts = _reading_facts(audit.reading, audit, output) + facts
    if messages.carried:
        facts.append(("carried over", f"{messages.carried:,} from segments that retention removed"))
    if messages.overdue:
        longest = format_duration(messages.overdue_ms)
        facts.append(("overdue", f"{messages.overdue:,} of those pending; the longest by {longest}"))
    if leases.scheduled or leases.carried:
        text = f"{leases.scheduled:,} scheduled, {leases.delivered:,} due, {leases.pending:,} waiting"
        facts.append(("retries of groups", text))
    if late.count:
        names = {"p50": late.p50_ms, "p90": late.p90_ms, "p99": late.p99_ms, "p99.9": late.p999_ms}
        quantiles = ", ".join(f"{name} {format_duration(ms)}" for name, ms in names.items())
        facts.append(("late by", f"{quantiles}, at most {format_duration(late.max_ms)}"))
    if audit.out_of_order:
        facts.append(
            ("out of order", f"{audit.out_of_order:,} deliveries with equal due times; not a finding")
        )
    if audit.unproved:
        facts.append(("unproved", f"{audit.unproved:,} records end timers in damaged regions"))
    if audit.kafka is not None:
        facts += _kafka_facts(audit.kafka)
    facts += removed_facts(audit.removed)
    facts += [("torn end", f"{one.path} from {one.offset}: {one.reason}") for one in audit.torn]
    facts.append(("report", f"{place}/report.html"))
    return facts


def _reading_facts(reading: "Reading", audit: "Audit", output: Output) -> list[tuple[str, str]]:
    read, every = sum(one.segments for one in reading.nodes), sum(node.segments for node in audit.nodes)
    text = f"{read:,} of {every:,} segments"
    if reading.judged_ms is not None:
        text += f"; the rest was judged before ({output.time(reading.judged_ms)})"
    facts = [("read", text)]
    facts += [
        ("read in full", f"{printable(one.node)}: {one.why_whole}") for one in reading.nodes if one.why_whole
    ]
    if reading.absent:
        names = ", ".join(map(printable, reading.absent))
        facts.append(("left out", f"{names}: in the checkpoint, but not among the logs of this audit"))
    if reading.judged_ms is not None and audit.findings_total:
        facts.append(("new findings", f"{reading.findings_new:,} of {audit.findings_total:,}"))
    return facts


def _more(shown: int, total: int, what: str) -> None:
    if total > shown:
        print(f"... and {total - shown:,} more {what}")
