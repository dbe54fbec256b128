"""The figures of the last hours in a file of the data directory, so that charts are full after a restart.

    figures.json    {"version": 1, "seconds": [[...], ...], "minutes": [[...], ...], "checksum": "..."}

Each row is a point in the order of its fields. Nothing else depends on this file: a reader takes one that is
missing, damaged or of another version as empty. So it is replaced atomically, but not synced: a power cut may
cost a minute of charts, and syncing it would hold up the log.
"""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from timerwheel.model.figures import MINUTES_MAX, SECONDS_MAX, Point
from timerwheel.store.errors import FormatError
from timerwheel.store.files import create_file, open_ordinary
from timerwheel.store.sealed_json import SealError, check_seal, seal

NAME = "figures.json"
VERSION = 1
SIZE_BYTES_MAX = 1 << 20

logger = logging.getLogger(__name__)

Natural = Annotated[int, Meta(ge=0)]
Quantile = Annotated[float, Meta(ge=0)] | None
Row = tuple[Natural, Natural, Natural, Natural, Natural, Natural, Quantile, Quantile]


class _Kept(msgspec.Struct, frozen=True):
    version: int
    seconds: Annotated[list[Row], Meta(max_length=SECONDS_MAX)]
    minutes: Annotated[list[Row], Meta(max_length=MINUTES_MAX)]


def read(directory: Path) -> tuple[list[Point], list[Point]]:
    """Return the seconds and the minutes that were kept, in order of time; none if there is no sound file."""
    path = directory / NAME
    try:
        with open_ordinary(path) as file:
            raw = file.read(SIZE_BYTES_MAX + 1)
        check_seal(raw, required=True)
        kept = msgspec.json.decode(raw, type=_Kept)
    except FileNotFoundError:
        return [], []
    except (OSError, FormatError, SealError, msgspec.DecodeError) as error:
        logger.warning("%s is not used, and charts begin empty: %s", path, error)
        return [], []
    if kept.version != VERSION:
        logger.info("%s is of version %d and is not used: charts begin empty", path, kept.version)
        return [], []
    return _points(kept.seconds), _points(kept.minutes)


def write(directory: Path, seconds: Sequence[Point], minutes: Sequence[Point]) -> None:
    """Replace what is kept; OSError if the disk refuses it, and the file is as before."""
    rows: list[list[tuple[Any, ...]]] = [
        [msgspec.structs.astuple(point) for point in points] for points in (seconds, minutes)
    ]
    content = seal(msgspec.json.encode({"version": VERSION, "seconds": rows[0], "minutes": rows[1]}))
    written = directory / f"{NAME}.new"
    written.unlink(missing_ok=True)
    with os.fdopen(create_file(written), "wb") as file:
        file.write(content)
    written.replace(directory / NAME)


def _points(rows: Sequence[Row]) -> list[Point]:
    return sorted((Point(*row) for row in rows), key=lambda point: point.at_ms)
