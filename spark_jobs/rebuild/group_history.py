"""Settings and consumer groups from the log: what is left of them, reduced where the records lie.

The service makes its groups by letting every lease, acknowledgement and setting take effect in log order.
Most of these records are about messages that were acknowledged long ago. Here Spark drops what can have no
effect any more, and the driver lets the rest take effect in log order, by the service's own code:

1. Of a setting, only its last value in each segment. What moves or resets cursors stays in order.
2. Of a group, nothing before its last reset: a rewind, or that it was deleted.
3. Of an item (a message that a group holds or held), nothing up to its last end. An end counts if no later
   lease of the same message came before it, as `timerwheel.state.groups.GroupState.end` has it. What the
   manifest says of an item that ended later is taken back in the same place.
4. Instead of the dropped leases, how far each of a group's cursors had come: one past the greatest queue
   offset that was taken since the last reset.

What comes to the driver is as large as what the groups hold now and the settings are, not as the log.
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
from timerwheel.store.record import FLAG_LEASE, Kind

_CONTROL_SCHEMA = "site int, offset bigint, puts binary"
_LEASE_COLUMNS = ("root", "offset", "kind", "flags", "queue", "due_ms", "prior_due_ms")
_LEASE_SCHEMA = "site int, topic int, " + ", ".join(f"{name} bigint" for name in _LEASE_COLUMNS)
_EVENTS = (ConfigTable.GROUP, ConfigTable.CURSOR)  # what may end or reset a group: kept in order
_FOREVER = 1 << 62


class Settings(NamedTuple):
    """One CONTROL record's changes that still matter."""

    offset: int
    puts: list[Put]


def replay_groups(
    spark: SparkSession, survey: Survey, plans: list[SegmentPlan], views: list[LogState], *, salvage: bool
) -> None:
    """Let what is left of settings and groups take effect in the views, one for each site."""
    settings_from = [view.settings_from for view in views]
    settings = _read_settings(spark, survey, plans, settings_from, salvage=salvage)
    begins = [_lease_begins(view, settings.get(site, [])) for site, view in enumerate(views)]
    leases = _lease_frame(spark, survey, plans, begins)
    left: list[_Live | _Cursor | _Done] = []
    if leases is not None:
        leases = leases.persist()
        left = _reduce(spark, leases, _told_items(views))
        leases.unpersist()
    for site, view in enumerate(views):
        _take_effect(view, settings.get(site, []), [one for one in left if one.site == site])


def _read_settings(
    spark: SparkSession, survey: Survey, plans: list[SegmentPlan], begins: list[int], *, salvage: bool
) -> dict[int, list[Settings]]:
    numbers = [number for number, found in enumerate(survey.found) if found.controls]
    if not numbers:
        return {}
    segments = survey.segments

    def read(place: int) -> Iterator[pa.RecordBatch]:
        number = numbers[place]
        site = plans[number].site
        rows = SegmentReader(segments[number], salvage=True).table().rows
        rows = rows[(rows["kind"] == Kind.CONTROL) & (rows["offset"] >= begins[site])]
        kept = _last_puts(rows["offset"].tolist(), read_records(segments[number], rows), salvage=salvage)
        yield pa.record_batch(
            {
                "site": pa.array([site] * len(kept), pa.int32()),
                "offset": pa.array([one.offset for one in kept], pa.int64()),
                "puts": pa.array([msgspec.json.encode(one.puts) for one in kept], pa.binary()),
            }
        )

    found: dict[int, list[Settings]] = defaultdict(list)
    for row in map_segments(spark, [segments[n] for n in numbers], read, _CONTROL_SCHEMA).collect():
        found[row.site].append(Settings(row.offset, msgspec.json.decode(bytes(row.puts), type=list[Put])))
    return {site: sorted(some, key=lambda one: one.offset) for site, some in found.items()}


def _last_puts(
    offsets: list[int], records: list[bytes | CorruptionError], *, salvage: bool
) -> list[Settings]:
    """The changes of one segment, without those that a later one of the segment undoes (rule 1)."""
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
        site, topics = plans[number].site, plans[number].topics
        table = SegmentReader(segments[number], salvage=True).table()
        rows = table.rows
        first = np.array([begins[site].get(name, begins[site][""]) for name in table.topics], np.uint64)
        rows = rows.compress(rows["flags"] & FLAG_LEASE != 0)
        rows = rows.compress(rows["offset"] >= first[rows["topic"]])
        ids = pa.array([topics.get(name, -1) for name in table.topics], pa.int32())
        columns = {name: pa.array(rows[name].astype("int64")) for name in _LEASE_COLUMNS}
        yield pa.record_batch(
            {
                "site": pa.array([site] * len(rows), pa.int32()),
                "topic": ids.take(pa.array(rows["topic"])),
                **columns,
            }
        )

    return map_segments(spark, [segments[n] for n in numbers], read, _LEASE_SCHEMA)


def _lease_begins(view: LogState, settings: list[Settings]) -> dict[str, int]:
    """From which offset on the leases of a group matter, by the name of its topic; of all others under ""."""
    begins = {"": view.settings_from}
    for one in settings:
        for put in one.puts:
            if put.table == ConfigTable.CURSOR or (put.table == ConfigTable.GROUP and put.value is None):
                begins[put.key] = one.offset
    return begins


def _told_items(views: list[LogState]) -> list[tuple[int, int, int]]:
    """(site, topic, key) of the items that the manifests tell of; keys are signed, as Spark has them."""
    return [
        (site, group.topic_id, int(np.uint64(key).astype(np.int64)))
        for site, view in enumerate(views)
        for group in view.groups
        for key in group.items
    ]


class _Live(NamedTuple):
    """A record that still matters."""

    site: int
    topic: int
    row: LeaseRow


class _Cursor(NamedTuple):
    """How far a cursor had come in the end."""

    site: int
    topic: int
    queue: int
    next_offset: int


class _Done(NamedTuple):
    """An item of the manifest that ended at `end`."""

    site: int
    topic: int
    end: int
    key: int


def _reduce(
    spark: SparkSession, leases: DataFrame, told: list[tuple[int, int, int]]
) -> list[_Live | _Cursor | _Done]:
    """What still matters of the lease records (rule 3), and how far cursors had come (rule 4)."""
    item = ["site", "topic", "key"]
    key = fn.shiftleft("queue", 48).bitwiseOR(fn.col("prior_due_ms"))
    following = fn.lead("root").over(Window.partitionBy(*item).orderBy("root"))
    first = (
        leases.where(f"root = offset and kind in ({Kind.TIMER:d}, {Kind.HOLD:d})")
        .select("site", "topic", "root", key.alias("key"))
        .withColumn("next_root", following)
    )
    ends = (
        leases.where(f"kind = {Kind.CANCEL:d}")
        .select("site", "topic", "root", fn.col("offset").alias("end"))
        .join(first, ["site", "topic", "root"])
        .where("next_root is null or end < next_root")
        .groupBy(*item)
        .agg(fn.max("end").alias("end"))
    )
    live = (
        leases.join(first.drop("next_root"), ["site", "topic", "root"], "left")
        .join(ends, item, "left")
        .where("end is null or offset > end")
        .select("site", "topic", *_LEASE_COLUMNS)
    )
    cursors = (
        leases.where(f"root = offset and kind in ({Kind.TIMER:d}, {Kind.HOLD:d}) and queue != {DEAD_QUEUE}")
        .groupBy("site", "topic", "queue")
        .agg((fn.max("prior_due_ms") + 1).alias("next_offset"))
    )
    left: list[_Live | _Cursor | _Done] = [
        _Live(row.site, row.topic, LeaseRow(*(row[name] for name in LeaseRow._fields)))
        for row in live.collect()
    ]
    left += [_Cursor(*row) for row in cursors.collect()]
    if told:
        frame = spark.createDataFrame(told, "site int, topic int, key bigint")
        done = ends.join(fn.broadcast(frame), item).select("site", "topic", "end", "key")
        left += [_Done(*row) for row in done.collect()]
    return left


def _take_effect(view: LogState, settings: list[Settings], left: list[_Live | _Cursor | _Done]) -> None:
    """In log order; how far a cursor came comes last."""
    changed = view.memtable.groups
    steps: list[tuple[int, Settings | _Live | _Cursor | _Done]] = [(one.offset, one) for one in settings]
    for one in left:
        if isinstance(one, _Live):
            steps.append((one.row.offset, one))
        else:
            steps.append((one.end if isinstance(one, _Done) else _FOREVER, one))
    for _, step in sorted(steps, key=itemgetter(0)):
        if isinstance(step, Settings):
            for put in step.puts:
                view.put(put)
        elif isinstance(step, _Cursor):
            name = view.topics_by_id[step.topic].name
            view.groups.advance(name, {str(step.queue): step.next_offset}, changed)
        elif isinstance(step, _Done):
            group = view.groups.by_topic_id.get(step.topic)
            held = None if group is None else group.items.get(int(np.int64(step.key).astype(np.uint64)))
            if group is not None and held is not None:
                group.end(held.root)
                changed.items.add((step.topic, held.key))
        elif view.topics_by_id[step.topic].internal:
            view.groups.apply(step.row, step.topic, changed)
        else:
            view.groups.remove_dead(step.row, step.topic, changed)
