"""Plots results as PNG: rates as bars, lateness and latency as curves over the percentiles.

With several systems each case is a panel that compares them, and a system looks the same in all plots: its
colour identifies it; dashes and hatching mean that a power failure may lose acknowledged messages. With one
system the plots compare its cases. The colours are those of Okabe and Ito, which colour-blind readers can
distinguish; markers and shades differ in greyscale.
"""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from bench.histograms import merged
from bench.peers.registry import OURS_ASYNC
from bench.results import LIKE, Entry, Rounds, Spread, by_subject, spread
from bench.wording import heading, number

RATES = {
    "schedule": "messages_per_s",
    "burst": "delivered_per_s",
    "backlog": "schedule_per_s",
    "recall": "messages_per_s",
}
"""The figure of each scenario that is drawn as bars."""
_DOTS_PER_INCH = 120
_WIDTH = 10.0
_COLUMNS = 2
_FLOOR_MS = 0.01
_COUNT_BEYOND = 10
"""A curve ends where fewer values than this remain: they would only show chance."""
_TICKS = {2: "50 %", 10: "90 %", 100: "99 %", 1_000: "99.9 %", 10_000: "99.99 %"}
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_FAULT = "#B00000"
_MARKERS = "osD^vPX"
_FAMILIES = ("timerwheel", "beanstalkd", "Redis", "RocketMQ")


class Style(NamedTuple):
    """The style of a system or case."""

    colour: str
    marker: str
    loose: bool = False


_ALONE = Style(_COLOURS[0], _MARKERS[0])


class Panel(NamedTuple):
    """The content of one pair of axes: rounds by label."""

    title: str
    rounds: dict[str, Rounds]


def draw(entries: Sequence[Entry], directory: Path) -> dict[str, list[Path]]:
    """Draw all plots that the entries allow; returns their paths by scenario."""
    directory.mkdir(parents=True, exist_ok=True)
    made: dict[str, list[Path]] = {}
    for scenario in dict.fromkeys(subject.scenario for subject in by_subject(entries)):
        panels = _panels(scenario, entries)
        names = dict.fromkeys(
            name
            for panel in panels
            for rounds in panel.rounds.values()
            for one in rounds
            for name in one.histograms
        )
        pictures = {name: _curves(scenario, name, panels) for name in names}
        if scenario in RATES:
            pictures = {"rate": _bars(scenario, RATES[scenario], panels)} | pictures
        for name, picture in pictures.items():
            if picture is not None:
                path = directory / f"{scenario}-{name.replace('_', '-')}.png"
                picture.savefig(path, metadata={"Software": None})
                made.setdefault(scenario, []).append(path)
    return made


def _panels(scenario: str, entries: Sequence[Entry]) -> list[Panel]:
    found = {key: rounds for key, rounds in by_subject(entries).items() if key.scenario == scenario}
    systems = {subject.system for subject in found}
    if len(systems) == 1:
        return [Panel(systems.pop(), {subject.case: rounds for subject, rounds in found.items()})]
    cases: dict[str, dict[str, Rounds]] = {}
    for subject, rounds in found.items():
        cases.setdefault(subject.case, {})[subject.system] = rounds
    return [Panel(case, of) for case, of in cases.items()]


def _styles(panels: Sequence[Panel]) -> dict[str, Style]:
    """Styles by label, in display order."""
    labels = list(dict.fromkeys(label for panel in panels for label in panel.rounds))
    loose = {OURS_ASYNC, *(peer for peer, like in LIKE.items() if OURS_ASYNC in like)}
    others = itertools.count(len(_FAMILIES))
    styles = {}
    for at, label in enumerate(labels):
        family = label.split()[0]
        if family in _FAMILIES:
            place = _FAMILIES.index(family) if not label.endswith("group") else next(others)
        else:
            place = at
        styles[label] = Style(
            _COLOURS[place % len(_COLOURS)], _MARKERS[place % len(_MARKERS)], label in loose
        )
    return styles


def _canvas(title: str, count: int, height: float) -> tuple[Picture, list[Axes]]:
    columns = min(count, _COLUMNS)
    rows = math.ceil(count / columns)
    picture = Picture(figsize=(_WIDTH, rows * height + 0.8), dpi=_DOTS_PER_INCH, layout="constrained")
    picture.suptitle(title, parse_math=False, fontweight="bold")
    axes = picture.subplots(rows, columns, squeeze=False).ravel().tolist()
    for unused in axes[count:]:
        unused.set_axis_off()
    return picture, axes[:count]


def _bars(scenario: str, name: str, panels: Sequence[Panel]) -> Picture | None:
    """Medians, with minimum and maximum of the rounds as whiskers."""
    styles = _styles(panels)
    drawn = [panel for panel in panels if any(spread(rounds, name) for rounds in panel.rounds.values())]
    if not drawn:
        return None
    most = max(len(panel.rounds) for panel in drawn)
    picture, all_axes = _canvas(f"{scenario}: {heading(name)}, more is better", len(drawn), 0.6 + 0.28 * most)
    for axes, panel in zip(all_axes, drawn, strict=True):
        found = {label: one for label, rounds in panel.rounds.items() if (one := spread(rounds, name))}
        for at, (label, one) in enumerate(found.items()):
            style = styles[label] if label.split()[0] in _FAMILIES else _ALONE
            _bar(axes, at, one, style, faulty=any(each.fault for each in panel.rounds[label]))
        axes.set_title(panel.title, parse_math=False, fontsize="medium")
        axes.set_yticks(range(len(found)), list(found), fontsize="small", parse_math=False)
        axes.invert_yaxis()
        axes.set_xlim(0, 1.2 * max(one.most for one in found.values()) or 1)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        _finish(axes, "x")
    return picture


def _bar(axes: Axes, at: int, one: Spread, style: Style, *, faulty: bool) -> None:
    axes.barh(
        at,
        one.middle,
        height=0.7,
        color=f"{style.colour}55" if style.loose else style.colour,
        edgecolor=style.colour,
        hatch="///" if style.loose else None,
    )
    if one.rounds > 1:
        whisker = [[one.middle - one.least], [one.most - one.middle]]
        axes.errorbar(one.middle, at, xerr=whisker, color="black", capsize=2.5)
    axes.annotate(
        f"{number(one.middle)}{', with a fault' if faulty else ''}",
        (one.most, at),
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        fontsize="small",
        color=_FAULT if faulty else "black",
    )


def _curves(scenario: str, name: str, panels: Sequence[Panel]) -> Picture | None:
    """Milliseconds by percentile, both on logarithmic scales, so that rare values are visible, too."""
    styles = _styles(panels)
    drawn = []
    for panel in panels:
        found = {label: one for label, rounds in panel.rounds.items() if (one := _points(rounds, name))}
        if found:
            drawn.append((panel.title, found))
    if not drawn:
        return None
    title = f"{scenario}: {heading(name)} by percentile, less is better"
    picture, all_axes = _canvas(title, len(drawn), 3.2 if len(drawn) > 1 else 4.2)
    for axes, (case, curves) in zip(all_axes, drawn, strict=True):
        for label, (beyond, ms) in curves.items():
            style = styles[label]
            marked = [int(np.searchsorted(beyond, tick)) for tick in _TICKS if tick <= beyond[-1]]
            axes.plot(
                beyond,
                ms,
                label=label,
                color=style.colour,
                linestyle="--" if style.loose else "-",
                marker=style.marker,
                markersize=5,
                markerfacecolor="white" if style.loose else style.colour,
                markevery=marked,
            )
        _scale(axes)
        axes.set_title(case, parse_math=False, fontsize="medium")
        axes.set_ylabel("ms")
        _finish(axes, "both")
    # In the order of the styles, each once, even if a panel lacks one.
    handles = {
        text: line for axes in all_axes for line, text in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    shown = [label for label in styles if label in handles]
    picture.legend(
        [handles[label] for label in shown], shown, loc="outside lower center", ncols=4, frameon=False
    )
    return picture


def _points(rounds: Rounds, name: str) -> tuple[Any, Any] | None:
    """(One in how many values exceeds it, milliseconds) over all rounds."""
    histogram = merged(one.histograms[name] for one in rounds if name in one.histograms)
    total = histogram.get_total_count()
    if total < 2 * _COUNT_BEYOND:
        return None
    beyond = np.union1d(
        np.geomspace(1.1, total / _COUNT_BEYOND, 200),
        [tick for tick in _TICKS if tick * _COUNT_BEYOND <= total],
    )
    at = histogram.get_percentile_to_value_dict([100 - 100 / one for one in beyond])
    ms = np.array([value for _, value in sorted(at.items())]) / 1000
    return beyond, np.maximum(ms, _FLOOR_MS)


def _scale(axes: Axes) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    shown = [tick for tick in _TICKS if tick < axes.get_xlim()[1]]
    axes.set_xticks(shown, [_TICKS[tick] for tick in shown])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def _finish(axes: Axes, which: Literal["x", "both"]) -> None:
    axes.grid(axis=which, alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
