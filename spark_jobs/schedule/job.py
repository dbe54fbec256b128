"""Schedules the rows of a table: Parquet, CSV or JSON lines wherever fsspec reads them, or a JDBC query.

Files are read by the executors with pyarrow, a row group of Parquet or a file of another format at a time, so
that stores need no packages for the JVM. JDBC is read by Spark.
"""

import posixpath
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession

from timerwheel.spark_jobs.errors import JobError
from timerwheel.spark_jobs.progress import JobProgress
from timerwheel.spark_jobs.schedule.rows import RowMapping
from timerwheel.spark_jobs.schedule.sending import Refused, Sent, Target, send_rows
from timerwheel.spark_jobs.storage import file_system, shown, storage_errors
from timerwheel.spark_jobs.tasks import map_numbers

JDBC = "jdbc:"
FORMATS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}
READ_ROWS = 20_000
PARTITIONED = "hive"
"""Directories named `column=value` are columns of text, as Spark writes them."""
_RESULT = "stored bigint, duplicates bigint, refused binary"
_refused = msgspec.json.Decoder(list[Refused])


class Table(NamedTuple):
    """A table of files, and the fragments of it that a task reads."""

    columns: list[str]
    schema: pa.Schema
    pieces: list[Any]


def open_table(url: str, kind: str | None) -> Table:
    """The table of a file or a directory of files. Raises JobError."""
    fs, path = file_system(url)
    pieces: list[Any] = []
    try:
        with storage_errors(url):
            kind = kind or _kind_of(fs, path)
            table = _as_text(path, fs, kind)
            for fragment in table.get_fragments():
                pieces += fragment.split_by_row_group() if kind == "parquet" else [fragment]
    except FileNotFoundError:
        raise JobError(f"{shown(url)}: there is no such file or directory") from None
    except (OSError, pa.ArrowException, ValueError) as error:
        raise JobError(f"{shown(url)}: {error}") from None
    return Table(table.schema.names, table.schema, pieces)


def _as_text(path: str, fs: Any, kind: str) -> ds.Dataset:  # noqa: ANN401 - fsspec has no types
    """The dataset, with text where the files have no types: a key 007 is not the number 7."""
    found = ds.dataset(path, filesystem=fs, format=kind, partitioning=PARTITIONED)
    paths = (ds.get_partition_keys(one.partition_expression) for one in found.get_fragments())
    names = sorted({name for keys in paths for name in keys})
    directories = ds.partitioning(pa.schema([(name, pa.string()) for name in names]), flavor=PARTITIONED)
    if kind != "csv":
        return ds.dataset(path, filesystem=fs, format=kind, partitioning=directories)
    types = {name: pa.string() for name in found.schema.names if name not in names}
    text = ds.CsvFileFormat(convert_options=pa.csv.ConvertOptions(column_types=types))
    return ds.dataset(path, filesystem=fs, format=text, partitioning=directories)


def _kind_of(fs: Any, path: str) -> str:  # noqa: ANN401 - fsspec has no types
    names = [path] if not fs.isdir(path) else sorted(str(name) for name in fs.find(path))
    found = {FORMATS.get(posixpath.splitext(name)[1].lower()) for name in names if _is_data(name)}
    if len(found) == 1 and (kind := found.pop()) is not None:
        return kind
    raise JobError(f"{path}: the names of the files do not say what they are: give --format")


def _is_data(name: str) -> bool:
    return not posixpath.basename(name).startswith(("_", "."))  # as Spark's _SUCCESS


def schedule_table(
    spark: SparkSession, progress: JobProgress, table: Table, mapping: RowMapping, target: Target
) -> Sent:
    """Send each row as a message. Raises JobError."""
    mapping.check(table.columns)
    if not table.pieces:
        return Sent()
    pieces, schema = table.pieces, table.schema
    tasks = min(len(pieces), 4 * spark.sparkContext.defaultParallelism)
    target = _shared(target, min(tasks, spark.sparkContext.defaultParallelism))

    def send(number: int) -> Iterator[pa.RecordBatch]:
        batches = pieces[number].to_batches(schema=schema, batch_size=READ_ROWS)
        yield _result(send_rows(batches, mapping, target))

    with progress.stage("schedule"):
        return _collected(map_numbers(spark, len(pieces), send, _RESULT, tasks=tasks))


def schedule_query(
    spark: SparkSession,
    progress: JobProgress,
    options: dict[str, str],
    mapping: RowMapping,
    target: Target,
) -> Sent:
    """As `schedule_table`, for what a JDBC database answers; `options` are those of Spark's JDBC source."""
    rows = spark.read.format("jdbc").options(**options).load()
    mapping.check(rows.columns)
    target = _shared(target, min(rows.rdd.getNumPartitions(), spark.sparkContext.defaultParallelism))

    def send(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield _result(send_rows(batches, mapping, target))

    with progress.stage("schedule"):
        return _collected(rows.mapInArrow(send, _RESULT))


def _shared(target: Target, tasks: int) -> Target:
    """Each of the tasks that run at the same time has its share of the rate."""
    return target if target.rate is None else target._replace(rate=target.rate / max(tasks, 1))


def _result(sent: Sent) -> pa.RecordBatch:
    refused = msgspec.json.encode(sent.refused)
    return pa.record_batch({"stored": [sent.stored], "duplicates": [sent.duplicates], "refused": [refused]})


def _collected(results: DataFrame) -> Sent:
    sent = Sent()
    for row in results.collect():
        sent.add(Sent(row.stored, row.duplicates, _refused.decode(bytes(row.refused))))
    return sent
