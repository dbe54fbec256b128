"""Lays out tables and facts as lines of text for a terminal of some width, or for a pipe, which has none.

1. A name, an id and a number are never split and never cut. Only columns of free text give way: `~` cuts with
   an ellipsis, `=` continues on the next line.
2. Without a width nothing is cut: a line is as long as its content.
3. A table whose names alone are wider than the terminal becomes one block of lines for each row.

Pure: the width is passed in, and no line is printed here.
"""

import textwrap
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size

GAP = 2  # spaces between columns
CUT_CELLS_MIN = 12  # a text column keeps this much; below it the table becomes blocks
WRAP_CELLS_MIN = 24
ELLIPSIS = "…"


class Column(NamedTuple):
    """One column of a table."""

    title: str
    number: bool = False
    cut: bool = False
    wrap: bool = False
    wide: bool = False
    """Whether the column is left out unless a wide table was asked for."""


class Table(NamedTuple):
    """Lines of a table; `heading` is None for blocks, whose lines carry the titles themselves."""

    heading: str | None
    lines: list[str]


_MARKS = {"#": "number", "~": "cut", "=": "wrap", "+": "wide"}


def column(text: str) -> Column:
    """A column of a title with marks before it: `#` numbers, `~` cut, `=` wrapped, `+` only when wide."""
    title = text.lstrip("".join(_MARKS))
    marks = text[: len(text) - len(title)]
    return Column(title, **{_MARKS[mark]: True for mark in marks})


def lay_out(
    columns: Sequence[str], rows: Iterable[Sequence[str]], width: int | None, *, wide: bool = False
) -> Table:
    """The lines of a table no wider than `width` cells, if its names allow that; None stands for a pipe.

    A wide table has all columns and is never cut, whatever the width.
    """
    described = [column(text) for text in columns]
    places = [place for place, one in enumerate(described) if wide or not one.wide]
    shown = [described[place] for place in places]
    cells = [[row[place] for place in places] for row in rows]
    widths = [
        max([cell_len(one.title), *(cell_len(row[place]) for row in cells)])
        for place, one in enumerate(shown)
    ]
    if width is not None and not wide:
        fitted = _fitted(shown, widths, width)
        if fitted is None:
            return Table(None, _blocks(shown, cells, width))
        widths = fitted
    heading = _line([one.title for one in shown], shown, widths)
    return Table(heading, [line for row in cells for line in _lines(row, shown, widths)])


def _fitted(columns: Sequence[Column], widths: Sequence[int], width: int) -> list[int] | None:
    """The widths with text columns made narrower until the row fits; None if they cannot be."""
    fitted = list(widths)
    over = sum(fitted) + GAP * (len(fitted) - 1) - width
    while over > 0:
        room = {
            place: fitted[place] - max(_least(one), cell_len(one.title))
            for place, one in enumerate(columns)
            if one.cut or one.wrap
        }
        place = max(room, key=lambda at: fitted[at] if room[at] > 0 else 0, default=None)
        if place is None or room[place] <= 0:
            return None
        fitted[place] -= 1
        over -= 1
    return fitted


def _least(one: Column) -> int:
    return WRAP_CELLS_MIN if one.wrap else CUT_CELLS_MIN


def _lines(row: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> list[str]:
    """The line of a row, and further lines for what is continued."""
    parts = [
        _wrapped(cell, width) if one.wrap else [_cut(cell, width)]
        for cell, one, width in zip(row, columns, widths, strict=True)
    ]
    height = max(map(len, parts), default=0)
    filled = [part + [""] * (height - len(part)) for part in parts]
    return [_line(cells, columns, widths) for cells in zip(*filled, strict=True)]


def _line(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    padded = [
        " " * (width - cell_len(cell)) + cell if one.number else cell + " " * (width - cell_len(cell))
        for cell, one, width in zip(cells, columns, widths, strict=True)
    ]
    return (" " * GAP).join(padded).rstrip()


def _cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + ELLIPSIS


def _wrapped(text: str, width: int) -> list[str]:
    """The text in lines that break between words; a word that is longer than a line stays whole."""
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]


def _blocks(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """A block of facts for each row, with an empty line between blocks."""
    lines: list[str] = []
    for row in rows:
        lines += [""] if lines else []
        lines += (
            name + value
            for name, value in facts(
                [(one.title, cell) for one, cell in zip(columns, row, strict=True)], width
            )
        )
    return lines


def facts(rows: Iterable[tuple[str, str]], width: int | None) -> list[tuple[str, str]]:
    """Names and values as lines in two parts: the padded name, and the value or a part of it."""
    pairs = list(rows)
    indent = max((cell_len(name) for name, _ in pairs), default=0) + GAP
    lines: list[tuple[str, str]] = []
    for name, value in pairs:
        padded = name + " " * (indent - cell_len(name))
        parts = [value] if width is None else _wrapped(value, max(WRAP_CELLS_MIN, width - indent))
        lines += [(padded if place == 0 else " " * indent, part) for place, part in enumerate(parts)]
    return lines
