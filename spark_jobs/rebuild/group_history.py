"""Rebuilds settings and consumer groups from the log; executors drop the records without effect.

The service builds its groups by applying every lease, acknowledgement and setting in log order. Most of these
records concern messages acknowledged long ago. Here Spark drops records that no longer have an effect, and
the driver applies the rest in log order with the service's own code. Kept are:

1. For a setting, only its last value in each segment. Records that move or reset cursors stay in order.
2. For a group, nothing before its last reset: a rewind, or its deletion.
3. For an item (a message that a group holds or held), nothing up to its last end. An end counts if no later
   lease of the same message came before it, as in `timerwheel.state.groups.GroupState.end`. If the manifest
   has an item that ended later, it is removed in the same place.
4. In place of the dropped leases, the position of each cursor of a group: one past the greatest queue offset
   leased since the last reset.

The data on the driver grows with the settings and with the items that groups hold now, not with the log.
"""

from collections import defaultdict
from collections.abc import Iterator
from operator import itemgetter
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as fn

from timerwheel.spark_jobs.rebuild.index_rows import SegmentPlan
from timerwheel.spark_jobs.segment_stats import Survey
from timerwheel.spark_jobs.segments import SegmentReader, read_records
from timerwheel.spark_jobs.tasks import map_segments
from timerwheel.state.config_table import NO_SETTINGS, ConfigTable, Put, decode_puts
from timerwheel.state.groups import DEAD_QUEUE, LeaseRow
from timerwheel.state.state import LogState
from timerwheel.store.errors import CorruptionError
from timerwheel.store.record import FLAG_LEASE, QUEUE_OFFSET, Kind

_CONTROL_SCHEMA = "log int, offset bigint, puts binary"
_LEASE_COLUMNS = ("root", "offset", "kind", "flags", "queue", "due_ms", "prior_due_ms")
_LEASE_SCHEMA = "log int, topic int, " + ", ".join(f"{name} bigint" for name in _LEASE_COLUMNS)
_EVENTS = (ConfigTable.GROUP, ConfigTable.CURSOR)  # may end or reset a group: kept in order
_FOREVER = 1 << 62


class Settings(NamedTuple):
    """One CONTROL record's changes that still matter."""

    offset: int
    puts: list[Put]


def replay_groups(
    spark: SparkSession,
    survey: Survey,
    plans: list[SegmentPlan],
    log_states: list[LogState],
    *,
    salvage: bool,
) -> None:
    """Apply the remaining settings and group records to the states, one for each log."""
    settings_from = [log_state.settings_from for log_state in log_states]
    settings = _read_settings(spark, survey, plans, settings_from, salvage=salvage)
    begins = [_lease_begins(log_state, settings.get(log, [])) for log, log_state in enumerate(log_states)]
    leases = _lease_frame(spark, survey, plans, begins)
    left: list[_Live | _Cursor | _Done] = []
    if leases is not None:
        leases = leases.persist()
        left = _reduce(spark, leases, _manifest_items(log_states))
        leases.unpersist()
    for log, log_state in enumerate(log_states):
        _take_effect(log_state, settings.get(log, []), [one for one in left if one.log == log])


def _read_settings(
    spark: SparkSession, survey: Survey, plans: list[SegmentPlan], begins: list[int], *, salvage: bool
) -> dict[int, list[Settings]]:
    numbers = [number for number, found in enumerate(survey.found) if found.controls]
    if not numbers:
        return {}
    segments = survey.segments

    def read(place: int) -> Iterator[pa.RecordBatch]:
        number = numbers[place]
        log = plans[number].log
        rows = SegmentReader(segments[number], salvage=True).table().rows
        rows = rows[(rows["kind"] == Kind.CONTROL) & (rows["offset"] >= begins[log])]
        kept = _last_puts(rows["offset"].tolist(), read_records(segments[number], rows), salvage=salvage)
        yield pa.record_batch(
            {
                "log": pa.array([log] * len(kept), pa.int32()),
                "offset": pa.array([one.offset for one in kept], pa.int64()),
                "puts": pa.array([msgspec.json.encode(one.puts) for one in kept], pa.binary()),
            }
        )

    found: dict[int, list[Settings]] = defaultdict(list)
    for row in map_segments(spark, [segments[n] for n in numbers], read, _CONTROL_SCHEMA).collect():
        found[row.log].append(Settings(row.offset, msgspec.json.decode(bytes(row.puts), type=list[Put])))
    return {log: sorted(some, key=lambda one: one.offset) for log, some in found.items()}


def _last_puts(
    offsets: list[int], records: list[bytes | CorruptionError], *, salvage: bool
) -> list[Settings]:
    """The changes of one segment, without those that a later one in the segment overrides (rule 1)."""
    kept: dict[int, list[Put]] = defaultdict(list)
    last: dict[tuple[str, str], tuple[int, Put]] = {}
    passed: dict[str, tuple[int, dict[str, int]]] = {}
    for offset, record in zip(offsets, records, strict=True):
        if isinstance(record, CorruptionError) and salvage:
            continue
        for put in decode_puts(record):
            if put.table in NO_SETTINGS:
                continue
            if put.table == ConfigTable.PASSED:
                merged = passed.get(put.key, (0, {}))[1]
                cursors = {queue: max(to, merged.get(queue, 0)) for queue, to in put.value.items()}
                passed[put.key] = (offset, merged | cursors)
            elif put.table in _EVENTS:
                if put.key in passed:
                    at, cursors = passed.pop(put.key)
                    kept[at].append(Put(ConfigTable.PASSED, put.key, cursors))
                kept[offset].append(put)
            else:
                last[put.table, put.key] = (offset, put)
    for offset, put in last.values():
        kept[offset].append(put)
    for name, (offset, cursors) in passed.items():
        kept[offset].append(Put(ConfigTable.PASSED, name, cursors))
    return [Settings(offset, kept[offset]) for offset in sorted(kept)]


def _lease_frame(
    spark: SparkSession, survey: Survey, plans: list[SegmentPlan], begins: list[dict[str, int]]
) -> DataFrame | None:
    """The records with FLAG_LEASE that come after the last reset of their group; None if there are none."""
    numbers = [number for number, found in enumerate(survey.found) if found.leases]
    if not numbers:
        return None
    segments = survey.segments

    def read(place: int) -> Iterator[pa.RecordBatch]:
        number = numbers[place]
        log, topics = plans[number].log, plans[number].topics
        table = SegmentReader(segments[number], salvage=True).table()
        rows = table.rows
        first = np.array([begins[log].get(name, begins[log][""]) for name in table.topics], np.uint64)
        rows = rows.compress(rows["flags"] & FLAG_LEASE != 0)
        rows = rows.compress(rows["offset"] >= first[rows["topic"]])
        ids = pa.array([topics.get(name, -1) for name in table.topics], pa.int32())
        columns = {name: pa.array(rows[name].astype("int64")) for name in _LEASE_COLUMNS}
        yield pa.record_batch(
            {
                "log": pa.array([log] * len(rows), pa.int32()),
                "topic": ids.take(pa.array(rows["topic"])),
                **columns,
            }
        )

    return map_segments(spark, [segments[n] for n in numbers], read, _LEASE_SCHEMA)


def _lease_begins(log_state: LogState, settings: list[Settings]) -> dict[str, int]:
    """The offset from which the leases of a group matter, by the name of its topic; "" for all others."""
    begins = {"": log_state.settings_from}
    for one in settings:
        for put in one.puts:
            if put.table == ConfigTable.CURSOR or (put.table == ConfigTable.GROUP and put.value is None):
                begins[put.key] = one.offset
    return begins


def _manifest_items(log_states: list[LogState]) -> list[tuple[int, int, int]]:
    """(log, topic, key) of the items in the manifests; keys are signed, as in Spark."""
    return [
        (log, group.topic_id, int(np.uint64(key).astype(np.int64)))
        for log, log_state in enumerate(log_states)
        for group in log_state.groups
        for key in group.items
    ]


class _Live(NamedTuple):
    """A record that still has an effect."""

    log: int
    topic: int
    row: LeaseRow


class _Cursor(NamedTuple):
    """The final position of a cursor."""

    log: int
    topic: int
    queue: int
    next_offset: int


class _Done(NamedTuple):
    """An item of the manifest that ended at `end`."""

    log: int
    topic: int
    end: int
    key: int


def _reduce(
    spark: SparkSession, leases: DataFrame, carried: list[tuple[int, int, int]]
) -> list[_Live | _Cursor | _Done]:
    """The lease records that still have an effect (rule 3), and the positions of cursors (rule 4)."""
    item = ["log", "topic", "key"]
    key = fn.shiftleft("queue", 48).bitwiseOR(fn.col(QUEUE_OFFSET))
    following = fn.lead("root").over(Window.partitionBy(*item).orderBy("root"))
    first = (
        leases.where(f"root = offset and kind in ({Kind.TIMER:d}, {Kind.HOLD:d})")
        .select("log", "topic", "root", key.alias("key"))
        .withColumn("next_root", following)
    )
    ends = (
        leases.where(f"kind = {Kind.CANCEL:d}")
        .select("log", "topic", "root", fn.col("offset").alias("end"))
        .join(first, ["log", "topic", "root"])
        .where("next_root is null or end < next_root")
        .groupBy(*item)
        .agg(fn.max("end").alias("end"))
    )
    live = (
        leases.join(first.drop("next_root"), ["log", "topic", "root"], "left")
        .join(ends, item, "left")
        .where("end is null or offset > end")
        .select("log", "topic", *_LEASE_COLUMNS)
    )
    cursors = (
        leases.where(f"root = offset and kind in ({Kind.TIMER:d}, {Kind.HOLD:d}) and queue != {DEAD_QUEUE}")
        .groupBy("log", "topic", "queue")
        .agg((fn.max(QUEUE_OFFSET) + 1).alias("next_offset"))
    )
    left: list[_Live | _Cursor | _Done] = [
        _Live(row.log, row.topic, LeaseRow(*(row[name] for name in LeaseRow._fields)))
        for row in live.collect()
    ]
    left += [_Cursor(*row) for row in cursors.collect()]
    if carried:
        frame = spark.createDataFrame(carried, "log int, topic int, key bigint")
        done = ends.join(fn.broadcast(frame), item).select("log", "topic", "end", "key")
        left += [_Done(*row) for row in done.collect()]
    return left


def _take_effect(log_state: LogState, settings: list[Settings], left: list[_Live | _Cursor | _Done]) -> None:
    """Sort key: log order, positions of cursors last."""
    changed = log_state.memtable.groups
    steps: list[tuple[int, Settings | _Live | _Cursor | _Done]] = [(one.offset, one) for one in settings]
    for one in left:
        if isinstance(one, _Live):
            steps.append((one.row.offset, one))
        else:
            steps.append((one.end if isinstance(one, _Done) else _FOREVER, one))
    for _, step in sorted(steps, key=itemgetter(0)):
        if isinstance(step, Settings):
            for put in step.puts:
                log_state.put(put)
        elif isinstance(step, _Cursor):
            name = log_state.topics_by_id[step.topic].name
            log_state.groups.advance(name, {str(step.queue): step.next_offset}, changed)
        elif isinstance(step, _Done):
            group = log_state.groups.by_topic_id.get(step.topic)
            held = None if group is None else group.items.get(int(np.int64(step.key).astype(np.uint64)))
            if group is not None and held is not None:
                group.end(held.root)
                changed.items.add((step.topic, held.key))
        elif log_state.topics_by_id[step.topic].internal:
            log_state.groups.apply(step.row, step.topic, changed)
        else:
            log_state.groups.remove_dead(step.row, step.topic, changed)
