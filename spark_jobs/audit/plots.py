"""Plots for reports, as inline SVG with the colours and fonts of the page."""

import datetime as dt
import io
import re
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from timerwheel.spark_jobs.audit.job import Histogram, HourBooks

WIDTH_INCHES = 4.4  # narrow, so that the text is still legible on a phone
FONT_POINTS = 9
# Unused colours, replaced by those of the page.
_INK, _LINE, _FIRST, _SECOND, _THIRD = "#010101", "#020202", "#030303", "#040404", "#050505"
_COLOURS = {
    _INK: "var(--ink)",
    _LINE: "var(--line)",
    _FIRST: "var(--first)",
    _SECOND: "var(--second)",
    _THIRD: "var(--third)",
}
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "timerwheel",
    "font.family": "sans-serif",
    "font.size": FONT_POINTS,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _LINE,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "grid.color": _LINE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.parse_math": False,
}
_DAYS_MS = [86_400_000 * 10**power for power in range(5)]
_LATE_TICKS_MS = (1, 10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 36_000_000, *_DAYS_MS)
_LOG_SCALE_FROM = 50  # ratio of largest to smallest above which small bars would be invisible


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
        axes.bar(octaves, values, color=_FIRST, width=0.85)
        labels = [_about((1 << octave) - 1) for octave in octaves]
        crowded = len(octaves) > 8  # noqa: PLR2004 - more labels than have room side by side
        turned: Any = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"} if crowded else {}
        axes.set_xticks(octaves, labels, **turned)
        _count_axis(axes, values)
        axes.set_xlabel("late by up to")
        axes.set_ylabel("deliveries")

    return _svg(draw, 2.9, "Deliveries by lateness")


def hours_plot(hours: Sequence[HourBooks]) -> str:
    """Deliveries by hour, and their lateness."""

    def draw(figure: Figure) -> None:
        above, below = figure.subplots(2, 1, sharex=True)
        times = [dt.datetime.fromtimestamp(hour.hour_ms / 1_000, dt.UTC) for hour in hours]
        counts = [hour.lateness.count for hour in hours]
        above.bar(times, counts, color=_FIRST, width=0.85 / 24)
        _count_axis(above, counts)
        above.set_ylabel("deliveries")
        lines = {"max": (_THIRD, [hour.lateness.max_ms for hour in hours])}
        lines["p99"] = (_SECOND, [hour.lateness.p99_ms for hour in hours])
        lines["p50"] = (_FIRST, [hour.lateness.p50_ms for hour in hours])
        for name, (colour, values) in lines.items():
            below.plot(times, values, color=colour, label=name, marker="o", markersize=2.5, linewidth=1.2)
        below.set_yscale("symlog", linthresh=1)
        most_ms = max(hour.lateness.max_ms for hour in hours) if hours else 0
        below.set_yticks([0, *(ms for ms in _LATE_TICKS_MS if ms <= max(most_ms, 1))], minor=False)
        below.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _about(round(value))))
        below.set_yticks([], minor=True)
        below.set_ylim(0, max(2 * most_ms, 1))
        below.grid(axis="y", linewidth=0.5, alpha=0.6)
        below.set_ylabel("late by")
        below.legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1), fontsize=FONT_POINTS)
        below.tick_params(axis="x", labelrotation=60)
        below.set_xlabel("hour (UTC)")
        if times:
            hour = dt.timedelta(hours=1)
            below.set_xlim(times[0] - hour, times[-1] + hour)  # also where there is one hour only

    return _svg(draw, 4.2, "Deliveries by hour, and their lateness")


def _about(ms: int) -> str:
    """A duration in its largest unit: `63ms`, `4.1s`, `2h`."""
    for unit, unit_ms in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)):
        if ms >= unit_ms:
            return f"{ms / unit_ms:.2g}{unit}"
    return f"{ms}ms"


def _count_axis(axes: Axes, counts: Sequence[int]) -> None:
    present = [count for count in counts if count]
    if present and max(present) >= _LOG_SCALE_FROM * min(present):
        axes.set_yscale("log")
        axes.set_ylim(bottom=0.7)
    else:
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else "0"))
    axes.grid(axis="y", linewidth=0.5, alpha=0.6)
    axes.set_axisbelow(True)


def _svg(draw: Callable[[Figure], None], height_inches: float, label: str) -> str:
    """An `svg` element; the label is plain text of our own."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(WIDTH_INCHES, height_inches), layout="constrained")
        draw(figure)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # Within HTML the namespaces are known.
    text = re.sub(r' xmlns(?::\w+)?="[^"]*"', "", text)
    text = text.replace("xlink:href", "href")
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = text.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
    text = re.sub(r"font-family: [^;\"]*", "font-family: inherit", text)
    text = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)  # it would hold for the whole page
    for drawn, shown in _COLOURS.items():
        text = text.replace(drawn, shown)
    return text
