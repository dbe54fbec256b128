"""`read_archive`: the records of an archive as a Spark table.

    from timerwheel.spark_jobs.archive.source import read_archive
    read_archive(spark, "/backup/timers").where("topic = 'orders'").show()

It reads what the manifests name, through fsspec, and checks each file against its manifest. So a link, a file
that nobody archived or a damaged one is never taken for records, and a topic is the text that it was: the
names of directories say `topic=007`, which Spark by itself reads as a number.
"""

import datetime as dt
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from timerwheel.spark_jobs.archive.job import STORED
from timerwheel.spark_jobs.archive.part import batches_of, repeated
from timerwheel.spark_jobs.archive.store import Archive, ArchiveError
from timerwheel.spark_jobs.columns import COLUMNS
from timerwheel.spark_jobs.tasks import map_numbers

ARCHIVE_COLUMNS = {
    "date": "date",
    **{name: "string" if name == "log_id" else COLUMNS[name].sql for name in STORED},
}


def read_archive(
    spark: SparkSession,
    url: str,
    *,
    columns: Sequence[str] | None = None,
    topic: str | None = None,
    since: dt.date | None = None,
    until: dt.date | None = None,
) -> DataFrame:
    """The records of all logs in an archive, or those of one topic or from some UTC days, the last included.

    Each chunk is a task. Files of other days are not read; of the others only these columns are decoded.
    Raises ArchiveError for no archive, an unknown column, a manifest that is not valid, and chunks that hold
    the same records; as the cause of Spark's error for a file that is not what its manifest says.
    """
    store = Archive(url)
    names = list(ARCHIVE_COLUMNS if columns is None else columns)
    if unknown := [name for name in names if name not in ARCHIVE_COLUMNS]:
        raise ArchiveError(f"no such columns: {', '.join(unknown)}; choose from {', '.join(ARCHIVE_COLUMNS)}")
    if len(set(names)) < len(names):
        raise ArchiveError(f"columns that are given twice: {', '.join(names)}")
    chunks = [(log_id, chunk.base) for log_id in store.log_ids() for chunk in store.chunks(log_id)]
    if not chunks:
        raise ArchiveError(f"{url} is not an archive: it has no manifest of a log")
    stored = [name for name in names if name != "date"]
    first, last = (None if day is None else _day_of(day) for day in (since, until))

    def read(number: int) -> Iterator[pa.RecordBatch]:
        manifest = store.manifest(*chunks[number])
        for file in manifest.files:
            if (first is not None and file.date < first) or (last is not None and file.date > last):
                continue
            for batch in batches_of(store, manifest, file, stored, topic=topic):
                columns = {name: batch[name] for name in stored}
                columns["date"] = repeated(file.date, len(batch)).cast(pa.date32())
                yield pa.record_batch([columns[name] for name in names], names=names)

    return map_numbers(
        spark, len(chunks), read, ", ".join(f"{name} {ARCHIVE_COLUMNS[name]}" for name in names)
    )


def _day_of(given: dt.date) -> str:
    """The UTC day, as files have it; of a datetime, which is a date too, the day that it is in."""
    if isinstance(given, dt.datetime):
        given = (given.astimezone(dt.UTC) if given.tzinfo else given).date()
    return given.isoformat()
