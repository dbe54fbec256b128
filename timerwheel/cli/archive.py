"""`archive`: writes sealed segments as Parquet files, so that retention may remove them."""

import contextlib
import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.filesize import decimal

from timerwheel.cli.output import JsonOutput, Output
from timerwheel.cli.spark_options import (
    Job,
    LogsOption,
    RunOptions,
    SalvageFlag,
    listed_again,
    reported,
    spark_job,
    stage_times,
)
from timerwheel.clock import SystemClock

if TYPE_CHECKING:
    from timerwheel.spark_jobs.archive.check import Checked
    from timerwheel.spark_jobs.archive.job import ArchivedLog

PROBLEMS_SHOWN = 20


def archive(
    *,
    to: Annotated[str, typer.Option("--to", metavar="URL", help="The archive: a directory or a URL.")],
    data: LogsOption,
    verify: Annotated[
        bool, typer.Option("--verify", help="Also read and check the whole archive of these logs.")
    ] = False,
    salvage: SalvageFlag = False,
    options: RunOptions,
    output: JsonOutput,
) -> None:
    """Write sealed segments to an archive of Parquet files; exit code 1 if --verify finds a problem.

    The service may be running. Run it again at any time: segments already archived are skipped.
    """
    with contextlib.ExitStack() as stack:
        run = stack.enter_context(reported("archive", options, data, [to]))
        logs = run.find_logs(data)
        job = stack.enter_context(spark_job(run, logs=logs, out=[("--to", to)], stages=False))
        from timerwheel.spark_jobs.archive.check import verify as check
        from timerwheel.spark_jobs.archive.job import archive as archive_logs
        from timerwheel.spark_jobs.archive.store import Archive

        logs = listed_again(logs)
        found = archive_logs(
            job.spark, job.progress, logs, to, now_ms=SystemClock().now_ms(), salvage=salvage
        )
        checked = check(job.spark, job.progress, to, [one.log_id for one in found]) if verify else None
        _measure(found, checked, job)
        if Archive(to).is_open_to_others:
            print(
                f"every user of this machine can read {to}; run chmod o-rwx to prevent that", file=sys.stderr
            )
    verified = None if checked is None else checked._asdict()
    document = {"archive": to, "logs": found, "verified": verified, "seconds": job.progress.seconds}
    if not output.as_data(document):
        _show(found, checked, job.progress.seconds, output)
    if checked is not None and checked.problems:
        raise typer.Exit(1)


def _measure(found: "list[ArchivedLog]", checked: "Checked | None", job: Job) -> None:
    gauges = job.metrics
    gauges.set(
        "timerwheel_archive_segments", "Segments archived by this run", sum(one.archived for one in found)
    )
    gauges.set(
        "timerwheel_archive_records", "Records archived by this run", sum(one.records for one in found)
    )
    gauges.set("timerwheel_archive_bytes", "Size of the files of this run", sum(one.bytes for one in found))
    if checked is not None:
        gauges.set("timerwheel_archive_problems", "What --verify found wrong", len(checked.problems))


def _show(
    found: "list[ArchivedLog]", checked: "Checked | None", seconds: dict[str, float], output: Output
) -> None:
    for one in found:
        for lost in one.lost:
            output.line(f"damaged: {one.node}: from {lost.offset} to {lost.end}: {lost.reason}")
        if (gone := one.removed) is not None:
            output.line(
                f"removed: {one.node}: retention removed the segments from {gone.begin} to {gone.until} "
                "while the job ran; those that it had not archived by then are not in the archive"
            )
    output.table(
        ("node", "#archived", "#skipped", "#records", "#files", "#size", "#until"),
        [
            (
                one.node,
                f"{one.archived:,}",
                f"{one.skipped:,}",
                f"{one.records:,}",
                f"{one.files:,}",
                decimal(one.bytes),
                "-" if one.until is None else str(one.until),
            )
            for one in found
        ],
    )
    output.line(f"time: {stage_times(seconds)}")
    if checked is None:
        return
    for problem in checked.problems[:PROBLEMS_SHOWN]:
        output.line(f"wrong: {problem}")
    if checked.problems:
        output.line(f"the archive is damaged: {len(checked.problems):,} findings")
    else:
        output.line(f"the archive is intact: {checked.segments:,} segments, {checked.records:,} records")
