"""Reads Kafka topics in executors, as readers of committed records do.

It uses confluent-kafka, which executors need then. Spark's own Kafka connector is a jar for each version of
Spark, which would have to be fetched, and which is not published for each PySpark.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from timerwheel.spark_jobs.columns import arrow_schema
from timerwheel.spark_jobs.errors import JobError
from timerwheel.spark_jobs.tasks import map_numbers

STRETCH_RECORDS = 1_000_000
"""A partition of a topic is divided into tasks of so many offsets."""
BATCH_RECORDS = 20_000
TAKE_RECORDS = 10_000
PATIENCE_S = 75.0
"""How long a task waits for brokers, or for the end of an open transaction: by default 60 s at most."""

Row = tuple[object, ...]


class Brokers(NamedTuple):
    """Where brokers are, and librdkafka's properties for them; may hold passwords."""

    servers: str
    properties: Mapping[str, str]

    def consumer(self) -> Any:  # noqa: ANN401 - confluent-kafka is imported only here
        """A consumer of committed records that is given its partitions, and reports their ends."""
        from confluent_kafka import Consumer  # noqa: PLC0415 - only with the extra

        return Consumer(
            dict(self.properties)
            | {
                "bootstrap.servers": self.servers,
                "group.id": "timerwheel-audit",  # librdkafka wants one; it is never joined
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "log_level": 2,
            }
        )


class Stretch(NamedTuple):
    """Offsets [begin, end) of a partition; `first` is the first one that Kafka still has."""

    topic: str
    partition: int
    begin: int
    end: int
    first: int


def stretches(topic: str, partition: int, first: int, end: int) -> Iterator[Stretch]:
    """Divides a partition into stretches."""
    for begin in range(first, end, STRETCH_RECORDS):
        yield Stretch(topic, partition, begin, min(begin + STRETCH_RECORDS, end), first)


def read_topics(
    spark: SparkSession,
    brokers: Brokers,
    parts: Sequence[Stretch],
    rows_of: Callable[[Any], Row | None],
    schema: str,
) -> DataFrame:
    """A row of `schema` for each committed record for which `rows_of` returns one; one task a stretch.

    `rows_of` gets confluent-kafka's Message, in an executor.
    """
    columns = arrow_schema(schema)

    def read(number: int) -> Iterator[pa.RecordBatch]:
        found: list[Row] = []
        for message in _messages(brokers, parts[number]):
            row = rows_of(message)
            if row is not None:
                found.append(row)
            if len(found) == BATCH_RECORDS:
                yield _batch(found, columns)
                found = []
        if found:
            yield _batch(found, columns)

    if not parts:
        return spark.createDataFrame([], schema)
    return map_numbers(spark, len(parts), read, schema)


def _batch(rows: Sequence[Row], schema: pa.Schema) -> pa.RecordBatch:
    columns = [
        pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), schema.types, strict=True)
    ]
    return pa.record_batch(columns, schema=schema)


def _messages(brokers: Brokers, part: Stretch) -> Iterator[Any]:
    """The committed records of a stretch; JobError if it cannot be read to its end."""
    try:
        from confluent_kafka import KafkaError, TopicPartition  # noqa: PLC0415 - only with the extra
    except ImportError:
        raise JobError(
            "confluent_kafka is missing where Spark's executors run: pip install 'timerwheel[kafka]' there"
        ) from None
    consumer = brokers.consumer()
    try:
        consumer.assign([TopicPartition(part.topic, part.partition, part.begin)])
        while True:
            first = consumer.poll(PATIENCE_S)
            if first is None:
                raise JobError(
                    f"the Kafka topic {part.topic}, partition {part.partition}, could not be read up to "
                    f"{part.end} within {PATIENCE_S:.0f} s: the brokers are away, or a transaction is open"
                )
            for message in (first, *consumer.consume(TAKE_RECORDS, 0)):
                error, offset = message.error(), message.offset() or 0
                if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - its name
                    raise JobError(f"the Kafka topic {part.topic}: {error.str()}")
                if offset >= part.end:
                    return
                if error is None:
                    yield message
    finally:
        consumer.close()
