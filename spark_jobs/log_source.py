"""`commitlog`: a Spark data source over commit logs, their damage and their segments.

    from timerwheel.spark_jobs.formats import register
    register(spark)
    spark.read.format("commitlog").load("/srv/timerwheel/*")

A path is a data directory, a pattern that matches many, or a URL that fsspec reads; several are given with
`option("paths", "one,another")`. Each segment is one partition. Columns in the sidecars are read from there;
asking for others (`schema("id string, due_ms bigint, body binary")`, or
`option("columns", "id,due_ms,body")`, or `all`) scans the records. A log that is being written is read up to
its last complete unit. Conditions on the columns in sidecars are applied before records are read.

| option | meaning |
|---|---|
| `table` | `records` (default), `damage`: regions without an intact record, or `segments`: one row each |
| `columns` | names, or `all`; the default is the columns in sidecars |
| `salvage` | `true` skips damage; otherwise damage is an error that names file and offset |
| `sidecars` | `false` scans every record, which checks its CRC |
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from timerwheel.spark_jobs.columns import COLUMNS, DEFAULT, read_batches, schema_of
from timerwheel.spark_jobs.conditions import Condition, conditions_of, mask_of, may_hold
from timerwheel.spark_jobs.errors import JobError
from timerwheel.spark_jobs.logs import find_logs
from timerwheel.spark_jobs.segments import Segment, SegmentReader
from timerwheel.spark_jobs.source_options import check_known, check_names, check_schema, paths_of
from timerwheel.store.table import Table

NAME = "commitlog"
DAMAGE_SCHEMA = "node string, path string, offset bigint, end bigint, reason string, torn boolean"
SEGMENTS_SCHEMA = "node string, base bigint, end bigint, sealed boolean, records bigint, source string"
TABLES = ("records", "damage", "segments")
OPTIONS = ("path", "paths", "table", "columns", "salvage", "sidecars")
_TYPES: dict[str, dict[str, str]] = {
    "records": {name: column.sql for name, column in COLUMNS.items()},
    **{
        table: dict(column.split() for column in sql.split(", "))
        for table, sql in (("damage", DAMAGE_SCHEMA), ("segments", SEGMENTS_SCHEMA))
    },
}

_FIXED = {"node": str, "segment": int}
_FILTERED = _FIXED | {
    name: str if COLUMNS[name].sql == "string" else int for name in DEFAULT if name != "origin"
}
_IN_TABLES = {name: name for name in _FILTERED if name not in _FIXED}


def register(spark: SparkSession) -> None:
    """Register all formats, as `spark_jobs.formats.register` does: programs know it by this name, too."""
    from timerwheel.spark_jobs import formats  # noqa: PLC0415 - it imports this module

    formats.register(spark)


class CommitLogSource(DataSource):
    """The Spark data source `commitlog`; the module docstring describes it."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return NAME

    def schema(self) -> str:
        """The schema of the table that the options select."""
        table = self._table()
        if table == "damage":
            return DAMAGE_SCHEMA
        if table == "segments":
            return SEGMENTS_SCHEMA
        wanted = self.options.get("columns")
        if wanted is None:
            return schema_of(DEFAULT)
        names = list(COLUMNS) if wanted == "all" else [name.strip() for name in wanted.split(",")]
        check_names(names, COLUMNS)
        return schema_of(names)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of these columns."""
        check_known(self.options, OPTIONS, NAME)
        paths = paths_of(self.options)
        if not paths:
            raise JobError('give a path: load("/path/to/data/directory")')
        table = self._table()
        check_schema(schema, _TYPES[table])
        return LogSourceReader(
            paths,
            table,
            schema.names,
            salvage=self._flag("salvage"),
            sidecars=self._flag("sidecars", "true"),
        )

    def _table(self) -> str:
        table = self.options.get("table", TABLES[0])
        if table not in TABLES:
            raise JobError(f"no such table: {table}; choose from {', '.join(TABLES)}")
        return table

    def _flag(self, name: str, default: str = "false") -> bool:
        value = self.options.get(name, default).lower()
        if value not in ("true", "false"):
            raise JobError(f"option {name} must be true or false, not {value}")
        return value == "true"


class SegmentPartition(InputPartition):
    """One segment."""

    def __init__(self, segment: Segment, log_id: bytes) -> None:
        super().__init__((segment, log_id))


class LogSourceReader(DataSourceReader):
    """Plans partitions on the driver, reads them in executors."""

    def __init__(
        self, paths: Sequence[str], table: str, names: Sequence[str], *, salvage: bool, sidecars: bool
    ) -> None:
        self._paths = paths
        self._table = table
        self._names = list(names)
        self._salvage = salvage
        self._sidecars = sidecars
        self._conditions: list[Condition] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's
        """Note those that spare reading; Spark applies all of them again."""
        if self._table == "records":
            self._conditions = conditions_of(filters, _FILTERED)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        """One partition for each segment of each log, unless a condition excludes the log or the segment."""
        return [
            SegmentPartition(segment, log.log_id)
            for log in find_logs(self._paths)
            for segment in log.segments
            if may_hold(self._conditions, _fixed(segment))
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one segment."""
        if partition.value is None:  # Spark's own: there was no segment to read
            return
        segment, log_id = partition.value
        if self._table == "records":
            reader = SegmentReader(segment, salvage=self._salvage, sidecars=self._sidecars)
            yield from read_batches(reader, log_id, self._names, self._choose if self._conditions else None)
            return
        # Sidecars hide damage: finding it takes reading every record.
        reader = SegmentReader(segment, salvage=True, sidecars=self._sidecars and self._table == "segments")
        records = sum(len(table.rows) for table in reader.tables())
        rows: list[dict[str, Any]]
        if self._table == "damage":
            rows = [found._asdict() for found in reader.damaged]
        else:
            rows = [
                {
                    "node": segment.node,
                    "base": segment.base,
                    "end": reader.until,
                    "sealed": segment.end is not None,
                    "records": records,
                    "source": reader.source,
                }
            ]
        if rows:
            yield pa.RecordBatch.from_pylist([{name: row[name] for name in self._names} for row in rows])

    def _choose(self, table: Table) -> np.ndarray:
        return mask_of(self._conditions, table, _IN_TABLES)


def _fixed(segment: Segment) -> dict[str, str | int]:
    """The columns that are the same in all rows of a segment."""
    return {"node": segment.node, "segment": segment.base}
