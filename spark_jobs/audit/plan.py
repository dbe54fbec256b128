"""What an audit has to judge: whole logs, or with a checkpoint only what is new in them.

A piece is a segment; or, of the segment that a log ended in at the last run, what was written since. A
segment that was judged before is a piece as well, as long as it has open timers: its table is the file with
those in the checkpoint. It is `quiet`: no task reads it unless a new record refers to it, or something in it
is overdue.

A log is judged from its beginning again, for the reason that the plan states, if the checkpoint does not fit.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from timerwheel.spark_jobs.audit.checkpoint import Checkpoint, DroppedTimers, JudgedLog, OpenTimers
from timerwheel.spark_jobs.audit.ledger import Bounds, out_of_order
from timerwheel.spark_jobs.audit.tallies import OVERDUE_MS
from timerwheel.spark_jobs.errors import JobError
from timerwheel.spark_jobs.logs import NodeLog
from timerwheel.spark_jobs.segment_stats import Found, ReadOptions, Survey, survey
from timerwheel.spark_jobs.segments import Damaged, Segment, SegmentReader
from timerwheel.spark_jobs.storage import join, write_atomically
from timerwheel.spark_jobs.tasks import map_segments
from timerwheel.store import sidecar
from timerwheel.store.segment import SEGMENT_HEADER_SIZE
from timerwheel.store.table import Table


class Ending(msgspec.Struct, frozen=True):
    """One look at a segment that a log ended in, at this run or the last.

    `digest` is of all its records. The others are about what was judged before and after that: a digest of
    the former and their number, where the table of the latter is, and its share of `out_of_order`.
    """

    digest: str
    digest_before: str
    records_before: int
    after: str | None
    out_of_order: int


class Piece(NamedTuple):
    """A part of a log that a task judges. Of `open` ones, judged before, only the open timers are known."""

    log: int  # its place in the plan
    read: Segment  # its table; begins where the piece does
    segment: int  # the base of the segment that it is in
    open: OpenTimers | None = None
    out_of_order: int | None = None  # if its table is not enough to count them


class LogPlan(NamedTuple):
    """One log, as far as it is read now, and what the checkpoint says about the rest."""

    log: NodeLog
    found: list[tuple[Segment, Found]]
    bounds: Bounds
    earlier: JudgedLog | None
    dropped: list[DroppedTimers]
    why_whole: str | None  # why it is judged from the beginning although there is a checkpoint
    records_before: int  # records that were read again
    last_digest: str

    @property
    def log_id(self) -> str:
        """The id of the log, in hex."""
        return self.log.log_id.hex()

    @property
    def since(self) -> int:
        """Where the records begin that are judged now."""
        return self.log.begin if self.earlier is None else self.earlier.until

    @property
    def until(self) -> int:
        """Where the last complete unit ends."""
        return self.found[-1][1].until

    @property
    def began(self) -> int:
        """The base of the segment where the first audit of this checkpoint began."""
        return self.log.segments[0].base if self.earlier is None else self.earlier.began

    @property
    def read_again(self) -> bool:
        """Whether the first segment that is read had been judged in part."""
        return self.earlier is not None and self.found[0][0].base == self.earlier.last_base

    @property
    def segments(self) -> int:
        """All segments that were ever judged."""
        before = 0 if self.earlier is None else self.earlier.segments - self.read_again
        return before + len(self.found)

    @property
    def records(self) -> int:
        """All records that were ever judged."""
        before = 0 if self.earlier is None else self.earlier.records - self.records_before
        return before + sum(found.records for _, found in self.found)

    @property
    def damaged(self) -> list[Damaged]:
        """Every region without an intact record, that of a torn end left out."""
        found = [one for _, part in self.found for one in part.damaged if not one.torn]
        return _damaged_before(self.earlier, self.log.node, self.found[0][0].base) + found

    @property
    def torn(self) -> list[Damaged]:
        """The unfinished end of the log, if it has one."""
        return [one for _, part in self.found for one in part.damaged if one.torn]


class Plan(NamedTuple):
    """All logs, and their pieces in the order of logs and offsets."""

    logs: list[LogPlan]
    pieces: list[Piece]

    @property
    def segments(self) -> list[Segment]:
        """What `shuffle` reads, by the number of the piece."""
        return [piece.read for piece in self.pieces]

    @property
    def topics(self) -> list[str]:
        """The topics of all records and open timers."""
        names = {topic for log in self.logs for _, found in log.found for topic in found.topics}
        names |= {topic for piece in self.pieces if piece.open for topic, _, _ in piece.open.counts}
        return sorted(names)

    @property
    def quiet(self) -> dict[int, bool]:
        """The pieces that were judged before, and whether they have to be read for what is overdue."""
        return {
            number: piece.open.least_due_ms < self.logs[piece.log].bounds.last_ms - OVERDUE_MS
            for number, piece in enumerate(self.pieces)
            if piece.open is not None
        }


def whole_plan(found: Survey) -> Plan:
    """Judge all that was surveyed."""
    plans, pieces = [], []
    for number, log in enumerate(found.logs):
        segments = found.of(log)
        plans.append(_log_plan(log, segments, None, None, {}))
        pieces += [Piece(number, segment, segment.base) for segment, _ in segments]
    return Plan(plans, pieces)


def plan_since(
    spark: SparkSession,
    checkpoint: Checkpoint,
    logs: Sequence[NodeLog],
    options: ReadOptions,
    whole: Mapping[str, str],
) -> Plan:
    """Judge what is new since the checkpoint. Surveys what it reads.

    `whole` has the ids of logs to judge from their beginning nevertheless, and why. Raises JobError if two
    logs have the same id, and the errors of `survey`.
    """
    _check_logs(logs)
    whole = dict(whole)
    document = checkpoint.document
    judged = {} if document is None else {one.log_id: one for one in document.logs}
    for log in logs:
        if document is not None and (why := _why_whole(log, judged.get(log.log_id.hex()))):
            whole.setdefault(log.log_id.hex(), why)
    earlier = [None if (one := log.log_id.hex()) in whole else judged.get(one) for log in logs]
    read = [
        log._replace(segments=_new_segments(log, before)) for log, before in zip(logs, earlier, strict=True)
    ]
    place = join(options.staging, f"attempt-{len(whole)}")
    found = survey(spark, read, options._replace(staging=place))
    endings = _endings(spark, found, earlier, place)
    plans: list[LogPlan] = []
    pieces: list[Piece] = []
    changed = dict(whole)
    for number, (log, part, before) in enumerate(zip(logs, read, earlier, strict=True)):
        plan = _log_plan(log, found.of(part), before, whole.get(log.log_id.hex()), endings)
        if before is not None and (why := _why_changed(plan, before, endings)):
            changed[plan.log_id] = why
        plans.append(plan)
        pieces += _pieces(number, plan, checkpoint, endings)
    if changed != whole:
        return plan_since(spark, checkpoint, logs, options, changed)
    return Plan(plans, pieces)


def _check_logs(logs: Sequence[NodeLog]) -> None:
    seen: dict[bytes, NodeLog] = {}
    for log in logs:
        other = seen.setdefault(log.log_id, log)
        if other is not log:
            raise JobError(
                f"{other.url} and {log.url} hold the same log: with --checkpoint, audit one of them"
            )


def _why_whole(log: NodeLog, earlier: JudgedLog | None) -> str | None:
    """Why a log cannot go on from the checkpoint, by the names of its segments."""
    if earlier is None:
        return "the checkpoint does not have this log"
    first, bases = log.segments[0].base, {segment.base for segment in log.segments}
    if earlier.last_base in bases or first == earlier.until:
        return None
    if first > earlier.until:
        return f"retention removed records from {earlier.until} on that no audit had read"
    return f"the log no longer has segment {earlier.last_base}, in which it ended at the last audit"


def _why_changed(plan: LogPlan, earlier: JudgedLog, endings: Mapping[Segment, Ending]) -> str | None:
    """Why a log cannot go on from the checkpoint, by the segment that was judged in part."""
    if not plan.read_again:
        return None
    segment, found = plan.found[0]
    if found.until < earlier.until:
        return f"the log ends at {found.until}, and had been read until {earlier.until}"
    if endings[segment].digest_before != earlier.last_digest:
        return f"records before {earlier.until} are not those that were read there at the last audit"
    return None


def _new_segments(log: NodeLog, earlier: JudgedLog | None) -> tuple[Segment, ...]:
    if earlier is None:
        return log.segments
    return tuple(segment for segment in log.segments if segment.base >= earlier.last_base)


def _log_plan(
    log: NodeLog,
    found: list[tuple[Segment, Found]],
    earlier: JudgedLog | None,
    why_whole: str | None,
    endings: Mapping[Segment, Ending],
) -> LogPlan:
    damaged = [one for _, part in found for one in part.damaged if not one.torn]
    damaged += _damaged_before(earlier, log.node, found[0][0].base)
    last_ms = max(part.last_store_ms for _, part in found)
    began, since, bases = log.segments[0].base, 0, [segment.base for segment, _ in found]
    if earlier is not None:
        began, since = earlier.began, earlier.until
        last_ms = max(last_ms, earlier.last_store_ms)
        bases[0] = max(bases[0], since)
    bounds = Bounds(
        begin=began + SEGMENT_HEADER_SIZE,
        whole=began == 0,
        last_ms=last_ms,
        bases=np.array(bases, np.int64),
        damaged=[(one.offset, one.end) for one in damaged],
        since=since,
        kept_from=log.segments[0].base,
    )
    first, last = endings.get(found[0][0]), endings.get(found[-1][0])
    return LogPlan(
        log=log,
        found=found,
        bounds=bounds,
        earlier=earlier,
        dropped=[] if earlier is None else earlier.dropped,
        why_whole=why_whole,
        records_before=0 if earlier is None or first is None else first.records_before,
        last_digest="" if last is None else last.digest,
    )


def _damaged_before(earlier: JudgedLog | None, node: str, read_from: int) -> list[Damaged]:
    if earlier is None:
        return []
    return [one._replace(node=node) for one in earlier.damaged if one.offset < read_from]


def _pieces(
    number: int, plan: LogPlan, checkpoint: Checkpoint, endings: Mapping[Segment, Ending]
) -> list[Piece]:
    log, earlier = plan.log, plan.earlier
    found = [Piece(number, segment, segment.base) for segment, _ in plan.found]
    if earlier is None:
        return found
    if plan.read_again:
        segment = plan.found[0][0]
        ending = endings[segment]
        after = segment._replace(base=plan.since, staged=ending.after)
        found[0] = Piece(number, after, segment.base, out_of_order=ending.out_of_order)
    directory = log.segments[0].directory
    before = []
    for one in earlier.open:
        staged = checkpoint.file(one.path)
        segment = Segment(log.node, directory, one.base, one.until, staged, one.until)
        before.append(Piece(number, segment, one.segment, open=one))
    return before + found


# ---------------------------------------------------------------------- the ends of logs


def _endings(
    spark: SparkSession, found: Survey, earlier: Sequence[JudgedLog | None], place: str
) -> dict[Segment, Ending]:
    """Looks at the segments that logs end in, or did at the last run."""
    work: dict[Segment, int | None] = {}
    for log, before in zip(found.logs, earlier, strict=True):
        segments = [segment for segment, _ in found.of(log)]
        work[segments[-1]] = None
        if before is not None and segments[0].base == before.last_base:
            work[segments[0]] = before.until
    items = list(work.items())

    def look(number: int) -> Iterator[pa.RecordBatch]:
        segment, since = items[number]
        ending = ending_of(segment, since, join(place, "after", f"{number:08d}.side"))
        packed = msgspec.msgpack.encode(ending)
        yield pa.record_batch({"id": [number], "ending": pa.array([packed], pa.binary())})

    rows = map_segments(spark, list(work), look, "id bigint, ending binary").collect()
    return {items[row.id][0]: msgspec.msgpack.decode(bytes(row.ending), type=Ending) for row in rows}


def ending_of(segment: Segment, since: int | None, place: str) -> Ending:
    """Reads a surveyed segment; with `since`, writes the table of what lies behind that to `place`."""
    table = SegmentReader(segment, salvage=True).table()
    count = int(np.searchsorted(table.rows["offset"].astype(np.int64), since or 0))
    before = Table(table.rows[:count], table.topics)
    if since is not None:
        assert segment.until is not None
        after = Table(table.rows[count:], table.topics)
        write_atomically(place, sidecar.encode(after, since, segment.until))
    return Ending(
        digest_of(table),
        digest_of(before),
        count,
        None if since is None else place,
        out_of_order(table.rows) - out_of_order(before.rows),
    )


def digest_of(table: Table) -> str:
    """The SHA-256 of all columns; topics count by name, since each table numbers them in its own way."""
    rows = table.rows.copy()
    numbers, firsts = np.unique(rows["topic"], return_index=True)
    used = numbers[np.argsort(firsts)]
    places = np.zeros(len(table.topics), np.uint32)
    places[used] = np.arange(len(used), dtype=np.uint32)
    rows["topic"] = places[rows["topic"]]
    found = hashlib.sha256(rows.tobytes())
    found.update("\n".join(table.topics[number] for number in used.tolist()).encode())
    return found.hexdigest()
