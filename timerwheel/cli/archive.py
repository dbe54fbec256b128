"""`archive`: sealed segments become Parquet files, after which retention may drop them."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.filesize import decimal

from timerwheel.cli.options import JsonFlag
from timerwheel.cli.output import Output
from timerwheel.cli.spark_options import (
    MASTER_DEFAULT,
    ConfOption,
    LogsOption,
    MasterOption,
    SalvageFlag,
    find_logs,
    spark_job,
)
from timerwheel.clock import SystemClock

if TYPE_CHECKING:
    from timerwheel.spark_jobs.archive.check import Checked
    from timerwheel.spark_jobs.archive.job import ArchivedSite

PROBLEMS_SHOWN = 20


def archive(
    *,
    to: Annotated[
        str, typer.Option("--to", metavar="URL", help="Where the archive is: a directory or a URL.")
    ],
    data: LogsOption,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read the whole archive of these logs again and check it.")
    ] = False,
    salvage: SalvageFlag = False,
    master: MasterOption = MASTER_DEFAULT,
    conf: ConfOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Write sealed segments to an archive of Parquet files; exit code 1 if --verify finds something wrong.

    May run while the service runs, and again at any time: what is archived is left alone.
    """
    sites = find_logs(data)
    with spark_job("archive", master, conf, None) as job:
        from timerwheel.spark_jobs.archive.check import verify as check
        from timerwheel.spark_jobs.archive.job import archive as run
        from timerwheel.spark_jobs.archive.store import Archive

        found = run(job.spark, job.stages, sites, to, now_ms=SystemClock().now_ms(), salvage=salvage)
        checked = check(job.spark, job.stages, to, [one.log_id for one in found]) if verify else None
        if Archive(to).is_open_to_others:
            print(f"every user of this machine may look into {to}: chmod o-rwx closes it", file=sys.stderr)
    output = Output()
    if as_json:
        output.json(
            {
                "archive": to,
                "logs": found,
                "verified": None if checked is None else checked._asdict(),
                "seconds": job.stages.seconds,
            }
        )
    else:
        _show(found, checked, job.stages.seconds, output)
    if checked is not None and checked.problems:
        raise typer.Exit(1)


def _show(
    found: "list[ArchivedSite]", checked: "Checked | None", seconds: dict[str, float], output: Output
) -> None:
    for one in found:
        for lost in one.lost:
            output.line(f"damaged: {one.node}: from {lost.offset} to {lost.end}: {lost.reason}")
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
    output.line("time: " + ", ".join(f"{name} {took:.1f} s" for name, took in seconds.items()))
    if checked is None:
        return
    for problem in checked.problems[:PROBLEMS_SHOWN]:
        output.line(f"wrong: {problem}")
    if checked.problems:
        output.line(f"something is wrong with the archive: {len(checked.problems):,} findings")
    else:
        output.line(f"the archive is whole: {checked.segments:,} segments, {checked.records:,} records")
