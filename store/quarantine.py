"""Quarantine files: the parts that recovery cut from a log, stored beside its segments.

A quarantine file is a segment of one range: the usual header, then the original bytes. It is named by
the log offset of its first byte, `00000000000000008192.cut`; a second cut at the same offset is
`00000000000000008192.2.cut`. The base in its header is that offset less the size of a header, so any
segment reader can read it, and its header says when it was cut. The log itself never reads it.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from timerwheel.store.errors import CorruptionError, FormatError, NotAFileError
from timerwheel.store.files import Files, LogFile, ReadFiles
from timerwheel.store.segment import (
    SEGMENT_HEADER_SIZE,
    Gap,
    Scanned,
    encode_header,
    read_made_ms,
    walk,
)

SUFFIX = ".cut"
_DIGITS = 20


class Quarantined(NamedTuple):
    """One quarantine file: the log offset of its first byte, how many it keeps, and when they were cut."""

    path: Path
    offset: int
    size: int
    cut_ms: int


def keep(files: Files, directory: Path, log_id: bytes, offset: int, data: bytes, now_ms: int) -> Path:
    """Write the bytes from a log offset into a quarantine file; durable on return."""
    there = set(files.names(directory))
    name, number = f"{offset:0{_DIGITS}d}{SUFFIX}", 1
    while name in there:
        number += 1
        name = f"{offset:0{_DIGITS}d}.{number}{SUFFIX}"
    path = directory / name
    files.write_whole(path, encode_header(offset - SEGMENT_HEADER_SIZE, log_id, now_ms) + data)
    return path


def listed(files: ReadFiles, directory: Path) -> list[Quarantined]:
    """Returns the quarantine files of a log, in the order of their offsets, ignoring other files.

    One that is damaged, or is not a file, has the time 0.
    """
    found = []
    for name in files.names(directory):
        offset = _offset_of(name)
        if offset is None:
            continue
        path = directory / name
        try:
            file = files.open_readonly(path)
        except FileNotFoundError:
            continue  # another process has just removed it
        except NotAFileError:
            found.append(Quarantined(path, offset, 0, 0))
            continue
        with contextlib.closing(file):
            try:
                cut_ms = read_made_ms(file, path, offset - SEGMENT_HEADER_SIZE)
            except (CorruptionError, FormatError):
                cut_ms = 0
            found.append(Quarantined(path, offset, max(file.size() - SEGMENT_HEADER_SIZE, 0), cut_ms))
    return found


def records(file: LogFile, kept: Quarantined) -> Iterator[Scanned | Gap]:
    """Yields the intact records of a quarantine file, and the damaged ranges."""
    base = kept.offset - SEGMENT_HEADER_SIZE
    for found in walk(file, base, kept.offset, kept.offset + kept.size):
        if isinstance(found, Gap):
            yield found
        else:
            yield from found.records()


def drop_before(files: Files, directory: Path, before_ms: int) -> list[Quarantined]:
    """Remove the quarantine files that were cut before a time; returns them. A damaged one stays."""
    dropped = [kept for kept in listed(files, directory) if 0 < kept.cut_ms < before_ms]
    for kept in dropped:
        files.unlink(kept.path)
    if dropped:
        files.sync_dir(directory)
    return dropped


def _offset_of(name: str) -> int | None:
    digits, _, rest = name.partition(".")
    number = rest.removesuffix(SUFFIX[1:]).removesuffix(".")
    sound = len(digits) == _DIGITS and digits.isdigit() and name.endswith(SUFFIX)
    return int(digits) if sound and (not number or number.isdigit()) else None
