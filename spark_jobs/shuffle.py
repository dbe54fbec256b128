"""Sends each reference to an earlier record to the segment that holds it, in one shuffle.

The log is already partitioned by segment. A record that ends or replaces a timer names its offset, and the
offset names the segment. So only the references travel, a few numbers each; the timers stay in their segment
and are read from its table where the references arrive. A task holds one segment's table and the references
to it, which are bounded by the size of a segment, however long the log is.

All references from one segment to another travel as one value, a packed Arrow batch: Spark sorts and copies
one row per pair of segments, not one per record.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from timerwheel.spark_jobs.segments import Segment, SegmentReader
from timerwheel.spark_jobs.tasks import group_by_number, map_numbers, task_count
from timerwheel.store.table import ROW_DTYPE, Table

Emit = Callable[[int, Table], dict[str, np.ndarray]]
Collect = Callable[[int, Table, pa.Table], pa.Table]


def shuffle(
    spark: SparkSession,
    segments: Sequence[Segment],
    emit: Emit,
    collect: Collect,
    schema: str,
    *,
    quiet: Mapping[int, bool] | None = None,
) -> DataFrame:
    """Runs `emit(number, table)` on each segment, then `collect(number, table, references)` on each.

    `number` is the segment's place in `segments`, which are in the order of logs and offsets. `emit` returns
    columns of equal length, the same ones for every segment: `about`, an offset in the same log, and any
    others. A reference to an offset before the first segment of the log goes to that one. `collect` is called
    for every segment, even without references to it, and returns a table of the given schema.

    `quiet` segments refer to nothing. They are not read, and not collected, unless something refers to them
    or their value is True.
    """
    quiet = quiet or {}
    owners = owners_of(segments)
    active = [segment for number, segment in enumerate(segments) if number not in quiet]
    senders = [number for number in range(len(segments)) if quiet.get(number, True)]

    def send(place: int) -> Iterator[pa.RecordBatch]:
        number = senders[place]
        if number in quiet:
            columns = emit(number, Table(np.zeros(0, ROW_DTYPE), []))
        else:
            columns = emit(number, SegmentReader(segments[number], salvage=True).table())
        owner = owners.find(number, columns["about"])
        order = np.argsort(owner, kind="stable")
        references = pa.record_batch({name: column.take(order) for name, column in columns.items()})
        targets, firsts = np.unique(owner[order], return_index=True)
        edges = itertools.pairwise([*firsts.tolist(), len(owner)])
        parts = [_pack(references.slice(first, after - first)) for first, after in edges]
        # An empty batch to itself: `collect` must run for every segment, or its timers would be left out.
        yield pa.record_batch(
            {
                "owner": pa.array([number, *targets.tolist()], pa.int32()),
                "references": pa.array([_pack(references.slice(0, 0)), *parts], pa.binary()),
            }
        )

    def receive(key: tuple[pa.Scalar, ...], rows: pa.Table) -> pa.Table:
        number = key[0].as_py()
        batches = [pa.ipc.open_stream(one.as_buffer()).read_all() for one in rows["references"]]
        references = pa.concat_tables(batches).combine_chunks()
        return collect(number, SegmentReader(segments[number], salvage=True).table(), references)

    tasks = task_count(spark, active, len(senders))
    sent = map_numbers(spark, len(senders), send, "owner int, references binary", tasks=tasks)
    tasks = task_count(spark, active, len(segments))
    return group_by_number(sent, "owner", tasks).applyInArrow(receive, schema)


def _pack(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue())


class Owners:
    """Finds the segment that holds an offset. Plain data: executors get copies of it."""

    def __init__(self, firsts: list[int], bases: list[np.ndarray]) -> None:
        self._firsts = firsts
        self._bases = bases

    def find(self, number: int, offsets: np.ndarray) -> np.ndarray:
        """The numbers of the segments that hold these offsets, in the log of segment `number`."""
        bases = self._bases[number]
        places = np.searchsorted(bases, offsets.astype(np.int64), side="right") - 1
        found: np.ndarray = (np.maximum(places, 0) + self._firsts[number]).astype(np.int32)
        return found


def owners_of(segments: Sequence[Segment]) -> Owners:
    """Takes segments in the order of logs and offsets."""
    firsts: dict[str, int] = {}
    bases: dict[str, list[int]] = {}
    for number, segment in enumerate(segments):
        firsts.setdefault(segment.directory, number)
        bases.setdefault(segment.directory, []).append(segment.base)
    arrays = {directory: np.array(found, np.int64) for directory, found in bases.items()}
    return Owners(
        [firsts[segment.directory] for segment in segments],
        [arrays[segment.directory] for segment in segments],
    )
