"""Divides numbered work into Spark tasks; small adjacent pieces may share a task."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, GroupedData, SparkSession

from timerwheel.spark_jobs.segments import Segment

TASK_BYTES = 32 << 20

Piece = Callable[[int], Iterator[pa.RecordBatch]]


def map_numbers(
    spark: SparkSession, count: int, function: Piece, schema: str, *, tasks: int | None = None
) -> DataFrame:
    """Runs `function` for each number below `count` (at least 1); its batches are rows of `schema`.

    Each number is a task, or adjacent numbers share one of `tasks` tasks.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch["id"].to_pylist():
                yield from function(number)

    return spark.range(0, count, 1, count if tasks is None else tasks).mapInArrow(run, schema)


def map_segments(spark: SparkSession, segments: Sequence[Segment], function: Piece, schema: str) -> DataFrame:
    """Runs `function` for the index of each segment in `segments`; small segments share tasks."""
    return map_numbers(spark, len(segments), function, schema, tasks=task_count(spark, segments))


def task_count(spark: SparkSession, segments: Sequence[Segment], pieces: int | None = None) -> int:
    """How many tasks should read these segments: enough for every core of the cluster, and for their size.

    `pieces` is how many pieces of work there are to divide, if not the segments alone.
    """
    sizes = sum(segment.end - segment.base for segment in segments if segment.end is not None)
    most = len(segments) if pieces is None else pieces
    return min(most, max(spark.sparkContext.defaultParallelism, sizes // TASK_BYTES))


def group_by_number(rows: DataFrame, column: str, tasks: int) -> GroupedData:
    """Groups rows by a column of whole numbers from 0 on, dealt to the tasks in turn.

    A hash of the numbers would give some tasks several times the groups of others. And Spark would merge
    tasks with few bytes, which says nothing about the work if each group has a segment to read.
    """
    return rows.repartitionById(tasks, column).groupBy(column)
