"""Settling: what a record says about an earlier one is brought to the segment where that one lies.

The log is already in buckets. A record that ends or replaces a timer names its offset, and an offset names
the segment that holds it. So only what is *said* travels, a few numbers for each, in one shuffle; the timers
stay where they are, and are read from their segment's table where what was said of them has arrived. A task
holds one segment's table and what was said of it, which is bounded by the size of a segment, however long the
log is.

What one segment says about another travels as one value, a packed Arrow batch: Spark sorts and copies as many
rows as there are pairs of segments, not as there are records.
"""

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from timerwheel.spark_jobs.segment_stats import Survey
from timerwheel.spark_jobs.segments import Segment, SegmentReader
from timerwheel.spark_jobs.tasks import map_segments
from timerwheel.store.table import Table

Say = Callable[[int, Table], dict[str, np.ndarray]]
Hear = Callable[[int, Table, pa.Table], pa.Table]


def settle(spark: SparkSession, survey: Survey, say: Say, hear: Hear, heard: str) -> DataFrame:
    """Runs `say(number, table)` on each segment, then `hear(number, table, said)` on each with what came.

    `number` is the segment's place in `survey.segments`. `say` gives columns of equal length, the same for
    every segment: `about`, an offset in the same log, and whatever there is to say. What is about an offset
    before the log's beginning comes to its first segment. `hear` is called for every segment, also if nothing
    was said of it, and gives a table of the schema `heard`.
    """
    segments = survey.segments
    owners = owners_of(segments)

    def speak(number: int) -> Iterator[pa.RecordBatch]:
        columns = say(number, SegmentReader(segments[number], salvage=True).table())
        owner = owners.find(number, columns["about"])
        order = np.argsort(owner, kind="stable")
        said = pa.record_batch({name: column.take(order) for name, column in columns.items()})
        listeners, firsts = np.unique(owner[order], return_index=True)
        edges = itertools.pairwise([*firsts.tolist(), len(owner)])
        parts = [_pack(said.slice(first, after - first)) for first, after in edges]
        # To itself it also sends nothing: so every segment is heard of, or its timers would not be told.
        yield pa.record_batch(
            {
                "owner": pa.array([number, *listeners.tolist()], pa.int32()),
                "said": pa.array([_pack(said.slice(0, 0)), *parts], pa.binary()),
            }
        )

    def listen(key: tuple[pa.Scalar, ...], told: pa.Table) -> pa.Table:
        number = key[0].as_py()
        said = pa.concat_tables([pa.ipc.open_stream(part.as_buffer()).read_all() for part in told["said"]])
        return hear(number, SegmentReader(segments[number], salvage=True).table(), said.combine_chunks())

    spoken = map_segments(spark, segments, speak, "owner int, said binary")
    return spoken.groupBy("owner").applyInArrow(listen, heard)


def _pack(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue())


class Owners:
    """Finds the segment that holds an offset; plain data, since executors have copies of it."""

    def __init__(self, firsts: list[int], bases: list[np.ndarray]) -> None:
        self._firsts = firsts
        self._bases = bases

    def find(self, number: int, offsets: np.ndarray) -> np.ndarray:
        """The numbers of the segments that hold these offsets of the log that segment `number` is of."""
        bases = self._bases[number]
        places = np.searchsorted(bases, offsets.astype(np.int64), side="right") - 1
        found: np.ndarray = (np.maximum(places, 0) + self._firsts[number]).astype(np.int32)
        return found


def owners_of(segments: list[Segment]) -> Owners:
    """For segments in the order of sites and offsets."""
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
