"""`restore`: reads the pending messages of an archive back into a new data directory.

The record of a message with the highest offset is its current record; if that is a timer, the message is
pending. So the shuffle moves only one number for each record of a client's message. The task of each chunk
then stores its pending timers again from its files, just as retention copies timers forward.

The new log has the id of the archived one and begins RESTORED_GAP_BYTES after its end: the records stored
after the archived part are unknown, and none of their offsets may be reused. Queue offsets continue after a
gap, too: a consumer that had read past the end of the archive misses no message delivered from now on.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from timerwheel.spark_jobs.archive.check import ChunkCheck
from timerwheel.spark_jobs.archive.manifest import Manifest
from timerwheel.spark_jobs.archive.part import RESTORED_GAP_BYTES, Part, batches_of, each_chunk
from timerwheel.spark_jobs.archive.restored_log import RestoredLog
from timerwheel.spark_jobs.archive.restored_start import last_puts, log_start
from timerwheel.spark_jobs.archive.store import Archive, ArchiveError
from timerwheel.spark_jobs.progress import JobProgress
from timerwheel.spark_jobs.storage import join, place_of, write_atomically
from timerwheel.spark_jobs.tasks import group_by_number
from timerwheel.state.groups import is_internal
from timerwheel.store.files import SECTOR_BYTES
from timerwheel.store.moved_timer import moved
from timerwheel.store.record import FLAG_LEASE, NO_OFFSET, Kind, crc_of, encode, padded
from timerwheel.store.segment import SEGMENT_HEADER_SIZE


class TimerRow(NamedTuple):
    """The columns from which an archived timer's record is rebuilt."""

    topic: str
    offset: int
    size: int
    root: int
    flags: int
    queue: int
    level: int
    prior_level: int
    rolls: int
    root_crc: int
    origin: int | None
    store_ms: int
    due_ms: int
    prior_due_ms: int
    enqueue_ms: int
    crc: int
    properties: str | None
    body: bytes


class Revived(NamedTuple):
    """A staged file with the pending timers of one chunk."""

    number: int
    path: str
    timers: int
    overdue: int


class Restored(msgspec.Struct, frozen=True):
    """The result of a restore. `as_of_ms` is when the newest archived record was stored."""

    log_id: str
    node: str
    segments: int
    records: int
    as_of_ms: int
    pending: int
    overdue: int
    settings: int
    begin: int
    end: int
    missing: list[str]


def restore(
    spark: SparkSession,
    progress: JobProgress,
    part: Part,
    target: RestoredLog,
    staging: str,
    now_ms: int,
) -> Restored:
    """Build the log; `staging` is a directory or URL that this process and every executor reach.

    Raises ArchiveError (also as the cause of Spark's error) if a file is missing or not what was archived.
    """
    with progress.stage("find"):
        puts = last_puts(spark, part)
        revived = _revive(spark, part, staging, now_ms)
    base = part.end + RESTORED_GAP_BYTES
    target.begin(bytes.fromhex(part.log_id), base, now_ms)
    with progress.stage("write") as step:
        for count, one in enumerate(revived):
            step.report(count, len(revived))
            place = place_of(one.path)
            stored = target.append(place.files, place.path)
            assert stored == one.timers
    segments = part.segments
    start = log_start(segments, puts, base)
    end = target.finish(start)
    return Restored(
        part.log_id,
        part.chunks[-1].node,
        len(segments),
        sum(segment.records for segment in segments),
        max(segment.last_store_ms for segment in segments),
        sum(one.timers for one in revived),
        sum(one.overdue for one in revived),
        0 if start.settings is None else len(start.settings.control),
        base + SEGMENT_HEADER_SIZE,
        end,
        part.missing,
    )


# ---------------------------------------------------------------------- pending timers


def _revive(spark: SparkSession, part: Part, staging: str, now_ms: int) -> list[Revived]:
    """Files of the pending timers, in log order."""
    archive, log_id = part.archive, part.log_id
    bases = np.array([chunk.base for chunk in part.chunks], np.int64)
    tasks = max(1, min(len(bases), 4 * spark.sparkContext.defaultParallelism))

    def current(_number: int, manifest: Manifest) -> Iterator[pa.RecordBatch]:
        check = ChunkCheck(archive, manifest)
        for file in manifest.files:
            for batch in check.batches(file):
                yield _latest_of(of_clients(batch))
        if differences := check.differences():
            raise ArchiveError(differences[0])

    def place(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            offsets = batch["latest"].to_numpy() & ~1
            numbers = np.searchsorted(bases, offsets, side="right") - 1
            yield pa.record_batch({"number": pa.array(numbers.astype(np.int32)), "offset": pa.array(offsets)})

    def revive(key: tuple[pa.Scalar, ...], waiting: pa.Table) -> pa.Table:
        number = key[0].as_py()
        manifest = archive.manifest(log_id, int(bases[number]))
        path = join(staging, f"{int(bases[number]):020d}.records")
        offsets = waiting["offset"].to_numpy()
        records, overdue = _stored_again(archive, manifest, offsets, now_ms)
        if len(records) != len(offsets):
            raise ArchiveError(
                f"{archive.url}: the records from offset {bases[number]} on changed during the restore"
            )
        write_atomically(path, b"".join(record for _, record in sorted(records.items())))
        return pa.table(
            {
                "number": pa.array([number], pa.int32()),
                "path": [path],
                "timers": [len(records)],
                "overdue": [overdue],
            }
        )

    records = each_chunk(spark, part, current, "root bigint, latest bigint")
    pending = (
        records.groupBy("root").agg(F.max("latest").alias("latest")).where("latest % 2 = 1").select("latest")
    )
    placed = group_by_number(pending.mapInArrow(place, "number int, offset bigint"), "number", tasks)
    rows = placed.applyInArrow(revive, "number int, path string, timers bigint, overdue bigint").collect()
    return sorted(Revived(*row) for row in rows)


def of_clients(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows of clients' topics."""
    topics = batch["topic"].dictionary_encode()
    own = np.array([not is_internal(topic) for topic in topics.dictionary.to_pylist()], bool)
    return batch if own.all() else batch.filter(pa.array(own[topics.indices.to_numpy()]))


def _latest_of(batch: pa.RecordBatch) -> pa.RecordBatch:
    """For each record of a message: its root, and its offset with the lowest bit set if it is a timer.

    Offsets are multiples of 8, so the highest of these numbers is that of the current record.
    """
    own = batch["flags"].to_numpy() & FLAG_LEASE == 0
    waits = batch["kind"].to_numpy(zero_copy_only=False) == Kind.TIMER.name.lower()
    latest = batch["offset"].to_numpy() | waits
    return pa.record_batch({"root": batch["root"].to_numpy()[own], "latest": latest[own]})


def _stored_again(
    archive: Archive, manifest: Manifest, offsets: np.ndarray, now_ms: int
) -> tuple[dict[int, bytes], int]:
    """TIMER records that replace the timers at these offsets, by offset; and how many are overdue."""
    found: dict[int, bytes] = {}
    overdue = 0
    for file in manifest.files:
        for batch in batches_of(archive, manifest, file, TimerRow._fields):
            chosen = of_clients(batch.filter(pa.array(np.isin(batch["offset"].to_numpy(), offsets))))
            columns = (chosen[name].to_pylist() for name in TimerRow._fields)
            for row in map(TimerRow._make, zip(*columns, strict=True)):
                found[row.offset] = moved(record_of(row, archive.shown(file.path)), row.offset, now_ms)
            overdue += int(np.count_nonzero(chosen["due_ms"].to_numpy() <= now_ms))
    return found, overdue


def record_of(row: TimerRow, shown: str) -> bytes:
    """The timer's record, rebuilt bit for bit; ArchiveError, which names its file, if the CRC differs."""
    is_root = row.root == row.offset
    record = encode(
        Kind.TIMER,
        row.topic.encode(),
        (row.properties or "").encode(),
        row.body,
        store_ms=row.store_ms,
        due_ms=row.due_ms,
        enqueue_ms=row.enqueue_ms,
        flags=row.flags,
        level=row.level,
        queue=row.queue,
        rolls=row.rolls,
        root=NO_OFFSET if is_root else row.root,
        root_crc=row.root_crc,
        origin=NO_OFFSET if row.origin is None else row.origin,
        prior_due_ms=row.prior_due_ms,
        prior_level=row.prior_level,
    )
    if 0 < row.size - len(record) < SECTOR_BYTES:
        record = padded(record, row.size - len(record))
    if crc_of(record) != row.crc:
        raise ArchiveError(f"{shown}: the record at log offset {row.offset} is not what was archived")
    return record
