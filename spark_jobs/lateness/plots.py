"""Plots of lateness."""

import datetime as dt
from collections.abc import Sequence

from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure

from timerwheel.model.text import printable
from timerwheel.spark_jobs.audit.lateness import Lateness
from timerwheel.spark_jobs.pages.svg import FIRST, FONT_POINTS, SECOND, THIRD, count_axis, late_axis, svg

_SHARE = 0.85  # of the width or height that a bar may take


def over_time(
    times: Sequence[dt.datetime], lateness: Sequence[Lateness], step: dt.timedelta, label: str
) -> str:
    """Deliveries by hour or day, and their lateness; `times` are where each begins."""

    def draw(figure: Figure) -> None:
        above, below = figure.subplots(2, 1, sharex=True)
        counts = [one.count for one in lateness]
        above.bar(times, counts, color=FIRST, width=_SHARE * (step / dt.timedelta(days=1)))
        count_axis(above, counts)
        above.set_ylabel("deliveries")
        lines = {
            "max": (THIRD, [one.max_ms for one in lateness]),
            "p99": (SECOND, [one.p99_ms for one in lateness]),
            "p50": (FIRST, [one.p50_ms for one in lateness]),
        }
        for name, (colour, values) in lines.items():
            below.plot(times, values, color=colour, label=name, marker="o", markersize=2.5, linewidth=1.2)
        late_axis(below, max((one.max_ms for one in lateness), default=0), along="y")
        below.set_ylabel("late by")
        below.legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1), fontsize=FONT_POINTS)
        below.tick_params(axis="x", labelrotation=60)
        below.set_xlabel(label)
        if times:
            below.set_xlim(times[0] - step, times[-1] + step)  # also where there is one only
            locator = AutoDateLocator(tz=times[0].tzinfo)  # type: ignore[no-untyped-call]
            below.xaxis.set_major_locator(locator)
            formatter = ConciseDateFormatter(locator, tz=times[0].tzinfo)  # type: ignore[no-untyped-call]
            below.xaxis.set_major_formatter(formatter)

    return svg(draw, 4.2, f"Deliveries by {label}, and their lateness")


def by_topic(topics: Sequence[tuple[str, Lateness]]) -> str:
    """The lateness of topics, the first one on top."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        rows = range(len(topics))
        names = [printable(name) for name, _ in topics]
        axes.barh(rows, [one.p99_ms for _, one in topics], color=SECOND, height=_SHARE, label="p99")
        axes.barh(rows, [one.p50_ms for _, one in topics], color=FIRST, height=_SHARE, label="p50")
        most = [one.max_ms for _, one in topics]
        axes.plot(most, rows, linestyle="none", marker="|", markersize=9, color=THIRD, label="max")
        axes.set_yticks(
            rows, [name if len(name) <= _NAME_MAX else name[: _NAME_MAX - 1] + "…" for name in names]
        )
        axes.invert_yaxis()
        late_axis(axes, max(most, default=0), along="x")
        axes.tick_params(axis="x", labelrotation=60)
        axes.set_xlabel("late by")
        axes.legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1), fontsize=FONT_POINTS)

    return svg(draw, 1.4 + 0.24 * len(topics), "Lateness by topic")


_NAME_MAX = 20


def share_within(counted: Sequence[tuple[int, int]]) -> str:
    """The share of deliveries that are late by no more than so much; `counted` are (ms, deliveries)."""
    total = sum(deliveries for _, deliveries in counted)
    late_ms, shares, so_far = [0.0], [0.0], 0
    for ms, deliveries in counted:
        so_far += deliveries
        late_ms += [ms, ms]
        shares += [shares[-1], 100 * so_far / total]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.plot(late_ms, shares, color=FIRST, linewidth=1.6)
        axes.set_ylim(0, 101)
        late_axis(axes, counted[-1][0] if counted else 0, along="x")
        axes.grid(axis="y", linewidth=0.5, alpha=0.6)
        axes.tick_params(axis="x", labelrotation=60)
        axes.set_xlabel("late by no more than")
        axes.set_ylabel("% of deliveries")

    return svg(draw, 2.9, "Share of deliveries by lateness")
