"""Rebuilds settings and consumer groups from the log; executors drop the records without effect.

The service builds its groups by applying every acknowledgement, retry and setting in log order. Most of these
records concern messages acknowledged long ago. Here the driver applies the settings, then for each group what
is left of its records with the service's own code. Left are:

1. For a setting, its last value in each segment. Records that make, rewind or delete groups stay in order.
2. For a group, nothing before it was made or last rewound, as its settings tell.
3. For the messages that a group is done with, the stretches of queue offsets that all records together make.
   In the same way for the dead letters that were redriven or dropped.
4. For an item (a message that a group holds or held), nothing up to its last end. An end counts if the
   message's next retry or lease came after it, as in `timerwheel.state.groups.GroupState.end`. An item of the
   manifest that has ended is removed.

The data on the driver grows with the settings and with what groups hold now, not with the log.
"""

from collections import defaultdict
from collections.abc import Iterator
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
from timerwheel.state.groups import DEAD_QUEUE, OFFSET_BITS, LeaseRow, is_internal
from timerwheel.state.state import LogState
from timerwheel.store.errors import CorruptionError
from timerwheel.store.record import ATTEMPT, END_OFFSET, FLAG_LEASE, QUEUE_OFFSET, Kind
from timerwheel.store.table import ROW_DTYPE, Rows, Table

_CONTROL_SCHEMA = "log int, offset bigint, puts binary"
_GROUP_SCHEMA = "log int, topic int, " + ", ".join(f"{name} bigint" for name in LeaseRow._fields)
_PLACE = ("log", "topic", "queue")
_STRETCH_SCHEMA = "log int, topic int, queue bigint, first bigint, end bigint"
_EVENTS = (ConfigTable.GROUP, ConfigTable.CURSOR)  # may make, end or reset a group: kept in order
_NEVER = 2**64 - 1


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
    for log_state, found in zip(log_states, settings, strict=True):
        for one in found:
            for put in one.puts:
                log_state.put(put, one.offset)
    records = _group_records(spark, survey, plans, [_begins(log_state) for log_state in log_states])
    if records is not None:
        records = records.persist()
        _apply_stretches(records, log_states)
        _apply_items(spark, records, log_states)
        records.unpersist()


# ---------------------------------------------------------------------- settings


def _read_settings(
    spark: SparkSession, survey: Survey, plans: list[SegmentPlan], begins: list[int], *, salvage: bool
) -> list[list[Settings]]:
    """The settings of each log, in log order."""
    found: list[list[Settings]] = [[] for _ in begins]
    numbers = [number for number, one in enumerate(survey.found) if one.controls]
    if not numbers:
        return found
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

    rows = map_segments(spark, [segments[n] for n in numbers], read, _CONTROL_SCHEMA).collect()
    for row in sorted(rows, key=lambda row: row.offset):
        found[row.log].append(Settings(row.offset, msgspec.json.decode(bytes(row.puts), type=list[Put])))
    return found


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


# ---------------------------------------------------------------------- records of groups


def _begins(log_state: LogState) -> dict[str, int]:
    """From where on the records of each group count, by its name (rule 2); "" for those of dead letters."""
    begin = log_state.settings_from
    return {"": begin} | {group.name: max(group.since, begin) for group in log_state.groups}


def _group_records(
    spark: SparkSession, survey: Survey, plans: list[SegmentPlan], begins: list[dict[str, int]]
) -> DataFrame | None:
    """The records that count: those of items, and stretches as rows of kind ACK. None if there are none."""
    numbers = [number for number, found in enumerate(survey.found) if found.leases]
    if not numbers:
        return None
    segments = survey.segments

    def read(place: int) -> Iterator[pa.RecordBatch]:
        number = numbers[place]
        log, topics = plans[number].log, plans[number].topics
        table = SegmentReader(segments[number], salvage=True).table()
        rows = _counting(table, begins[log])
        ids = pa.array([topics.get(name, -1) for name in table.topics], pa.int32())
        columns = {name: pa.array(rows[name].astype("int64")) for name in LeaseRow._fields}
        logs = pa.array([log] * len(rows), pa.int32())
        yield pa.record_batch({"log": logs, "topic": ids.take(pa.array(rows["topic"])), **columns})

    return map_segments(spark, [segments[n] for n in numbers], read, _GROUP_SCHEMA)


def _counting(table: Table, begins: dict[str, int]) -> Rows:
    """The rows of a segment that count, without repeats of another row."""
    rows = table.rows
    internal = np.array([is_internal(name) for name in table.topics], bool)
    first = [begins.get(name, _NEVER if is_internal(name) else begins[""]) for name in table.topics]
    rows = rows.compress(rows["flags"] & FLAG_LEASE != 0)
    rows = rows.compress(rows["offset"] >= np.array(first, np.uint64)[rows["topic"]])
    of_groups = internal[rows["topic"]]
    acks = rows["kind"] == Kind.ACK
    begun = (rows["root"] == rows["offset"]) & np.isin(rows["kind"], (int(Kind.TIMER), int(Kind.HOLD)))
    passing = np.where(of_groups, acks | (begun & (rows["queue"] != DEAD_QUEUE)), rows["kind"] == Kind.CANCEL)
    return np.concatenate([rows[of_groups & ~acks], _stretches(rows[passing])])


def _stretches(rows: Rows) -> Rows:
    """The queue offsets that these records mark as done, as rows of kind ACK (rule 3)."""
    acks = rows["kind"] == Kind.ACK
    alone = acks | (rows["kind"] == Kind.CANCEL) | (rows[ATTEMPT] > 0)
    firsts = np.where(alone, rows[QUEUE_OFFSET], 0)  # a lease of an earlier version: all before it
    ends = np.where(acks, rows[END_OFFSET], rows[QUEUE_OFFSET] + 1)
    keys, firsts, ends = joined(rows["topic"].astype(np.int64) << 16 | rows["queue"], firsts, ends)
    found = np.zeros(len(keys), ROW_DTYPE)
    found["kind"] = Kind.ACK
    found["topic"], found["queue"] = keys >> 16, keys & 0xFFFF
    found[QUEUE_OFFSET], found[END_OFFSET] = firsts, ends
    return found


def joined(
    keys: np.ndarray, firsts: np.ndarray, ends: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Stretches from `firsts` up to `ends`, joined where those of one key overlap or touch; in order."""
    keys, edges = np.tile(keys, 2), np.concatenate([firsts, ends])
    steps = np.repeat((1, -1), len(firsts))
    order = np.lexsort((-steps, edges, keys))
    keys, edges = keys[order], edges[order]
    closing = np.cumsum(steps[order]) == 0
    opening = np.roll(closing, 1)  # the last edge closes
    return keys[opening], edges[opening], edges[closing]


def _apply_stretches(records: DataFrame, log_states: list[LogState]) -> None:
    def join(key: tuple[pa.Scalar, ...], rows: pa.Table) -> pa.Table:
        firsts, ends = rows[QUEUE_OFFSET].to_numpy(), rows[END_OFFSET].to_numpy()
        _, firsts, ends = joined(np.zeros_like(firsts), firsts, ends)
        place = {name: pa.repeat(one, len(ends)) for name, one in zip(_PLACE, key, strict=True)}
        return pa.table(place | {"first": firsts, "end": ends})

    stretches = records.where(f"kind = {Kind.ACK:d}")
    for row in stretches.groupBy(*_PLACE).applyInArrow(join, _STRETCH_SCHEMA).collect():
        groups, changed = log_states[row.log].groups, log_states[row.log].memtable.groups
        if log_states[row.log].topics_by_id[row.topic].internal:
            groups.by_topic_id[row.topic].ack(row.queue, row.first, row.end)
            changed.groups.add(row.topic)
        else:
            for letter in range(row.first, row.end):
                groups.dead_of(row.topic).remove(letter)
            changed.dead.add(row.topic)


# ---------------------------------------------------------------------- items


def _apply_items(spark: SparkSession, records: DataFrame, log_states: list[LogState]) -> None:
    """Remove the items of manifests that ended, and apply the records after each last end (rule 4)."""
    records = records.where(f"kind != {Kind.ACK:d}")
    item = ["log", "topic", "key"]
    held = spark.createDataFrame(_manifest_items(log_states), "log int, topic int, root bigint, key bigint")
    key = fn.shiftleft("queue", OFFSET_BITS).bitwiseOR(fn.col(QUEUE_OFFSET))
    first = (
        records.where(f"root = offset and kind in ({Kind.TIMER:d}, {Kind.HOLD:d})")
        .select("log", "topic", "root", key.alias("key"))
        .union(held)
        .withColumn("next_root", fn.lead("root").over(Window.partitionBy(*item).orderBy("root")))
    )
    ends = (
        records.where(f"kind = {Kind.CANCEL:d}")
        .select("log", "topic", "root", fn.col("offset").alias("end"))
        .join(first, ["log", "topic", "root"])
        .where("next_root is null or end < next_root")
        .groupBy(*item)
        .agg(fn.max("end").alias("end"))
    )
    for row in held.join(ends, item).collect():
        groups, changed = log_states[row.log].groups, log_states[row.log].memtable.groups
        ended = groups.by_topic_id[row.topic].end(row.root)
        assert ended is not None
        changed.items.add((row.topic, ended))
    live = (
        records.join(first.drop("next_root"), ["log", "topic", "root"], "left")
        .join(ends, item, "left")
        .where("end is null or offset > end")
        .select("log", "topic", *LeaseRow._fields)
    )
    for row in sorted(live.collect(), key=lambda row: row.offset):
        log_state = log_states[row.log]
        lease = LeaseRow(*(row[name] for name in LeaseRow._fields))
        log_state.groups.apply(lease, row.topic, log_state.memtable.groups)


def _manifest_items(log_states: list[LogState]) -> list[tuple[int, int, int, int]]:
    """(log, topic, root, key) of the items in the manifests; keys are signed, as in Spark."""
    return [
        (log, group.topic_id, item.root, int(np.uint64(item.key).astype(np.int64)))
        for log, log_state in enumerate(log_states)
        for group in log_state.groups
        for item in group.items.values()
    ]
