"""Parses and formats the backoff of a group: `ladder`, `1s..1h`, `1s*3..1h`."""

import re
from typing import Annotated

import typer

from timerwheel.cli.units import length_between
from timerwheel.client import Exponential, Ladder
from timerwheel.groups.config import BACKOFF_MS_MAX, FACTOR_MAX
from timerwheel.model.durations import format_duration

_EXPONENTIAL = re.compile(r"([^*.]+)(?:\*([0-9]+(?:\.[0-9]+)?))?\.\.(.+)", re.ASCII)


def parse_backoff(text: str | None) -> Ladder | Exponential | None:
    """The backoff that a text describes; None gives None. Raises BadParameter."""
    if text is None:
        return None
    if text == "ladder":
        return Ladder()
    found = _EXPONENTIAL.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(
            f"{text!r}: give ladder, 1s..1h (doubles each time) or 1s*3..1h", param_hint="--backoff"
        )
    initial, longest = map(length_between(0, BACKOFF_MS_MAX), (found[1], found[3]))
    if initial > longest:
        raise typer.BadParameter(
            f"{text!r}: the first delay is longer than the longest", param_hint="--backoff"
        )
    factor = float(found[2] or 2)
    if not 1 <= factor <= FACTOR_MAX:
        raise typer.BadParameter(f"{text!r}: give a factor from 1 to {FACTOR_MAX:g}", param_hint="--backoff")
    return Exponential(initial_ms=initial, factor=factor, max_ms=longest)


def format_backoff(backoff: Ladder | Exponential) -> str:
    """The text of a backoff."""
    if isinstance(backoff, Ladder):
        return "ladder"
    return f"{format_duration(backoff.initial_ms)}*{backoff.factor:g}..{format_duration(backoff.max_ms)}"


BackoffOption = Annotated[
    str | None,
    typer.Option(
        "--backoff",
        metavar="ladder|FIRST..LONGEST",
        help="Delay between attempts: the delay levels from the third on (ladder), or 1s..1h, doubling.",
        show_default=False,
    ),
]
