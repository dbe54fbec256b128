"""Plots as inline SVG, with the colours and fonts of the page that they are on."""

import io
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

WIDTH_INCHES = 4.4  # narrow, so that the text is still legible on a phone
FONT_POINTS = 9
# Unused colours, replaced by those of the page.
INK, LINE, FIRST, SECOND, THIRD = "#010101", "#020202", "#030303", "#040404", "#050505"
_COLOURS = {
    INK: "var(--ink)",
    LINE: "var(--line)",
    FIRST: "var(--first)",
    SECOND: "var(--second)",
    THIRD: "var(--third)",
}
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "timerwheel",
    "font.family": "sans-serif",
    "font.size": FONT_POINTS,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": LINE,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": LINE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.parse_math": False,
}
_DAYS_MS = [86_400_000 * 10**power for power in range(5)]
LATE_TICKS_MS = (1, 10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 36_000_000, *_DAYS_MS)
_LOG_SCALE_FROM = 50  # ratio of largest to smallest above which small bars would be invisible


def about(ms: int) -> str:
    """A duration in its largest unit: `63ms`, `4.1s`, `2h`."""
    for unit, unit_ms in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)):
        if ms >= unit_ms:
            return f"{ms / unit_ms:.2g}{unit}"
    return f"{ms}ms"


def late_axis(axes: Axes, most_ms: int, *, along: Literal["x", "y"]) -> None:
    """Makes one axis of a plot one of lateness: nothing, then powers of ten up to `most_ms`."""
    axis = axes.xaxis if along == "x" else axes.yaxis
    (axes.set_xscale if along == "x" else axes.set_yscale)("symlog", linthresh=1)
    axis.set_ticks([0, *(ms for ms in LATE_TICKS_MS if ms <= max(most_ms, 1))], minor=False)
    axis.set_major_formatter(FuncFormatter(lambda value, _: about(round(value))))
    axis.set_ticks([], minor=True)
    (axes.set_xlim if along == "x" else axes.set_ylim)(0, max(2 * most_ms, 1))
    axes.grid(axis=along, linewidth=0.5, alpha=0.6)
    axes.set_axisbelow(True)


def count_axis(axes: Axes, counts: Sequence[int]) -> None:
    """Makes the upright axis one of counts, logarithmic if small ones could not be seen."""
    present = [count for count in counts if count]
    if present and max(present) >= _LOG_SCALE_FROM * min(present):
        axes.set_yscale("log")
        axes.set_ylim(bottom=0.7)
    else:
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else "0"))
    axes.grid(axis="y", linewidth=0.5, alpha=0.6)
    axes.set_axisbelow(True)


def svg(draw: Callable[[Figure], None], height_inches: float, label: str) -> str:
    """What `draw` draws, as an `svg` element; the label is plain text of our own."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(WIDTH_INCHES, height_inches), layout="constrained")
        draw(figure)
        buffer = io.StringIO()
        with warnings.catch_warnings():
            # The browser has the letters that matplotlib's own font lacks; only their width is a guess.
            warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
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
