"""Files with rows that executors write through fsspec: Parquet for people, Arrow between stages."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from timerwheel.spark_jobs.storage import open_binary, write_atomically

_NAMES = ["node", "topic", "outcome"]  # few, each in many rows
_NEIGHBOURS = ["segment", "offset", "root", "due_ms", "stored_ms", "ended_ms", "end_offset"]


@contextmanager
def parquet_file(url: str, schema: pa.Schema) -> Iterator[pq.ParquetWriter]:
    """A Parquet file written completely or not at all; offsets and times are delta-encoded.

    Memory: the compressed file. An object store would keep what was uploaded before an error.
    """
    neighbours = [name for name in _NEIGHBOURS if name in schema.names]
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=[name for name in schema.names if name in _NAMES],
        column_encoding=dict.fromkeys(neighbours, "DELTA_BINARY_PACKED"),
    ) as writer:
        yield writer
    write_atomically(url, sink.getvalue())


def arrow_file(rows: pa.Table | pa.RecordBatch, *, batch_rows: int | None = None) -> pa.Buffer:
    """Rows as an Arrow file, in batches of at most so many rows."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, rows.schema) as file:
        file.write(rows) if batch_rows is None else file.write_table(rows, max_chunksize=batch_rows)
    return sink.getvalue()


@contextmanager
def open_arrow(url: str) -> Iterator[pa.RecordBatchFileReader]:
    """An Arrow file for reading a batch at a time."""
    with open_binary(url) as file, pa.ipc.open_file(file) as found:
        yield found


def write_one_file(rows: DataFrame, schema: pa.Schema, url: str) -> None:
    """Write all rows, in their order, as one Parquet file; their columns are those of the schema."""

    def keep(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        count = 0
        with parquet_file(url, schema) as writer:
            for batch in batches:
                writer.write_batch(batch.cast(schema))
                count += len(batch)
        yield pa.record_batch({"rows": [count]})

    if not rows.mapInArrow(keep, "rows bigint").collect():
        # Spark runs no task where it knows that there are no rows.
        list(keep([]))
