"""How segments become Spark's tasks: neighbours that are small share one."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.segments import Segment

TASK_BYTES = 32 << 20


def map_segments(
    spark: SparkSession,
    segments: Sequence[Segment],
    function: Callable[[int], Iterator[pa.RecordBatch]],
    schema: str,
) -> DataFrame:
    """What `function` yields for the place of each segment in `segments`, as rows of `schema`."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch["id"].to_pylist():
                yield from function(number)

    count = len(segments)
    sizes = sum(segment.end - segment.base for segment in segments if segment.end is not None)
    tasks = max(spark.sparkContext.defaultParallelism, sizes // TASK_BYTES)
    return spark.range(0, count, 1, min(count, tasks)).mapInArrow(run, schema)
