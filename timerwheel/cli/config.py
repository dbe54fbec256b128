"""`config`: what `serve` would run with, and who says so."""

import json
from typing import Annotated, Any

import typer

from timerwheel.cli.configuration import OPTIONS, Configuration, Option, Value, configure
from timerwheel.cli.options import JsonFlag
from timerwheel.cli.output import Output
from timerwheel.cli.serve import ConfigOption, with_options

ExplainFlag = Annotated[
    bool, typer.Option("--explain", help="Show where each value is from, and when a change takes effect.")
]


@with_options
def config(
    *,
    config: ConfigOption = None,
    explain: ExplainFlag = False,
    as_json: JsonFlag = False,
    **flags: Any,  # noqa: ANN401
) -> None:
    """Check the settings that `serve` would run with, and print them as a TOML file."""
    found = configure(flags, file=config)
    output = Output()
    if as_json:
        output.json({name: _told(OPTIONS[name], value) for name, value in found.values.items()})
    elif explain:
        _explain(found, output)
    else:
        output.line(as_toml(found.values))


def _told(option: Option, value: Value) -> dict[str, object]:
    return {
        "value": option.write(value.value),
        "from": value.source,
        "default": option.write(option.default),
        "flag": option.flag,
        "variable": option.variable,
        "reloadable": option.reloadable,
        "help": option.help,
    }


def _explain(found: Configuration, output: Output) -> None:
    output.table(
        ("setting", "value", "from", "default", "takes effect", "is"),
        [
            (
                name,
                OPTIONS[name].write(value.value) or "-",
                value.source,
                OPTIONS[name].write(OPTIONS[name].default) or "-",
                "on SIGHUP" if OPTIONS[name].reloadable else "at a start",
                OPTIONS[name].help,
            )
            for name, value in found.values.items()
        ],
    )
    output.line(
        "\nFlags (--near-entries-max) win, then variables (TIMERWHEEL_NEAR_ENTRIES_MAX), then the file."
    )
    for variable in found.ignored:
        output.line(f"{variable} names no setting and is ignored.")


def as_toml(values: dict[str, Value]) -> str:
    """A file with every setting: what is as by default stands in a comment."""
    lines = ["# Settings of `timerwheel serve --config FILE`. A line that begins with # states a default;"]
    lines += ['# "" is none.']
    for name, option in OPTIONS.items():
        value = values[name].value
        mark = "# " if value == option.default else ""
        lines += ["", f"# {option.help}", f"{mark}{name} = {_literal(option, value)}"]
    return "\n".join(lines)


def _literal(option: Option, value: Any) -> str:  # noqa: ANN401 - of the field's type
    if option.kind == "yes or no":
        return "true" if value else "false"
    if option.kind == "number":
        return str(value)
    # TOML escapes strings as JSON does, and one character more.
    return json.dumps(option.write(value), ensure_ascii=False).replace("\x7f", r"\u007f")
