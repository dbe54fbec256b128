"""Reads bytes [lo, hi) of one chunk of an archive: as a table, and then the rows that were chosen.

The files of a chunk are read twice, whole each time, since only then their checksums are known.
"""

import datetime as dt
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from timerwheel.model.messages import MessageView, State
from timerwheel.runtime.message_views import message_view
from timerwheel.spark_jobs.archive.part import batches_of
from timerwheel.spark_jobs.archive.store import Archive
from timerwheel.spark_jobs.columns import KINDS
from timerwheel.store.record import NO_OFFSET, Header, Kind, Record
from timerwheel.store.table import ROW_DTYPE, Rows, Table
from timerwheel.wheel.geometry import DAY_MS

_NUMBERS = ("offset", "root", "store_ms", "due_ms", "size", "queue", "flags", "level")
_IN_VIEWS = (
    *("offset", "id", "topic", "queue", "level", "rolls", "origin", "store_ms", "due_ms", "enqueue_ms"),
    *("properties", "body"),
)
_NONE = np.uint64(NO_OFFSET)


class ArchivedTable(NamedTuple):
    """Rows in log order, and the CRC of each; origins and what else consumers do not see are left out."""

    table: Table
    crcs: np.ndarray


def read_table(archive: Archive, log_id: str, base: int, lo: int, hi: int) -> ArchivedTable:
    """All rows of a chunk between two log offsets. Raises ArchiveError."""
    manifest = archive.manifest(log_id, base)
    names = (*_NUMBERS, "topic", "kind", "crc")
    places: dict[str, int] = {}
    parts: list[Rows] = [np.zeros(0, ROW_DTYPE)]
    crcs: list[np.ndarray] = [np.zeros(0, np.uint32)]
    numbers = {name: number for number, name in enumerate(KINDS)}
    for file in manifest.files:
        for batch in batches_of(archive, manifest, file, names):
            offsets = batch["offset"].to_numpy()
            inside = (offsets >= lo) & (offsets < hi)
            rows: Rows = np.zeros(len(batch), ROW_DTYPE)
            for name in _NUMBERS:
                rows[name] = batch[name].to_numpy()
            rows["origin"] = _NONE
            rows["topic"] = _coded(batch["topic"], places)
            rows["kind"] = _coded(batch["kind"], numbers)
            parts.append(rows[inside])
            crcs.append(batch["crc"].to_numpy()[inside].astype(np.uint32))
    rows, found = np.concatenate(parts), np.concatenate(crcs)
    order = np.argsort(rows["offset"])
    return ArchivedTable(Table(rows[order], list(places)), found[order])


def _coded(column: pa.Array, places: dict[str, int]) -> np.ndarray:
    """Texts as numbers; a new text gets the next one."""
    encoded = column.dictionary_encode()
    numbers = [places.setdefault(text, len(places)) for text in encoded.dictionary.to_pylist()]
    found: np.ndarray = np.array(numbers, np.uint32)[encoded.indices.to_numpy()]
    return found


def read_views(
    archive: Archive, log_id: str, base: int, chosen: Rows, queue_offsets: np.ndarray, topics: set[str]
) -> Iterator[tuple[np.ndarray, list[MessageView]]]:
    """Yields the messages of chosen rows, which are in log order and of these topics, with their indexes."""
    manifest = archive.manifest(log_id, base)
    days = {_day(ms) for ms in np.unique(chosen["store_ms"] // DAY_MS * DAY_MS).tolist()}
    for file in manifest.files:
        if file.date in days and (file.topic is None or file.topic in topics):
            for batch in batches_of(archive, manifest, file, _IN_VIEWS):
                offsets = batch["offset"].to_numpy().astype(np.uint64)
                indexes = np.searchsorted(chosen["offset"], offsets)
                inside = indexes < len(chosen)
                inside[inside] = chosen["offset"][indexes[inside]] == offsets[inside]
                if inside.any():
                    indexes = indexes[inside]
                    rows = batch.filter(pa.array(inside)).to_pylist()
                    numbers = queue_offsets[indexes].tolist()
                    yield indexes, [_view(row, number) for row, number in zip(rows, numbers, strict=True)]


def _day(ms: int) -> str:
    return dt.datetime.fromtimestamp(ms / 1000, dt.UTC).date().isoformat()


def _view(row: dict[str, Any], queue_offset: int) -> MessageView:
    """Returns the view that the service would make of the record."""
    values = dict.fromkeys(Header._fields, 0) | {
        name: value for name, value in row.items() if name in Header._fields
    }
    values |= {"kind": Kind.MESSAGE, "origin": NO_OFFSET if row["origin"] is None else row["origin"]}
    properties = (row["properties"] or "").encode()
    record = Record(Header(**values), row["topic"], properties, row["body"])
    return message_view(
        record,
        row["id"],
        State.DELIVERED,
        delivered_ms=record.header.store_ms,
        queue_offset=queue_offset,
    )
