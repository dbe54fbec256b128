"""Tables of results, in Markdown: for RESULTS.md, and on the terminal when a scenario has ended.

A scenario has up to three kinds of grid, so that none is too wide to read: its figures, the percentiles of
each histogram, and our ratio to each peer. Rows are cases, and systems in them.
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bench.histograms import PERCENTILES
from bench.peers.registry import OURS
from bench.results import LIKE, Entry, Rounds, Subject, by_subject, ratio, spread
from bench.wording import Cell, brief, cell, heading

BUSY_SHARE_MAX = 0.9
"""A generator that is busier than this may limit a figure."""


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
    subjects = _subjects(scenario, entries)
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
    for subject, rounds in _subjects(scenario, entries).items():
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


def of_scenario(scenario: str, entries: Sequence[Entry]) -> list[str]:
    """The grids of a scenario, its faults, and what to keep in mind."""
    parts: list[str] = []
    for grid in grids(scenario, entries):
        parts += [f"**{grid.title}**\n", _of_grid(grid)]
    faults, doubts = remarks(scenario, entries)
    parts += [_list("Faults", faults)] if faults else []
    parts += [_list("To keep in mind", doubts)] if doubts else []
    return parts


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], numbers_from: int | None = None) -> str:
    """A table whose columns from `numbers_from` on hold numbers."""
    aligned = ["---" if numbers_from is None or at < numbers_from else "---:" for at in range(len(columns))]
    lines = [columns, aligned, *([_inside(text) for text in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _of_grid(grid: Grid) -> str:
    rows = []
    for case, group in itertools.groupby(grid.rows, key=lambda row: row.case):
        for at, row in enumerate(group):
            system = f"{row.system} (fault)" if row.faulty else row.system
            rows.append(["" if at else case, system, *(str(one or "") for one in row.cells)])
    return table(["case", "system", *grid.columns], rows, numbers_from=2)


def _list(title: str, lines: Iterable[str]) -> str:
    return f"{title}:\n\n" + "\n".join(f"- {_inside(line)}" for line in lines) + "\n"


def _inside(text: str) -> str:
    """Escape a cell: a bar or a line break would end it."""
    return text.replace("|", "\\|").replace("\n", " ")


def _subjects(scenario: str, entries: Iterable[Entry]) -> dict[Subject, Rounds]:
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
    rows = [row._replace(cells=[row.cells[at] for at in kept]) for row in rows]
    return Grid("ratios, by rounds", [heading(names[at]).removesuffix(" ms") for at in kept], rows)
