"""Parses and formats the backoff of a group: `ladder`, `1s..1h`, `1s*3..1h`."""

import re
from typing import Annotated, Any

import typer

from timerwheel.cli.units import length_between
from timerwheel.client import Exponential, Ladder
from timerwheel.groups.config import BACKOFF_MS_MAX, FACTOR_MAX
from timerwheel.model.durations import format_duration

_EXPONENTIAL = re.compile(r"([^*.]+)(?:\*([0-9]+(?:\.[0-9]+)?))?\.\.(.+)", re.ASCII)


def parse_backoff(text: str) -> Ladder | Exponential:
    """The backoff that a text describes; raises BadParameter."""
    if text == "ladder":
        return Ladder()
    found = _EXPONENTIAL.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(f"{text!r}: give ladder, 1s..1h (doubles each time) or 1s*3..1h")
    initial, longest = map(length_between(0, BACKOFF_MS_MAX), (found[1], found[3]))
    if initial > longest:
        raise typer.BadParameter(f"{text!r}: the first delay is longer than the longest")
    factor = float(found[2] or 2)
    if not 1 <= factor <= FACTOR_MAX:
        raise typer.BadParameter(f"{text!r}: give a factor from 1 to {FACTOR_MAX:g}")
    return Exponential(initial_ms=initial, factor=factor, max_ms=longest)


def format_backoff(backoff: Ladder | Exponential) -> str:
    """The text of a backoff."""
    if isinstance(backoff, Ladder):
        return "ladder"
    return f"{format_duration(backoff.initial_ms)}*{backoff.factor:g}..{format_duration(backoff.max_ms)}"


BackoffOption = Annotated[
    Any,
    typer.Option(
        "--backoff",
        parser=parse_backoff,
        metavar="ladder|FIRST..LONGEST",
        help="Delay between attempts: the delay levels from the third on (ladder), or 1s..1h, doubling.",
        show_default=False,
    ),
]
