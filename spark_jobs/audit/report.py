"""The report of an audit: one self-contained HTML page, light and dark, for screens of any width."""

import datetime as dt
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

import msgspec
from matplotlib.figure import Figure

from timerwheel.spark_jobs.audit.findings import MEANING, Rule
from timerwheel.spark_jobs.audit.job import Audit, Histogram, HourLateness
from timerwheel.spark_jobs.audit.kafka import KAFKA_MEANING, KafkaRule
from timerwheel.spark_jobs.lateness.plots import over_time
from timerwheel.spark_jobs.pages.page import page
from timerwheel.spark_jobs.pages.svg import FIRST, about, count_axis, svg
from timerwheel.spark_jobs.storage import join, write_atomically

PAGE = "report.html"
DOCUMENT = "audit.json"
_PACKAGES = ("timerwheel", "pyspark", "pyarrow", "numpy")


class Run(msgspec.Struct, frozen=True):
    """How a job was run: its command, when it ended, seconds per stage, versions."""

    command: str
    ended_ms: int
    seconds: Mapping[str, float]
    versions: Mapping[str, str]
    out: str


def versions() -> dict[str, str]:
    """Versions of the software that a job runs on; a package that is not installed has none."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "unknown"
    return found


def write_audit(out: str, audit: Audit, run: Run) -> None:
    """Write the page and then `audit.json` into a directory or URL."""
    write_atomically(join(out, PAGE), audit_page(audit, run).encode())
    write_atomically(join(out, DOCUMENT), msgspec.json.encode(msgspec.to_builtins(audit) | {"run": run}))


def audit_page(audit: Audit, run: Run) -> str:
    """The page as text. Whatever comes from a log is escaped."""
    return page(
        "audit.html",
        {"meaning": _meaning},
        audit=audit,
        run=run,
        lateness_plot=_lateness_plot(audit.histogram),
        hours_plot=_hours_plot(audit.hours),
    )


def _meaning(rule: str) -> str:
    return MEANING[Rule(rule)] if rule in set(Rule) else KAFKA_MEANING[KafkaRule(rule)]


def _lateness_plot(histogram: Sequence[Histogram]) -> str:
    """Deliveries by lateness, in powers of two of a millisecond."""
    counts: dict[int, int] = {}
    for bar in histogram:
        octave = bar.top_ms.bit_length()
        counts[octave] = counts.get(octave, 0) + bar.delivered
    octaves = range(max(counts, default=0) + 1)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        values = [counts.get(octave, 0) for octave in octaves]
        axes.bar(octaves, values, color=FIRST, width=0.85)
        labels = [about((1 << octave) - 1) for octave in octaves]
        crowded = len(octaves) > 8  # noqa: PLR2004 - more labels than have room side by side
        turned: Any = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"} if crowded else {}
        axes.set_xticks(octaves, labels, **turned)
        count_axis(axes, values)
        axes.set_xlabel("late by up to")
        axes.set_ylabel("deliveries")

    return svg(draw, 2.9, "Deliveries by lateness")


def _hours_plot(hours: Sequence[HourLateness]) -> str:
    """Deliveries by hour, and their lateness."""
    times = [dt.datetime.fromtimestamp(hour.hour_ms / 1_000, dt.UTC) for hour in hours]
    return over_time(times, [hour.lateness for hour in hours], dt.timedelta(hours=1), "hour (UTC)")
