"""`archive --verify`: is an archive what its manifests say? Every file is read again."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from spark_jobs.archive.store import Archive, ArchivedFile, ArchiveError
from spark_jobs.stages import Stages
from spark_jobs.tasks import map_numbers


class Checked(NamedTuple):
    """What was looked at, and what is wrong with it."""

    segments: int
    records: int
    problems: list[str]


def verify(spark: SparkSession, stages: Stages, url: str, log_ids: Sequence[str]) -> Checked:
    """Read every file of these logs again and compare bytes, checksums and rows with the manifests."""
    store = Archive(url)
    segments = [(log_id, base) for log_id in log_ids for base in store.bases(log_id)]
    if not segments:
        return Checked(0, 0, [])

    def check(number: int) -> Iterator[pa.RecordBatch]:
        records, problems = check_segment(store, *segments[number])
        yield pa.record_batch({"records": [records], "problems": pa.array([problems], pa.list_(pa.string()))})

    with stages.stage("verify"):
        schema = "records bigint, problems array<string>"
        rows = map_numbers(spark, len(segments), check, schema).collect()
    return Checked(
        len(segments),
        sum(row.records for row in rows),
        sorted(problem for row in rows for problem in row.problems),
    )


def check_segment(store: Archive, log_id: str, base: int) -> tuple[int, list[str]]:
    """The records of an archived segment that can be read, and what is wrong with the others."""
    try:
        manifest = store.manifest(log_id, base)
    except ArchiveError as error:
        return 0, [str(error)]
    records = 0
    problems: list[str] = []
    for file in manifest.files:
        try:
            records += _rows_of(store, file)
        except ArchiveError as error:
            problems.append(str(error))
    if not problems and records != manifest.records:
        problems.append(f"segment {base} of log {log_id} has {records} records, not {manifest.records}")
    return records, problems


def _rows_of(store: Archive, file: ArchivedFile) -> int:
    found = int(pq.ParquetFile(pa.BufferReader(store.contents(file))).metadata.num_rows)
    if found != file.rows:
        raise ArchiveError(f"{store.url}/{file.path} has {found} rows, its manifest says {file.rows}")
    return found
