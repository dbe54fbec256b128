"""`restore`: creates a data directory with the waiting messages of an archive."""

import contextlib
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from timerwheel.cli.options import DATA_DEFAULT, DataOption
from timerwheel.cli.output import Output, TimeOutput
from timerwheel.cli.spark_options import (
    StagedRunOptions,
    reported,
    require_spark,
    spark_job,
    stage_times,
)
from timerwheel.clock import SystemClock
from timerwheel.model.durations import format_ms
from timerwheel.settings import Settings

if TYPE_CHECKING:
    from timerwheel.spark_jobs.archive.restore import Restored

NOT_RESTORED = (
    "Not restored, because the archive does not contain it:",
    "- everything stored after that time; a message delivered or recalled since then is waiting again",
    "- delivered messages, including those that no consumer had read or acknowledged",
    "- retries of groups, and dead letters; queue offsets continue after a gap",
)


def restore(
    *,
    source: Annotated[str, typer.Option("--from", metavar="URL", help="The archive.")],
    data: DataOption = DATA_DEFAULT,
    log_id: Annotated[
        str | None,
        typer.Option("--log-id", metavar="HEX", help="The log to restore, if the archive has several."),
    ] = None,
    salvage: Annotated[
        bool, typer.Option("--salvage", help="Continue if parts of the log are missing in the archive.")
    ] = False,
    options: StagedRunOptions,
    output: TimeOutput,
) -> None:
    """Create a new data directory with the messages that an archive shows as waiting.

    Anything stored after the last archive run is missing: messages delivered or recalled since then are
    delivered again, and newer messages are lost. Never run it beside the service whose log was archived.
    """
    require_spark()
    from timerwheel.spark_jobs.archive.part import find_part
    from timerwheel.spark_jobs.archive.restore import restore as run
    from timerwheel.spark_jobs.archive.restored_log import check_new, restored_log

    now_ms = SystemClock().now_ms()
    with contextlib.ExitStack() as stack:
        this = stack.enter_context(reported("restore", options, [source], [str(data)]))
        check_new(data)
        part = find_part(source, log_id, salvage=salvage)
        job = stack.enter_context(spark_job(this))
        size_bytes = Settings(data=data).segment_size_bytes
        with restored_log(data, size_bytes, format_ms(now_ms)) as target:
            found = run(job.spark, job.progress, part, target, job.staging, now_ms)
        job.metrics.set("timerwheel_restore_pending", "Messages that wait in the new log", found.pending)
    seconds = job.progress.seconds
    if not output.as_data({**msgspec.structs.asdict(found), "data": str(data), "seconds": seconds}):
        show_summary(found, seconds, output)


def show_summary(found: "Restored", seconds: dict[str, float], output: Output) -> None:
    """Print what was restored, what was not, and how long each stage took."""
    for missing in found.missing:
        output.line(f"missing: {missing}")
    output.facts(
        [
            ("log", f"{found.log_id}, of {found.node}"),
            ("archived", f"{found.segments:,} segment(s), {found.records:,} records"),
            ("as of", output.time_and_distance(found.as_of_ms)),
            ("waiting", f"{found.pending:,}, {found.overdue:,} of them overdue"),
            ("settings", f"{found.settings:,}"),
            ("new log", f"offsets {found.begin} to {found.end}"),
            ("time", stage_times(seconds)),
        ]
    )
    output.line("")
    for line in NOT_RESTORED:
        output.line(line)
