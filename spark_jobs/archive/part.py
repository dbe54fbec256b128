"""Reads the archived part of a log: its segments, the gaps between them, and their files."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from timerwheel.spark_jobs.archive.store import Archive, ArchivedFile, ArchiveError, Head
from timerwheel.spark_jobs.tasks import map_numbers

RESTORED_GAP_BYTES = 1 << 40

ReadSegment = Callable[[int, Sequence[ArchivedFile]], Iterator[pa.RecordBatch]]


class Part(NamedTuple):
    """The archived segments of one log, in order, and what is missing among them."""

    archive: Archive
    log_id: str
    heads: list[Head]
    missing: list[str]

    @property
    def end(self) -> int:
        """Where the archived part ends."""
        return self.heads[-1].end


def find_part(url: str, log_id: str | None, *, salvage: bool = False) -> Part:
    """The archived part of the only log, or of the log with this id.

    Raises ArchiveError if there is no such log, if there are several, and unless `salvage` if the archive
    lacks a segment in the middle or the state before its first one, or has a segment with damage.
    """
    archive = Archive(url)
    there = archive.log_ids()
    if not there:
        raise ArchiveError(f"{url} is not an archive: it has no segment manifest")
    if log_id is None and len(there) > 1:
        raise ArchiveError(f"{url} has several logs; choose one with --log-id: {', '.join(there)}")
    chosen = there[0] if log_id is None else log_id.lower()
    heads = [archive.head(chosen, base) for base in archive.bases(chosen)]
    if not heads:
        raise ArchiveError(f"{url} does not contain log {chosen}; it contains {', '.join(there)}")
    missing = _missing(heads)
    if missing and not salvage:
        raise ArchiveError(
            f"{url} does not contain all of log {chosen}: {'; '.join(missing)}. --salvage goes on without it"
        )
    return Part(archive, chosen, heads, missing)


def _missing(heads: Sequence[Head]) -> list[str]:
    found = []
    first = heads[0]
    if first.base and first.beginning is None:
        found.append(f"offsets 0 to {first.base} are missing")
    for head, following in zip(heads, [*heads[1:], None], strict=True):
        found += [f"offsets {lost.offset} to {lost.end} were damaged: {lost.reason}" for lost in head.lost]
        # A log restored from this archive continues after the gap that the restore left.
        if following is not None and following.base not in (head.end, head.end + RESTORED_GAP_BYTES):
            found.append(f"offsets {head.end} to {following.base} are missing")
    return found


def each_segment(
    spark: SparkSession,
    part: Part,
    read: ReadSegment,
    schema: str,
) -> DataFrame:
    """`read(number, files)` for each segment, one task each; `files` are those of its manifest."""
    archive, log_id = part.archive, part.log_id
    bases = [head.base for head in part.heads]

    def run(number: int) -> Iterator[pa.RecordBatch]:
        yield from read(number, archive.manifest(log_id, bases[number]).files)

    return map_numbers(spark, len(bases), run, schema)


def batches_of(archive: Archive, file: ArchivedFile, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yields columns of an archived file after checking all of it. Raises ArchiveError."""
    shown = f"{archive.url}/{file.path}"
    log_id, _, base = PurePosixPath(file.path).stem.partition("-")
    own = {"log_id": log_id, "segment": int(base)}
    try:
        found = pq.ParquetFile(pa.BufferReader(archive.contents(file)))
        wanted = list(dict.fromkeys((*names, *own)))
        if lacking := set(wanted) - set(found.schema_arrow.names):
            raise ArchiveError(f"{shown} has no column {min(lacking)}")
        rows = found.metadata.num_rows
        if rows != file.rows:
            raise ArchiveError(f"{shown} has {rows} rows, its manifest says {file.rows}")
        for batch in found.iter_batches(columns=wanted):
            for name, value in own.items():
                if batch[name].unique().to_pylist() != [value]:
                    raise ArchiveError(f"{shown} has records of another {name} than {value}")
            yield batch.select(list(names))
    except (pa.ArrowException, OSError) as error:
        raise ArchiveError(f"{shown} is not a Parquet file of an archive: {error}") from None
