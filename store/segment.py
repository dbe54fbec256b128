"""One segment file of the log: its name, its header, and the scan that walks its records.

A segment is named by the 20-digit log offset of its first byte and begins with a 64-byte header:
magic, format version, header size, base offset, log id, creation time, CRC. Records follow without
gaps; none spans two segments, nor does a unit of records that count only together.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from store.errors import CorruptionError, FormatError
from store.files import ReadFile
from store.record import FLAG_MORE, FORMAT_VERSION, HEADER_SIZE, fault

MAGIC = b"TWLOGSEG"
SEGMENT_HEADER_SIZE = 64
SUFFIX = ".log"
SIDECAR_SUFFIX = ".side"
_HEADER = struct.Struct("<8sIIQ16sq12xI")
_SIZE = struct.Struct("<I")
_READ_BYTES = 1 << 20


def segment_name(base: int) -> str:
    """The file name of the segment whose first byte has this log offset."""
    return f"{base:020d}{SUFFIX}"


def segment_base(name: str) -> int | None:
    """The offset that a segment's file name states, or None for another file."""
    digits, dot, suffix = name.partition(".")
    return int(digits) if dot + suffix == SUFFIX and len(digits) == 20 and digits.isdigit() else None  # noqa: PLR2004


def encode_header(base: int, log_id: bytes, created_ms: int) -> bytes:
    """The 64 bytes at the start of a segment."""
    head = _HEADER.pack(MAGIC, FORMAT_VERSION, SEGMENT_HEADER_SIZE, base, log_id, created_ms, 0)
    return head[:-4] + crc32(head[:-4]).to_bytes(4, "little")


def read_header(file: ReadFile, path: Path, base: int) -> bytes:
    """The log id in a segment's header; CorruptionError or FormatError if it is not a sound header."""
    head = file.read(0, SEGMENT_HEADER_SIZE)
    if len(head) < SEGMENT_HEADER_SIZE or crc32(head[:-4]) != int.from_bytes(head[-4:], "little"):
        raise CorruptionError(path, base, "the segment header is damaged")
    magic, version, _, stated_base, log_id, _, _ = _HEADER.unpack(head)
    if magic != MAGIC or stated_base != base:
        raise CorruptionError(path, base, f"the header states base offset {stated_base}")
    if version != FORMAT_VERSION:
        raise FormatError(f"{path}: format version {version}; this program reads {FORMAT_VERSION}")
    return bytes(log_id)


class Scanned(NamedTuple):
    """One record met by a scan."""

    offset: int
    data: bytes


class Damage(NamedTuple):
    """Where a scan had to stop, and why."""

    offset: int
    reason: str


def scan(file: ReadFile, base: int, start: int, end: int) -> Iterator[Scanned | Damage]:
    """Every whole record in [start, end) of the log, in order; ends with a `Damage` if one is not.

    Reads a mebibyte at a time, so memory is bounded by the largest record.
    """
    window, window_at = b"", start
    at = start
    wanted_end = end
    while at < end:
        rest = window_at + len(window) - at
        need = HEADER_SIZE if rest < HEADER_SIZE else _SIZE.unpack_from(window, at - window_at)[0]
        if need > rest and at + rest < end and need <= max(end - at, HEADER_SIZE):
            wanted = max(need if need <= end - at else 0, _READ_BYTES)
            wanted = min(wanted, end - at)
            window, window_at = file.read(at - base, wanted), at
            if len(window) < wanted:
                end = at + len(window)
            continue
        position = at - window_at
        problem = fault(window, position, min(len(window), position + end - at))
        if problem is not None:
            yield Damage(at, problem)
            return
        size = _SIZE.unpack_from(window, position)[0]
        yield Scanned(at, window[position : position + size])
        at += size
    if end < wanted_end:
        yield Damage(end, f"the file ends {wanted_end - end} bytes too early")


def whole_units(found: Iterator[Scanned | Damage], start: int) -> tuple[int, str | None]:
    """Where the last whole unit ends, and why nothing follows it (None: the scan reached its end)."""
    unit_end = at = start
    for item in found:
        if isinstance(item, Damage):
            return unit_end, item.reason
        at = item.offset + len(item.data)
        if not item.data[10] & FLAG_MORE:
            unit_end = at
    return unit_end, None if unit_end == at else "the last unit of records is not complete"


def resume(file: ReadFile, base: int, damaged: int, end: int) -> int | None:
    """The first offset behind a damaged record at which a whole record begins; None if none does."""
    for offset in range(damaged + 8, end - HEADER_SIZE + 1, 8):
        found = next(scan(file, base, offset, end), None)
        if isinstance(found, Scanned):
            return offset
    return None
