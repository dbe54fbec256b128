"""Rebuilds indexes from logs.

    survey    read all segments; scan those without an intact sidecar once                      [executors]
    plan      topic ids, first queue offsets of each segment, end of the log                    [driver]
    pages     send ends of timers to the timers' segments; build pages of slots, queues, marks  [executors]
    groups    settings, and the items that groups hold                                          [both]
    load      put the pages into a new LMDB environment                                         [driver]
    check     read every page again: structure, counts, and the digest of the pending timers    [driver]
    swap      put the new index in place of the old one, which is kept                          [driver]

The lock of each data directory is held throughout. Existing files are not touched before the swap; a killed
rebuild leaves files that the next one removes.
"""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
from pyspark.sql import SparkSession

from timerwheel.clock import SystemClock
from timerwheel.index.swap import new_path, swap_in
from timerwheel.index.writer import read_state
from timerwheel.model.durations import format_ms
from timerwheel.offline.snapshot import index_of
from timerwheel.runtime.recovery import INDEX_DIRECTORY, REBUILD_MARK
from timerwheel.spark_jobs.errors import JobError
from timerwheel.spark_jobs.live_logs import LiveLogs, Removed
from timerwheel.spark_jobs.logs import NodeLog
from timerwheel.spark_jobs.progress import JobProgress
from timerwheel.spark_jobs.rebuild import index_rows
from timerwheel.spark_jobs.rebuild.group_history import replay_groups
from timerwheel.spark_jobs.rebuild.index_build import (
    IndexSummary,
    check_complete,
    complete,
    load_keys,
    load_rows,
    open_new,
    summarize_index,
)
from timerwheel.spark_jobs.rebuild.index_rows import IndexRows, SegmentPlan, SegmentStats, rows_file
from timerwheel.spark_jobs.rebuild.key_history import KeyFile, stage_keys
from timerwheel.spark_jobs.segment_stats import ReadOptions, Survey, survey
from timerwheel.spark_jobs.segments import Damaged
from timerwheel.spark_jobs.shuffle import shuffle
from timerwheel.spark_jobs.storage import is_local
from timerwheel.state.log_manifest import begin_state
from timerwheel.state.memtable import SegmentCount
from timerwheel.state.state import LogState
from timerwheel.store.errors import StoreError
from timerwheel.store.files import DiskFiles, Files
from timerwheel.store.lock import DirectoryLock
from timerwheel.store.segment import segment_name
from timerwheel.wheel.geometry import Horizons, first_horizons

MAP_SIZE_BYTES = 1 << 42  # address space while building, not disk space


class OldIndex(msgspec.Struct, frozen=True):
    """Facts about the old index; `problem` if it cannot be read."""

    checkpoint: int | None = None
    pending: int | None = None
    same_pending: bool | None = None  # whether it has exactly the same pending timers
    positions: int | None = None
    problem: str | None = None


class Rebuilt(msgspec.Struct, frozen=True):
    """One node's new index."""

    node: str
    data: str
    records: int
    segments: int
    scanned_segments: int
    timers: int
    delivered: int
    recalled: int
    pending: int
    leases: int  # pending timers of consumer groups
    topics: int
    queue_positions: int
    groups: int
    group_items: int
    keys: int
    slots: int
    checkpoint: int
    damaged: list[Damaged]
    before: OldIndex | None  # in a dry run
    aside: str | None  # where the old index is kept


class Report(msgspec.Struct, frozen=True):
    """The result of a rebuild, or with `dry_run` of a trial."""

    dry_run: bool
    nodes: list[Rebuilt]
    removed: list[Removed]  # by retention while a dry run read the logs
    seconds: dict[str, float]


@contextlib.contextmanager
def locked(logs: list[NodeLog]) -> Iterator[None]:
    """Hold the locks of the data directories; LockedError if a service or another rebuild has one."""
    with contextlib.ExitStack() as stack:
        for log in logs:
            if not is_local(log.url):
                raise JobError(f"{log.url}: rebuild needs a local directory; --dry-run works with any")
            now = format_ms(SystemClock().now_ms())
            stack.enter_context(DirectoryLock(Path(log.url), purpose="rebuild", now_text=now))
        yield


class Rebuild:
    """Rebuilds the indexes of some logs."""

    def __init__(
        self,
        spark: SparkSession,
        progress: JobProgress,
        options: ReadOptions,
        *,
        files: Files | None = None,
    ) -> None:
        self._spark = spark
        self._progress = progress
        self._options = options
        self._files = files or DiskFiles()

    def run(self, logs: list[NodeLog], *, dry_run: bool = False) -> Report:
        """Build the indexes and swap them in, unless `dry_run`. The caller holds the locks.

        A dry run needs no lock: if retention removes segments that it reads, it begins again without them.
        """
        if not dry_run:
            _make_durable(logs, self._files)
            nodes = self._build(logs, dry_run=False)
            return Report(dry_run, nodes, [], self._progress.seconds)
        live = LiveLogs(self._spark, logs)
        nodes = live.read(lambda kept: self._build(kept, dry_run=True))
        return Report(dry_run, nodes, live.removed, self._progress.seconds)

    def _build(self, logs: list[NodeLog], *, dry_run: bool) -> list[Rebuilt]:
        horizons = first_horizons(SystemClock().now_ms())
        with self._progress.stage("survey"):
            found = survey(self._spark, logs, self._options)
        log_states = [_begin_state(log, found) for log in logs]
        plans = _plan(logs, found, log_states)
        with self._progress.stage("pages"):
            stats = self._make_pages(found, plans, horizons)
            keys = stage_keys(self._spark, found, plans, self._options.staging)
        with self._progress.stage("groups"):
            replay_groups(self._spark, found, plans, log_states, salvage=self._options.salvage)
        nodes: list[Rebuilt] = []
        for number, (log, log_state) in enumerate(zip(logs, log_states, strict=True)):
            mine = [stats[place] for place in found.numbers(log)]
            _count(log_state, found, mine)
            made = _Made(log, found, log_state, mine, [one for one in keys if one.log == number])
            try:
                nodes.append(self._finish(made, horizons, dry_run=dry_run))
            except JobError as error:
                done = ", ".join(node.data for node in nodes) or "none"
                raise JobError(f"{log.url}: {error}; finished before: {done}") from None
        return nodes

    def _make_pages(self, found: Survey, plans: list[SegmentPlan], horizons: Horizons) -> list[SegmentStats]:
        rows = IndexRows(plans, horizons, self._options.staging)
        made = shuffle(self._spark, found.segments, rows.emit, rows.collect, index_rows.COLLECTED).collect()
        stats = [msgspec.msgpack.decode(bytes(row.stats), type=SegmentStats) for row in made]
        return sorted(stats, key=lambda one: one.number)

    def _finish(self, made: "_Made", horizons: Horizons, *, dry_run: bool) -> Rebuilt:
        """Load, check and swap in the index of one log."""
        log = made.log
        path = Path(log.url) / INDEX_DIRECTORY
        with contextlib.ExitStack() as stack:
            if dry_run:
                room = self._options.staging if is_local(self._options.staging) else None
                made_for_it = tempfile.TemporaryDirectory(prefix="timerwheel-index-", dir=room)
                new = Path(stack.enter_context(made_for_it))
            else:
                new = new_path(path)
            index = open_new(new, MAP_SIZE_BYTES)
            stack.callback(index.close)
            with self._progress.stage("load") as step:
                files = [rows_file(self._options.staging, one.number) for one in made.stats]
                sequence = load_rows(index, files, step.report)
                sequence = load_keys(index, [one.url for one in made.keys], sequence)
                complete(index, made.log_state, log.log_id, horizons, sequence)
            with self._progress.stage("check"):
                summary = summarize_index(index, check=horizons)
                check_complete(summary, made.stats, sum(one.keys for one in made.keys))
                before = _inspect_old(Path(log.url), summary) if dry_run and is_local(log.url) else None
        aside = None
        if not dry_run:
            with self._progress.stage("swap"):
                aside = swap_in(path)
                (Path(log.url) / REBUILD_MARK).unlink(missing_ok=True)
        return _rebuilt(made, summary, before, aside)


def _make_durable(logs: list[NodeLog], files: Files) -> None:
    """Sync the end of each log, which a killed service may have left unsynced: no index may be ahead."""
    for log in logs:
        directory = Path(log.segments[-1].directory)
        with contextlib.closing(files.open_readonly(directory / segment_name(log.segments[-1].base))) as file:
            file.sync()
        files.sync_dir(directory)


class _Made(NamedTuple):
    """The data from which the index of one log is loaded."""

    log: NodeLog
    found: Survey
    log_state: LogState
    stats: list[SegmentStats]
    keys: list[KeyFile]


def _begin_state(log: NodeLog, found: Survey) -> LogState:
    """A view with the log's topics and the state of its manifest, but without any record."""
    bases = tuple(segment.base for segment in log.segments)
    log_state = LogState(lambda: bases)
    if log.start is not None:
        begin_state(log_state, log.start, log.begin)
    for _, one in found.of(log):
        for name in one.topics:
            log_state.memtable.topics.add(log_state.topic(name).id)
    return log_state


def _plan(logs: list[NodeLog], found: Survey, log_states: list[LogState]) -> list[SegmentPlan]:
    """Find the queue offset of each segment's first message, by walking the segments in order."""
    plans = []
    for number, (log, log_state) in enumerate(zip(logs, log_states, strict=True)):
        topics = {topic.name: topic.id for topic in log_state.topics_by_id}
        for _, one in found.of(log):
            firsts = {}
            for name, queue, count in one.visible:
                tail = log_state.queue(log_state.topic(name), queue)
                firsts[name, queue] = tail.next_offset
                tail.next_offset += count
            plans.append(SegmentPlan(number, log.begin, topics, firsts))
    return plans


def _count(log_state: LogState, found: Survey, stats: list[SegmentStats]) -> None:
    """Set the counts of the state that applying the records would have produced."""
    for one in stats:
        segment, seen = found.segments[one.number], found.found[one.number]
        log_state.fired_until_ms = max(log_state.fired_until_ms, seen.fired_until_ms)
        if seen.records:
            log_state.segments[segment.base] = SegmentCount(
                one.pending, seen.last_store_ms, one.last_end_ms, bool(seen.outlived)
            )
            log_state.memtable.segments.add(segment.base)
        for topic, count in one.topics:
            log_state.topics_by_id[topic].pending += count
        for level, count in one.levels:
            log_state.level_pending[level] = log_state.level_pending.get(level, 0) + count
        log_state.memtable.until = max(log_state.memtable.until, seen.until)


def _inspect_old(data: Path, new: IndexSummary) -> OldIndex | None:
    """Compare the existing index of a data directory, whether its service runs or not, with the new one."""
    try:
        index = index_of(data)
        if index is None:
            return None
        with contextlib.closing(index):
            with index.read() as txn:
                state = read_state(txn)
            summary = summarize_index(index)
    except (StoreError, OSError, msgspec.MsgspecError, ValueError) as error:
        return OldIndex(problem=str(error))
    same = (summary.pending, summary.digest) == (new.pending, new.digest)
    return OldIndex(None if state is None else state.until, summary.pending, same, summary.positions)


def _rebuilt(made: _Made, summary: IndexSummary, before: OldIndex | None, aside: Path | None) -> Rebuilt:
    log, log_state = made.log, made.log_state
    seen = [one for _, one in made.found.of(log)]
    return Rebuilt(
        node=log.node,
        data=log.url,
        records=sum(one.records for one in seen),
        segments=len(seen),
        scanned_segments=sum(one.source == "scan" for one in seen),
        timers=sum(one.timers for one in seen),
        delivered=sum(one.delivered for one in seen),
        recalled=sum(one.recalled for one in seen),
        pending=log_state.pending,
        leases=log_state.leases,
        topics=log_state.client_topics,
        queue_positions=summary.positions,
        groups=len(log_state.groups.by_name),
        group_items=sum(len(group.items) for group in log_state.groups),
        keys=summary.keys,
        slots=summary.slots,
        checkpoint=log_state.until,
        damaged=[region for one in seen for region in one.damaged],
        before=before,
        aside=None if aside is None else str(aside),
    )
