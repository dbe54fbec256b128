"""Options that several commands share, and their parsers."""

import datetime as dt
import functools
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args, get_origin

import msgspec
import typer

from timerwheel.cli.times import full_time
from timerwheel.cli.units import parse_length_ms, parse_rate
from timerwheel.clock import SystemClock
from timerwheel.errors import AdmissionError
from timerwheel.model.durations import parse_human_ms

OUTPUT_PANEL = "Output"
JsonFlag = Annotated[
    bool, typer.Option("--json", help="Print JSON on stdout and nothing else.", rich_help_panel=OUTPUT_PANEL)
]


def _with_default_named(ctx: typer.Context, param: typer.CallbackParam, value: Path) -> Path:
    """Say which directory is taken by default, to who has named a service in the environment."""
    source = ctx.get_parameter_source(param.name or "")
    if os.environ.get("TIMERWHEEL_URL") and source is not None and source.name == "DEFAULT":
        words = f"this command works on the directory {value}, not on the service that TIMERWHEEL_URL names"
        print(f"timerwheel: {words}; --data names another", file=sys.stderr)
    return value


DataOption = Annotated[
    Path,
    typer.Option(
        "--data",
        envvar="TIMERWHEEL_DATA",
        help="The data directory.",
        file_okay=False,
        callback=_with_default_named,
    ),
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
EtagFlag = Annotated[
    bool, typer.Option("--etag", help="Print only its tag, for --if-match of a later change.")
]
IfMatchOption = Annotated[
    str | None,
    typer.Option(
        "--if-match",
        # The quotes belong to the header, from which a tag may have been copied.
        parser=lambda text: text.strip().strip('"'),
        metavar="TAG",
        help="Only if it still has this tag, which --etag printed; * if it exists.",
    ),
]
FinishFlag = Annotated[bool, typer.Option("--finish", help="Stop signing with the old secret.")]
YesFlag = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
DATA_DEFAULT = Path("data")


class Options(NamedTuple):
    """Options that belong together: a parameter annotated with them gets one value made of theirs."""

    declared: Mapping[str, tuple[Any, Any]]
    """The name of each option with its annotation and its default."""
    value: Callable[..., Any]


def expanded(command: Callable[..., None]) -> Callable[..., None]:
    """Put each parameter's `Options` in its place, so that a user can give them."""
    own = inspect.signature(command, eval_str=True)
    made = {name: found for name, one in own.parameters.items() if (found := _options_of(one.annotation))}

    @functools.wraps(command)
    def called(**values: Any) -> None:  # noqa: ANN401 - values of every type of option
        parts = {name: {one: values.pop(one) for one in options.declared} for name, options in made.items()}
        command(**values, **{name: made[name].value(**part) for name, part in parts.items()})

    parameters: list[inspect.Parameter] = []
    for name, parameter in own.parameters.items():
        parameters += _parameters(made[name]) if name in made else [parameter]
    called.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    return called


def _options_of(annotation: Any) -> Options | None:  # noqa: ANN401 - any annotation
    parts = get_args(annotation) if get_origin(annotation) is Annotated else ()
    return next((part for part in parts if isinstance(part, Options)), None)


def _parameters(options: Options) -> list[inspect.Parameter]:
    return [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in options.declared.items()
    ]


def one_of(*allowed: str) -> Any:  # noqa: ANN401 - a parser as typer takes it
    """A parser that accepts only these words; raises BadParameter that lists them."""

    def parse(text: str) -> str:
        if text not in allowed:
            raise typer.BadParameter(f"{text!r}: give {', '.join(allowed[:-1])} or {allowed[-1]}")
        return text

    return parse


def word_option(flag: str, help_text: str, *allowed: str) -> Any:  # noqa: ANN401 - as typer takes it
    """An option whose value is one of these words."""
    return typer.Option(flag, parser=one_of(*allowed), metavar="|".join(allowed), help=help_text)


def length_option(
    flag: str,
    help_text: str,
    parser: Callable[[str], int] = parse_length_ms,
    **more: Any,  # noqa: ANN401 - as typer takes them
) -> Any:  # noqa: ANN401
    """An option whose value is a duration; the command gets its milliseconds."""
    return typer.Option(flag, parser=parser, metavar="LENGTH", help=help_text, **more)


def parse_at_ms(text: str, zone: dt.tzinfo | None, option: str = "--at") -> int:
    """Parse a time as people write it into epoch milliseconds; raises BadParameter for the option."""
    try:
        return parse_human_ms(text, SystemClock().now_ms(), zone)
    except AdmissionError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def parse_range_ms(
    start: str | None, end: str | None, zone: dt.tzinfo | None
) -> tuple[int | None, int | None]:
    """Parse the times of `--from` and `--to`; raises BadParameter for one of them, or for their order."""
    from_ms = None if start is None else parse_at_ms(start, zone, "--from")
    to_ms = None if end is None else parse_at_ms(end, zone, "--to")
    if from_ms is not None and to_ms is not None and from_ms > to_ms:
        raise typer.BadParameter(
            f"{start!r} is {full_time(from_ms, zone)}, after --to {end!r}, {full_time(to_ms, zone)}; "
            "write the day of both",
            param_hint="--from",
        )
    return from_ms, to_ms


def parse_pairs(texts: list[str] | None, option: str, form: str = "NAME=VALUE") -> dict[str, str]:
    """Parse texts such as NAME=VALUE; raises BadParameter that names the option and the form."""
    found: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{text!r} is not {form}", param_hint=option)
        found[name] = value
    return found


def given_or_null(**limits: float | None) -> dict[str, float | None]:
    """Return the limits that were given as fields of a call; 0 stands for no limit, which is null there."""
    return {name: limit or None for name, limit in limits.items() if limit is not None}


BODY_BYTES_MAX = 1 << 30
"""The most that `body_size_max` can allow."""
_READ_BYTES = 1 << 20
_ANSWER_CHARACTERS = 80


def read_body(body: str) -> str | bytes:
    """The body in an argument, or from stdin if that is `-`; bytes if it is not UTF-8."""
    # Arguments that are not UTF-8 arrive as surrogates; fsencode restores their bytes.
    raw = _from_stdin() if body == "-" else os.fsencode(body)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _from_stdin() -> bytes:
    """All of stdin. Raises BadParameter if no service would take so much, for it may have no end."""
    if sys.stdin is None:  # as after <&-
        raise typer.BadParameter("stdin is closed", param_hint="-")
    parts, size = [], 0
    while part := sys.stdin.buffer.read(_READ_BYTES):
        parts.append(part)
        size += len(part)
        if size > BODY_BYTES_MAX:
            raise typer.BadParameter(
                f"stdin has more than {BODY_BYTES_MAX} bytes; no service takes such a body", param_hint="-"
            )
    return b"".join(parts)


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
    answer = "" if sys.stdin is None else sys.stdin.readline(_ANSWER_CHARACTERS)  # None if it was closed
    if answer.strip().lower() not in ("y", "yes"):
        print("cancelled: nothing was changed", file=sys.stderr)
        raise typer.Exit(1)
