"""`rebuild`: builds new indexes from logs, with Spark."""

import contextlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from timerwheel.cli.output import JsonOutput, Output
from timerwheel.cli.spark_options import (
    KafkaOption,
    KafkaPropertiesOption,
    LogsOption,
    SalvageFlag,
    ScanFlag,
    StagedRunOptions,
    copy_journal,
    kafka_place,
    removed_facts,
    reported,
    require_spark,
    spark_job,
    stage_times,
)
from timerwheel.errors import SettingsError
from timerwheel.index.swap import STAGING_NAME
from timerwheel.store.files import make_directory

if TYPE_CHECKING:
    from timerwheel.spark_jobs.rebuild.job import Rebuilt, Report


def rebuild(
    *,
    data: LogsOption,
    options: StagedRunOptions,
    salvage: SalvageFlag = False,
    scan: ScanFlag = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Build and check the new index and print what would change, but keep the old index.",
        ),
    ] = False,
    kafka: KafkaOption = None,
    kafka_properties: KafkaPropertiesOption = None,
    output: JsonOutput,
) -> None:
    """Rebuild the index from the log, with Spark, while the service is stopped; the old index is kept."""
    require_spark()
    from timerwheel.spark_jobs.rebuild.job import Rebuild, locked
    from timerwheel.spark_jobs.segment_stats import ReadOptions

    with contextlib.ExitStack() as stack:
        run = stack.enter_context(reported("rebuild", options, data, () if dry_run else data))
        if kafka is not None:
            data = _copied(kafka, kafka_properties, data)
        logs = run.find_logs(data)
        if not dry_run:
            run.writes[:] = run.reads
            stack.enter_context(locked(logs))
            if options.staging is None:
                # Beside the index: that disk has room for an index, and the executors can reach it.
                staging = str(Path(logs[0].url).absolute() / STAGING_NAME)
                shutil.rmtree(staging, ignore_errors=True)
                make_directory(Path(staging))
                stack.callback(shutil.rmtree, staging, ignore_errors=True)
                run = run._replace(options=options._replace(staging=staging))
            logs = run.find_logs([log.url for log in logs])  # read again: nobody can change them now
        job = stack.enter_context(spark_job(run, logs=logs))
        reading = ReadOptions(job.staging, salvage=salvage, sidecars=not scan)
        report = Rebuild(job.spark, job.progress, reading).run(logs, dry_run=dry_run)
        what = "Scheduled messages in the rebuilt indexes"
        job.metrics.set("timerwheel_rebuild_pending", what, sum(node.pending for node in report.nodes))
    if output.as_data(report):
        return
    for node in report.nodes:
        _show(node, report, output)
    output.facts(removed_facts(report.removed))
    output.line(f"time: {stage_times(report.seconds)}")


def _copied(kafka: str, properties: Path | None, data: list[str]) -> list[str]:
    """The directories of a log that Kafka keeps, copied from there."""
    place = kafka_place(kafka, properties)
    if place.cluster is None:
        raise SettingsError(f"--kafka {kafka}: name the log that is to be copied, kafka://HOST:PORT/CLUSTER")
    return copy_journal(place, data)


def _show(node: "Rebuilt", report: "Report", output: Output) -> None:
    output.line(f"{node.data}: {'would be rebuilt' if report.dry_run else 'rebuilt'}")
    facts = [
        (
            "records",
            f"{node.records:,} in {node.segments:,} segments, {node.scanned_segments:,} read in full",
        ),
        ("timers", f"{node.timers:,} stored, {node.delivered:,} delivered, {node.recalled:,} recalled"),
        ("scheduled", f"{node.pending:,} messages and {node.leases:,} leases in {node.slots:,} slots"),
        ("visible", f"{node.queue_positions:,} messages in the queues of {node.topics:,} topics"),
        ("groups", f"{node.groups:,}, which hold {node.group_items:,} messages"),
        ("keys", f"{node.keys:,}"),
        ("checkpoint", f"{node.checkpoint}"),
    ]
    if report.dry_run:
        facts.append(("now", _before(node)))
    output.facts(facts)
    for region in node.damaged:
        what = "unfinished end" if region.torn else "damaged"
        output.line(f"{what}: {region.path}: offsets {region.offset} to {region.end}: {region.reason}")
    if node.aside is not None:
        output.line(f"the old index is kept as {node.aside}")


def _before(node: "Rebuilt") -> str:
    old = node.before
    if old is None:
        return "no index"
    if old.problem is not None:
        return f"an index that cannot be used: {old.problem}"
    if old.checkpoint is None:
        return "an empty index"
    which = "the same timers" if old.same_pending else "other timers"
    return f"{which} ({old.pending:,}), {old.positions:,} visible, checkpoint {old.checkpoint}"
