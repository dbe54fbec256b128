"""The form in which a command prints: `-o table|wide|json|id`, and times for people or in ISO 8601 (`--iso`).

`with_form` adds these options to each command that takes `as_json`. A command that lists or shows things with
ids is marked with `prints_ids`; without the mark `-o id` is refused before the command does anything.
"""

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from enum import StrEnum
from typing import Annotated, Any, NamedTuple, TypeVar

import typer

from timerwheel.cli.options import OUTPUT_PANEL


class Form(StrEnum):
    """What `-o` accepts."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    ID = "id"


class Style(NamedTuple):
    """How the running command prints."""

    form: Form = Form.TABLE
    iso: bool = False


_Command = TypeVar("_Command", bound=Callable[..., None])
_MARK = "prints_ids"
_style: ContextVar[Style] = ContextVar("style")

IsoFlag = Annotated[
    bool,
    typer.Option(
        "--iso", help="Show times in ISO 8601, exact to the millisecond.", rich_help_panel=OUTPUT_PANEL
    ),
]


def style() -> Style:
    """The style of the running command."""
    return _style.get(Style())


def prints_ids(command: _Command) -> _Command:
    """Mark a command that can print the ids or names of its results, one per line."""
    setattr(command, _MARK, True)
    return command


def with_form(command: Callable[..., None]) -> Callable[..., None]:
    """Add `-o` to a command that takes `as_json`, and `--iso` if it takes `utc`."""
    own = inspect.signature(command, eval_str=True)
    if "as_json" not in own.parameters:
        return command
    shows_times = "utc" in own.parameters
    forms = [form for form in Form if form is not Form.ID or getattr(command, _MARK, False)]

    @functools.wraps(command)
    def called(**values: Any) -> None:  # noqa: ANN401 - values of every type of option
        form = _chosen(values.pop("form"), as_json=values["as_json"])
        _style.set(Style(form, values.pop("iso", False)))
        command(**{**values, "as_json": form is Form.JSON})

    more = [_option("form", _form_option(forms), None)]
    more += [_option("iso", IsoFlag, False)] if shows_times else []
    parameters = [*own.parameters.values(), *more]
    called.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    return called


def _option(name: str, annotation: Any, default: object) -> inspect.Parameter:  # noqa: ANN401 - any annotation
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _form_option(forms: list[Form]) -> Any:  # noqa: ANN401 - an annotation made at run time
    words = [form.value for form in forms]

    def parse(text: str) -> Form:
        if text not in words:
            raise typer.BadParameter(f"{text!r}: give {', '.join(words[:-1])} or {words[-1]}")
        return Form(text)

    ids = ", id: only ids or names" if Form.ID in forms else ""
    text = f"How to print: table fits the terminal, wide shows everything, json as --json{ids}."
    return Annotated[
        Form | None,
        typer.Option(
            "-o", "--output", parser=parse, metavar="|".join(words), help=text, rich_help_panel=OUTPUT_PANEL
        ),
    ]


def _chosen(form: Form | None, *, as_json: bool) -> Form:
    if not as_json:
        return Form.TABLE if form is None else form
    if form not in (None, Form.JSON):
        raise typer.BadParameter(f"-o {form} and --json contradict each other: give one of them")
    return Form.JSON
