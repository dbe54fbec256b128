"""The options that several commands share, and reading them."""

import datetime as dt
from pathlib import Path
from typing import Annotated

import typer

from timerwheel.clock import SystemClock
from timerwheel.durations import parse_human_ms
from timerwheel.errors import AdmissionError

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON on stdout and nothing else.")]
JsonLinesFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document a line on stdout.")]
UtcFlag = Annotated[bool, typer.Option("--utc", help="Read and show times in UTC, not in the local zone.")]
UrlOption = Annotated[str, typer.Option("--url", envvar="TIMERWHEEL_URL", help="The service to call.")]
DataOption = Annotated[
    Path, typer.Option("--data", envvar="TIMERWHEEL_DATA", help="The data directory.", file_okay=False)
]
DATA_DEFAULT = Path("data")


def parse_at_ms(text: str, *, utc: bool, option: str = "--at") -> int:
    """Epoch milliseconds of a time as people write it; raises BadParameter for the option."""
    try:
        return parse_human_ms(text, SystemClock().now_ms(), dt.UTC if utc else None)
    except AdmissionError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
