"""`config`: prints the settings that `serve` would use, and the source of each."""

import json
from typing import Annotated, Any

import typer

from timerwheel.cli.configuration import OPTIONS, Configuration, Option, Value, configure
from timerwheel.cli.output import JsonOutput, Output
from timerwheel.cli.serve import ConfigOption, SettingFlags

ExplainFlag = Annotated[
    bool, typer.Option("--explain", help="Show the source of each value, and when a change takes effect.")
]


def config(
    *,
    config: ConfigOption = None,
    explain: ExplainFlag = False,
    output: JsonOutput,
    flags: SettingFlags,
) -> None:
    """Check the settings that `serve` would use, and print them as a TOML file."""
    found = configure(flags, file=config)
    if output.as_data({name: _as_json(OPTIONS[name], value) for name, value in found.values.items()}):
        return
    if explain:
        _explain(found, output)
    else:
        output.line(as_toml(found.values))


def _as_json(option: Option, value: Value) -> dict[str, object]:
    return {
        "value": option.write(value.value),
        "from": value.source,
        "default": option.write(option.default),
        "flag": option.flag,
        "variable": option.variable,
        "reloadable": option.setting.reloadable,
        "help": option.setting.help,
    }


def _explain(found: Configuration, output: Output) -> None:
    output.table(
        ("setting", "~value", "from", "+default", "+takes effect", "=description"),
        [
            (
                name,
                OPTIONS[name].write(value.value) or "-",
                value.source,
                OPTIONS[name].write(OPTIONS[name].default) or "-",
                "on SIGHUP" if OPTIONS[name].setting.reloadable else "on restart",
                OPTIONS[name].setting.help,
            )
            for name, value in found.values.items()
        ],
    )
    output.line(
        "\nFlags (--near-entries-max) win, then variables (TIMERWHEEL_NEAR_ENTRIES_MAX), then the file."
    )
    for variable in found.ignored:
        output.line(f"{variable} is not a setting and is ignored.")


def as_toml(values: dict[str, Value]) -> str:
    """A TOML file with every setting; defaults are commented out."""
    lines = ['# Settings of `timerwheel serve --config FILE`. Defaults are commented out; "" means not set.']
    for name, option in OPTIONS.items():
        value = values[name].value
        mark = "# " if value == option.default else ""
        lines += ["", f"# {option.setting.help}", f"{mark}{name} = {_literal(option, value)}"]
    return "\n".join(lines)


def _literal(option: Option, value: Any) -> str:  # noqa: ANN401 - of the field's type
    if option.kind == "yes or no":
        return "true" if value else "false"
    if option.kind == "number":
        return str(value)
    # TOML escapes what JSON escapes, and DEL.
    return json.dumps(option.write(value), ensure_ascii=False).replace("\x7f", r"\u007f")
