"""Rows of messages as Arrow streams: what a test sends in JSON, in columns."""

import io
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

MEDIA_TYPE = "application/vnd.apache.arrow.stream"
TIME = pa.timestamp("ms", tz="UTC")
TYPES: dict[str, Any] = {
    "topic": pa.string(),
    "body": pa.string(),
    "properties": pa.map_(pa.string(), pa.string()),
    "tags": pa.string(),
    "keys": pa.string(),
    "dedup_key": pa.string(),
    "after_recall": pa.string(),
    "delay_ms": pa.int64(),
    "delay": pa.string(),
    "deliver_at_ms": pa.int64(),
    "deliver_at": pa.string(),
    "delay_level": pa.int32(),
    "ttl_ms": pa.int64(),
    "ttl": pa.string(),
    "max_attempts": pa.int32(),
}


def table_of(rows: Sequence[dict[str, Any]], **types: Any) -> pa.Table:
    """A table with a column for each field that a row has; `types` replace those of TYPES."""
    names = [name for name in TYPES if name == "topic" or any(name in row for row in rows)]
    kinds = {**TYPES, **types}
    return pa.table({name: _array([row.get(name) for row in rows], kinds[name]) for name in names})


def _array(values: list[Any], kind: Any) -> Any:
    if pa.types.is_map(kind):
        values = [None if value is None else list(value.items()) for value in values]
    if pa.types.is_dictionary(kind):
        return pa.array(values, kind.value_type).dictionary_encode()
    return pa.array(values, kind)


def stream_of(table: Any, rows_per_batch: int | None = None, **options: Any) -> bytes:
    """The bytes of a stream; `options` are those of `IpcWriteOptions`."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, rows_per_batch)
    return sink.getvalue()


def read_stream(data: bytes) -> pa.Table:
    """The table of a stream."""
    return pa.ipc.open_stream(data).read_all()
