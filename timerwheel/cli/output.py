"""Prints the results of commands: JSON and ids for programs, text and tables for people.

Control characters in messages are escaped, so that no body can drive a terminal.
"""

import contextlib
import datetime as dt
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from timerwheel.cli import layout
from timerwheel.cli.options import OUTPUT_PANEL, JsonFlag, Options, one_of
from timerwheel.cli.times import full_time, short_moment, short_time
from timerwheel.cli.units import format_distance
from timerwheel.clock import SystemClock
from timerwheel.model.durations import format_ms
from timerwheel.model.text import printable
from timerwheel.store.files import naming

if TYPE_CHECKING:  # `serve` prints one line; it should not load all this for that
    from rich.console import Console
    from rich.text import Text

    from timerwheel.client import Message

# The width of what is drawn to a pipe, such as bars; tables and facts have none there.
_PIPED_WIDTH = 120


class Form(StrEnum):
    """What `-o` accepts."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    ID = "id"


class Output:
    """Prints the output of one command on stdout, in one form, with times in one zone."""

    def __init__(self, form: Form = Form.TABLE, *, utc: bool = False, iso: bool = False) -> None:
        self.zone = dt.UTC if utc else None
        self._form = form
        self._iso = iso
        self._clock = SystemClock()

    def stamp(self, ms: int | None) -> str:
        """A time in ISO 8601 with its zone, for lines that programs read too; or a dash."""
        return "-" if ms is None else format_ms(ms, self.zone)

    def time(self, ms: int | None) -> str:
        """A time in full with its zone, exact to the millisecond, or a dash."""
        if ms is None or self._iso:
            return self.stamp(ms)
        return full_time(ms, self.zone)

    def time_and_distance(self, ms: int) -> str:
        """A time in full with its zone, and its distance from now."""
        distance = format_distance(ms, self._clock.now_ms())
        return f"{self.stamp(ms)} ({distance})" if self._iso else f"{self.time(ms)}, {distance}"

    def when(self, ms: int | None) -> str:
        """A time in a table: short, with its distance from now; or a dash."""
        if ms is None or self._iso:
            return self.stamp(ms)
        now_ms = self._clock.now_ms()
        wide = self._form is Form.WIDE
        at = full_time(ms, self.zone) if wide else short_time(ms, now_ms, self.zone)
        return f"{at}, {format_distance(ms, now_ms)}"

    def moment(self, ms: int | None) -> str:
        """The time of an event in a table, exact to the millisecond; or a dash."""
        if ms is None or self._iso:
            return self.stamp(ms)
        return short_moment(ms, self._clock.now_ms(), self.zone)

    def slot_time(self, ms: int) -> str:
        """The time at which a slot begins or ends: whole seconds."""
        if self._iso:
            return self.stamp(ms).replace(".000", "", 1)
        return short_time(ms, self._clock.now_ms(), self.zone)

    def result(self, content: object, *lines: str, ids: Iterable[str] = ()) -> None:
        """Prints a result: as JSON or ids if that was asked for, else as these lines."""
        if not self.as_data(content, ids):
            self.line("\n".join(lines))

    def details(self, content: object, rows: Iterable[tuple[str, str]], ids: Iterable[str] = ()) -> None:
        """Prints one thing: as JSON or its id if that was asked for, else as names and values."""
        if not self.as_data(content, ids):
            self.facts(rows)

    def listing(
        self,
        content: object,
        columns: Sequence[str],
        rows: Iterable[Sequence[str]],
        ids: Iterable[str] = (),
    ) -> None:
        """Prints a list: as JSON or ids if that was asked for, else as a table, as `table` does."""
        if not self.as_data(content, ids):
            self.table(columns, rows)

    def as_data(self, content: object, ids: Iterable[str] = ()) -> bool:
        """Prints JSON or ids if that was asked for; returns whether it was."""
        if self._form is Form.JSON:
            self.json(content)
        elif self._form is Form.ID:
            self.ids(ids)
        return not self.for_people

    def tag(self, tag: str) -> None:
        """Prints the tag of a thing, for `--if-match` of a later change."""
        self.result({"etag": tag}, tag, ids=[tag])

    @property
    def wants_ids(self) -> bool:
        """Whether only ids are printed."""
        return self._form is Form.ID

    @property
    def for_people(self) -> bool:
        """Whether remarks may follow a result, which would disturb JSON and ids."""
        return self._form in (Form.TABLE, Form.WIDE)

    def ids(self, ids: Iterable[str]) -> None:
        """Prints ids or names, one per line and without control characters; nothing if there are none."""
        with _to_stdout():
            for one in ids:
                print(printable(one))
            sys.stdout.flush()

    def json(self, content: object) -> None:
        """Prints a JSON document on one line and flushes."""
        try:
            data = msgspec.json.encode(content) + b"\n"
        except UnicodeEncodeError:  # a path that is not UTF-8, with which JSON must not fail
            data = msgspec.json.encode(_encodable(msgspec.to_builtins(content))) + b"\n"
        with _to_stdout():
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()

    def line(self, text: str) -> None:
        """Prints a line of plain text and flushes."""
        with _to_stdout():
            print(text, flush=True)

    def facts(self, rows: Iterable[tuple[str, str]]) -> None:
        """Prints names and values; a long value continues under its beginning on a terminal."""
        from rich.text import Text

        for name, value in layout.facts(rows, _width()):
            self._show(Text.assemble((name, "bold"), value))

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Prints a table that fits the terminal; see `layout` for the marks of the columns."""
        from rich.text import Text

        found = layout.lay_out(columns, rows, _width(), wide=self._form is Form.WIDE)
        if found.heading is not None:
            self._show(Text(found.heading, style="bold"))
        for line in found.lines:
            self.line(line)

    def _show(self, content: "Text") -> None:
        """Prints a line with styles, which a pipe does not get; the terminal breaks what is too long."""
        with _to_stdout():
            console().print(content, soft_wrap=True)


def _encodable(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """The value with a question mark for each byte of a path that is not UTF-8, as lines of text have it."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, list | tuple):
        return [_encodable(one) for one in value]
    if isinstance(value, dict):
        return {_encodable(name): _encodable(one) for name, one in value.items()}
    return value


def _to_stdout() -> contextlib.AbstractContextManager[None]:
    """Name stdout in the error of a block that writes to it, which could be about any disk otherwise."""
    return naming("stdout")


def _output(*, form: str | None, as_json: bool, utc: bool = False, iso: bool = False) -> Output:
    if as_json and form not in (None, Form.JSON):
        raise typer.BadParameter(f"-o {form} and --json contradict each other: give one of them")
    return Output(Form.JSON if as_json else Form(form or Form.TABLE), utc=utc, iso=iso)


def _option(*flags: str, text: str, **more: Any) -> Any:  # noqa: ANN401 - as typer takes them
    return typer.Option(*flags, help=text, rich_help_panel=OUTPUT_PANEL, **more)


_UTC = _option("--utc", text="Read and show times in UTC instead of the local time zone.")
_ISO = _option("--iso", text="Show times in ISO 8601, exact to the millisecond.")
_JSON_LINES = _option("--json", text="Print one JSON document per line on stdout.")


def _options(*, ids: bool = False, times: bool = False, lines: bool = False) -> Options:
    """The options of an `Output`: does it print ids on request, does it show times, is its JSON in lines?"""
    forms = [form.value for form in Form if ids or form is not Form.ID]
    text = "How to print: table fits the terminal, wide shows everything, json as --json"
    text += ", id: only ids or names." if ids else "."
    form = _option("-o", "--output", text=text, parser=one_of(*forms), metavar="|".join(forms))
    return Options(
        ({"utc": (Annotated[bool, _UTC], False)} if times else {})
        | {
            "as_json": (Annotated[bool, _JSON_LINES] if lines else JsonFlag, False),
            "form": (Annotated[str | None, form], None),
        }
        | ({"iso": (Annotated[bool, _ISO], False)} if times else {}),
        _output,
    )


JsonOutput = Annotated[Output, _options()]
IdOutput = Annotated[Output, _options(ids=True)]
TimeOutput = Annotated[Output, _options(times=True)]
IdTimeOutput = Annotated[Output, _options(ids=True, times=True)]
LineOutput = Annotated[Output, _options(times=True, lines=True)]
IdLineOutput = Annotated[Output, _options(ids=True, times=True, lines=True)]


def _width() -> int | None:
    """The width of the terminal; None for a pipe, where lines are as long as their content."""
    return console().width if sys.stdout.isatty() else None


def console() -> "Console":
    """A rich console on stdout, as wide as the terminal; rich by itself takes a dumb one for 80 columns."""
    from rich.console import Console

    if not sys.stdout.isatty():
        return Console(width=_PIPED_WIDTH, highlight=False)
    columns, lines = shutil.get_terminal_size()
    return Console(width=columns, height=lines, highlight=False)


@contextlib.contextmanager
def progress_bar(text: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr if that is a terminal. Yields a function of done and total that updates it."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn(text), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    out = Console(stderr=True)
    with Progress(*columns, console=out, transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("")
        yield lambda done, total: progress.update(task, completed=done, total=total)


def content_shown(message: "Message") -> str:
    """The body of a message on one line, or why it cannot be read."""
    return body_shown(message.body) if message.problem is None else f"damaged: {printable(message.problem)}"


def body_shown(body: bytes) -> str:
    """A body as text on one line, or its size if it is not UTF-8."""
    try:
        return printable(body.decode())
    except UnicodeDecodeError:
        return f"<{len(body)} bytes, not UTF-8>"


def message_facts(message: "Message", output: Output) -> list[tuple[str, str]]:
    """The facts that `get`, `recall` and others show about a message."""
    facts = [
        ("id", message.id),
        ("state", message.state.value),
        ("topic", f"{message.topic}, queue {message.queue}"),
        ("due", output.time_and_distance(message.due_ms)),
        ("sent", output.time_and_distance(message.enqueue_ms)),
    ]
    if message.dedup_key is not None:
        facts.append(("key", printable(message.dedup_key)))
    if message.level:
        facts.append(("level", str(message.level)))
    if message.delivered_ms is not None:
        late = f"{message.lateness_ms} ms after due, at offset {message.offset}"
        facts.append(("delivered", f"{output.time(message.delivered_ms)}, {late}"))
    if message.recalled_ms is not None:
        facts.append(("recalled", output.time_and_distance(message.recalled_ms)))
    if message.problem is not None:
        facts.append(("problem", printable(message.problem)))
    facts += [(f"property {printable(k)}", printable(v)) for k, v in message.properties.items()]
    facts.append(("body", body_shown(message.body)))
    return facts


def message_rows(messages: "Iterable[Message]", output: Output) -> list[tuple[str, ...]]:
    """Rows of `MESSAGE_COLUMNS` for scheduled messages."""
    return [
        (
            output.when(message.due_ms),
            message.id,
            message.topic,
            str(message.level or "-"),
            printable(message.problem) if message.problem else body_shown(message.body),
        )
        for message in messages
    ]


MESSAGE_COLUMNS = ("due", "id", "topic", "+#level", "~body")
