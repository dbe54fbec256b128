"""`lateness`: a page about how late messages were delivered, from audits."""

import datetime as dt
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from timerwheel.cli.options import length_option
from timerwheel.cli.output import JsonOutput, Output
from timerwheel.cli.spark_options import require_spark
from timerwheel.model.durations import format_duration
from timerwheel.model.text import printable
from timerwheel.schedules.errors import ScheduleError
from timerwheel.schedules.recurrence import zone_of

if TYPE_CHECKING:
    from timerwheel.spark_jobs.lateness.dashboard import Dashboard

TOPICS_SHOWN = 20
UTC = "UTC"


def _zone(name: str) -> dt.tzinfo:
    try:
        return zone_of(name)
    except ScheduleError as error:
        raise typer.BadParameter(error.detail, param_hint="--zone") from None


def lateness(
    audits: Annotated[
        list[str],
        typer.Argument(
            metavar="AUDIT...", help="What `audit --out` wrote: directories, or URLs that fsspec reads."
        ),
    ],
    *,
    out: Annotated[
        str, typer.Option(metavar="FILE", help="Where to write the page: a file or a URL.")
    ] = "lateness.html",
    target_ms: Annotated[
        int,
        length_option(
            "--target",
            "What counts as on time: 250ms, 1m; 1s by default.",
            default_factory=lambda: "1s",
            show_default=False,
        ),
    ],
    zone: Annotated[str, typer.Option(metavar="NAME", help="Zone of the times: Europe/Berlin.")] = UTC,
    output: JsonOutput,
) -> None:
    """Write a page about how late messages were delivered, by topic and time, from one audit or more.

    It needs the logs no more, and no Spark. What several audits judged counts once, as the latest says.
    """
    require_spark()
    tz = _zone(zone)
    from timerwheel.spark_jobs.lateness.dashboard import dashboard
    from timerwheel.spark_jobs.lateness.report import lateness_page
    from timerwheel.spark_jobs.storage import write_atomically

    board = dashboard(audits, target_ms, tz, zone)
    write_atomically(out, lateness_page(board, tz).encode())
    if not output.as_data(msgspec.to_builtins(board) | {"out": out}):
        _show(board, out, tz, output)


def _show(board: "Dashboard", out: str, zone: dt.tzinfo, output: Output) -> None:
    from timerwheel.spark_jobs.lateness.report import hour_of, share

    late = board.lateness
    if not late.count:
        output.line("nothing was delivered when it fell due")
    else:
        names = {"p50": late.p50_ms, "p90": late.p90_ms, "p99": late.p99_ms, "p99.9": late.p999_ms}
        quantiles = ", ".join(f"{name} {format_duration(ms)}" for name, ms in names.items())
        within = format_duration(board.target_ms)
        most = format_duration(late.max_ms)
        output.line(f"{share(board)} of {late.count:,} messages within {within}: {quantiles}, max {most}")
        output.table(
            ("topic", "#delivered", f"#within {within}", "#p50", "#p99", "#max", "the latest was due from"),
            [
                (
                    printable(one.topic),
                    f"{one.lateness.count:,}",
                    share(one),
                    format_duration(one.lateness.p50_ms),
                    format_duration(one.lateness.p99_ms),
                    format_duration(one.lateness.max_ms),
                    hour_of(one.worst_hour_ms, zone),
                )
                for one in board.topics[:TOPICS_SHOWN]
            ],
        )
        if len(board.topics) > TOPICS_SHOWN:
            output.line(f"... and {len(board.topics) - TOPICS_SHOWN:,} more topics")
    output.line(f"written: {out}")
