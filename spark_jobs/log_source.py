"""`commitlog`: a Spark data source over commit logs, their damage and their segments.

    from timerwheel.spark_jobs.log_source import register
    register(spark)
    spark.read.format("commitlog").load("/srv/timerwheel/*")

A path is a data directory, a pattern that matches many, or a URL that fsspec reads; several are given with
`option("paths", "one,another")`. There is one partition for each segment. Columns that lie in the sidecars
are read from there; asking for others (`schema("id string, due_ms bigint, body binary")`, or
`option("columns", "id,due_ms,body")`, or `all`) scans the records. A log that is being written is read up to
its last whole unit.

| option | is |
|---|---|
| `table` | `records` (default), `damage`: regions that hold no whole record, or `segments`: one row each |
| `columns` | names, or `all`; the default is what sidecars tell |
| `salvage` | `true` goes on past damage; else damage is an error that names file and offset |
| `sidecars` | `false` scans every record, and so checks its CRC |
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from timerwheel.spark_jobs.columns import COLUMNS, DEFAULT, read_batches, schema_of
from timerwheel.spark_jobs.logs import find_sites
from timerwheel.spark_jobs.segments import Segment, SegmentReader

NAME = "commitlog"
DAMAGE_SCHEMA = "node string, path string, offset bigint, end bigint, reason string, torn boolean"
SEGMENTS_SCHEMA = "node string, base bigint, end bigint, sealed boolean, records bigint, source string"
TABLES = ("records", "damage", "segments")


class LogSourceError(ValueError):
    """An option that cannot be."""


def register(spark: SparkSession) -> None:
    """Make the format known to a session."""
    spark.dataSource.register(CommitLogSource)


class CommitLogSource(DataSource):
    """See the module."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return NAME

    def schema(self) -> str:
        """The columns of the table that the options ask for."""
        table = self._table()
        if table == "damage":
            return DAMAGE_SCHEMA
        if table == "segments":
            return SEGMENTS_SCHEMA
        wanted = self.options.get("columns")
        if wanted is None:
            return schema_of(DEFAULT)
        names = list(COLUMNS) if wanted == "all" else [name.strip() for name in wanted.split(",")]
        unknown = [name for name in names if name not in COLUMNS]
        if unknown:
            raise LogSourceError(f"no such columns: {', '.join(unknown)}; there are {', '.join(COLUMNS)}")
        return schema_of(names)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of these columns."""
        paths = [path for path in self.options.get("paths", "").split(",") if path]
        if "path" in self.options:
            paths.append(self.options["path"])
        if not paths:
            raise LogSourceError('no path was given: load("/path/of/data/directory")')
        return LogSourceReader(
            paths,
            self._table(),
            schema.names,
            salvage=self._flag("salvage"),
            sidecars=self._flag("sidecars", "true"),
        )

    def _table(self) -> str:
        table = self.options.get("table", TABLES[0])
        if table not in TABLES:
            raise LogSourceError(f"no such table: {table}; there are {', '.join(TABLES)}")
        return table

    def _flag(self, name: str, default: str = "false") -> bool:
        value = self.options.get(name, default).lower()
        if value not in ("true", "false"):
            raise LogSourceError(f"option {name} is true or false, not {value}")
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

    def partitions(self) -> Sequence[InputPartition]:
        """One for each segment of each log."""
        return [
            SegmentPartition(segment, site.log_id)
            for site in find_sites(self._paths)
            for segment in site.segments
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one segment."""
        segment, log_id = partition.value
        if self._table == "records":
            reader = SegmentReader(segment, salvage=self._salvage, sidecars=self._sidecars)
            yield from read_batches(reader, log_id, self._names)
            return
        # Damage hides behind sidecars: to find it, every record is read.
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
