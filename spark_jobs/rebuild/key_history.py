"""Deduplication keys from the log: the last registration of each key, as rows for the index."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from timerwheel.index import dedup
from timerwheel.spark_jobs.columns import arrow_schema
from timerwheel.spark_jobs.rebuild.index_rows import SegmentPlan
from timerwheel.spark_jobs.segment_stats import Survey
from timerwheel.spark_jobs.segments import SegmentReader, read_records
from timerwheel.spark_jobs.tasks import map_segments
from timerwheel.state import dedup_key
from timerwheel.state.batch import forget_origins, has_origin
from timerwheel.store.record import FLAG_KEYED

_SCHEMA = "log int, digest binary, offset bigint, value binary, end binary"
_ARROW = arrow_schema(_SCHEMA)


def key_rows(spark: SparkSession, survey: Survey, plans: list[SegmentPlan]) -> DataFrame | None:
    """Each key as (log, digest, value, end), as the index stores it; None if no record has a key."""
    numbers = [number for number, found in enumerate(survey.found) if found.keyed]
    if not numbers:
        return None
    segments = survey.segments

    def read(place: int) -> Iterator[pa.RecordBatch]:
        number = numbers[place]
        rows = SegmentReader(segments[number], salvage=True).table().rows
        rows = rows.compress(rows["flags"] & FLAG_KEYED != 0)
        forget_origins(rows, plans[number].begin)
        rows = rows.compress(~has_origin(rows))
        found = []
        for at, record in enumerate(read_records(segments[number], rows)):
            for digest, entry in dedup_key.keys_of(rows[at : at + 1], [record]).items():
                value, end = dedup.packed(digest, entry)
                found.append((plans[number].log, digest, int(rows["offset"][at]), value, end))
        columns = zip(*found, strict=True) if found else ([] for _ in _ARROW)
        yield pa.record_batch(
            [pa.array(c, f.type) for c, f in zip(columns, _ARROW, strict=True)], schema=_ARROW
        )

    keys = map_segments(spark, [segments[n] for n in numbers], read, _SCHEMA)
    return keys.groupBy("log", "digest").agg(
        fn.max_by("value", "offset").alias("value"), fn.max_by("end", "offset").alias("end")
    )
