"""`forecast`: when messages fall due, the next peak, and the jitter that would flatten it."""

import contextlib
import io
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from timerwheel.cli.chart import SLOT_MS, Scale, draw_row, row_of
from timerwheel.cli.options import length_option, word_option
from timerwheel.cli.output import Output, TimeOutput
from timerwheel.cli.spark_options import (
    Job,
    LogsOption,
    SalvageFlag,
    ScanFlag,
    StagedRunOptions,
    listed_again,
    removed_facts,
    reported,
    require_spark,
    spark_job,
)
from timerwheel.cli.units import format_about, length_between
from timerwheel.clock import SystemClock
from timerwheel.model.durations import format_duration
from timerwheel.model.text import printable
from timerwheel.spark_jobs.forecast.horizon import WITHIN_MAX_MS

if TYPE_CHECKING:
    from timerwheel.spark_jobs.forecast.flatten import Flattening
    from timerwheel.spark_jobs.forecast.horizon import Horizon
    from timerwheel.spark_jobs.forecast.job import Forecast, Totals
    from timerwheel.spark_jobs.live_logs import Removed
    from timerwheel.spark_jobs.segment_stats import Survey
    from timerwheel.spark_jobs.segments import Damaged

PICTURE = "forecast.png"
COUNTS = "seconds.parquet"
_CHARTS = ("minute", "hour", "day")


def forecast(
    *,
    data: LogsOption,
    within_ms: Annotated[
        int,
        length_option(
            "--within",
            "How far to look ahead: 90s, 1h30m, at most 31d; 7d by default.",
            length_between(1, WITHIN_MAX_MS),
            default_factory=lambda: "7d",
            show_default=False,
        ),
    ],
    topic: Annotated[str | None, typer.Option(help="Only this topic.")] = None,
    rate: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Compute the jitter that keeps every second at N messages or fewer."
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=1, max=1_000, help="How many of the busiest to list.")] = 10,
    chart: Annotated[str, word_option("--chart", "The unit of one bar.", *_CHARTS)] = "hour",
    out: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", help=f"Write {PICTURE} and {COUNTS} (messages by second and topic) there."
        ),
    ] = None,
    options: StagedRunOptions,
    salvage: SalvageFlag = False,
    scan: ScanFlag = False,
    output: TimeOutput,
) -> None:
    """Forecast how many messages fall due when, from the log, with Spark: the busiest times and topics.

    With --rate, also the jitter that would flatten the peaks. The service may be running.
    """
    require_spark()
    from timerwheel.spark_jobs.forecast import job as jobs
    from timerwheel.spark_jobs.forecast.horizon import horizon_of
    from timerwheel.spark_jobs.live_logs import LiveLogs
    from timerwheel.spark_jobs.out_directory import check_unused, out_directory
    from timerwheel.spark_jobs.segment_stats import ReadOptions
    from timerwheel.spark_jobs.storage import join

    written = [] if out is None else [("--out", out)]
    with contextlib.ExitStack() as stack:
        run = stack.enter_context(reported("forecast", options, data, [] if out is None else [out]))
        logs = run.find_logs(data)
        if out is not None:
            check_unused(out)
        job = stack.enter_context(spark_job(run, logs=logs, out=written))
        live = LiveLogs(job.spark, listed_again(logs))
        horizon = horizon_of(SystemClock().now_ms(), within_ms)
        reading = ReadOptions(job.staging, salvage=salvage, sidecars=not scan)
        found, counted, totals = jobs.count_live(live, job.progress, reading, horizon, topic=topic)
        with job.progress.stage("weigh"):
            report = jobs.forecast(counted, totals, horizon, rate=rate, top=top)
        _measure(report, job)
        if out is not None:
            with job.progress.stage("write"), out_directory(out) as directory:
                jobs.write_counts(counted, horizon, join(directory, COUNTS))
                _write_picture(join(directory, PICTURE), totals, horizon, report, topic, output)
    if output.as_data(_document(report, found, live.removed, job, topic)):
        return
    _show(report, topic, output)
    _draw(totals, horizon, chart, output)
    _show_busiest(report, output)
    if report.flattening is not None:
        output.line("")
        output.line(advice(report.flattening, report))
    _show_damage(_damaged(found), output)
    output.facts(removed_facts(live.removed))
    if out is not None:
        output.line(f"written: {join(out, PICTURE)} and {join(out, COUNTS)}")


def _measure(report: "Forecast", job: Job) -> None:
    gauges = job.metrics
    waiting = {"overdue": report.overdue, "within": report.within, "later": report.later}
    gauges.set_each("timerwheel_forecast_messages", "Scheduled messages by their due time", "due", waiting)
    peaks = {unit: slots[0].count for unit, slots in report.busiest.items() if slots}
    gauges.set_each("timerwheel_forecast_peak_messages", "Messages of the busiest one", "unit", peaks)


def _write_picture(
    url: str, totals: "Totals", horizon: "Horizon", report: "Forecast", topic: str | None, output: Output
) -> None:
    from timerwheel.spark_jobs.forecast.plot import draw
    from timerwheel.spark_jobs.storage import write_atomically

    span = f"{output.slot_time(report.from_ms)} to {output.slot_time(report.until_ms)}"
    title = f"{report.within:,} messages due from {span}"
    if topic is not None:
        title += f" in the topic {printable(topic)}"
    picture = io.BytesIO()
    draw(picture, totals.per_second, horizon, report.flattening, output.zone, title)
    write_atomically(url, picture.getvalue())


def _document(
    report: "Forecast", found: "Survey", removed: list["Removed"], job: Job, topic: str | None
) -> dict[str, object]:
    return {
        "topic": topic,
        "waiting": report.waiting,
        **msgspec.to_builtins(report),
        "records": sum(segment.records for segment in found.found),
        "damaged": [one._asdict() for one in _damaged(found)],
        "removed": removed,
        "stage_seconds": job.progress.seconds,
    }


def _damaged(found: "Survey") -> "list[Damaged]":
    return [one for one in found.damaged if not one.torn]


def _show(report: "Forecast", topic: str | None, output: Output) -> None:
    where = "" if topic is None else f" in the topic {printable(topic)}"
    output.line(
        f"{report.waiting:,} scheduled{where}: {report.overdue:,} overdue, {report.within:,} due from "
        f"{output.slot_time(report.from_ms)} to {output.slot_time(report.until_ms)}, {report.later:,} later"
    )


def _draw(totals: "Totals", horizon: "Horizon", chart: str, output: Output) -> None:
    from timerwheel.spark_jobs.forecast.job import in_units

    row = row_of(chart, SLOT_MS[chart], in_units(totals.per_second, horizon, chart), horizon.from_ms)
    draw_row(row, Scale.of([cell.waiting for cell in row.cells]), output)


def _show_busiest(report: "Forecast", output: Output) -> None:
    for unit, slots in report.busiest.items():
        if slots:
            output.line("")
            rows = [(output.slot_time(slot.start_ms), f"{slot.count:,}") for slot in slots]
            output.table((f"busiest {unit}s", "#messages"), rows)
    if not report.topics:
        return
    output.line("")
    columns = ["topic", "#due", "busiest second", "#messages"]
    rows_of_topics = [
        [
            printable(one.topic),
            f"{one.within:,}",
            output.slot_time(one.worst.start_ms),
            f"{one.worst.count:,}",
        ]
        for one in report.topics
    ]
    if report.flattening is not None:
        columns.append(f"jitter for {report.flattening.rate:,} a second")
        for row, one in zip(rows_of_topics, report.topics, strict=True):
            row.append("-" if one.flattening is None else _jitter(one.flattening))
    output.table(columns, rows_of_topics)


def _jitter(flattening: "Flattening") -> str:
    from timerwheel.spark_jobs.forecast.flatten import Outcome

    if flattening.outcome is Outcome.OVER:
        return "no jitter helps"
    return (
        "not needed" if flattening.outcome is Outcome.WITHIN else format_duration(flattening.jitter_s * 1_000)
    )


def advice(flattening: "Flattening", report: "Forecast") -> str:
    """Return the jitter that keeps every second below the rate, or say that none does."""
    from timerwheel.spark_jobs.forecast.flatten import Outcome

    rate, peak = flattening.rate, flattening.peak
    if flattening.outcome is Outcome.WITHIN:
        return f"No second has more than {rate:,} messages, the busiest has {peak:,}: no jitter is needed."
    if flattening.outcome is Outcome.OVER:
        length = format_about(report.until_ms - report.from_ms)
        return (
            f"No jitter keeps every second at {rate:,} messages: {report.within:,} fall due within {length}, "
            f"{flattening.peak_expected:,.1f} a second on average."
        )
    length = format_duration(flattening.jitter_s * 1_000)
    return (
        f"A jitter of {length} keeps every second at {rate:,} messages: "
        f"add to each due time a random whole number of seconds from 0 to {flattening.jitter_s - 1:,}. "
        f"The busiest second then expects {flattening.peak_expected:,.1f} instead of {peak:,}."
    )


def _show_damage(damaged: list["Damaged"], output: Output) -> None:
    for one in damaged:
        output.line(f"damaged: {one.path}: no intact record from {one.offset} to {one.end}: {one.reason}")
