"""Words wrong usage as one line: which command, what is wrong with which value, and what to do.

The library that parses the command line has a sentence for each kind of mistake, and a box around it. Here
they are put into the form of all other errors: `timerwheel slots: --level 'week': give second, minute ...`.
"""

import difflib
import re
from collections.abc import Callable
from typing import Any

import typer

from timerwheel.cli.table import TABLE, Group

# The errors of the parser; typer has no public names for their classes above BadParameter.
ClickError: type[Exception] = typer.BadParameter.__mro__[2]
_HELP = "NoArgsIsHelpError"
_RANGE = re.compile(
    r"(?P<given>.+) is not in the range "
    r"(?:x>=(?P<least>[^<]+?)|x<=(?P<most>.+?)|(?P<low>.+?)<=x<=(?P<high>.+?))\.?"
)
_NUMBERS = {
    re.compile("is not a valid int(eger)?( range)?"): "is not a whole number",
    re.compile("is not a valid float( range)?"): "is not a number",
}
_VALUE = re.compile(r"""['"]|-?[0-9]""")
_ADVICE = ("give ", "write ", "; ", ": ")  # texts with one of these say what to do


def is_help(error: Exception) -> bool:
    """Whether the error stands for a command without arguments, whose help was printed."""
    return type(error).__name__ == _HELP


def line_of(error: Any) -> str:  # noqa: ANN401 - the class has no public name
    """The line for an error of the parser, or for one that a command raised."""
    context = getattr(error, "ctx", None)
    path = "timerwheel" if context is None else context.command_path
    return f"{path}: {_sentence(error, context, path)}"


def _sentence(error: Any, context: Any, path: str) -> str:  # noqa: ANN401
    if hasattr(error, "possibilities"):
        return _no_such_flag(error.option_name, context, path)
    if hasattr(error, "param_type"):
        return f"{_name(error)} is missing; {_usage(context)}"
    if isinstance(error, typer.BadParameter):
        return _bad_value(error, path)
    text = str(error.message or error.format_message())
    for pattern, words in _WORDS.items():
        if found := pattern.fullmatch(text):
            return words(found, context, path)
    return _with_advice(text, path)


def _bad_value(error: Any, path: str) -> str:  # noqa: ANN401
    text = " ".join(str(error.message).split()).rstrip(".")
    for theirs, ours in _NUMBERS.items():
        text = theirs.sub(ours, text)
    if found := _RANGE.fullmatch(text):
        text = f"{found['given']}: give {_bounds(found)}"
    name = _name(error)
    if name:
        text = f"{name} {text}" if _VALUE.match(text) else f"{name}: {text}"
    return _with_advice(text, path)


def _bounds(found: re.Match[str]) -> str:
    if found["least"]:
        return f"{found['least']} or more"
    return f"at most {found['most']}" if found["most"] else f"{found['low']} to {found['high']}"


def _with_advice(text: str, path: str) -> str:
    return text if any(mark in text for mark in _ADVICE) else f"{text}; see {path} -h"


def _name(error: Any) -> str:  # noqa: ANN401
    """The flag or argument that an error is about; empty if it is about several."""
    if error.param_hint is not None:
        return error.param_hint if isinstance(error.param_hint, str) else " / ".join(error.param_hint)
    if error.param is None:
        return ""
    if error.param.param_type_name == "option":
        return str(max(error.param.opts, key=len))
    return str(error.param.make_metavar(error.ctx)).strip("[]").removesuffix("...")


def _usage(context: Any) -> str:  # noqa: ANN401
    words = context.get_usage().split()
    return f"usage: {' '.join(words[1:])}"


def _metavar(flag: str, context: Any) -> str:  # noqa: ANN401
    for param in context.command.params:
        if flag in param.opts:
            return str(param.make_metavar(context))
    return "VALUE"


def _no_such_flag(given: str, context: Any, path: str) -> str:  # noqa: ANN401
    flags = [] if context is None else [flag for one in context.command.params for flag in one.opts]
    close = difflib.get_close_matches(given, [flag for flag in flags if flag.startswith("-")], 1)
    advice = f"did you mean {close[0]}?" if close else f"see {path} -h"
    return f"there is no flag {given}; {advice}"


def _guessed_command(given: str, context: Any, path: str) -> str:  # noqa: ANN401
    """A command that the user may have meant: one with a like name here, or of that name in a group."""
    within = [
        f"{name} {given}" for name, one in TABLE.items() if isinstance(one, Group) and given in one.commands
    ]
    close = within or difflib.get_close_matches(given, list(context.command.commands), 1)
    return f"; did you mean {' or '.join(close)}?" if close else f"; {path} -h lists them"


def _flag_with_values(found: re.Match[str], context: Any, _path: str) -> str:  # noqa: ANN401
    flag, count = found["flag"], found.groupdict().get("count")
    wanted = f"{count} values" if count else "a value"
    return f"{flag} needs {wanted}: {flag} {_metavar(flag, context)}"


_WORDS: dict[re.Pattern[str], Callable[[re.Match[str], Any, str], str]] = {
    re.compile(r"No such command '(?P<name>.*?)'\..*", re.DOTALL): lambda found, context, path: (
        f"there is no command {found['name']!r}{_guessed_command(found['name'], context, path)}"
    ),
    re.compile(
        r"Got unexpected extra argument(?:s|\(s\))? \((?P<words>.*)\)", re.DOTALL
    ): lambda found, context, _: f"unexpected argument {found['words']}; {_usage(context)}",
    re.compile(r"Option '(?P<flag>.+?)' requires an argument\.?"): _flag_with_values,
    re.compile(r"Option '(?P<flag>.+?)' requires (?P<count>[0-9]+) arguments\.?"): _flag_with_values,
    re.compile(r"Option '(?P<flag>.+?)' does not take a value\.?"): lambda found, _context, _path: (
        f"{found['flag']} takes no value; write it alone"
    ),
}
