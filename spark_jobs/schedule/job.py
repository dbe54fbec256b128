"""Schedules the rows of a table of files (`spark_jobs.schedule.table`) or a JDBC query, which Spark reads.

1. With a rate, no more tasks run at a time than have a share of it, whatever cores there are and whatever
   `spark.default.parallelism` says. So in any T seconds it begins to send at most rate * (T + 1) rows; a task
   that Spark repeats may add the rows of a second.
2. It sends fewer while a Spark job starts, and above `TASK_RATE` when some of the tasks have ended.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from timerwheel.clock import Clock, SystemClock
from timerwheel.spark_jobs.errors import JobError
from timerwheel.spark_jobs.progress import JobProgress
from timerwheel.spark_jobs.schedule.rows import BODY, RowMapping
from timerwheel.spark_jobs.schedule.sending import Refused, Sent, Target, send_rows
from timerwheel.spark_jobs.schedule.table import Table, batches_of

JDBC = "jdbc:"
TASK_RATE = 10_000
"""Rows a second that one task can send: up to this rate one sends all, and no share of it is unused."""
TURN_MS_MIN = 10_000
"""After a turn that took less the next has twice the pieces, since each turn starts a Spark job."""
ZONELESS = {"preferTimestampNTZ": "true"}
"""Times without a zone stay so. Spark would take them for times in the zone of Java's process."""
_RESULT = "stored bigint, duplicates bigint, refused binary"
_SPECULATION = "spark.speculation"
_NO_DRIVER = re.compile(r"No suitable driver|ClassNotFoundException")
_refused = msgspec.json.Decoder(list[Refused])


def schedule_table(
    spark: SparkSession, progress: JobProgress, table: Table, mapping: RowMapping, target: Target
) -> Sent:
    """Send each row as a message. Raises JobError."""
    mapping.check(table.columns)
    if not table.pieces:
        return Sent()
    pieces, schema = table.pieces, table.schema
    tasks, share = shared(spark, target, len(pieces))

    def send(some: Sequence[Any]) -> DataFrame:
        def send_all(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            wanted = (some[number] for batch in numbers for number in batch["id"].to_pylist())
            rows = (batch for piece in wanted for batch in batches_of(piece, schema, mapping))
            yield _result(send_rows(rows, mapping, share))

        return spark.range(0, len(some), 1, min(tasks, len(some))).mapInArrow(send_all, _RESULT)

    with progress.stage("schedule") as step:
        if target.rate is None:
            return _collected(send(pieces))
        # In one job a task would send for hours, and one that fails is repeated from its beginning.
        sent = Sent()
        step.report(0, len(pieces))
        for begin, end in turns(len(pieces), tasks, SystemClock()):
            sent.add(_collected(send(pieces[begin:end])))
            step.report(end, len(pieces))
        return sent


def schedule_query(
    spark: SparkSession,
    progress: JobProgress,
    options: dict[str, str],
    mapping: RowMapping,
    target: Target,
) -> Sent:
    """Does what `schedule_table` does with what a database answers; `options` are of Spark's JDBC source.

    Names of columns count whatever their case, as in SQL: many databases answer in capitals.
    """
    rows = _answer(spark, options)
    for name in (*mapping.columns, BODY):
        if name not in rows.columns:
            rows = rows.withColumnRenamed(name, name)  # Spark finds it in any case
    mapping.check(rows.columns)
    share = target
    if target.rate is not None:
        tasks, share = shared(spark, target, rows.rdd.getNumPartitions())
        rows = rows.coalesce(tasks)

    def send(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield _result(send_rows(batches, mapping, share))

    with progress.stage("schedule"):
        return _collected(rows.mapInArrow(send, _RESULT))


def _answer(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    try:
        return spark.read.format("jdbc").options(**{**ZONELESS, **options}).load()
    except (PySparkException, Py4JError) as error:
        if not _NO_DRIVER.search(str(error)):
            raise
        kind = ":".join(options["url"].split(":", 2)[:2])
        raise JobError(
            f"Java has no driver for {kind}: give the jar and the class, as in --conf "
            "spark.jars.packages=org.postgresql:postgresql:42.7.7 --jdbc-driver org.postgresql.Driver"
        ) from error


def shared(spark: SparkSession, target: Target, pieces: int) -> tuple[int, Target]:
    """How many tasks send these pieces, with a rate at the same time; and the target of each, with its share.

    Raises JobError if Spark may run one task twice at a time, which nothing here would know.
    """
    context = spark.sparkContext
    if target.rate is None:
        return min(pieces, 4 * context.defaultParallelism), target
    if context.getConf().get(_SPECULATION, "false").strip().lower() == "true":
        raise JobError(f"{_SPECULATION} runs tasks twice at a time, above the rate: set it to false")
    tasks = tasks_at_a_time(target.rate, pieces, _slots(spark))
    return tasks, target._replace(rate=target.rate / tasks)


def tasks_at_a_time(rate: float, pieces: int, slots: int) -> int:
    """Among how many tasks a rate is divided: as many as it needs, can run, and have something to send."""
    wanted = math.ceil(rate / TASK_RATE)
    return max(1, min(wanted, pieces, slots or wanted))


def _slots(spark: SparkSession) -> int:
    """How many tasks can run at the same time; 0 if that is not known, as before there are executors."""
    try:
        context = spark._jsc.sc()  # noqa: SLF001 - defaultParallelism may be a setting
        return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))
    except (PySparkException, Py4JError):
        return 0


def turns(count: int, tasks: int, clock: Clock) -> Iterator[tuple[int, int]]:
    """Yields ranges of numbers below `count` for one Spark job each, of so many tasks."""
    begin, size = 0, tasks
    while begin < count:
        began_ms = clock.monotonic_ms()
        end = min(begin + size, count)
        yield begin, end
        begin = end
        if clock.monotonic_ms() - began_ms < TURN_MS_MIN:
            size *= 2


def _result(sent: Sent) -> pa.RecordBatch:
    refused = msgspec.json.encode(sent.refused)
    return pa.record_batch({"stored": [sent.stored], "duplicates": [sent.duplicates], "refused": [refused]})


def _collected(results: DataFrame) -> Sent:
    sent = Sent()
    for row in results.collect():
        sent.add(Sent(row.stored, row.duplicates, _refused.decode(bytes(row.refused))))
    return sent
