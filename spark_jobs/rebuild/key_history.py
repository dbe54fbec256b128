"""Deduplication keys from the log: the last registration of each key, as rows for the index."""

import uuid
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from timerwheel.spark_jobs.columns import arrow_schema
from timerwheel.spark_jobs.rebuild.index_rows import SegmentPlan
from timerwheel.spark_jobs.segment_stats import Survey
from timerwheel.spark_jobs.segments import SegmentReader, read_records
from timerwheel.spark_jobs.storage import join, write_atomically
from timerwheel.spark_jobs.tables import arrow_file
from timerwheel.spark_jobs.tasks import map_segments
from timerwheel.state import dedup_key
from timerwheel.state.batch import forget_origins, has_origin
from timerwheel.store.record import FLAG_KEYED

_SCHEMA = "log int, digest binary, offset bigint, value binary"
_ARROW = arrow_schema(_SCHEMA)
KEYS = arrow_schema("digest binary, value binary")


class KeyFile(NamedTuple):
    """A staged Arrow file (KEYS) with keys of one log."""

    log: int
    url: str
    keys: int


def stage_keys(spark: SparkSession, survey: Survey, plans: list[SegmentPlan], staging: str) -> list[KeyFile]:
    """Has executors write the last registration of each key to files in the staging directory."""
    numbers = [number for number, found in enumerate(survey.found) if found.keyed]
    return _stage(_last_keys(spark, survey, plans, numbers), staging) if numbers else []


def _last_keys(
    spark: SparkSession, survey: Survey, plans: list[SegmentPlan], numbers: list[int]
) -> DataFrame:
    """Each key of these segments as (log, digest, value), with its entry as it is packed."""
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
                found.append((plans[number].log, digest, int(rows["offset"][at]), dedup_key.pack(entry)))
        columns = zip(*found, strict=True) if found else ([] for _ in _ARROW)
        yield pa.record_batch(
            [pa.array(c, f.type) for c, f in zip(columns, _ARROW, strict=True)], schema=_ARROW
        )

    keys = map_segments(spark, [segments[n] for n in numbers], read, _SCHEMA)
    return keys.groupBy("log", "digest").agg(fn.max_by("value", "offset").alias("value"))


def _stage(keys: DataFrame, staging: str) -> list[KeyFile]:
    """Write a file for each batch and log.

    Each attempt of a task writes files of its own; those of attempts that did not count stay unread.
    """

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for log in batch["log"].unique().to_pylist():
                rows = batch.filter(pc.equal(batch["log"], log)).select(KEYS.names)
                url = join(staging, "keys", f"{uuid.uuid4().hex}.arrow")
                write_atomically(url, arrow_file(rows))
                yield pa.record_batch({"log": pa.array([log], pa.int32()), "url": [url], "keys": [len(rows)]})

    rows = keys.mapInArrow(write, "log int, url string, keys bigint").collect()
    return [KeyFile(*row) for row in rows]
