"""A table of files: Parquet, CSV or JSON lines, a file or a directory, wherever fsspec reads them.

Executors read the files with pyarrow, a row group of Parquet or a file of another format at a time, so that
stores need no packages for the JVM.

1. The rows of a file have the columns and types of that file, and nulls where it lacks a column that the job
   needs. So the message of a row, and its deduplication key, do not depend on which other files there are.
2. A time of Parquet's INT96 is one in UTC, as Spark writes it, unless the program that wrote the file noted
   that it has no zone.
3. No file is left out silently, but for those whose path has a part that begins with `_` or `.`, which Spark
   leaves out, too, and for CSV and JSON files of no bytes, which Spark writes for a partition without rows.
"""

import base64
import os
import posixpath
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset as ds
import pyarrow.json
from fsspec.implementations.local import LocalFileSystem

from timerwheel.spark_jobs.errors import JobError
from timerwheel.spark_jobs.schedule.rows import BODY, RowMapping, is_list, list_of
from timerwheel.spark_jobs.storage import (
    StorageError,
    check_bucket,
    file_system,
    found_below,
    shown,
    storage_errors,
)

FORMATS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}
READ_ROWS = 20_000
BLOCK_BYTES = 16 << 20
"""What is read at once of a file of text; no row of it may be larger."""
PARTITIONED = "hive"
"""Directories named `column=value` are columns of text, as Spark writes them."""
DELTA_LOG = "_delta_log"
_UNEXPECTED, _TOO_LONG = "unexpected field", "straddling object"  # as Arrow says it
_CSV = pa.csv.ParseOptions(newlines_in_values=True)
_CSV_BLOCKS = pa.csv.ReadOptions(block_size=BLOCK_BYTES)
_JSON_BLOCKS = pa.json.ReadOptions(block_size=BLOCK_BYTES)
_FORMS = {
    "csv": ds.CsvFileFormat(parse_options=_CSV, read_options=_CSV_BLOCKS),
    "json": ds.JsonFileFormat(read_options=_JSON_BLOCKS),
    # Nanoseconds have no times after the year 2262.
    "parquet": ds.ParquetFileFormat(coerce_int96_timestamp_unit="us"),
}
_ARROW_SCHEMA = b"ARROW:schema"
_INT96 = "INT96"


class Table(NamedTuple):
    """A table of files: columns and schema of the first one, and the fragments that tasks read."""

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
        with storage_errors(url):
            check_bucket(fs, path)
        raise JobError(f"{shown(url)}: {_why_not_found(fs, path)}") from None
    except StorageError as error:
        if isinstance(error.__cause__, UnicodeDecodeError):
            raise JobError(f"{shown(url)}: names of columns are not UTF-8: convert the file") from None
        if isinstance(error.__cause__, pa.ArrowException):  # the files, not the place
            raise JobError(f"{shown(url)}: {error.__cause__}") from None
        raise
    except OSError as error:
        raise JobError(f"{shown(url)}: {error}") from None
    return table


def _why_not_found(fs: Any, path: str) -> str:  # noqa: ANN401 - fsspec has no types
    """Why Arrow finds no table: each task reads its part of the files, which a pipe would give only once."""
    if fs.exists(path):
        return "it is neither a file nor a directory; copy what a pipe or a device gives into a file first"
    return "there is no such file or directory"


def _opened(fs: Any, path: str, kind: str | None) -> Table:  # noqa: ANN401 - fsspec has no types
    _check_directory(fs, path)
    files = _files_of(fs, path)
    kind = kind or _kind_of(path, list(files))
    table = _as_text(path, fs, kind, files)
    pieces: list[Any] = []
    for fragment in table.get_fragments():
        pieces += fragment.split_by_row_group() if kind == "parquet" else [fragment]
    return Table(table.schema.names, table.schema, pieces)


def _check_directory(fs: Any, path: str) -> None:  # noqa: ANN401 - fsspec has no types
    """Raises JobError for a directory whose files are not simply its rows, or that has a pipe or the like."""
    if fs.isdir(posixpath.join(path, DELTA_LOG)):
        raise JobError(
            f"{path} is a Delta table: its files also hold rows that were deleted or replaced since. Read it "
            'with Spark, and write the frame with format("timerwheel")'
        )
    if not isinstance(fs, LocalFileSystem):
        return
    for place, directories, names in os.walk(path):
        directories[:] = [name for name in directories if not _is_hidden(name)]
        for name in names:
            file = Path(place, name)
            if not _is_hidden(name) and not file.is_file():
                what = "a link to nothing" if file.is_symlink() else "neither a file nor a directory"
                raise JobError(f"{file} is {what}: its rows would be missing; replace or remove it")


def _files_of(fs: Any, path: str) -> dict[str, int | None]:  # noqa: ANN401 - fsspec has no types
    """The files of a table with their sizes, where the file system knows them; or the one file itself."""
    if not fs.isdir(path):
        return {path: None}
    root = path.rstrip("/") + "/"
    found = {
        name: size
        for name, size in sorted(found_below(fs, path).items())
        if not any(map(_is_hidden, name.removeprefix(root).split("/")))
    }
    if not found:
        raise JobError(f"{path}: there are no files in this directory")
    return found


def _as_text(path: str, fs: Any, kind: str, files: dict[str, int | None]) -> ds.Dataset:  # noqa: ANN401 - fsspec has no types
    """The dataset, with text where the files have no types: a key 007 is not the number 7.

    JSON has numbers, but no times: read as such they would lose their zones.
    """
    form = _FORMS[kind]
    source = path if path in files else [name for name, size in files.items() if size or kind == "parquet"]
    if not source:
        raise JobError(f"{path}: all files in this directory are empty")
    place = None if path in files else path
    found = ds.dataset(source, filesystem=fs, format=form, partitioning=PARTITIONED, partition_base_dir=place)
    paths = (ds.get_partition_keys(one.partition_expression) for one in found.get_fragments())
    names = sorted({name for keys in paths for name in keys})
    directories = ds.partitioning(pa.schema([(name, pa.string()) for name in names]), flavor=PARTITIONED)
    schema = None
    inside = [field for field in found.schema if field.name not in names]
    if kind == "csv":
        form = _csv_of([field.name for field in inside])
    elif kind == "json":
        schema = pa.schema([field.with_type(_without_times(field.type)) for field in inside])
        schema = pa.unify_schemas([schema, directories.schema])
    return ds.dataset(
        source, schema, filesystem=fs, format=form, partitioning=directories, partition_base_dir=place
    )


def _csv_of(names: list[str]) -> ds.CsvFileFormat:
    """The format of CSV files with these columns, all of them text."""
    types = dict.fromkeys(names, pa.string())
    options = pa.csv.ConvertOptions(column_types=types)
    return ds.CsvFileFormat(_CSV, convert_options=options, read_options=_CSV_BLOCKS)


def _without_times(kind: pa.DataType) -> pa.DataType:
    """The type with text in place of timestamps, at any depth."""
    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_times(field.type)) for field in kind])
    return pa.list_(_without_times(kind.value_type)) if pa.types.is_list(kind) else kind


def _kind_of(path: str, names: list[str]) -> str:
    found = {FORMATS.get(posixpath.splitext(name)[1].lower()) for name in names}
    if len(found) == 1 and (kind := found.pop()) is not None:
        return kind
    raise JobError(f"{path}: the names of the files do not say what they are: give --format")


def _is_hidden(name: str) -> bool:
    return name.startswith(("_", "."))  # as Spark's _SUCCESS


def batches_of(piece: Any, schema: pa.Schema, mapping: RowMapping) -> Iterator[pa.RecordBatch]:  # noqa: ANN401 - pyarrow has no types
    """The rows of a piece of a table. Raises JobError if it cannot be read to its end."""
    try:
        yield from _rows(piece, schema, mapping)
    except pa.ArrowException as error:
        reason = " ".join(str(error).split())
        if _UNEXPECTED in reason:
            reason = (
                "a row has a field that none of the first rows has, and that its body would lack: name a "
                "column of bodies, or convert the file to Parquet"
            )
        if _TOO_LONG in reason:
            reason = f"a row is longer than {BLOCK_BYTES >> 20} MiB: convert the file to Parquet"
        raise JobError(
            f"{piece.path}: {reason}; rows before that may be scheduled, and are not scheduled twice"
        ) from None


def _rows(piece: Any, schema: pa.Schema, mapping: RowMapping) -> Iterator[pa.RecordBatch]:  # noqa: ANN401 - pyarrow has no types
    in_path = ds.get_partition_keys(piece.partition_expression)
    inside = [field for field in _fields_of(piece) if field.name not in in_path]
    if isinstance(piece.format, ds.CsvFileFormat):
        inside = [field.with_type(pa.string()) for field in inside]
        form = _csv_of([field.name for field in inside])
        piece = form.make_fragment(piece.path, piece.filesystem, piece.partition_expression)
    there = {*in_path, *(field.name for field in inside)}
    needed = {*mapping.columns, BODY} if mapping.body is None else set(mapping.columns)
    lacking = [field for field in schema if field.name in needed - there]
    if isinstance(piece.format, ds.JsonFileFormat):
        inside = [field.with_type(_without_times(field.type)) for field in inside]
        is_body = mapping.body is None and BODY not in schema.names
        yield from _json_rows(piece, pa.schema([*inside, *lacking]), in_path, is_body=is_body)
        return
    every = pa.schema([*inside, *lacking, *((name, pa.string()) for name in in_path)])
    yield from piece.to_batches(schema=every, batch_size=READ_ROWS, batch_readahead=1)


def _fields_of(piece: Any) -> list[pa.Field]:  # noqa: ANN401 - pyarrow has no types
    """The columns of a file, with the zone that times of INT96 have without saying so."""
    fields = list(piece.physical_schema)
    if not isinstance(piece.format, ds.ParquetFileFormat):
        return fields
    file = piece.metadata
    are_instants = [file.schema.column(at).physical_type == _INT96 for at in range(file.num_columns)]
    if not any(are_instants):
        return fields
    if (noted := (file.metadata or {}).get(_ARROW_SCHEMA)) is not None:
        schema = pa.ipc.read_schema(pa.BufferReader(base64.b64decode(noted)))
        kinds = [kind for field in schema for kind in _leaves(field.type)]
        are_instants = [getattr(kind, "tz", None) is not None for kind in kinds]
    leaves = iter(are_instants)
    return [_in_utc(field, leaves) for field in fields]


def _leaves(kind: pa.DataType) -> Iterator[pa.DataType]:
    """The types of the columns that Parquet makes of a column of this type."""
    if not kind.num_fields:
        yield kind
    for at in range(kind.num_fields):
        yield from _leaves(kind.field(at).type)


def _in_utc(field: pa.Field, leaves: Iterator[bool]) -> pa.Field:
    """The field, with UTC as the zone of times that are instants: `leaves` says of each of its columns."""
    kind = field.type
    if pa.types.is_struct(kind):
        return field.with_type(pa.struct([_in_utc(one, leaves) for one in kind]))
    if pa.types.is_map(kind):
        return field.with_type(pa.map_(_in_utc(kind.key_field, leaves), _in_utc(kind.item_field, leaves)))
    if is_list(kind):
        return field.with_type(list_of(kind, _in_utc(kind.value_field, leaves)))
    is_instant = next(leaves, False) and pa.types.is_timestamp(kind)
    return field.with_type(pa.timestamp(kind.unit, "UTC")) if is_instant else field


def _json_rows(
    piece: Any,  # noqa: ANN401 - pyarrow has no types
    inside: pa.Schema,
    in_path: dict[str, str],
    *,
    is_body: bool,
) -> Iterator[pa.RecordBatch]:
    """The rows of a JSON file, whose columns are those of its first block and `in_path`.

    A field that comes later is an error where rows are bodies: a dataset of Arrow would leave it out.
    """
    unexpected = "error" if is_body else "ignore"
    options = pa.json.ParseOptions(explicit_schema=inside, unexpected_field_behavior=unexpected)
    with (
        piece.filesystem.open_input_stream(piece.path) as file,
        pa.json.open_json(file, _JSON_BLOCKS, options) as rows,
    ):
        for batch in rows:
            texts = [pa.repeat(pa.scalar(text, pa.string()), len(batch)) for text in in_path.values()]
            yield pa.record_batch([*batch.columns, *texts], [*batch.schema.names, *in_path])
