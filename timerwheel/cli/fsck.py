"""`fsck`: checks a data directory: is the log intact, and does the index agree with it?"""

from typing import TYPE_CHECKING

import typer
from rich.filesize import decimal

from timerwheel.cli.options import DATA_DEFAULT, DataOption
from timerwheel.cli.output import JsonOutput, Output, progress_bar

if TYPE_CHECKING:
    from timerwheel.offline.fsck import FsckReport


def fsck(data: DataOption = DATA_DEFAULT, *, output: JsonOutput) -> None:
    """Check the log, and the index against it. Read-only; exit code 1 if something is wrong."""
    from timerwheel.offline.fsck import fsck as check

    with progress_bar("checking the log") as progress:
        report = check(data, progress)
    if not output.as_data(report):
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
            ("scheduled", f"{report.pending:,}"),
            ("delivered", f"{report.visible:,}"),
            ("checkpoint", checkpoint),
        ]
    )
    if report.ok and report.findings:
        output.line("the next start repairs all of these")
    elif report.ok:
        output.line("no problems found")
    else:
        output.line(f"problems found: {len(report.findings):,}")
