"""Draws the wheel: one row of bars per level, as wide as the terminal.

1. A cell is one slot, or several adjacent slots where a level has more slots than the terminal has columns.
2. Heights are on a log scale, which all rows of a picture share: a few messages stay visible beside a peak.
3. A time whose messages the wheel keeps on another level is hatched, not empty.
4. Bars have one colour. Red means more messages per second than a rate that the legend states.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from timerwheel.cli.output import Output, console
from timerwheel.cli.units import format_about, format_rate
from timerwheel.model.messages import SlotInfo

SLOT_MS = {"second": 1_000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
BARS = "▁▂▃▄▅▆▇█"
HATCH = "░"
EMPTY = "·"
# Minimum length of a row, so that empty time looks empty: about what the wheel keeps on each level.
SPAN_SLOTS_MIN = {"second": 180, "minute": 120, "hour": 48, "day": 30}
RED_ABOVE_PER_S = 1_000.0
_TOP_MIN = 10  # below it a single message would fill its cell
_ROW_CELLS_MIN = 10
_INDENT = "  "


class Cell(NamedTuple):
    """One column of a row: due times with `start_ms` ≤ due < `end_ms`."""

    start_ms: int
    end_ms: int
    waiting: int


class Held(NamedTuple):
    """The due times that a level of the wheel holds itself; sooner and later ones are on other levels."""

    from_ms: int
    until_ms: int | None = None

    def has(self, cell: Cell) -> bool:
        """Whether any of the cell is on this level."""
        return cell.end_ms > self.from_ms and (self.until_ms is None or cell.start_ms < self.until_ms)


EVERYTHING = Held(0)


class Scale(NamedTuple):
    """What the heights and the colour of a picture mean."""

    top: int
    red_above_per_s: float = RED_ABOVE_PER_S

    @classmethod
    def of(cls, counts: Sequence[int], red_above_per_s: float = RED_ABOVE_PER_S) -> "Scale":
        """The scale on which the largest of these counts is a full cell."""
        return cls(max(_TOP_MIN, *counts) if counts else _TOP_MIN, red_above_per_s)

    def share(self, count: int) -> float:
        """The height of a count from 0 to 1."""
        return math.log1p(count) / math.log1p(self.top)

    def colour(self, count: int, span_ms: int) -> str:
        """The colour of so many messages in so much time."""
        return "bold red" if count * 1_000 > self.red_above_per_s * span_ms else "cyan"

    def legend(self) -> str:
        """The meaning of heights, hatching and colour, on one line."""
        middle = round(math.expm1(math.log1p(self.top) / 2))
        return (
            f"log scale: {BARS[3]} {middle:,}, {BARS[-1]} {self.top:,}; {HATCH} counted in the row above or "
            f"below; red: over {format_rate(self.red_above_per_s)}"
        )


def cells(slots: Sequence[SlotInfo], from_ms: int, cell_ms: int, count: int) -> list[Cell]:
    """`count` cells from `from_ms` on, filled from the slots; slots outside of them are ignored."""
    counts = [0] * count
    for slot in slots:
        place = (slot.start_ms - from_ms) // cell_ms
        if 0 <= place < count:
            counts[place] += slot.count
    return [Cell(from_ms + i * cell_ms, from_ms + (i + 1) * cell_ms, n) for i, n in enumerate(counts)]


class Row(NamedTuple):
    """One level on its way to the terminal."""

    name: str
    slots: Sequence[SlotInfo]
    cells: list[Cell]
    held: Held


def row_of(name: str, slot_ms: int, slots: Sequence[SlotInfo], now_ms: int, held: Held = EVERYTHING) -> Row:
    """The row of one level from now on, as wide as the terminal."""
    from_ms = now_ms // slot_ms * slot_ms
    ends = [slots[-1].end_ms if slots else 0, held.until_ms or 0, from_ms + SPAN_SLOTS_MIN[name] * slot_ms]
    room = max(_ROW_CELLS_MIN, console().width - 2 * len(_INDENT))
    per_cell = -(-((max(ends) - from_ms) // slot_ms) // room)
    return Row(name, slots, cells(slots, from_ms, per_cell * slot_ms, room), held)


def draw_row(row: Row, scale: Scale, output: Output) -> None:
    """Draws a level: a heading, its bars from now on, a mark under the busiest slot, and its times."""
    out, begin = console(), row.cells[0]
    cell_ms = begin.end_ms - begin.start_ms
    waiting = sum(slot.count for slot in row.slots)
    _draw(out, Text())
    heading = f": {waiting:,} scheduled; a cell is {format_about(cell_ms)}"
    _draw(out, Text.assemble((f"{row.name}s", "bold"), heading))
    _draw(out, Text.assemble(_INDENT, *bars(row.cells, scale, row.held)))
    peak = max(row.slots, key=lambda slot: slot.count, default=None)
    if peak is not None:
        words = f"{peak.count:,} from {output.slot_time(peak.start_ms)}"
        _draw(out, Text(_INDENT + _marked(words, (peak.start_ms - begin.start_ms) // cell_ms), style="bold"))
    left, right = output.slot_time(begin.start_ms), output.slot_time(row.cells[-1].end_ms)
    _draw(
        out,
        Text(f"{_INDENT}{left}{right.rjust(max(len(row.cells) - len(left), len(right) + 3))}", style="dim"),
    )


def draw_legend(scale: Scale) -> None:
    """Draws what heights, hatching and colour mean."""
    console().print(Text(scale.legend(), style="dim"), soft_wrap=True)


def bars(row: Sequence[Cell], scale: Scale, held: Held = EVERYTHING) -> list[tuple[str, str]]:
    """A bar and its colour for each cell."""
    return [_bar(cell, scale, held) for cell in row]


def _bar(cell: Cell, scale: Scale, held: Held) -> tuple[str, str]:
    if not cell.waiting:
        return (EMPTY, "dim") if held.has(cell) else (HATCH, "dim")
    height = min(len(BARS), math.ceil(len(BARS) * scale.share(cell.waiting)))
    return BARS[height - 1], scale.colour(cell.waiting, cell.end_ms - cell.start_ms)


def _marked(words: str, place: int) -> str:
    """The words beside a mark in the column `place`, on the side that has room."""
    return f"{words} ▲".rjust(place + 1) if place > len(words) else " " * place + f"▲ {words}"


def draw_slots(slots: Sequence[SlotInfo], scale: Scale, output: Output) -> None:
    """Draws one level in full: one line per slot, with its bar."""
    out = console()
    digits = max((len(f"{slot.count:,}") for slot in slots), default=1)
    starts = [output.slot_time(slot.start_ms) for slot in slots]
    longest = max(map(len, starts), default=0)
    room = max(_ROW_CELLS_MIN, out.width - longest - digits - 2 * len(_INDENT))
    for slot, start in zip(slots, starts, strict=True):
        bar = BARS[-1] * max(1, round(scale.share(slot.count) * room))
        colour = scale.colour(slot.count, slot.end_ms - slot.start_ms)
        count = f"{slot.count:>{digits},}"
        _draw(out, Text.assemble(f"{start:<{longest}}", _INDENT, count, _INDENT, (bar, colour)))


def _draw(out: Console, line: Text) -> None:
    out.print(line, no_wrap=True, overflow="ignore", crop=False)
