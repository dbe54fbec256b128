"""Prints the results of commands: JSON for programs, text and tables with zoned times for people.

Control characters in messages are escaped, so that no body can drive a terminal.
"""

import contextlib
import datetime as dt
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from timerwheel.cli.units import format_distance
from timerwheel.clock import SystemClock
from timerwheel.model.durations import format_ms
from timerwheel.model.text import printable

if TYPE_CHECKING:  # `serve` prints one line; it should not load all this for that
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from timerwheel.client import Message

# Without a terminal rich assumes 80 columns and would cut piped tables.
_PIPED_WIDTH = 220
_BODY_SHOWN_CHARACTERS = 60


class Output:
    """Prints the output of one command on stdout, with times in one zone."""

    def __init__(self, *, utc: bool = False, as_json: bool = False) -> None:
        self.zone = dt.UTC if utc else None
        self._as_json = as_json
        self._clock = SystemClock()

    def time(self, ms: int | None) -> str:
        """A time with its zone, or a dash."""
        return "-" if ms is None else format_ms(ms, self.zone)

    def slot_time(self, ms: int) -> str:
        """The time at which a slot begins or ends, with its zone: whole seconds."""
        return self.time(ms).replace(".000", "", 1)

    def time_and_distance(self, ms: int) -> str:
        """A time with its zone, and its distance from now."""
        return f"{self.time(ms)} ({format_distance(ms, self._clock.now_ms())})"

    def result(self, content: object, *lines: str) -> None:
        """Prints a result: as JSON if that was asked for, else as these lines."""
        if self._as_json:
            self.json(content)
        else:
            self.line("\n".join(lines))

    def listing(self, content: object, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Prints a list: as JSON if that was asked for, else as a table."""
        if self._as_json:
            self.json(content)
        else:
            self.table(columns, rows)

    def json(self, content: object) -> None:
        """Prints a JSON document on one line and flushes."""
        sys.stdout.buffer.write(msgspec.json.encode(content) + b"\n")
        sys.stdout.buffer.flush()

    def line(self, text: str) -> None:
        """Prints a line of plain text and flushes."""
        print(text, flush=True)

    def facts(self, rows: Iterable[tuple[str, str]]) -> None:
        """Prints names and values, one pair per line."""
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 2))
        for name, value in rows:
            grid.add_row(Text(name, style="bold"), Text(value, overflow="fold"))
        self.show(grid)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Prints a table; columns that begin with `#` hold numbers."""
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        for column in columns:
            numeric = column.startswith("#")
            table.add_column(
                column.removeprefix("#"), justify="right" if numeric else "left", overflow="fold"
            )
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        self.show(table)

    def show(self, content: "Table | Text") -> None:
        """Prints something drawn by rich."""
        console().print(content)


def console() -> "Console":
    """A rich console on stdout."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else _PIPED_WIDTH
    return Console(width=width, highlight=False)


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


def body_shown(body: bytes, characters_max: int | None = None) -> str:
    """A body as text on one line, or its size if it is not UTF-8."""
    try:
        text = printable(body.decode())
    except UnicodeDecodeError:
        return f"<{len(body)} bytes, not UTF-8>"
    if characters_max is not None and len(text) > characters_max:
        return text[: characters_max - 1] + "…"
    return text


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
        facts.append(("problem", message.problem))
    facts += [(f"property {printable(k)}", printable(v)) for k, v in message.properties.items()]
    facts.append(("body", body_shown(message.body)))
    return facts


def message_rows(messages: "Iterable[Message]", output: Output) -> list[tuple[str, ...]]:
    """Rows of `MESSAGE_COLUMNS` for waiting messages."""
    return [
        (
            output.time(message.due_ms),
            message.id,
            message.topic,
            str(message.level or "-"),
            message.problem or body_shown(message.body, _BODY_SHOWN_CHARACTERS),
        )
        for message in messages
    ]


MESSAGE_COLUMNS = ("due", "id", "topic", "#level", "body")
