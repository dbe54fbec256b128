"""`delta`: audits and archives as tables of Delta Lake."""

import importlib.util
import sys
from typing import Annotated

import typer

from timerwheel.cli.output import JsonOutput
from timerwheel.cli.spark_options import require_spark
from timerwheel.errors import SettingsError


def _require_delta() -> None:
    require_spark()
    if importlib.util.find_spec("deltalake") is None:
        raise SettingsError("deltalake is missing: this command needs `pip install 'timerwheel[delta]'`")


def audits(
    audits: Annotated[
        list[str],
        typer.Argument(
            metavar="AUDIT...", help="What `audit --out` wrote: directories, or URLs that fsspec reads."
        ),
    ],
    to: Annotated[str, typer.Option(metavar="URL", help="Where the tables are, or will be.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Put these audits in the place of all that the tables have.")
    ] = False,
    *,
    output: JsonOutput,
) -> None:
    """Add the tables of audits to Delta tables, partitioned by day; an audit is added once.

    Of what several audits judged, the tables have what the latest of them says.
    """
    _require_delta()
    from timerwheel.spark_jobs.delta.audits import AUDITS, publish_audits

    show = sys.stderr.isatty() and output.for_people

    def note(what: str) -> None:
        if show:
            print(what, file=sys.stderr)

    found = publish_audits(audits, to, replace=replace, note=note)
    if output.as_data({"to": to, "audits": [one._asdict() for one in found]}):
        return
    for one in found:
        rows = ", ".join(f"{count:,} {table}" for table, count in one.rows.items() if table != AUDITS)
        output.line(f"{one.audit}: {f'added ({rows})' if one.rows else 'was there already'}")


def archive(
    url: Annotated[str, typer.Argument(metavar="URL", help="The archive.")], *, output: JsonOutput
) -> None:
    """Make the records of an archive a Delta table, or bring the table up to date; nothing is copied."""
    _require_delta()
    from timerwheel.spark_jobs.delta.archive import list_archive

    found = list_archive(url)
    output.result(
        found._asdict(),
        f"{found.table}: {found.added:,} files added, {found.removed:,} removed; "
        f"{found.rows:,} records in {found.files:,} files",
    )
