"""Tables of results: built as grids, drawn on the terminal here and as Markdown in the report.

A scenario has up to three kinds of grid, so that none is too wide to read: its figures, the percentiles of
each histogram, and our ratio to each peer. Rows are cases, and systems in them.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bench.claims import Judged, Verdict
from bench.histograms import PERCENTILES
from bench.peers.registry import OURS
from bench.results import LIKE, Entry, Rounds, Subject, by_subject, ratio, spread
from bench.wording import Cell, brief, cell, heading

BUSY_SHARE_MAX = 0.9
"""A generator that is busier than this may limit a figure."""
_GAP = 2
_LABEL_SHARE = 3
"""The names of cases and systems take at most this share of the width."""
_LABEL_MIN = 16
_INDENT = "  "
_COLOURS = {Verdict.HELD: "green", Verdict.NOT_HELD: "bold red", Verdict.NOT_MEASURED: "yellow"}


class Row(NamedTuple):
    """One case and system; a cell is None where nothing was measured."""

    case: str
    system: str
    cells: list[Cell | None]
    faulty: bool = False


class Grid(NamedTuple):
    """A table before it is drawn."""

    title: str
    columns: list[str]
    rows: list[Row]


def grids(scenario: str, entries: Iterable[Entry]) -> list[Grid]:
    """The grids of one scenario that have any figure."""
    subjects = _of_scenario(scenario, entries)
    figures = _names(one.figures for rounds in subjects.values() for one in rounds)
    histograms = _names(one.histograms for rounds in subjects.values() for one in rounds)
    made = [_grid("figures", figures, subjects)]
    for name in histograms:
        found = _grid(f"{name.replace('_', ' ')}, ms", [f"{name} {at}" for at in PERCENTILES], subjects)
        made.append(found._replace(columns=list(PERCENTILES)))
    compared = [name for name in figures if name.endswith("per_s")] + [f"{name} p99" for name in histograms]
    made.append(_ratios(compared, subjects))
    return [grid for grid in made if grid.rows]


def remarks(scenario: str, entries: Iterable[Entry]) -> tuple[list[str], list[str]]:
    """The faults of a scenario, and reasons to doubt its figures."""
    faults: list[str] = []
    busy: dict[str, dict[str, float]] = {}
    for subject, rounds in _of_scenario(scenario, entries).items():
        found = spread(rounds, "generator_busy_share")
        if found is not None and found.middle > BUSY_SHARE_MAX:
            busy.setdefault(subject.system, {})[subject.case] = found.middle
        where = f"{subject.system}, {subject.case}, round"
        faults += [f"{where} {one.round}: {brief(one.fault)}" for one in rounds if one.fault]
    doubts = [
        f"{system}: the load generator was busy {max(cases.values()):.0%} of the time"
        f" and may be the limit ({'; '.join(cases)})"
        for system, cases in busy.items()
    ]
    return faults, doubts


def draw(scenario: str, entries: Sequence[Entry], width: int) -> RenderableType:
    """The tables of a scenario for a terminal of this width; wide grids become several tables."""
    faults, doubts = remarks(scenario, entries)
    parts: list[RenderableType] = [Text(scenario, style="bold underline")]
    for grid in grids(scenario, entries):
        parts += [Padding(table, (1, 0, 0, 0)) for table in _tables(grid, width)]
    parts += [Text(f"fault: {fault}", style="bold red") for fault in faults]
    parts += [Text(f"note: {doubt}", style="yellow") for doubt in doubts]
    return Group(*parts)


def draw_claims(judged: Iterable[Judged]) -> Table:
    """The claims with their targets and results."""
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold")
    for name in ("claim", "measured", "held?"):
        table.add_column(name, overflow="fold")
    for one in judged:
        claim = Text(one.claim.text).append(f"\n{one.claim.target_text}", style="dim")
        value = one.value_text
        lines = [_written(value, inline=False)] if value else []
        lines += [Text(fault, style="red") for fault in one.faults]
        table.add_row(claim, Text("\n").join(lines), Text(one.verdict.value, style=_COLOURS[one.verdict]))
    return table


def _of_scenario(scenario: str, entries: Iterable[Entry]) -> dict[Subject, Rounds]:
    """Sorted so that all systems of a case are together."""
    found = {key: rounds for key, rounds in by_subject(entries).items() if key.scenario == scenario}
    cases = _names([key.case] for key in found)
    return dict(sorted(found.items(), key=lambda item: cases.index(item[0].case)))


def _names(many: Iterable[Iterable[str]]) -> list[str]:
    """Unique values in the order of their first appearance."""
    return list(dict.fromkeys(name for names in many for name in names))


def _grid(title: str, names: list[str], subjects: dict[Subject, Rounds]) -> Grid:
    rows = []
    for subject, rounds in subjects.items():
        cells = [cell(name, found) if (found := spread(rounds, name)) else None for name in names]
        faulty = any(one.fault for one in rounds)
        if any(cells) or faulty:
            rows.append(Row(subject.case, subject.system, cells, faulty))
    return Grid(title, [heading(name) for name in names], rows)


def _ratios(names: list[str], subjects: dict[Subject, Rounds]) -> Grid:
    """Our ratio to each peer, of equally durable settings, or of the default if those were not measured."""
    rows = []
    for subject, theirs in subjects.items():
        if subject.system not in LIKE:
            continue
        like = [ours for ours in LIKE[subject.system] if subject._replace(system=ours) in subjects]
        for ours in like or [OURS]:
            mine = subjects.get(subject._replace(system=ours), [])
            cells = [cell("", found) if (found := ratio(mine, theirs, name)) else None for name in names]
            if any(cells):
                rows.append(Row(subject.case, f"{ours} / {subject.system}", cells))
    kept = [at for at in range(len(names)) if any(row.cells[at] for row in rows)]
    title = "ratios, by rounds"
    return _with_columns(Grid(title, [heading(name).removesuffix(" ms") for name in names], rows), kept)


def _with_columns(grid: Grid, chosen: list[int]) -> Grid:
    rows = [row._replace(cells=[row.cells[at] for at in chosen]) for row in grid.rows]
    kept = [row for row in rows if any(row.cells) or row.faulty]
    return Grid(grid.title, [grid.columns[at] for at in chosen], kept)


def _labelled(grid: Grid) -> list[tuple[str, Row | None]]:
    """The first column: each case with its systems below, or only the cases if there is one system."""
    if len({row.system for row in grid.rows}) == 1:
        return [(row.case, row) for row in grid.rows]
    labels: list[tuple[str, Row | None]] = []
    case = None
    for row in grid.rows:
        if row.case != case:
            case = row.case
            labels.append((case, None))
        labels.append((f"{_INDENT}{row.system}", row))
    return labels


def _widths(grid: Grid, *, inline: bool) -> list[int]:
    """Cells are never wrapped; headings are, between words."""
    found = []
    for at, name in enumerate(grid.columns):
        cells = [one for row in grid.rows if (one := row.cells[at])]
        written = [_written(one, inline=inline) for one in cells]
        parts = [*name.split(), *(line for text in written for line in text.plain.splitlines())]
        found.append(_GAP + max(map(cell_len, parts)))
    return found


def _tables(grid: Grid, width: int) -> Iterator[Table]:
    """One table with spreads beside the figures if it fits, otherwise several with spreads below."""
    longest = max(cell_len(label) for label, _ in _labelled(grid))
    inline = longest + sum(_widths(grid, inline=True)) <= width
    label = min(longest, max(width // _LABEL_SHARE, _LABEL_MIN))
    chosen: list[int] = []
    used = longest if inline else label
    widths = _widths(grid, inline=inline)
    for at, needed in enumerate(widths):
        if chosen and used + needed > width:
            yield _table(_with_columns(grid, chosen), label, [widths[one] for one in chosen], inline=inline)
            chosen, used = [], label
        chosen.append(at)
        used += needed
    yield _table(
        _with_columns(grid, chosen),
        longest if inline else label,
        [widths[one] for one in chosen],
        inline=inline,
    )


def _table(grid: Grid, label: int, widths: list[int], *, inline: bool) -> Table:
    systems = {row.system for row in grid.rows}
    title = f"{grid.title}: {systems.pop()}" if len(systems) == 1 else grid.title
    table = Table(box=None, padding=(0, 0, 0, _GAP), pad_edge=False, header_style="bold")
    table.add_column(Text(title, style="bold cyan"), width=label)
    for name, needed in zip(grid.columns, widths, strict=True):
        table.add_column(Text(name, justify="right"), width=needed - _GAP, justify="right")
    for text, row in _labelled(grid):
        if row is None:
            table.add_row(Text(text, style="bold"))
            continue
        cells = [_written(one, inline=inline) if one else Text("-", style="dim") for one in row.cells]
        indent = len(text) - len(text.lstrip())
        shown = Padding(Text(text.lstrip()), (0, 0, 0, indent))
        table.add_row(shown, *cells, style="red" if row.faulty else "")
    return table


def _written(one: Cell, *, inline: bool) -> Text:
    text = Text(one.text)
    if one.spread:
        text.append(f" ({one.spread})" if inline else f"\n{one.spread}", style="dim")
    return text
