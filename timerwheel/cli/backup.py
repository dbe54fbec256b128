"""`backup create|verify|restore`: a copy of a data directory while its service runs, and the way back."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from timerwheel.cli.options import DATA_DEFAULT, DataOption, JsonFlag, UtcFlag
from timerwheel.cli.output import Output
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
        bool, typer.Option("--salvage", help="Copy damage in sealed segments as it lies, and report it.")
    ] = False,
    utc: UtcFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Back up a data directory, whether its service runs or not; exit code 1 if its log is damaged.

    What was acknowledged before it began is in it. Run it again on the same DIR: sealed segments that it has
    are not copied again. It holds all messages and the secrets of subscriptions; its owner alone can read it.
    """
    from timerwheel.offline.backup.backup import back_up

    with _bar("copying the log") as progress:
        report = back_up(data, place, SystemClock().now_ms(), progress, salvage=salvage)
    output = Output(utc=utc)
    if as_json:
        output.json({**msgspec.structs.asdict(report), "backup": str(place)})
    else:
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
                ("kept from before", f"{report.linked_segments:,} segment(s)"),
            ]
        )
    if report.damage:
        raise typer.Exit(1)


def verify(place: PlaceArgument, *, utc: UtcFlag = False, as_json: JsonFlag = False) -> None:
    """Compare every file of a backup with its manifest; exit code 1 if one is not what was backed up."""
    from timerwheel.offline.backup.files import verify_files

    with _bar("reading the backup") as progress:
        manifest = verify_files(place, progress)
    _show(manifest, Output(utc=utc), as_json=as_json, last="the backup is whole")


def restore(
    place: PlaceArgument,
    *,
    data: Annotated[
        Path, typer.Option("--data", help="The data directory to make.", file_okay=False, show_default=False)
    ],
    utc: UtcFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Make a new data directory of a backup: the service as it was then.

    Never let it and the service that was backed up run as if they were one: both would deliver what waits.
    """
    from timerwheel.offline.backup.restore import restore_backup

    with _bar("restoring") as progress:
        manifest = restore_backup(place, data, SystemClock().now_ms(), progress)
    output = Output(utc=utc)
    _show(manifest, output, as_json=as_json, last=f"restored to {data}; the first start makes its index")


def _show(manifest: "Manifest", output: Output, *, as_json: bool, last: str) -> None:
    damaged = [one for one in manifest.segments if one.damage is not None]
    if as_json:
        output.json(manifest)
        return
    for segment in damaged:
        output.line(f"damaged when it was backed up: {segment.file.name}: {segment.damage}")
    output.facts(
        [
            ("log", manifest.log_id),
            ("as of", output.time_and_distance(manifest.made_ms)),
            ("holds", f"{len(manifest.segments):,} segment(s), {decimal(manifest.size_bytes)}"),
            ("offsets", f"{manifest.start} to {manifest.until}"),
            ("tokens", "yes" if manifest.has_tokens else "none: a service of it asks nobody for one"),
        ]
    )
    output.line(last)


@contextlib.contextmanager
def _bar(text: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr if that is a terminal."""
    columns = (TextColumn(text), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("")
        yield lambda done, total: progress.update(task, completed=done, total=total)
