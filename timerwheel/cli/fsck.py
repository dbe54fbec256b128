"""`fsck`: is a data directory whole, and does its index say what its log says?"""

import sys
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from timerwheel.cli.options import DATA_DEFAULT, DataOption, JsonFlag
from timerwheel.cli.output import Output

if TYPE_CHECKING:
    from timerwheel.offline.fsck import FsckReport


def fsck(data: DataOption = DATA_DEFAULT, as_json: JsonFlag = False) -> None:
    """Check the log and the wheel against each other. Reads only; exit code 1 if something is wrong."""
    from timerwheel.offline.fsck import fsck as check

    columns = (TextColumn("checking the log"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("")
        report = check(data, lambda at, end: progress.update(task, completed=at, total=end))
    output = Output()
    if as_json:
        output.json(report)
    else:
        _show(report, output)
    if not report.ok:
        raise typer.Exit(1)


def _show(report: "FsckReport", output: Output) -> None:
    for finding in report.findings:
        place = finding.path if finding.offset is None else f"{finding.path} at {finding.offset}"
        output.line(f"{finding.code}: {place}: {finding.detail}")
    checkpoint = "none" if report.checkpoint is None else str(report.checkpoint)
    output.facts(
        [
            ("log", f"{report.segments:,} segment(s), offsets {report.log_start} to {report.log_end}"),
            ("size", decimal(report.log_end - report.log_start)),
            ("records", f"{report.records:,}"),
            ("waiting", f"{report.pending:,}"),
            ("delivered", f"{report.visible:,}"),
            ("checkpoint", checkpoint),
        ]
    )
    if report.ok and report.findings:
        output.line("nothing that the next start does not mend by itself")
    elif report.ok:
        output.line("all is well")
    else:
        output.line(f"something is wrong: {len(report.findings):,} findings")
