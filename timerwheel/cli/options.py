"""Options that several commands share, and their parsers."""

import datetime as dt
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from timerwheel.cli.units import parse_rate
from timerwheel.clock import SystemClock
from timerwheel.errors import AdmissionError
from timerwheel.model.durations import parse_human_ms

OUTPUT_PANEL, SERVICE_PANEL = "Output", "Service"
JsonFlag = Annotated[
    bool,
    typer.Option("--json", help="Print JSON on stdout and nothing else.", rich_help_panel=OUTPUT_PANEL),
]
JsonLinesFlag = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON document per line on stdout.", rich_help_panel=OUTPUT_PANEL),
]
UtcFlag = Annotated[
    bool,
    typer.Option(
        "--utc",
        help="Read and show times in UTC instead of the local time zone.",
        rich_help_panel=OUTPUT_PANEL,
    ),
]
UrlOption = Annotated[
    str,
    typer.Option(
        "--url", envvar="TIMERWHEEL_URL", help="The service to call.", rich_help_panel=SERVICE_PANEL
    ),
]
DataOption = Annotated[
    Path, typer.Option("--data", envvar="TIMERWHEEL_DATA", help="The data directory.", file_okay=False)
]
KeyOption = Annotated[
    tuple[str, str] | None,
    typer.Option("--key", metavar="TOPIC KEY", help="The message with this deduplication key."),
]
PropertiesOption = Annotated[
    list[str] | None,
    typer.Option("--property", metavar="NAME=VALUE", help="A property of the message; may be repeated."),
]
JsonBodyFlag = Annotated[
    bool, typer.Option("--json-body", help="The body is a JSON value; the service stores it compactly.")
]
RedAboveOption = Annotated[
    float | None,
    typer.Option(
        "--red-above",
        parser=parse_rate,
        metavar="N/s",
        show_default="1000/s",
        help="Draw in red where more messages than this fall due per second; also N/m, N/h.",
    ),
]
YesFlag = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
DATA_DEFAULT = Path("data")


def one_of(*allowed: str) -> Any:  # noqa: ANN401 - a parser as typer takes it
    """A parser that accepts only these words; raises BadParameter that lists them."""

    def parse(text: str) -> str:
        if text not in allowed:
            raise typer.BadParameter(f"{text!r}: give {', '.join(allowed[:-1])} or {allowed[-1]}")
        return text

    return parse


def parse_at_ms(text: str, *, utc: bool, option: str = "--at") -> int:
    """Parse a time as people write it into epoch milliseconds; raises BadParameter for the option."""
    try:
        return parse_human_ms(text, SystemClock().now_ms(), dt.UTC if utc else None)
    except AdmissionError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def parse_pairs(texts: list[str] | None, option: str, form: str = "NAME=VALUE") -> dict[str, str]:
    """Parse texts such as NAME=VALUE; raises BadParameter that names the option and the form."""
    found: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{text!r} is not {form}", param_hint=option)
        found[name] = value
    return found


def read_body(body: str) -> str | bytes:
    """The body in an argument, or from stdin if that is `-`; bytes if it is not UTF-8."""
    # Arguments that are not UTF-8 arrive as surrogates; fsencode restores their bytes.
    raw = sys.stdin.buffer.read() if body == "-" else os.fsencode(body)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def body_or_json(body: str, options: Any, *, json_body: bool) -> str | bytes:  # noqa: ANN401 - options of a send or a schedule
    """Return the body as `read_body` does; with `json_body` put its JSON among the options instead."""
    text = read_body(body)
    if not json_body:
        return text
    raw = text.encode() if isinstance(text, str) else text
    try:
        msgspec.json.decode(raw)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"the body is not JSON: {error}", param_hint="--json-body") from None
    options["json"] = msgspec.Raw(raw)  # sent as it is written
    return ""


def confirm_or_exit(question: str) -> None:
    """Ask on stderr, since a program may read stdout; any answer but yes exits with 1."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        print("cancelled: nothing was changed", file=sys.stderr)
        raise typer.Exit(1)
