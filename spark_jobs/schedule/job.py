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
from timerwheel.spark_jobs.storage import StorageError, file_system, shown, storage_errors
from timerwheel.spark_jobs.tasks import map_numbers

JDBC = "jdbc:"
FORMATS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}
READ_ROWS = 20_000
PARTITIONED = "hive"
"""Directories named `column=value` are columns of text, as Spark writes them."""
_CSV = pa.csv.ParseOptions(newlines_in_values=True)
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
    try:
        with storage_errors(url):
            table = _opened(fs, path, kind)
    except FileNotFoundError:
        raise JobError(f"{shown(url)}: {_why_not_found(fs, path)}") from None
    except StorageError as error:
        if isinstance(error.__cause__, pa.ArrowException):  # the files, not the place
            raise JobError(f"{shown(url)}: {error.__cause__}") from None
        raise
    except OSError as error:
        raise JobError(f"{shown(url)}: {error}") from None
    if not table.columns:
        raise JobError(f"{shown(url)}: there are no files in this directory")
    return table


def _why_not_found(fs: Any, path: str) -> str:  # noqa: ANN401 - fsspec has no types
    """Why Arrow finds no table: each task reads its part of the files, which a pipe would give only once."""
    if fs.exists(path):
        return "it is neither a file nor a directory; copy what a pipe or a device gives into a file first"
    return "there is no such file or directory"


def _opened(fs: Any, path: str, kind: str | None) -> Table:  # noqa: ANN401 - fsspec has no types
    kind = kind or _kind_of(fs, path)
    table = _as_text(path, fs, kind)
    pieces: list[Any] = []
    for fragment in table.get_fragments():
        pieces += fragment.split_by_row_group() if kind == "parquet" else [fragment]
    return Table(table.schema.names, table.schema, pieces)


def _as_text(path: str, fs: Any, kind: str) -> ds.Dataset:  # noqa: ANN401 - fsspec has no types
    """The dataset, with text where the files have no types: a key 007 is not the number 7.

    JSON has numbers, but no times: read as such they would lose their zones.
    """
    form = ds.CsvFileFormat(parse_options=_CSV) if kind == "csv" else kind
    found = ds.dataset(path, filesystem=fs, format=form, partitioning=PARTITIONED)
    paths = (ds.get_partition_keys(one.partition_expression) for one in found.get_fragments())
    names = sorted({name for keys in paths for name in keys})
    directories = ds.partitioning(pa.schema([(name, pa.string()) for name in names]), flavor=PARTITIONED)
    schema = None
    inside = [field for field in found.schema if field.name not in names]
    if kind == "csv":
        types = {field.name: pa.string() for field in inside}
        form = ds.CsvFileFormat(_CSV, convert_options=pa.csv.ConvertOptions(column_types=types))
    elif kind == "json":
        schema = pa.schema([field.with_type(_without_times(field.type)) for field in inside])
        schema = pa.unify_schemas([schema, directories.schema])
    return ds.dataset(path, filesystem=fs, format=form, schema=schema, partitioning=directories)


def _without_times(kind: pa.DataType) -> pa.DataType:
    """The type with text in place of timestamps, at any depth."""
    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_times(field.type)) for field in kind])
    return pa.list_(_without_times(kind.value_type)) if pa.types.is_list(kind) else kind


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
        yield _result(send_rows(batches_of(pieces[number], schema), mapping, target))

    with progress.stage("schedule"):
        return _collected(map_numbers(spark, len(pieces), send, _RESULT, tasks=tasks))


def batches_of(piece: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:  # noqa: ANN401 - pyarrow has no types
    """The rows of a piece of a table. Raises JobError if it cannot be read to its end."""
    try:
        yield from piece.to_batches(schema=schema, batch_size=READ_ROWS)
    except pa.ArrowException as error:
        reason = " ".join(str(error).split())
        raise JobError(f"{piece.path}: {reason}; rows before that are scheduled") from None


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
