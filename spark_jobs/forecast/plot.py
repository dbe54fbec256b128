"""Draws the forecast: messages per hour, and the seconds around the busiest one."""

import datetime as dt
import warnings
from typing import IO, overload

import numpy as np
from dateutil.tz import tzlocal  # type: ignore[import-untyped]
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure

from timerwheel.model.messages import SlotInfo
from timerwheel.spark_jobs.forecast.flatten import Flattening, Outcome, spread
from timerwheel.spark_jobs.forecast.horizon import Horizon
from timerwheel.spark_jobs.forecast.job import UNITS_S, in_units

_INCHES = (11.0, 7.5)
_DOTS_PER_INCH = 120
_BAR, _WORST, _SPREAD, _RATE = "#4878a8", "#c0392b", "#2e8b57", "#333333"
_HOUR_S = UNITS_S["hour"]
_BEFORE_S, _AFTER_S = 30, 60  # a peak starts suddenly, and a jitter spreads it over later seconds


def draw(
    file: IO[bytes],
    per_second: np.ndarray,
    horizon: Horizon,
    flattening: Flattening | None,
    zone: dt.tzinfo | None,
    title: str,
) -> None:
    """Write the picture as PNG; `per_second` holds the messages of each second of the horizon.

    Times are shown in the zone; None means the machine's.
    """
    shown_zone = zone or tzlocal()  # knows about clock changes, unlike the current offset
    figure = Figure(figsize=_INCHES, dpi=_DOTS_PER_INCH, layout="constrained")
    # The name of a topic may have letters that the font lacks, or look like a formula.
    figure.suptitle(title, parse_math=False)
    hours, seconds = figure.subplots(2, 1)
    _draw_hours(hours, in_units(per_second, horizon, "hour"), shown_zone)
    hours.set_xlim(_days(horizon.from_s // _HOUR_S * _HOUR_S), _days(horizon.from_s + horizon.seconds))
    _draw_worst(seconds, per_second, horizon, flattening, shown_zone)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(file, format="png")


def _draw_hours(axes: Axes, hours: list[SlotInfo], zone: dt.tzinfo) -> None:
    most = max((hour.count for hour in hours), default=0)
    colours = [_WORST if hour.count == most else _BAR for hour in hours]
    begins = np.array([hour.start_ms // 1_000 for hour in hours])
    axes.bar(_days(begins), [hour.count for hour in hours], _days(_HOUR_S), align="edge", color=colours)
    axes.set_title("due in each hour")
    _finish(axes, "messages per hour", zone)


def _draw_worst(
    axes: Axes, per_second: np.ndarray, horizon: Horizon, flattening: Flattening | None, zone: dt.tzinfo
) -> None:
    worst = int(per_second.argmax())
    chosen = slice(max(worst - _BEFORE_S, 0), worst + _AFTER_S)
    counts = per_second[chosen]
    begins = _days(horizon.from_s + chosen.start + np.arange(len(counts)))
    colours = [_WORST if count == per_second[worst] else _BAR for count in counts]
    axes.bar(begins, counts, _days(1), align="edge", color=colours)
    axes.set_title("due in each second around the busiest one")
    if flattening is not None:
        axes.axhline(flattening.rate, color=_RATE, linestyle="--", label=f"{flattening.rate:,} per second")
        if flattening.outcome is Outcome.SPREAD:
            expected = spread(per_second, flattening.jitter_s)[chosen.start : chosen.start + len(counts)]
            label = f"expected when spread over {flattening.jitter_s:,} s"
            axes.step(begins, expected, where="post", color=_SPREAD, linewidth=2, label=label)
        axes.legend(loc="upper right")
    axes.set_xlim(begins[0], begins[-1] + _days(1))
    _finish(axes, "messages per second", zone)


def _finish(axes: Axes, what: str, zone: dt.tzinfo) -> None:
    locator = AutoDateLocator(tz=zone)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=zone))  # type: ignore[no-untyped-call]
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylabel(what)
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)


@overload
def _days(seconds: int) -> float: ...
@overload
def _days(seconds: np.ndarray) -> np.ndarray: ...
def _days(seconds: int | np.ndarray) -> float | np.ndarray:
    """Epoch seconds as matplotlib counts time."""
    return seconds / UNITS_S["day"]
