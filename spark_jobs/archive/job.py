"""`archive`: writes sealed segments of logs as Parquet files by date.

A task archives one chunk, a run of consecutive segments: it reads and checks every record, writes a file for
each day, and then the manifest that makes the chunk count (`spark_jobs.archive.chunk_writer`). Segments in a
manifest are skipped, so a killed run is simply repeated. Each log has one run at a time
(`spark_jobs.archive.lock`). When all sealed segments of a local data directory are archived, the marker
`archived` says so to retention (`timerwheel.runtime.archived`).
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from timerwheel.model.durations import format_ms
from timerwheel.runtime.archived import Archived, read_archived, write_archived
from timerwheel.spark_jobs.archive.chunk_writer import ChunkWriter
from timerwheel.spark_jobs.archive.lock import ArchiveLock, Run
from timerwheel.spark_jobs.archive.manifest import (
    OFFSET_MAX,
    ArchivedSegment,
    Beginning,
    Chunk,
    Lost,
    Manifest,
    owner_of,
)
from timerwheel.spark_jobs.archive.store import Archive, ArchiveError
from timerwheel.spark_jobs.columns import COLUMNS, read_batches
from timerwheel.spark_jobs.live_logs import LiveLogs, Removed
from timerwheel.spark_jobs.logs import NodeLog
from timerwheel.spark_jobs.progress import JobProgress
from timerwheel.spark_jobs.segments import Segment, SegmentGoneError, SegmentReader, made_ms_of
from timerwheel.spark_jobs.storage import file_system, is_local, place_of, storage_errors
from timerwheel.spark_jobs.tasks import map_numbers
from timerwheel.state.groups import is_internal
from timerwheel.store.errors import CorruptionError
from timerwheel.store.files import DiskFiles
from timerwheel.store.record import FLAG_LEASE

READ = tuple(COLUMNS)
STORED = ("log_id", *READ)
CHUNK_BYTES_MIN = 64 << 20
"""Segments of a chunk, in bytes of the log, where more tasks would not use more cores."""
CHUNK_BYTES_MAX = 512 << 20
"""Segments of a chunk, in bytes of the log; a larger segment is a chunk of its own."""
CHUNK_SEGMENTS_MAX = 1_000
"""Segments of a chunk: each takes time to open, and room in the manifest."""

QueueCounts = Counter[tuple[str, int]]


class Work(NamedTuple):
    """One chunk to archive. `beginnings` are those of its segments; `replaces`: it was archived damaged."""

    run: Run
    segments: tuple[Segment, ...]
    beginnings: tuple[Beginning | None, ...]
    replaces: bool = False

    @property
    def size_bytes(self) -> int:
        """Bytes of the log."""
        return sum(segment.end - segment.base for segment in self.segments if segment.end is not None)

    def manifest(self, store: Archive) -> Manifest:
        """The manifest of these segments in the archive."""
        return store.manifest(self.run.log_id, self.segments[0].base)

    def split(self) -> list["Work"]:
        """A chunk for each segment."""
        pairs = zip(self.segments, self.beginnings, strict=True)
        return [self._replace(segments=(one,), beginnings=(beginning,)) for one, beginning in pairs]


class Done(msgspec.Struct, frozen=True):
    """The result of one task."""

    records: int
    files: int
    bytes: int
    lost: list[Lost]


class ArchivedLog(msgspec.Struct, frozen=True):
    """The result for one log. `until` is where its archived part ends, None if no segment is sealed.

    `removed` is what retention removed while the job ran: parts of it may not be in the archive.
    """

    node: str
    log_id: str
    archived: int
    skipped: int
    records: int
    files: int
    bytes: int
    until: int | None
    marked: bool
    lost: list[Lost]
    removed: Removed | None = None


def archive(  # noqa: PLR0913 - what to archive, and how
    spark: SparkSession,
    progress: JobProgress,
    logs: Sequence[NodeLog],
    url: str,
    *,
    now_ms: int,
    salvage: bool = False,
    chunk_bytes_max: int = CHUNK_BYTES_MAX,
) -> list[ArchivedLog]:
    """Archive the sealed segments that are not archived yet, then mark local data directories.

    Raises CorruptionError (as the cause of Spark's error) at damage, unless `salvage`; ArchiveError if the
    archive has another segment in the same place, ArchiveLockedError if another run is archiving one of the
    logs. Segments archived before are never touched. If retention removes segments before they are read, the
    rest is archived. `chunk_bytes_max` is in bytes of the log.
    """
    _check_logs(logs)
    store = Archive(url)
    with ExitStack() as stack:
        locks = {
            log_id: stack.enter_context(ArchiveLock(store.url, log_id, format_ms(now_ms)))
            for log_id in sorted(log.log_id.hex() for log in logs)
        }
        runs = {log_id: lock.run for log_id, lock in locks.items()}
        live = LiveLogs(spark, logs)
        finished: list[tuple[Work, Done]] = []
        replaced: list[str] = []

        def work(kept: Sequence[NodeLog]) -> None:
            plans = [_plan(store, log, runs[log.log_id.hex()], salvage=salvage) for log in kept]
            size_bytes = sum(one.size_bytes for plan in plans for one in plan)
            chunk_bytes = max(size_bytes // spark.sparkContext.defaultParallelism, CHUNK_BYTES_MIN)
            chunks = [one for plan in plans for one in _joined(plan, min(chunk_bytes, chunk_bytes_max))]
            olds = [
                [file.path for file in one.manifest(store).files] if one.replaces else [] for one in chunks
            ]
            with progress.stage("archive"):
                done = _run(spark, chunks, salvage=salvage)
            for chunk, old, one in zip(chunks, olds, done, strict=True):
                if one is not None:
                    finished.append((chunk, one))
                    replaced.extend(old)
            if None in done:
                raise SegmentGoneError("retention removed segments before they were archived")

        live.read(work)
        for lock in locks.values():
            lock.end_writing()
        with progress.stage("tidy"):
            _remove_unnamed(store, {log.log_id.hex(): log.segments[0].base for log in logs}, replaced)
        removed = {one.node: one for one in live.removed}
        return [_result(log, finished, removed.get(log.node), store.url, now_ms) for log in live.logs]


def _result(
    log: NodeLog, finished: Sequence[tuple[Work, Done]], removed: Removed | None, url: str, now_ms: int
) -> ArchivedLog:
    own = [(chunk, one) for chunk, one in finished if chunk.run.log_id == log.log_id.hex()]
    archived = {segment.base for chunk, _ in own for segment in chunk.segments}
    done = [one for _, one in own]
    sealed = [segment for segment in log.segments if segment.end is not None]
    until = sealed[-1].end if sealed else None
    marked = until is not None and is_local(log.url) and _mark(log, url, until, now_ms)
    return ArchivedLog(
        log.node,
        log.log_id.hex(),
        len(archived),
        sum(segment.base not in archived for segment in sealed),
        sum(one.records for one in done),
        sum(one.files for one in done),
        sum(one.bytes for one in done),
        until,
        marked,
        [lost for one in done for lost in one.lost],
        removed,
    )


def _check_logs(logs: Sequence[NodeLog]) -> None:
    """Refuse two copies of one log: they would write the same chunks."""
    seen: dict[bytes, NodeLog] = {}
    for log in logs:
        other = seen.setdefault(log.log_id, log)
        if other is not log:
            raise ArchiveError(f"{other.url} and {log.url} hold the same log: archive one of them")


# ---------------------------------------------------------------------- what to archive


def _plan(store: Archive, log: NodeLog, run: Run, *, salvage: bool) -> list[Work]:
    """The segments not in the archive yet, and those archived damaged."""
    there = _Archived(store, store.chunks(log.log_id.hex(), log.segments[0].base))
    start = log.start
    plan: list[Work] = []
    for segment in log.segments:
        if segment.end is None:
            continue
        beginning = None
        found = there.find(segment)
        if found is not None:
            if salvage or not found.lost:
                continue
            beginning = found.beginning
        if start is not None and start.offset == segment.base:
            puts = [] if start.settings is None else start.settings.control
            beginning = Beginning(start.queues, start.settings_until, puts)
        plan.append(Work(run, (segment,), (beginning,), replaces=found is not None))
    return plan


def _joined(works: Sequence[Work], chunk_bytes: int) -> list[Work]:
    """Joins consecutive segments to chunks of at most so many bytes; a repaired one stays alone."""
    found: list[Work] = []
    for work in works:
        last = found[-1] if found else None
        if (
            last is not None
            and not (last.replaces or work.replaces)
            and last.segments[-1].end == work.segments[0].base
            and last.size_bytes + work.size_bytes <= chunk_bytes
            and len(last.segments) < CHUNK_SEGMENTS_MAX
        ):
            segments, beginnings = last.segments + work.segments, last.beginnings + work.beginnings
            found[-1] = last._replace(segments=segments, beginnings=beginnings)
        else:
            found.append(work)
    return found


class _Archived:
    """The segments of a log that its archive has."""

    def __init__(self, store: Archive, chunks: Sequence[Chunk]) -> None:
        self._url = store.url
        self._segments = [(segment, chunk) for chunk in chunks for segment in chunk.segments]
        self._bases = [segment.base for segment, _ in self._segments]

    def find(self, segment: Segment) -> ArchivedSegment | None:
        """The segment as it was archived; ArchiveError if another one is in its place."""
        place = bisect_right(self._bases, segment.base) - 1
        if place < 0:
            return None
        there, chunk = self._segments[place]
        if there.end <= segment.base:
            return None
        made_ms = made_ms_of(segment)
        if (there.base, there.end) != (segment.base, segment.end) or (
            made_ms and there.made_ms and there.made_ms != made_ms
        ):
            raise ArchiveError(
                f"{self._url} has another segment {there.base} of log {chunk.log_id}, from {chunk.node}: it "
                f"ends at {there.end} and was created at {there.made_ms}, segment {segment.base} of "
                f"{segment.node} at {segment.end} and {made_ms}; one of them is a diverged copy"
            )
        return there


# ---------------------------------------------------------------------- archiving


def _run(spark: SparkSession, work: Sequence[Work], *, salvage: bool) -> list[Done | None]:
    """The result of each chunk, None where retention removed a segment before it was read."""
    if not work:
        return []

    def run(number: int) -> Iterator[pa.RecordBatch]:
        try:
            done = msgspec.msgpack.encode(archive_chunk(work[number], salvage=salvage))
        except SegmentGoneError:
            done = msgspec.msgpack.encode(None)
        yield pa.record_batch({"id": [number], "done": pa.array([done], pa.binary())})

    rows = map_numbers(spark, len(work), run, "id bigint, done binary").collect()
    by_number = {row.id: msgspec.msgpack.decode(bytes(row.done), type=Done | None) for row in rows}
    return [by_number[number] for number in range(len(work))]


def archive_chunk(work: Work, *, salvage: bool) -> Done:
    """Archive one chunk. Runs in executors; `ChunkWriter` bounds its memory.

    Segments with damage are chunks of their own, so that a repaired one replaces nothing else. So with
    `salvage` a chunk is tried as if it were sound, and split if it is not.
    """
    try:
        manifests = [_archive_chunk(work, salvage=salvage and len(work.segments) == 1)]
    except CorruptionError:
        if not salvage:
            raise
        manifests = [_archive_chunk(one, salvage=True) for one in work.split()]
    files = [file for manifest in manifests for file in manifest.files]
    segments = chain.from_iterable(manifest.segments for manifest in manifests)
    return Done(
        sum(manifest.records for manifest in manifests),
        len(files),
        sum(file.bytes for file in files),
        [lost for segment in segments for lost in segment.lost],
    )


def _archive_chunk(work: Work, *, salvage: bool) -> Manifest:
    with ChunkWriter(work.run) as writer:
        segments = [
            archive_segment(writer, work.run.log_id, segment, beginning, salvage=salvage)
            for segment, beginning in zip(work.segments, work.beginnings, strict=True)
        ]
        return writer.commit(work.segments[0].node, segments, replaces=work.replaces)


def archive_segment(
    writer: ChunkWriter, log_id: str, segment: Segment, beginning: Beginning | None, *, salvage: bool
) -> ArchivedSegment:
    """Add the records of a segment to a chunk; returns what its manifest says of it."""
    assert segment.end is not None
    reader = SegmentReader(segment, salvage=salvage, sidecars=False)
    queues: QueueCounts = Counter()
    records = last_store_ms = 0
    for batch in read_batches(reader, bytes.fromhex(log_id), READ):
        records += len(batch)
        last_store_ms = max(last_store_ms, int(np.max(batch["store_ms"].to_numpy())))
        queues.update(count_queues(batch))
        ids = pa.array([log_id]).take(pa.array(np.zeros(len(batch), np.int32)))
        writer.add(pa.record_batch([ids, *batch.columns], names=STORED))
    return ArchivedSegment(
        base=segment.base,
        end=segment.end,
        made_ms=made_ms_of(segment),
        records=records,
        last_store_ms=last_store_ms,
        queues=queues_of(queues),
        lost=[Lost(region.offset, region.end, region.reason) for region in reader.damaged],
        beginning=beginning,
    )


def count_queues(rows: pa.RecordBatch) -> dict[tuple[str, int], int]:
    """The number of messages that became visible in each queue; a queue with only timers counts 0."""
    kinds = rows["kind"].to_numpy(zero_copy_only=False)
    visible = (kinds == "message") & (rows["flags"].to_numpy() & FLAG_LEASE == 0)
    table = pa.table({"topic": rows["topic"], "queue": rows["queue"], "visible": visible.astype(np.int64)})
    found = table.group_by(["topic", "queue"]).aggregate([("visible", "sum")])
    columns = (found[name].to_pylist() for name in ("topic", "queue", "visible_sum"))
    return {
        (topic, queue): count for topic, queue, count in zip(*columns, strict=True) if not is_internal(topic)
    }


def queues_of(counts: QueueCounts) -> list[tuple[str, int, int]]:
    """Counts as a manifest lists them."""
    return [(topic, queue, count) for (topic, queue), count in sorted(counts.items())]


# ---------------------------------------------------------------------- afterwards


def _remove_unnamed(store: Archive, firsts: dict[str, int], replaced: Sequence[str]) -> None:
    """Remove files of these logs, from these bases on, that no manifest names.

    They are of killed attempts and runs, and, `replaced`, of segments that were archived damaged. Only with
    the locks, and after `end_writing`: a file of an attempt at work has no manifest yet.
    """
    unnamed = set(replaced)
    owners: set[tuple[str, int]] = set()
    for path in store.files(old=False):
        owner = owner_of(path)
        if owner is not None and owner[1] >= firsts.get(owner[0], OFFSET_MAX):
            unnamed.add(path)
            owners.add(owner)
    with_manifest = {(one, base) for one in firsts for base in store.bases(one)}
    for log_id, base in owners & with_manifest:
        unnamed.difference_update(file.path for file in store.manifest(log_id, base).files)
    fs, root = file_system(store.url)
    with storage_errors(store.url):
        for path in sorted(unnamed):
            fs.rm_file(f"{root}/{path}")


def _mark(log: NodeLog, url: str, until: int, now_ms: int) -> bool:
    """Write the marker for retention; returns False if it existed already."""
    data = Path(place_of(log.url).path)
    files = DiskFiles()
    marker = Archived(log.log_id.hex(), until, url, now_ms)
    there = read_archived(files, data)
    if there is not None and msgspec.structs.replace(there, at_ms=now_ms) == marker:
        return False
    write_archived(files, data, marker)
    return True
