"""Reads the archived part of a log: its segments, the gaps between them, and their files."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from timerwheel.spark_jobs.archive.manifest import ArchivedFile, ArchivedSegment, Chunk, Manifest
from timerwheel.spark_jobs.archive.store import Archive, ArchiveError
from timerwheel.spark_jobs.tasks import map_numbers

RESTORED_GAP_BYTES = 1 << 40
BATCH_ROWS = 20_000

ReadChunk = Callable[[int, Manifest], Iterator[pa.RecordBatch]]


class Part(NamedTuple):
    """The archived chunks of one log, in order, and what is missing among them."""

    archive: Archive
    log_id: str
    chunks: list[Chunk]
    missing: list[str]

    @property
    def segments(self) -> list[ArchivedSegment]:
        """The archived segments, in order."""
        return [segment for chunk in self.chunks for segment in chunk.segments]

    @property
    def end(self) -> int:
        """Where the archived part ends."""
        return self.chunks[-1].end


def find_part(url: str, log_id: str | None, *, salvage: bool = False) -> Part:
    """The archived part of the only log, or of the log with this id.

    Raises ArchiveError if there is no such log, if there are several, if two chunks hold the same records,
    and unless `salvage` if the archive lacks a segment in the middle or the state before its first one, or
    has a segment with damage.
    """
    archive = Archive(url)
    there = archive.log_ids()
    if not there:
        raise ArchiveError(f"{url} is not an archive: it has no manifest of a log")
    if log_id is None and len(there) > 1:
        raise ArchiveError(f"{url} has several logs; choose one with --log-id: {', '.join(there)}")
    chosen = there[0] if log_id is None else log_id.lower()
    chunks = archive.chunks(chosen)
    if not chunks:
        raise ArchiveError(f"{url} does not contain log {chosen}; it contains {', '.join(there)}")
    part = Part(archive, chosen, chunks, [])
    missing = _missing(part.segments)
    if missing and not salvage:
        raise ArchiveError(
            f"{url} does not contain all of log {chosen}: {'; '.join(missing)}. --salvage goes on without it"
        )
    return part._replace(missing=missing)


def _missing(segments: Sequence[ArchivedSegment]) -> list[str]:
    found = []
    first = segments[0]
    if first.base and first.beginning is None:
        found.append(f"offsets 0 to {first.base} are missing")
    for segment, following in zip(segments, [*segments[1:], None], strict=True):
        found += [f"offsets {lost.offset} to {lost.end} were damaged: {lost.reason}" for lost in segment.lost]
        # A log restored from this archive continues after the gap that the restore left.
        if following is not None and following.base not in (segment.end, segment.end + RESTORED_GAP_BYTES):
            found.append(f"offsets {segment.end} to {following.base} are missing")
    return found


def each_chunk(spark: SparkSession, part: Part, read: ReadChunk, schema: str) -> DataFrame:
    """`read(number, manifest)` for each chunk, one task each."""
    archive, log_id = part.archive, part.log_id
    bases = [chunk.base for chunk in part.chunks]

    def run(number: int) -> Iterator[pa.RecordBatch]:
        yield from read(number, archive.manifest(log_id, bases[number]))

    return map_numbers(spark, len(bases), run, schema)


def batches_of(
    archive: Archive,
    manifest: Manifest,
    file: ArchivedFile,
    names: Sequence[str],
    *,
    topic: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yields columns of an archived file after checking all of it, `topic` among them in any format.

    With `topic`, only rows of that topic. Memory: a row group with these columns. Raises ArchiveError.
    """
    if topic is not None and file.topic not in (None, topic):
        return
    with archive.contents(file) as contents:
        try:
            yield from _batches(
                archive.shown(file.path), manifest, file, pq.ParquetFile(contents), names, topic
            )
        except (pa.ArrowException, OSError) as error:
            raise ArchiveError(
                f"{archive.shown(file.path)} is not a Parquet file of an archive: {error}"
            ) from None


def _batches(
    shown: str,
    manifest: Manifest,
    file: ArchivedFile,
    found: pq.ParquetFile,
    names: Sequence[str],
    topic: str | None,
) -> Iterator[pa.RecordBatch]:
    own: dict[str, list[object]] = {
        "log_id": [manifest.log_id],
        "segment": [segment.base for segment in manifest.segments],
    }
    wanted = list(dict.fromkeys((*names, *own, "topic")))
    read = [name for name in wanted if name != "topic" or file.topic is None]
    if lacking := set(read) - set(found.schema_arrow.names):
        raise ArchiveError(f"{shown} has no column {min(lacking)}")
    if (rows := found.metadata.num_rows) != file.rows:
        raise ArchiveError(f"{shown} has {rows} rows, its manifest says {file.rows}")
    for number in range(found.num_row_groups):
        if topic is not None and file.topic is None:
            topics = found.read_row_group(number, columns=["topic"])["topic"]
            if topic not in topics.unique().to_pylist():
                continue  # the other columns may be large
        for batch in found.iter_batches(BATCH_ROWS, row_groups=[number], columns=read):
            if not len(batch):
                continue
            for name, values in own.items():
                if others := set(batch[name].unique().to_pylist()) - set(values):
                    raise ArchiveError(f"{shown} has records of another {name}: {others.pop()!r}")
            yield _with_topic(batch, file, names, topic)


def _with_topic(
    batch: pa.RecordBatch, file: ArchivedFile, names: Sequence[str], topic: str | None
) -> pa.RecordBatch:
    if file.topic is not None:
        batch = batch.append_column("topic", repeated(file.topic, len(batch)))
    elif topic is not None:
        batch = batch.filter(pa.compute.equal(batch["topic"], topic))
    return batch.select(list(names))


def repeated(text: str, count: int) -> pa.Array:
    """A column with the same text in each row."""
    return pa.array([text], pa.string()).take(pa.array(np.zeros(count, np.int32)))
