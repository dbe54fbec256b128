"""Plots of the audit's report."""

import datetime as dt
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from timerwheel.spark_jobs.audit.job import Histogram, HourBooks
from timerwheel.spark_jobs.lateness.plots import over_time
from timerwheel.spark_jobs.pages.svg import FIRST, about, count_axis, svg


def lateness_plot(histogram: Sequence[Histogram]) -> str:
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


def hours_plot(hours: Sequence[HourBooks]) -> str:
    """Deliveries by hour, and their lateness."""
    times = [dt.datetime.fromtimestamp(hour.hour_ms / 1_000, dt.UTC) for hour in hours]
    return over_time(times, [hour.lateness for hour in hours], dt.timedelta(hours=1), "hour (UTC)")
