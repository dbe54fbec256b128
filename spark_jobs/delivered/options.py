"""The options of `timerwheel.delivered`."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from timerwheel.spark_jobs.archive.store import Archive
from timerwheel.spark_jobs.delivered.position import Position, nodes_of
from timerwheel.spark_jobs.delivered.rows import COLUMNS, Ranges
from timerwheel.spark_jobs.errors import JobError
from timerwheel.spark_jobs.source_options import check_known, check_names, paths_of

EARLIEST = "earliest"
LATEST = "latest"
BOTH = ("path", "paths", "archive", "topic", "columns", "startingOffsets", "failOnDataLoss", "sealed")
BATCH = (*BOTH, "endingOffsets", "from", "to")
STREAM = (*BOTH, "maxRowsPerTrigger", "maxBytesPerTrigger")

Place = str | dict[str, Position]
"""`earliest`, `latest`, or a position for each node."""


class Options(NamedTuple):
    """What to read, checked."""

    paths: tuple[str, ...]
    archive: Archive | None
    topics: frozenset[str] | None
    start: Place
    end: Place
    ranges: Ranges | None
    skip: bool
    sealed: bool
    rows_max: int | None
    bytes_max: int | None


def columns_of(given: Mapping[str, str]) -> list[str]:
    """The columns that the option `columns` names; all without it. JobError."""
    text = given.get("columns")
    names = list(COLUMNS) if text is None else [name.strip() for name in text.split(",")]
    check_names(names, COLUMNS)
    return names


def read_options(given: Mapping[str, str], *, stream: bool) -> Options:
    """The options of a batch or of a stream; JobError with what to write instead."""
    known = STREAM if stream else BATCH
    check_known(given, known, "a stream" if stream else "a batch")
    by_name = {name.lower(): name for name in known}
    values = {by_name[name.lower()]: value for name, value in given.items()}
    columns_of(values)
    paths = paths_of(values)
    if not paths and "archive" not in values:
        raise JobError('give a data directory, load("/path/to/data/directory"), or option("archive", url)')
    if "maxRowsPerTrigger" in values and "maxBytesPerTrigger" in values:
        raise JobError("give maxRowsPerTrigger or maxBytesPerTrigger, not both: Spark passes on one limit")
    return Options(
        paths=tuple(paths),
        archive=Archive(values["archive"]) if "archive" in values else None,
        topics=_topics(values.get("topic")),
        start=_place(values, "startingOffsets", EARLIEST),
        end=_place(values, "endingOffsets", LATEST),
        ranges=_ranges(values),
        skip=not _flag(values, "failOnDataLoss", default=True),
        sealed=_flag(values, "sealed", default=False),
        rows_max=_number(values, "maxRowsPerTrigger"),
        bytes_max=_number(values, "maxBytesPerTrigger"),
    )


def _topics(text: str | None) -> frozenset[str] | None:
    if text is None:
        return None
    found = frozenset(name.strip() for name in text.split(",") if name.strip())
    if not found:
        raise JobError("option topic names no topic; leave it out to read all topics")
    return found


def _flag(values: Mapping[str, str], name: str, *, default: bool) -> bool:
    value = values.get(name, str(default)).lower()
    if value not in ("true", "false"):
        raise JobError(f"option {name} must be true or false, not {values[name]}")
    return value == "true"


def _number(values: Mapping[str, str], name: str) -> int | None:
    if name not in values:
        return None
    text = values[name].strip()
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise JobError(f"option {name} must be a whole number of at least 1, not {values[name]}")
    return int(text)


def _place(values: Mapping[str, str], name: str, default: str) -> Place:
    text = values.get(name, default).strip()
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    return nodes_of(_json(text, name, f"{EARLIEST}, {LATEST}, or an offset document"), f"option {name}")


def _json(text: str, name: str, wanted: str) -> Any:  # noqa: ANN401 - JSON
    try:
        return json.loads(text)
    except ValueError:
        raise JobError(f"option {name} must be {wanted}, not {text}") from None


def _ranges(values: Mapping[str, str]) -> Ranges | None:
    if "from" not in values and "to" not in values:
        return None
    low, high = (_offsets(values[name], name) if name in values else {} for name in ("from", "to"))
    return Ranges(low, high)


def _offsets(text: str, name: str) -> dict[tuple[str | None, int | None], int]:
    """Queue offsets: one for all, `17`; by topic, `{"orders": 17}`; or by queue, `{"orders": {"0": 17}}`."""
    wanted = 'a queue offset, such as 17, {"orders": 17} or {"orders": {"0": 17}}'
    given = _json(text, name, wanted)
    found: dict[tuple[str | None, int | None], int] = {}
    if not isinstance(given, dict):
        given = {None: given}
    for topic, value in given.items():
        for queue, offset in (value if isinstance(value, dict) else {None: value}).items():
            is_number = type(offset) is int and offset >= 0
            if not is_number or not (queue is None or (queue.isascii() and queue.isdigit())):
                raise JobError(f"option {name} must be {wanted}, not {text}")
            found[topic, None if queue is None else int(queue)] = offset
    return found
