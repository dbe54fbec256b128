"""`archive`: writes sealed segments of logs as Parquet files by date and topic.

A task archives one segment: it reads and checks every record, writes a file for each day and topic, and then
the manifest that makes the segment count (`spark_jobs.archive.store`). A segment with a manifest is skipped,
so a killed run is simply repeated. When all sealed segments of a local data directory are archived, its
marker `archived` tells retention (`timerwheel.runtime.archived`).
"""

import io
import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from timerwheel.runtime.archived import Archived, read_archived, write_archived
from timerwheel.spark_jobs.archive.store import (
    FORMAT,
    Archive,
    ArchiveError,
    Beginning,
    Head,
    Lost,
    Manifest,
    SegmentWriter,
)
from timerwheel.spark_jobs.columns import COLUMNS, read_batches
from timerwheel.spark_jobs.logs import NodeLog
from timerwheel.spark_jobs.progress import JobProgress
from timerwheel.spark_jobs.segments import Segment, SegmentReader, made_ms_of
from timerwheel.spark_jobs.storage import is_local, place_of
from timerwheel.spark_jobs.tasks import map_numbers
from timerwheel.state.groups import is_internal
from timerwheel.store.files import DiskFiles
from timerwheel.store.record import FLAG_LEASE
from timerwheel.wheel.geometry import DAY_MS

FIRST = ("node", "segment", "offset")
STORED = (*FIRST, *(name for name in COLUMNS if name not in (*FIRST, "topic")))
READ = (*STORED, "topic")
COMPRESSION = "zstd"


class Work(NamedTuple):
    """One segment to archive."""

    log_id: bytes
    segment: Segment
    beginning: Beginning | None


class Done(msgspec.Struct, frozen=True):
    """The result of one task."""

    records: int
    files: int
    bytes: int
    lost: list[Lost]


class ArchivedLog(msgspec.Struct, frozen=True):
    """The result for one log. `until` is where its archived part ends, None if no segment is sealed."""

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


def archive(
    spark: SparkSession,
    progress: JobProgress,
    logs: Sequence[NodeLog],
    url: str,
    *,
    now_ms: int,
    salvage: bool = False,
) -> list[ArchivedLog]:
    """Archive the sealed segments that are not archived yet, then mark local data directories.

    Raises CorruptionError (as the cause of Spark's error) at damage, unless `salvage`; ArchiveError if the
    archive has another segment under the same name. Segments archived before are never touched.
    """
    _check_logs(logs)
    store = Archive(url)
    url = store.url
    plans = [_plan(store, log, salvage=salvage) for log in logs]
    with progress.stage("archive"):
        done = _run(spark, store, [work for plan in plans for work in plan], salvage=salvage)
    found: list[ArchivedLog] = []
    for log, plan in zip(logs, plans, strict=True):
        own, done = done[: len(plan)], done[len(plan) :]
        sealed = [segment for segment in log.segments if segment.end is not None]
        until = sealed[-1].end if sealed else None
        marked = until is not None and is_local(log.url) and _mark(log, url, until, now_ms)
        found.append(
            ArchivedLog(
                log.node,
                log.log_id.hex(),
                len(own),
                len(sealed) - len(own),
                sum(one.records for one in own),
                sum(one.files for one in own),
                sum(one.bytes for one in own),
                until,
                marked,
                [lost for one in own for lost in one.lost],
            )
        )
    return found


def _check_logs(logs: Sequence[NodeLog]) -> None:
    """Refuse two copies of one log: they would write the same files."""
    seen: dict[bytes, NodeLog] = {}
    for log in logs:
        other = seen.setdefault(log.log_id, log)
        if other is not log:
            raise ArchiveError(f"{other.url} and {log.url} hold the same log: archive one of them")


def _plan(store: Archive, log: NodeLog, *, salvage: bool) -> list[Work]:
    """The segments not in the archive yet, and those archived with damage, which may be repaired by now."""
    log_id = log.log_id.hex()
    there = set(store.bases(log_id))
    start = log.start
    work: list[Work] = []
    for segment in log.segments:
        if segment.end is None:
            continue
        beginning = None
        if segment.base in there:
            head = store.head(log_id, segment.base)
            _check_same(head, segment, store.url)
            if salvage or not head.lost:
                continue
            beginning = head.beginning
        if start is not None and start.offset == segment.base:
            puts = [] if start.settings is None else start.settings.control
            beginning = Beginning(start.queues, start.settings_until, puts)
        work.append(Work(log.log_id, segment, beginning))
    return work


def _check_same(head: Head, segment: Segment, url: str) -> None:
    made_ms = made_ms_of(segment)
    if head.end != segment.end or (made_ms and head.made_ms and head.made_ms != made_ms):
        raise ArchiveError(
            f"{url} has another segment {segment.base} of log {head.log_id}, from {head.node}: it ends at "
            f"{head.end} and was created at {head.made_ms}, that of {segment.node} at {segment.end} "
            f"and {made_ms}; one of them is a diverged copy"
        )


def _run(spark: SparkSession, store: Archive, work: Sequence[Work], *, salvage: bool) -> list[Done]:
    if not work:
        return []

    def run(number: int) -> Iterator[pa.RecordBatch]:
        done = msgspec.msgpack.encode(archive_segment(store, work[number], salvage=salvage))
        yield pa.record_batch({"id": [number], "done": pa.array([done], pa.binary())})

    rows = map_numbers(spark, len(work), run, "id bigint, done binary").collect()
    by_number = {row.id: msgspec.msgpack.decode(bytes(row.done), type=Done) for row in rows}
    return [by_number[number] for number in range(len(work))]


def archive_segment(store: Archive, work: Work, *, salvage: bool) -> Done:
    """Archive one segment. Memory: its records, and one of its files as Parquet. Runs in executors."""
    log_id = work.log_id.hex()
    segment = work.segment
    assert segment.end is not None
    reader = SegmentReader(segment, salvage=salvage, sidecars=False)
    parts: defaultdict[tuple[int, str], list[pa.RecordBatch]] = defaultdict(list)
    queues: defaultdict[tuple[str, int], int] = defaultdict(int)
    last_store_ms = 0
    for batch in read_batches(reader, work.log_id, READ):
        last_store_ms = max(last_store_ms, int(np.max(batch["store_ms"].to_numpy())))
        for day, topic, part in _split(batch):
            parts[day, topic].append(part.drop_columns(["topic"]))
            if not is_internal(topic):
                count_queues(queues, topic, part)
    writer = SegmentWriter(store.url, log_id, segment.base)
    records = 0
    for day, topic in sorted(parts):
        table = pa.Table.from_batches(parts.pop((day, topic)))
        table = table.add_column(
            0, "log_id", pa.array([log_id]).take(pa.array(np.zeros(len(table), np.int32)))
        )
        _put(writer, str(np.datetime64(day, "D")), topic, table)
        records += len(table)
    lost = [Lost(region.offset, region.end, region.reason) for region in reader.damaged]
    writer.finish(
        Manifest(
            format=FORMAT,
            log_id=log_id,
            node=segment.node,
            base=segment.base,
            end=segment.end,
            made_ms=made_ms_of(segment),
            records=records,
            last_store_ms=last_store_ms,
            queues=[(topic, queue, count) for (topic, queue), count in sorted(queues.items())],
            lost=lost,
            beginning=work.beginning,
            files=writer.files,
        )
    )
    return Done(records, len(writer.files), sum(file.bytes for file in writer.files), lost)


def _split(batch: pa.RecordBatch) -> Iterator[tuple[int, str, pa.RecordBatch]]:
    """The rows of each UTC day and topic, in log order: (day since the epoch, topic, rows)."""
    topics = batch["topic"].dictionary_encode()
    names = topics.dictionary.to_pylist()
    days = batch["store_ms"].to_numpy() // DAY_MS
    keys = days * len(names) + topics.indices.to_numpy()
    order = np.argsort(keys, kind="stable")
    edges = [0, *(np.flatnonzero(np.diff(keys[order])) + 1).tolist(), len(keys)]
    sorted_rows = batch.take(pa.array(order)) if len(edges) > 2 else batch  # noqa: PLR2004 - one part
    for begin, end in itertools.pairwise(edges):
        day, number = divmod(int(keys[order[begin]]), len(names))
        yield day, names[number], sorted_rows.slice(begin, end - begin)


def count_queues(queues: defaultdict[tuple[str, int], int], topic: str, rows: pa.RecordBatch) -> None:
    """Add the number of messages that became visible in each queue; a queue with only timers counts 0."""
    kinds = rows["kind"].to_numpy(zero_copy_only=False)
    visible = (kinds == "message") & (rows["flags"].to_numpy() & FLAG_LEASE == 0)
    numbers = rows["queue"].to_numpy()
    for queue in np.unique(numbers).tolist():
        queues[topic, queue] += int(np.count_nonzero(visible & (numbers == queue)))


def _put(writer: SegmentWriter, date: str, topic: str, table: pa.Table) -> None:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression=COMPRESSION)
    writer.put(date, topic, len(table), buffer.getvalue())


def _mark(log: NodeLog, url: str, until: int, now_ms: int) -> bool:
    """Write the marker for retention; returns False if it existed already."""
    data = place_of(log.url).path
    files = DiskFiles()
    marker = Archived(log.log_id.hex(), until, url, now_ms)
    there = read_archived(files, data)
    if there is not None and msgspec.structs.replace(there, at_ms=now_ms) == marker:
        return False
    write_archived(files, data, marker)
    return True
