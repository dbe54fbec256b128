"""`timerwheel`: a Spark data source to write to, in batches and in streams.

    from timerwheel.spark_jobs.formats import register
    register(spark)
    df.write.format("timerwheel").mode("append").option("url", "http://timerwheel:8686") \
        .option("topic", "reminders").option("due", "send_at").save()

| option | meaning |
|---|---|
| `url` | the service; `http://127.0.0.1:8686` by default |
| `topic`, or `topic_column` | the topic of all rows, or the column that has that of each |
| `due` | the column of due times: timestamps, text with a zone, or epoch milliseconds |
| `body` | the column of bodies: text or bytes. By default the column `body`, or else the row as JSON |
| `key` | the column of deduplication keys; by default equal rows are one message |
| `tags`, `keys` | columns of tags, and of keys: text with spaces between, or arrays |
| `properties` | a column of maps, or columns separated by commas, each a property under its name |
| `zone` | the zone of times without one |
| `rate` | rows a second, of each task |
| `refused` | `fail`, or `skip`: rows that the service refuses are logged, and the write goes on |
| `token`, `ca`, `cert` | as for the commands; files are those of the executors |

Rows that the service refuses are left out. The write fails when all others are stored, unless `refused` is
`skip`. The output mode of a stream is `append` or `update`.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from timerwheel.spark_jobs.errors import JobError
from timerwheel.spark_jobs.schedule.rows import RowMapping

logger = logging.getLogger("timerwheel")

NAME = "timerwheel"
DEFAULT_URL = "http://127.0.0.1:8686"
_COLUMNS = ("topic", "topic_column", "body", "key", "tags", "keys", "zone")
_FILES = ("token", "ca", "cert")
_OPTIONS = {"url", "due", "properties", "rate", "refused", *_COLUMNS, *_FILES}
_SPARKS_OWN = {"path", "checkpointlocation", "queryname"}
FAIL, SKIP = "fail", "skip"
_REFUSED_LOGGED = 100


def register(spark: SparkSession) -> None:
    """Register all formats, as `spark_jobs.formats.register` does: programs know it by this name, too."""
    from timerwheel.spark_jobs import formats  # noqa: PLC0415 - it imports this module

    formats.register(spark)


class WheelSink(DataSource):
    """The Spark data source `timerwheel`; the module docstring describes it."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return NAME

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: FBT001 - Spark's
        """The writer of a table."""
        if overwrite:
            raise JobError('scheduled messages cannot be overwritten: use mode("append")')
        return _BatchWriter(*self._checked(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: FBT001, N802 - Spark's
        """The writer of a stream."""
        if overwrite:
            raise JobError('scheduled messages cannot be overwritten: use outputMode("append")')
        return _StreamWriter(*self._checked(schema))

    def _checked(self, schema: StructType) -> tuple[RowMapping, dict[str, Any], str]:
        given = {name.lower(): value for name, value in self.options.items()}
        unknown = sorted(set(given) - _OPTIONS - _SPARKS_OWN)
        if unknown:
            raise JobError(f"no such option: {unknown[0]}; choose from {', '.join(sorted(_OPTIONS))}")
        if "due" not in given:
            raise JobError('name the column of due times: option("due", "send_at")')
        columns = [name.strip() for name in given.get("properties", "").split(",") if name.strip()]
        mapping = RowMapping(
            given["due"], properties=columns, **{name: given[name] for name in _COLUMNS if name in given}
        )
        mapping.check(schema.names)
        target = {"url": given.get("url", DEFAULT_URL)} | {
            name: given[name] for name in _FILES if name in given
        }
        try:
            rate = float(given["rate"]) if "rate" in given else None
        except ValueError:
            rate = 0.0
        if rate is not None and not 0 < rate < math.inf:
            raise JobError(f"rate = {given['rate']}: give rows a second, more than 0")
        refused = given.get("refused", FAIL)
        if refused not in (FAIL, SKIP):
            raise JobError(f"refused = {refused}: give {FAIL} or {SKIP}")
        return mapping, target | {"rate": rate}, refused


@dataclass
class _Done(WriterCommitMessage):
    rows: int
    refused: Sequence[str]


def _write(batches: Iterator[pa.RecordBatch], mapping: RowMapping, target: dict[str, Any]) -> _Done:
    # Only what sends needs the client, and planning a write sends nothing.
    from timerwheel.spark_jobs.schedule.sending import Target, described, send_rows  # noqa: PLC0415

    sent = send_rows(batches, mapping, Target(**target))
    return _Done(sent.rows, [described(one) for one in sent.refused])


def _answer(messages: Sequence[WriterCommitMessage | None], what: str) -> None:
    """Raise JobError for refused rows, or log the first of them."""
    refused = [text for one in messages if isinstance(one, _Done) for text in one.refused]
    if not refused:
        return
    count = f"{len(refused):,} rows were refused, all others are scheduled"
    if what == FAIL:
        raise JobError(f"{count}; the first: {refused[0]}")
    logger.warning("%s", count)
    for text in refused[:_REFUSED_LOGGED]:
        logger.warning("refused: %s", text)


class _BatchWriter(DataSourceArrowWriter):
    def __init__(self, mapping: RowMapping, target: dict[str, Any], refused: str) -> None:
        self._mapping = mapping
        self._target = target
        self._refused = refused

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one partition."""
        return _write(iterator, self._mapping, self._target)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All rows are sent; JobError if some were refused and are not to be skipped."""
        _answer(messages, self._refused)


class _StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, mapping: RowMapping, target: dict[str, Any], refused: str) -> None:
        self._mapping = mapping
        self._target = target
        self._refused = refused

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one partition of a micro-batch."""
        return _write(iterator, self._mapping, self._target)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 - Spark's
        """Does what a batch does. A refused row stops the query, also when it is started again."""
        _answer(messages, self._refused)
