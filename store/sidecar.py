"""Sidecars: the table of a sealed segment in a file beside it, which saves scanning the payload.

Derived data: a missing, outdated or damaged sidecar is rebuilt by a scan. Layout:
magic, version, base offset, end offset, row count, topic bytes, CRC-32 of all that follows; then the
rows (`timerwheel.store.table.ROW_DTYPE`), then the topic names, each ended by a newline.
"""

import struct
from pathlib import Path
from zlib import crc32

import numpy as np

from timerwheel.store.errors import UNREADABLE, NotAFileError
from timerwheel.store.files import Files, ReadFiles, ReadPath, read_whole
from timerwheel.store.table import ROW_DTYPE, Table

MAGIC = b"TWSIDE01"
_HEAD = struct.Struct("<8sQQQII")


def write(files: Files, path: Path, table: Table, base: int, end: int) -> None:
    """Write the sidecar of the segment [base, end), completely or not at all."""
    files.write_whole(path, encode(table, base, end))


def encode(table: Table, base: int, end: int) -> bytes:
    """The sidecar as bytes."""
    names = "".join(f"{name}\n" for name in table.topics).encode()
    # Converted to bytes only once: copying tens of megabytes blocks all other threads.
    rows = np.ascontiguousarray(table.rows).view(np.uint8).data
    crc = crc32(names, crc32(rows))
    return b"".join((_HEAD.pack(MAGIC, base, end, len(table.rows), len(names), crc), rows, names))


def read(files: ReadFiles, path: ReadPath, base: int, end: int) -> Table | None:
    """The table, or None if the sidecar is missing, unreadable or invalid for [base, end)."""
    try:
        data = read_whole(files, path)
    except NotAFileError:
        return None
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
        return None
    if data is None or len(data) < _HEAD.size:
        return None
    magic, of_base, of_end, count, names_size, crc = _HEAD.unpack_from(data)
    payload = memoryview(data)[_HEAD.size :]
    rows_size = count * ROW_DTYPE.itemsize
    sound = (
        magic == MAGIC
        and (of_base, of_end) == (base, end)
        and len(payload) == rows_size + names_size
        and crc32(payload) == crc
    )
    if not sound:
        return None
    rows = np.frombuffer(payload[:rows_size], ROW_DTYPE).copy()
    return Table(rows, bytes(payload[rows_size:]).decode().split("\n")[:-1])
