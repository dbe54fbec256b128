"""`archive`: the sealed segments of logs become Parquet files by date and topic.

A task archives one segment: it reads and checks every record, writes a file for each day and topic, and then
the manifest that makes the segment count (`spark_jobs.archive.store`). A segment that has one is left alone:
a run that was killed is simply run again. When all that is sealed in a local data directory is archived, its
marker `archived` tells retention so (`timerwheel.runtime.archived`).
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
from timerwheel.spark_jobs.logs import Site
from timerwheel.spark_jobs.progress import Stages
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
    """One segment that is to be archived."""

    log_id: bytes
    segment: Segment
    beginning: Beginning | None


class Done(msgspec.Struct, frozen=True):
    """What a task archived."""

    records: int
    files: int
    bytes: int
    lost: list[Lost]


class ArchivedSite(msgspec.Struct, frozen=True):
    """What was done for one log. `until` is where its archived part ends, None if no segment is sealed."""

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
    stages: Stages,
    sites: Sequence[Site],
    url: str,
    *,
    now_ms: int,
    salvage: bool = False,
) -> list[ArchivedSite]:
    """Archive what is sealed and not archived yet, then mark the data directories that are local.

    Raises CorruptionError (as the cause of Spark's error) at damage, unless `salvage`; ArchiveError if the
    archive has another segment under the same name. What was archived before stays in any case.
    """
    _check_logs(sites)
    store = Archive(url)
    url = store.url
    plans = [_plan(store, site, salvage=salvage) for site in sites]
    with stages.stage("archive"):
        done = _run(spark, store, [work for plan in plans for work in plan], salvage=salvage)
    found: list[ArchivedSite] = []
    for site, plan in zip(sites, plans, strict=True):
        own, done = done[: len(plan)], done[len(plan) :]
        sealed = [segment for segment in site.segments if segment.end is not None]
        until = sealed[-1].end if sealed else None
        marked = until is not None and is_local(site.url) and _mark(site, url, until, now_ms)
        found.append(
            ArchivedSite(
                site.node,
                site.log_id.hex(),
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


def _check_logs(sites: Sequence[Site]) -> None:
    """Two copies of one log would write the same files."""
    seen: dict[bytes, Site] = {}
    for site in sites:
        other = seen.setdefault(site.log_id, site)
        if other is not site:
            raise ArchiveError(f"{other.url} and {site.url} hold the same log: archive one of them")


def _plan(store: Archive, site: Site, *, salvage: bool) -> list[Work]:
    """What is not there yet; and what was archived with damage, which may have been mended since."""
    log_id = site.log_id.hex()
    there = set(store.bases(log_id))
    start = site.start
    work: list[Work] = []
    for segment in site.segments:
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
        work.append(Work(site.log_id, segment, beginning))
    return work


def _check_same(head: Head, segment: Segment, url: str) -> None:
    made_ms = made_ms_of(segment)
    if head.end != segment.end or (made_ms and head.made_ms and head.made_ms != made_ms):
        raise ArchiveError(
            f"{url} has another segment {segment.base} of log {head.log_id}, from {head.node}: it ends at "
            f"{head.end} and was made at {head.made_ms}, that of {segment.node} at {segment.end} "
            f"and {made_ms}; one is a copy that went its own way"
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
    """Archive one segment; holds its records, and one file of it as Parquet. Runs in executors."""
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
    writer = store.begin_segment(log_id, segment.base)
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
    """Add how many messages became visible in each queue; one that only has timers is there with none."""
    kinds = rows["kind"].to_numpy(zero_copy_only=False)
    visible = (kinds == "message") & (rows["flags"].to_numpy() & FLAG_LEASE == 0)
    numbers = rows["queue"].to_numpy()
    for queue in np.unique(numbers).tolist():
        queues[topic, queue] += int(np.count_nonzero(visible & (numbers == queue)))


def _put(writer: SegmentWriter, date: str, topic: str, table: pa.Table) -> None:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression=COMPRESSION)
    writer.put(date, topic, len(table), buffer.getvalue())


def _mark(site: Site, url: str, until: int, now_ms: int) -> bool:
    """Tell retention; True if the marker was not there yet."""
    data = place_of(site.url).path
    files = DiskFiles()
    marker = Archived(site.log_id.hex(), until, url, now_ms)
    there = read_archived(files, data)
    if there is not None and msgspec.structs.replace(there, at_ms=now_ms) == marker:
        return False
    write_archived(files, data, marker)
    return True
