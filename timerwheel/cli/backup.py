"""`backup create|verify|restore`: backs up a data directory while its service runs, and restores it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.filesize import decimal

from timerwheel.cli.options import DATA_DEFAULT, DataOption
from timerwheel.cli.output import Output, TimeOutput, progress_bar
from timerwheel.clock import SystemClock

if TYPE_CHECKING:
    from timerwheel.offline.backup.files import Manifest

PlaceArgument = Annotated[
    Path,
    typer.Argument(metavar="DIR", help="The directory of the backup.", file_okay=False, show_default=False),
]


def create(
    place: PlaceArgument,
    *,
    data: DataOption = DATA_DEFAULT,
    salvage: Annotated[
        bool, typer.Option("--salvage", help="Go on where sealed segments are damaged, and report it.")
    ] = False,
    output: TimeOutput,
) -> None:
    """Back up a data directory, whether its service runs or not; exit code 1 if it finds damage in its log.

    It contains everything acknowledged before it began. Run it again on the same DIR to copy only new
    segments. It holds all messages and the secrets of subscriptions, so only its owner can read it.
    """
    from timerwheel.offline.backup.backup import back_up

    with progress_bar("copying the log") as progress:
        report = back_up(data, place, SystemClock().now_ms(), progress, salvage=salvage)
    if not output.as_data({**msgspec.structs.asdict(report), "backup": str(place)}):
        for line in report.damage:
            output.line(f"damaged: {line}")
        copied = f"{report.copied_segments:,} segment(s), {decimal(report.copied_bytes)}"
        output.facts(
            [
                ("log", report.log_id),
                ("as of", output.time(report.made_ms)),
                ("holds", f"{report.segments:,} segment(s), {decimal(report.size_bytes)}"),
                ("offsets", f"{report.start} to {report.until}"),
                ("copied", copied),
                ("kept from the last run", f"{report.linked_segments:,} segment(s)"),
            ]
        )
    if report.damage:
        raise typer.Exit(1)


def verify(place: PlaceArgument, *, output: TimeOutput) -> None:
    """Compare every file of a backup with its manifest; exit code 1 if one differs."""
    from timerwheel.offline.backup.files import verify_files

    with progress_bar("reading the backup") as progress:
        manifest = verify_files(place, progress)
    _show(manifest, output, last="the backup is intact")


def restore(
    place: PlaceArgument,
    *,
    data: Annotated[
        Path,
        typer.Option("--data", help="The data directory to create.", file_okay=False, show_default=False),
    ],
    output: TimeOutput,
) -> None:
    """Restore a backup into a new data directory: the service as it was at that time.

    Never run it beside the service that was backed up: both would deliver the scheduled messages.
    """
    from timerwheel.offline.backup.restore import restore_backup

    with progress_bar("restoring") as progress:
        manifest = restore_backup(place, data, SystemClock().now_ms(), progress)
    _show(manifest, output, last=f"restored to {data}; the first start builds its index")


def _show(manifest: "Manifest", output: Output, *, last: str) -> None:
    if output.as_data(manifest):
        return
    for segment in (one for one in manifest.segments if one.damage is not None):
        output.line(f"damaged when it was backed up: {segment.file.name}: {segment.damage}")
    output.facts(
        [
            ("log", manifest.log_id),
            ("as of", output.time_and_distance(manifest.made_ms)),
            ("holds", f"{len(manifest.segments):,} segment(s), {decimal(manifest.size_bytes)}"),
            ("offsets", f"{manifest.start} to {manifest.until}"),
            ("tokens", "yes" if manifest.has_tokens else "none: its service accepts calls without a token"),
        ]
    )
    output.line(last)
