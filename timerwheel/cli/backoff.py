"""How a group waits between attempts, as text: `ladder`, `1s..1h`, `1s*3..1h`."""

import re
from typing import Annotated

import typer

from timerwheel.cli.units import parse_length_ms
from timerwheel.client import Exponential, Ladder
from timerwheel.durations import format_duration

_EXPONENTIAL = re.compile(r"([^*.]+)(?:\*([0-9]+(?:\.[0-9]+)?))?\.\.(.+)", re.ASCII)


def parse_backoff(text: str | None) -> Ladder | Exponential | None:
    """The backoff that a text describes, None if none is given; raises BadParameter."""
    if text is None:
        return None
    if text == "ladder":
        return Ladder()
    found = _EXPONENTIAL.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(f"{text!r}: give ladder, 1s..1h (doubled each time) or 1s*3..1h")
    initial, factor, longest = found.groups()
    return Exponential(
        initial_ms=parse_length_ms(initial), factor=float(factor or 2), max_ms=parse_length_ms(longest)
    )


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
        help="Wait between attempts: the delay levels from the third on, or 1s..1h, doubled each time.",
        show_default=False,
    ),
]
