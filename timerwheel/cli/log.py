"""`log`: the records of a data directory's commit log, whether its service runs or not."""

import contextlib
import itertools
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from timerwheel.cli.options import DATA_DEFAULT, DataOption
from timerwheel.cli.output import IdLineOutput, Output, body_shown, console
from timerwheel.model.admission import ENVELOPE_PROPERTY
from timerwheel.model.text import printable
from timerwheel.store.errors import CorruptionError, OffsetError

if TYPE_CHECKING:
    from timerwheel.offline.snapshot import LogRecord
    from timerwheel.store.log_reader import LogReader


def log(
    *,
    data: DataOption = DATA_DEFAULT,
    start: Annotated[int | None, typer.Option("--from", min=0, help="Start at this log offset.")] = None,
    limit: Annotated[int | None, typer.Option(min=0, help="Print at most this many records.")] = None,
    tail: Annotated[int | None, typer.Option(min=1, help="Print only this many of the last records.")] = None,
    quarantined: Annotated[
        bool,
        typer.Option("--quarantined", help="Print the quarantined records, which recovery cut from the log."),
    ] = False,
    body: Annotated[bool, typer.Option("--body", help="Print bodies and properties too.")] = False,
    output: IdLineOutput,
) -> None:
    """Print the records of the commit log. Read-only; needs no service."""
    if tail is not None and (start is not None or limit is not None):
        raise typer.BadParameter("--tail cannot be combined with --from or --limit")
    if quarantined and (tail is not None or start is not None):
        raise typer.BadParameter("--quarantined cannot be combined with --from or --tail")
    if quarantined:
        records = _quarantined(data, limit)
    else:
        records = _last(data, tail) if tail is not None else _records(data, start, limit)
    for place, record in enumerate(records):
        if place == 0 and output.for_people and not _is_narrow():
            output.line(_HEADING)
        output.result(
            as_json(record, with_body=body),
            *_lines(record, output, with_body=body),
            ids=[str(record.offset)],
        )


def _records(data: Path, start: int | None, limit: int | None) -> "Iterator[LogRecord]":
    from timerwheel.offline.snapshot import open_log, read_past_retention

    with contextlib.closing(open_log(data)) as opened:
        if start is not None:
            _check_start(opened, start)
    count = None if limit is None else min(limit, sys.maxsize)
    yield from itertools.islice(read_past_retention(data, start, _report_removed), count)


def _check_start(opened: "LogReader", start: int) -> None:
    """Raise BadParameter unless a record begins at an offset, or will; report what is gone from there on."""
    if start > opened.tail:
        raise typer.BadParameter(
            f"{start} is past the end of the log; give at most {opened.tail}", param_hint="--from"
        )
    if start < opened.bases[0]:
        _report_removed(start, opened.bases[0])
    if start < opened.tail:
        # Otherwise the first bytes there would be reported as a damaged record.
        try:
            opened.read(max(start, opened.start))
        except (CorruptionError, OffsetError):
            raise typer.BadParameter(f"no intact record starts at {start}", param_hint="--from") from None


def _report_removed(start: int, end: int) -> None:
    typer.echo(f"retention removed the log from offset {start} to {end} before it was printed", err=True)


def _quarantined(data: Path, limit: int | None) -> "Iterator[LogRecord]":
    """Yields the intact records of the quarantine files; reports each damaged range on stderr."""
    from timerwheel.offline.snapshot import open_log, read_quarantined
    from timerwheel.store.segment import Gap

    count = 0
    with contextlib.closing(open_log(data)) as opened:
        for found in read_quarantined(opened):
            if isinstance(found, Gap):
                size = found.end - found.start
                typer.echo(f"{size} bytes at log offset {found.start} are damaged: {found.reason}", err=True)
            elif count == limit:
                return
            else:
                count += 1
                yield found


def _last(data: Path, count: int) -> "Iterator[LogRecord]":
    """Yields the last records, reading as few segments as possible; raises after those before any damage."""
    from timerwheel.offline.snapshot import open_log, read_records

    found: deque[LogRecord] = deque()
    damage: CorruptionError | None = None
    is_removed = False
    with contextlib.closing(open_log(data)) as opened:
        for base in reversed(opened.bases):
            part: deque[LogRecord] = deque(maxlen=min(count, sys.maxsize))
            try:
                part.extend(_until(read_records(opened, base), opened.end_of(base)))
            except CorruptionError as error:
                damage = error
            except OffsetError:
                is_removed = True  # by retention, with all before it
            found.extendleft(reversed(part))
            if len(found) >= count or damage is not None or is_removed:
                break
    yield from list(found)[-count:]
    if damage is not None:
        raise damage


def _until(records: "Iterator[LogRecord]", end: int) -> "Iterator[LogRecord]":
    for record in records:
        if record.offset >= end:
            return
        yield record


_HIDDEN = "(hidden)"
_SECRET = frozenset({"secrets", "headers", "envelope"})
"""Names of fields that hold secrets, in settings of any table; an envelope has the headers of a task."""
_UNREADABLE = b"(not shown, as it cannot be read and may have secrets)"
_HEADING = f"{'offset':>20} {'bytes':>8} {'kind':7} {'stored':29} {'due':29} {'id':24} topic/queue"


def _is_narrow() -> bool:
    """Whether a record takes two lines: its own would be broken by the terminal, in the middle of an id."""
    return sys.stdout.isatty() and console().width < len(_HEADING)


def _heads(record: "LogRecord", output: Output) -> list[str]:
    level = f" level {record.level}" if record.level else ""
    origin = "" if record.origin is None else f" of {record.origin}"
    what = f"{record.offset:>20} {record.size:>8} {record.kind:7} "
    stored, due = output.stamp(record.store_ms), output.stamp(record.due_ms)
    place = f"{record.id:24} {record.topic}/{record.queue}{level}{origin}"
    if _is_narrow():
        return [what + place, f"{'stored':>9} {stored}  due {due}"]
    return [f"{what}{stored:29} {due:29} {place}"]


def _lines(record: "LogRecord", output: Output, *, with_body: bool) -> list[str]:
    lines = _heads(record, output)
    if with_body:
        indent = " " * 21
        properties = _properties(record).items()
        lines += [f"{indent}{printable(name)}={printable(value)}" for name, value in properties]
        lines.append(f"{indent}body {body_shown(_body(record))}")
    return lines


def as_json(record: "LogRecord", *, with_body: bool) -> dict[str, object]:
    """Return a record as `--json` shows it, without secrets."""
    document: dict[str, object] = {
        "offset": record.offset,
        "size": record.size,
        "kind": record.kind,
        "topic": record.topic,
        "queue": record.queue,
        "id": record.id,
        "store_ms": record.store_ms,
        "due_ms": record.due_ms,
        "origin": record.origin,
        "level": record.level,
        "properties": _properties(record),
    }
    if with_body:
        body = _body(record)
        try:
            document["body"] = body.decode()
        except UnicodeDecodeError:
            document["body_base64"] = body
    return document


def _properties(record: "LogRecord") -> dict[str, str]:
    """The properties, without what the service keeps beside them: headers of a task, which may be secrets."""
    return {name: value for name, value in record.properties.items() if name != ENVELOPE_PROPERTY}


def _body(record: "LogRecord") -> bytes:
    """The body, without the secrets of settings: of subscriptions, task queues, and schedules of tasks."""
    if record.kind != "control":
        return record.body
    try:
        return msgspec.json.encode(_masked(msgspec.json.decode(record.body)))
    except msgspec.DecodeError:
        return _UNREADABLE


def _masked(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """A value of any table, without its secrets."""
    if isinstance(value, list):
        return [_masked(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {name: _hidden(one) if name in _SECRET else _masked(one) for name, one in value.items()}


def _hidden(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    if isinstance(value, dict):
        return dict.fromkeys(value, _HIDDEN)
    if isinstance(value, list):
        return [_HIDDEN for _ in value]
    return _HIDDEN if value else value
