"""The service's log: text lines on stderr, or JSON objects, one per line. Neither has message bodies.

The facts of a line are separate fields (`extra`), so that a program can match on them; a text line shows them
after its text. `request` is the id of the HTTP request that the line belongs to.
"""

import datetime as dt
import logging
import sys
from contextvars import ContextVar
from typing import Literal

from pythonjsonlogger.json import JsonFormatter

REQUEST_ID: ContextVar[str | None] = ContextVar("request", default=None)
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "request", "taskName"}


class _Readable(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002, N802
        then = dt.datetime.fromtimestamp(record.created, dt.UTC)
        return then.astimezone().isoformat(timespec="milliseconds")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        line = super().formatMessage(record)
        fields = {name: value for name, value in vars(record).items() if name not in _OWN}
        if request := getattr(record, "request", None):
            fields["request"] = request
        return line + "".join(f" {name}={value}" for name, value in fields.items())


class _Json(JsonFormatter):
    def __init__(self) -> None:
        super().__init__(
            "{levelname}{name}{message}",
            style="{",
            timestamp="time",
            rename_fields={"levelname": "level", "name": "logger"},
        )


_shard: int | None = None


def name_shard(shard: int) -> None:
    """Say in each line that it is from the process of this shard."""
    global _shard  # noqa: PLW0603 - of the process, as its log is
    _shard = shard


def note_request(record: logging.LogRecord) -> bool:
    """A filter that keeps every record, and adds the shard and the id of the request that it belongs to."""
    if _shard is not None:
        record.shard = _shard
    if (request := REQUEST_ID.get()) is not None:
        record.request = request
    return True


def log_to_stderr(level: str, form: Literal["console", "json"]) -> None:
    """Log to this stream from `level` on, in this form, in place of the previous handlers."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Readable())
    handler.addFilter(note_request)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
