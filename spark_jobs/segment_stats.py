"""The survey: a first pass over all segments that collects statistics of each.

A segment without an intact sidecar is scanned here, once, and its table is stored in the staging directory;
later passes read only tables. The data on the driver grows with segments, topics and queues, not with
records.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from timerwheel.spark_jobs.logs import NodeLog
from timerwheel.spark_jobs.segments import Damaged, Segment, SegmentReader
from timerwheel.spark_jobs.storage import join, write_atomically
from timerwheel.spark_jobs.tasks import map_segments
from timerwheel.state.batch import Batch, has_origin, outlives, visible_rows
from timerwheel.store import sidecar
from timerwheel.store.record import FLAG_KEYED, FLAG_LEASE, Kind
from timerwheel.store.table import Table


class Found(msgspec.Struct, frozen=True):
    """Statistics of one segment. The lists grow with topics and queues, not with records."""

    until: int  # where the last complete unit ends
    source: str  # "sidecar" or "scan"
    staged: str | None  # where its table is, if it was scanned
    damaged: list[Damaged]
    records: int
    topics: list[str]  # of its records
    visible: list[tuple[str, int, int]]  # topic, queue, messages that consumers can read
    last_store_ms: int
    fired_until_ms: int  # one past the latest due time that fired in it
    timers: int
    delivered: int  # MESSAGE records with an origin, not of leases
    recalled: int
    leases: int  # records with FLAG_LEASE
    controls: int
    keyed: int  # records with FLAG_KEYED
    outlived: int  # those whose key outlives the message


class Survey(NamedTuple):
    """All segments of all logs, in the order of logs and offsets, with the statistics of each."""

    logs: list[NodeLog]
    segments: list[Segment]
    found: list[Found]

    @property
    def damaged(self) -> list[Damaged]:
        """Every region without an intact record, including torn ends."""
        return [one for found in self.found for one in found.damaged]

    def numbers(self, log: NodeLog) -> range:
        """The indexes of the segments of one log."""
        before = itertools.takewhile(lambda one: one != log, self.logs)
        first = sum(len(one.segments) for one in before)
        return range(first, first + len(log.segments))

    def of(self, log: NodeLog) -> list[tuple[Segment, Found]]:
        """The segments of one log, with their statistics."""
        return [(self.segments[number], self.found[number]) for number in self.numbers(log)]

    def until(self, log: NodeLog) -> int:
        """Where a log ends: after its last complete unit."""
        return self.of(log)[-1][1].until

    def sealed(self) -> dict[Segment, Found]:
        """The statistics of the segments that do not grow any more, by the segment as it was listed."""
        listed = [segment for log in self.logs for segment in log.segments]
        return {
            segment: one for segment, one in zip(listed, self.found, strict=True) if segment.end is not None
        }


class ReadOptions(NamedTuple):
    """How a job reads segments. `staging` is a directory or URL that every executor can write to.

    With `salvage`, damaged records are left out and reported. Without `sidecars`, the segments themselves are
    read in any case.
    """

    staging: str
    salvage: bool = False
    sidecars: bool = True


def survey(
    spark: SparkSession, logs: Sequence[NodeLog], options: ReadOptions, *, known: Survey | None = None
) -> Survey:
    """Survey every segment.

    Sealed segments of an earlier survey, `known`, are not read again. Raises CorruptionError and
    SegmentGoneError (as the cause of Spark's error), the former at damage unless it is salvaged.
    """
    segments = [segment for log in logs for segment in log.segments]
    found = {} if known is None else known.sealed()
    places = [
        (segment, log.begin, join(options.staging, "tables", f"{number:06d}-{segment.base:020d}.side"))
        for number, log in enumerate(logs)
        for segment in log.segments
        if segment not in found
    ]

    def look(number: int) -> Iterator[pa.RecordBatch]:
        segment, begin, place = places[number]
        reader = SegmentReader(segment, salvage=options.salvage, sidecars=options.sidecars)
        packed = msgspec.msgpack.encode(_look(reader, place, begin))
        yield pa.record_batch({"id": [number], "found": pa.array([packed], pa.binary())})

    if places:
        wanted = [segment for segment, _, _ in places]
        for row in map_segments(spark, wanted, look, "id bigint, found binary").collect():
            found[wanted[row.id]] = msgspec.msgpack.decode(bytes(row.found), type=Found)
    read = [
        segment._replace(staged=found[segment].staged, until=found[segment].until) for segment in segments
    ]
    return Survey(list(logs), read, [found[segment] for segment in segments])


def _look(reader: SegmentReader, place: str, begin: int) -> Found:
    table = reader.table()
    staged = None
    if reader.source == "scan":
        staged = place
        write_atomically(staged, sidecar.encode(table, reader.segment.base, reader.until))
    rows = table.rows
    lease = rows["flags"] & FLAG_LEASE != 0
    fired = (rows["kind"] == Kind.MESSAGE) & has_origin(rows)
    return Found(
        until=reader.until,
        source=reader.source,
        staged=staged,
        damaged=reader.damaged,
        records=len(rows),
        topics=[table.topics[number] for number in np.unique(rows["topic"]).tolist()],
        visible=visible_counts(table),
        last_store_ms=int(rows["store_ms"].max(initial=0)),
        fired_until_ms=Batch(rows.compress(rows["origin"] >= begin)).fired_until_ms,
        timers=_count((rows["kind"] == Kind.TIMER) & ~lease),
        delivered=_count(fired & ~lease),
        recalled=_count((rows["kind"] == Kind.CANCEL) & ~lease),
        leases=_count(lease),
        controls=_count(rows["kind"] == Kind.CONTROL),
        keyed=_count(rows["flags"] & FLAG_KEYED != 0),
        outlived=_count(outlives(rows)),
    )


def _count(chosen: np.ndarray) -> int:
    return int(np.count_nonzero(chosen))


def visible_counts(table: Table) -> list[tuple[str, int, int]]:
    """Topic, queue and number of the messages that consumers can read."""
    rows = visible_rows(table.rows)
    keys, counts = np.unique(rows["topic"].astype(np.int64) << 16 | rows["queue"], return_counts=True)
    return [
        (table.topics[key >> 16], key & 0xFFFF, count)
        for key, count in zip(keys.tolist(), counts.tolist(), strict=True)
    ]
