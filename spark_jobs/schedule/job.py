"""Schedules the rows of a table of files (`spark_jobs.schedule.table`) or a JDBC query, which Spark reads."""

from collections.abc import Iterable, Iterator

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from timerwheel.spark_jobs.progress import JobProgress
from timerwheel.spark_jobs.schedule.rows import RowMapping
from timerwheel.spark_jobs.schedule.sending import Refused, Sent, Target, send_rows
from timerwheel.spark_jobs.schedule.table import Table, batches_of
from timerwheel.spark_jobs.tasks import map_numbers

JDBC = "jdbc:"
_RESULT = "stored bigint, duplicates bigint, refused binary"
_refused = msgspec.json.Decoder(list[Refused])


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
        yield _result(send_rows(batches_of(pieces[number], schema, mapping), mapping, target))

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
