"""Draws the wheel: one row of bars per level, coloured by load.

A cell is one slot, or several adjacent slots where a level has more slots than the terminal has columns.
Height and colour of a cell are relative to the fullest cell of its row, so each row uses its whole scale.
"""

from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from timerwheel.cli.output import Output, console
from timerwheel.cli.units import format_about
from timerwheel.model.messages import SlotInfo

BARS = "▁▂▃▄▅▆▇█"
# Minimum length of a row, so that empty time looks empty: about what the wheel keeps on each level.
SPAN_SLOTS_MIN = {"second": 180, "minute": 120, "hour": 48, "day": 30}
_ROW_CELLS_MAX = 120
_BAR_CELLS_MAX = 60
_INDENT = "  "


class Cell(NamedTuple):
    """One column of a row: due times with `start_ms` ≤ due < `end_ms`."""

    start_ms: int
    end_ms: int
    waiting: int


def cells(slots: Sequence[SlotInfo], from_ms: int, cell_ms: int, count: int) -> list[Cell]:
    """`count` cells from `from_ms` on, filled from the slots; slots outside of them are ignored."""
    counts = [0] * count
    for slot in slots:
        place = (slot.start_ms - from_ms) // cell_ms
        if 0 <= place < count:
            counts[place] += slot.count
    return [Cell(from_ms + i * cell_ms, from_ms + (i + 1) * cell_ms, n) for i, n in enumerate(counts)]


def draw_level(name: str, slot_ms: int, slots: Sequence[SlotInfo], now_ms: int, output: Output) -> None:
    """Draws one level: a heading, its bars from now on, their times, and a mark under the busiest slot."""
    out = console()
    from_ms = now_ms // slot_ms * slot_ms
    until_ms = max(slots[-1].end_ms if slots else 0, from_ms + SPAN_SLOTS_MIN[name] * slot_ms)
    slot_count = (until_ms - from_ms) // slot_ms
    room = max(10, min(_ROW_CELLS_MAX, out.width - 2 * len(_INDENT)))
    per_cell = -(-slot_count // room)
    cell_ms = per_cell * slot_ms
    row = cells(slots, from_ms, cell_ms, -(-slot_count // per_cell))
    waiting = sum(slot.count for slot in slots)
    _draw(out, Text())
    _draw(
        out, Text.assemble((f"{name}s", "bold"), f": {waiting:,} waiting; a cell is {format_about(cell_ms)}")
    )
    _draw(out, Text.assemble(_INDENT, *bars([cell.waiting for cell in row])))
    peak = max(slots, key=lambda slot: slot.count, default=None)
    if peak is not None:
        words = f"{peak.count:,} from {output.slot_time(peak.start_ms)}"
        _draw(out, Text(_INDENT + _marked(words, (peak.start_ms - from_ms) // cell_ms), style="bold red"))
    begin, end = output.slot_time(from_ms), output.slot_time(row[-1].end_ms)
    _draw(out, Text(f"{_INDENT}{begin}{end.rjust(max(len(row) - len(begin), len(end) + 3))}", style="dim"))


def bars(counts: Sequence[int]) -> list[tuple[str, str]]:
    """A bar and a colour for each count, both relative to the largest."""
    fullest = max(counts)
    return [_bar(count, fullest) for count in counts]


def _bar(count: int, fullest: int) -> tuple[str, str]:
    if not count:
        return "·", "dim"
    height = -(-count * len(BARS) // fullest)
    return BARS[height - 1], _colour(count, fullest)


def _colour(count: int, fullest: int) -> str:
    if count == fullest:
        return "bold red"
    return "green" if 3 * count < fullest else "yellow" if 3 * count < 2 * fullest else "red"


def _marked(words: str, place: int) -> str:
    """The words beside a mark in the column `place`, on the side that has room."""
    return f"{words} ▲".rjust(place + 1) if place > len(words) else " " * place + f"▲ {words}"


def draw_slots(slots: Sequence[SlotInfo], output: Output) -> None:
    """Draws one level in full: one line per slot, with its bar."""
    out = console()
    fullest = max((slot.count for slot in slots), default=1)
    digits = len(f"{fullest:,}")
    for slot in slots:
        start = output.slot_time(slot.start_ms)
        room = max(10, min(_BAR_CELLS_MAX, out.width - len(start) - digits - 2 * len(_INDENT)))
        bar = BARS[-1] * max(1, slot.count * room // fullest)
        count = f"{slot.count:>{digits},}"
        _draw(out, Text.assemble(start, _INDENT, count, _INDENT, (bar, _colour(slot.count, fullest))))


def _draw(out: Console, line: Text) -> None:
    out.print(line, no_wrap=True, overflow="ignore", crop=False)
