"""The columns of a log in Spark, and its records as Arrow batches. Runs in executors."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from timerwheel.model.ids import Ids
from timerwheel.spark_jobs.segments import Segment, SegmentReader
from timerwheel.store.log_reader import scan_tables
from timerwheel.store.record import HEADER_DTYPE, HEADER_SIZE, NO_OFFSET, Kind
from timerwheel.store.segment import Scanned
from timerwheel.store.table import Rows, Table, merge

BATCH_RECORDS = 20_000
BATCH_BYTES = 32 << 20


_ARROW_TYPES = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
}


class Column(NamedTuple):
    """One column: its type in Spark SQL, and whether sidecars lack it."""

    sql: str
    scanned: bool = False  # not in the sidecar: asking for it reads every record

    @property
    def arrow(self) -> pa.DataType:
        """Its type in Arrow."""
        return _ARROW_TYPES[self.sql]


COLUMNS = {
    "node": Column("string"),
    "segment": Column("bigint"),
    "offset": Column("bigint"),
    "size": Column("int"),
    "kind": Column("string"),
    "flags": Column("int"),
    "topic": Column("string"),
    "queue": Column("int"),
    "level": Column("int"),
    "prior_level": Column("int"),
    "rolls": Column("int"),
    "root": Column("bigint"),
    "origin": Column("bigint"),
    "store_ms": Column("bigint"),
    "due_ms": Column("bigint"),
    "prior_due_ms": Column("bigint"),
    "id": Column("string", scanned=True),
    "crc": Column("bigint", scanned=True),
    "root_crc": Column("bigint", scanned=True),
    "version": Column("int", scanned=True),
    "topic_len": Column("int", scanned=True),
    "properties_len": Column("int", scanned=True),
    "body_len": Column("int", scanned=True),
    "enqueue_ms": Column("bigint", scanned=True),
    "properties": Column("string", scanned=True),
    "body": Column("binary", scanned=True),
}
DEFAULT = tuple(name for name, column in COLUMNS.items() if not column.scanned)
KIND_NAMES = {int(kind): kind.name.lower() for kind in Kind}
KINDS = [KIND_NAMES.get(kind, f"kind {kind}") for kind in range(256)]
_NONE = np.uint64(NO_OFFSET)

Choose = Callable[[Table], np.ndarray]
"""The mask of the rows of a table that are wanted."""


def schema_of(names: Sequence[str]) -> str:
    """The columns as a Spark SQL schema."""
    return ", ".join(f"{name} {COLUMNS[name].sql}" for name in names)


def arrow_schema(sql: str) -> pa.Schema:
    """A Spark SQL schema, such as `offset bigint, body binary`, as an Arrow schema."""
    fields = (column.split() for column in sql.split(","))
    return pa.schema([(name, _ARROW_TYPES[kind]) for name, kind in fields])


def filled(rows: pa.Table, schema: pa.Schema, **fixed: object) -> pa.Table:
    """The rows with all columns of a schema: each is a fixed value, one that the rows have, or nulls."""
    columns = []
    for field in schema:
        if field.name in fixed:
            columns.append(pa.repeat(pa.scalar(fixed[field.name], field.type), len(rows)))
        elif field.name in rows.column_names:
            columns.append(rows[field.name].cast(field.type))
        else:
            columns.append(pa.nulls(len(rows), field.type))
    return pa.table(columns, schema=schema)


def read_batches(
    reader: SegmentReader, log_id: bytes, names: Sequence[str], choose: Choose | None = None
) -> Iterator[pa.RecordBatch]:
    """The records of a segment as Arrow batches with these columns.

    With `choose`, only the records that it wants; if the segment has a sidecar, no others are read.
    """
    if any(COLUMNS[name].scanned for name in names):
        yield from _scanned_batches(reader, log_id, names, choose)
        return
    for table in reader.tables():
        rows = table.rows if choose is None else table.rows[choose(table)]
        for at in range(0, len(rows), BATCH_RECORDS):
            part = Table(rows[at : at + BATCH_RECORDS], table.topics)
            yield _batch(reader.segment, part, {}, names)


def _scanned_batches(
    reader: SegmentReader, log_id: bytes, names: Sequence[str], choose: Choose | None
) -> Iterator[pa.RecordBatch]:
    table = None if choose is None else reader.kept_table()
    if choose is None or table is None:
        records = reader.records()
    else:
        records = reader.records_of(table.rows[choose(table)])
        choose = None
    found: list[Scanned] = []
    size_bytes = 0
    for item in records:
        found.append(item)
        size_bytes += len(item.data)
        if len(found) == BATCH_RECORDS or size_bytes >= BATCH_BYTES:
            yield _scanned_batch(reader.segment, found, log_id, names, choose)
            found.clear()
            size_bytes = 0
    if found:
        yield _scanned_batch(reader.segment, found, log_id, names, choose)


def _scanned_batch(
    segment: Segment,
    found: Sequence[Scanned],
    log_id: bytes,
    names: Sequence[str],
    choose: Choose | None,
) -> pa.RecordBatch:
    if choose is not None:
        chosen = choose(_table_of(found))
        found = [item for item, wanted in zip(found, chosen.tolist(), strict=True) if wanted]
    records = [item.data for item in found]
    headers = np.frombuffer(b"".join([data[:HEADER_SIZE] for data in records]), HEADER_DTYPE)
    bodies = headers["topic_len"] + np.int64(HEADER_SIZE)
    places = list(zip(records, bodies.tolist(), (bodies + headers["properties_len"]).tolist(), strict=True))
    table = _table_of(found)
    extra: dict[str, pa.Array] = {}
    for name in names:
        if name == "id":
            extra[name] = pa.array(_ids(headers, table.rows, log_id), pa.string())
        elif name == "properties":
            texts = [data[at:to].decode() if to > at else None for data, at, to in places]
            extra[name] = pa.array(texts, pa.string())
        elif name == "body":
            sizes = headers["body_len"].tolist()
            extra[name] = pa.array(
                [data[to : to + size] for (data, _, to), size in zip(places, sizes, strict=True)], pa.binary()
            )
        elif COLUMNS[name].scanned:
            extra[name] = pa.array(headers[name].astype(COLUMNS[name].arrow.to_pandas_dtype()))
    return _batch(segment, table, extra, names)


def _table_of(found: Sequence[Scanned]) -> Table:
    return merge(list(scan_tables(iter(found))))


def _ids(headers: np.ndarray, rows: Rows, log_id: bytes) -> list[str]:
    encode = Ids(log_id).encode
    crcs = np.where(headers["root"] == _NONE, headers["crc"], headers["root_crc"])
    return [encode(root, crc) for root, crc in zip(rows["root"].tolist(), crcs.tolist(), strict=True)]


def _batch(
    segment: Segment, table: Table, extra: dict[str, pa.Array], names: Sequence[str]
) -> pa.RecordBatch:
    rows = table.rows
    columns = []
    for name in names:
        column = COLUMNS[name]
        if name in extra:
            found = extra[name]
        elif name == "node":
            found = pa.array([segment.node]).take(pa.array(np.zeros(len(rows), np.int32)))
        elif name == "segment":
            found = pa.array(np.full(len(rows), segment.base, np.int64))
        elif name == "topic":
            found = pa.array(table.topics, pa.string()).take(pa.array(rows["topic"]))
        elif name == "kind":
            found = pa.array(KINDS).take(pa.array(rows["kind"].astype(np.int32)))
        elif name == "origin":
            found = pa.array(rows["origin"].astype(np.int64), mask=rows["origin"] == _NONE)
        else:
            found = pa.array(rows[name].astype(column.arrow.to_pandas_dtype()))
        columns.append(found)
    return pa.record_batch(columns, schema=arrow_schema(schema_of(names)))
