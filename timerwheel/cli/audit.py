"""`audit`: proves from the logs, on Spark, that the service handled every timer correctly."""

import datetime as dt
import shlex
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from timerwheel.cli.options import JsonFlag, UtcFlag
from timerwheel.cli.output import Output
from timerwheel.cli.spark_options import (
    MASTER_DEFAULT,
    ConfOption,
    Job,
    LogsOption,
    MasterOption,
    MetricsOption,
    SalvageFlag,
    ScanFlag,
    SparkOptions,
    StagingOption,
    find_logs,
    spark_job,
)
from timerwheel.clock import SystemClock
from timerwheel.model.durations import format_duration
from timerwheel.model.text import printable

if TYPE_CHECKING:
    from timerwheel.spark_jobs.audit.job import Audit

FINDINGS_SHOWN_MAX = 20


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
    salvage: SalvageFlag = False,
    scan: ScanFlag = False,
    master: MasterOption = MASTER_DEFAULT,
    conf: ConfOption = None,
    staging: StagingOption = None,
    metrics: MetricsOption = None,
    utc: UtcFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Prove from the logs that each timer was delivered once, recalled, or still waits; exit code 1 if not.

    Read-only; the service may be running.
    """
    clock = SystemClock()
    if out is None:
        out = f"audit-{dt.datetime.fromtimestamp(clock.now_ms() / 1_000, dt.UTC):%Y%m%dT%H%M%SZ}"
    logs = find_logs(data)
    from timerwheel.spark_jobs.audit.job import TABLES
    from timerwheel.spark_jobs.audit.job import audit as judge
    from timerwheel.spark_jobs.audit.report import Run, versions, write_audit
    from timerwheel.spark_jobs.out_directory import check_unused, out_directory
    from timerwheel.spark_jobs.segment_stats import survey

    check_unused(out)
    options = SparkOptions(master, conf, staging, metrics)
    with spark_job("audit", options, logs=logs, out=("--out", out)) as job:
        with job.progress.stage("survey"):
            found = survey(job.spark, logs, job.staging, salvage=salvage, sidecars=not scan)
        with out_directory(out, *(() if report_only else TABLES)) as place:
            result = judge(job.spark, job.progress, found, None if report_only else place)
            command = _command(data, master, scan=scan, salvage=salvage, report_only=report_only)
            run = Run(command, clock.now_ms(), dict(job.progress.seconds), versions(), place)
            write_audit(place, result, run)
        _measure(result, job)
    output = Output(utc=utc)
    if as_json:
        output.json(msgspec.to_builtins(result) | {"run": run})
    else:
        _show(result, place, output)
    if not result.balanced:
        raise typer.Exit(1)


def _measure(audit: "Audit", job: Job) -> None:
    from timerwheel.spark_jobs.audit.findings import Rule

    gauges, late = job.metrics, audit.lateness
    gauges.set("timerwheel_audit_balanced", "Whether every timer is accounted for", audit.balanced)
    rules = {str(rule): audit.rules.get(rule, 0) for rule in Rule}
    gauges.set_each("timerwheel_audit_findings", "Records that break a rule", "rule", rules)
    gauges.set("timerwheel_audit_damaged_regions", "Parts of the logs without a record", audit.damaged_total)
    gauges.set("timerwheel_audit_records", "Records that were accounted for", audit.records)
    gauges.set_each("timerwheel_audit_timers", "Timers of clients and groups", "outcome", audit.timers)
    gauges.set("timerwheel_audit_overdue", "Messages that should have been delivered", audit.messages.overdue)
    if late.count:
        quantiles = {"0.5": late.p50_ms, "0.9": late.p90_ms, "0.99": late.p99_ms, "0.999": late.p999_ms}
        seconds = {name: ms / 1_000 for name, ms in {**quantiles, "1": late.max_ms}.items()}
        what = "How late messages were delivered"
        gauges.set_each("timerwheel_audit_lateness_seconds", what, "quantile", seconds)


def _command(data: list[str], master: str, **flags: bool) -> str:
    """The command line for the report, without Spark settings or passwords in URLs: reports are shared."""
    from timerwheel.spark_jobs.storage import shown

    words = ["timerwheel", "audit"]
    for url in data:
        words += ["--data", shown(url)]
    if master != MASTER_DEFAULT:
        words += ["--master", shown(master)]
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
                output.time(finding.due_ms),
                str(finding.offset),
                printable(finding.node),
                printable(finding.detail),
            )
            for finding in shown
        ]
        output.table(("id", "rule", "topic", "due", "#offset", "node", "detail"), rows)
        _more(len(shown), audit.findings_total, "findings")
    output.facts(_facts(audit, place))
    if audit.balanced:
        output.line("the books balance")
    else:
        rules = ", ".join(f"{count:,} {rule}" for rule, count in audit.rules.items())
        output.line(f"the books do not balance: {rules or 'the log is damaged'}")


def _facts(audit: "Audit", place: str) -> list[tuple[str, str]]:
    messages, leases, late = audit.messages, audit.leases, audit.lateness
    ends = ", ".join(f"{count:,} {outcome}" for outcome, count in audit.timers.items() if count)
    facts = [
        ("logs", f"{len(audit.nodes):,}, {audit.records:,} records"),
        ("timers", f"{sum(audit.timers.values()):,}: {ends}" if ends else "0"),
        ("sent when due", f"{messages.direct:,}"),
    ]
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
    facts += [("torn end", f"{one.path} from {one.offset}: {one.reason}") for one in audit.torn]
    facts.append(("report", f"{place}/report.html"))
    return facts


def _more(shown: int, total: int, what: str) -> None:
    if total > shown:
        print(f"... and {total - shown:,} more {what}")
