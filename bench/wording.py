"""Names and formats of figures, the same on the terminal, in plots and in RESULTS.md."""

import re
from typing import NamedTuple

from bench.results import Spread

FAULT_LENGTH_MAX = 200
_WORDS = {"us": "µs", "mib": "MiB", "cpu": "CPU", "share": "%"}
_UNIT = re.compile(r"((\bµs)?/\w+|\b(ms|s|µs|MiB|%|seconds))$")


class Cell(NamedTuple):
    """A formatted figure; `spread` is empty if all rounds were equal."""

    text: str
    spread: str = ""

    def __str__(self) -> str:
        return f"{self.text} ({self.spread})" if self.spread else self.text


def heading(name: str) -> str:
    """The heading of a figure: `service_cpu_us_per_message` gives `service CPU µs/message`."""
    words = re.sub("(^|_)per_", "/", name).replace("_", " ")
    if " " in name:
        return f"{words} ms"
    return re.sub("[a-z]+", lambda word: _WORDS.get(word[0], word[0]), words)


def unit(name: str) -> str:
    """The unit of a figure, to append to a number: `/s`, ` ms`, or nothing."""
    found = _UNIT.search(heading(name))
    if found is None:
        return ""
    return found[0] if found[0].startswith("/") else f" {found[0].replace('seconds', 's')}"


def number(value: float) -> str:
    """Three digits, or all of a large number."""
    rounded = float(f"{value:.3g}")  # rounded first, so that 9.999 is written as 10.0
    if rounded == 0 or abs(rounded) >= 100:
        return f"{value:,.0f}"
    if abs(rounded) >= 10:
        return f"{rounded:.1f}"
    return f"{rounded:.2f}" if abs(rounded) >= 0.1 else f"{rounded:.2g}"


def plain(value: float) -> str:
    """A number that was chosen, not measured: `8`, `1.3`."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.4g}"


def cell(name: str, found: Spread) -> Cell:
    """The median, with minimum and maximum if rounds differ. Shares are in percent."""
    scale = 100 if name.endswith("_share") else 1
    middle, least, most = (number(value * scale) for value in (found.middle, found.least, found.most))
    return Cell(middle, f"{least}-{most}" if least != most else "")


def brief(fault: str) -> str:
    """The last line of an error text, which names the cause."""
    lines = fault.strip().splitlines()
    return lines[-1].strip()[:FAULT_LENGTH_MAX] if lines else fault
