"""The forecast: how many messages fall due in each coming second, and the jitter that would flatten them.

`shuffle` finds the pending timers. Each segment then counts its own by topic and second, and Spark adds up
and keeps the counts. After that nothing grows with messages: the driver holds one number for each second of
the horizon, and a row for each of the busiest topics.

Leases of consumer groups are left out: they are not messages that will fall due.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own way to name it

from timerwheel.errors import UnknownTopicError
from timerwheel.model.messages import SlotInfo
from timerwheel.spark_jobs.forecast.flatten import Flattening, flatten
from timerwheel.spark_jobs.forecast.horizon import Horizon
from timerwheel.spark_jobs.live_logs import LiveLogs
from timerwheel.spark_jobs.logs import NodeLog
from timerwheel.spark_jobs.progress import JobProgress
from timerwheel.spark_jobs.segment_stats import ReadOptions, Survey, survey
from timerwheel.spark_jobs.shuffle import shuffle
from timerwheel.spark_jobs.tables import write_one_file
from timerwheel.spark_jobs.tasks import group_by_number
from timerwheel.state.batch import has_origin
from timerwheel.store.record import FLAG_LEASE, Kind
from timerwheel.store.table import Rows, Table
from timerwheel.wheel.geometry import SECOND_MS

UNITS_S = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400}
# The `second` of messages due before the horizon; later ones have the number of its seconds.
_OVERDUE = -1
_COUNTED = "topic string, second int, messages bigint"
WRITTEN = pa.schema(
    {
        "topic": pa.string(),
        "due_ms": pa.int64(),
        "due": pa.timestamp("us", "UTC"),
        "messages": pa.int64(),
    }
)


class TopicPeak(msgspec.Struct, frozen=True):
    """The busiest second of one topic, and the jitter that would flatten the topic alone."""

    topic: str
    within: int  # messages that fall due within the horizon
    worst: SlotInfo
    flattening: Flattening | None  # None if no rate was given


class Forecast(msgspec.Struct, frozen=True):
    """The forecast. Lists are sorted by count, without empty entries; times are epoch milliseconds."""

    from_ms: int
    until_ms: int
    overdue: int  # messages due before `from_ms`
    within: int
    later: int  # messages due at or after `until_ms`
    busiest: dict[str, list[SlotInfo]]  # by unit: second, minute, hour, aligned to UTC
    topics: list[TopicPeak]
    flattening: Flattening | None

    @property
    def waiting(self) -> int:
        """All waiting messages."""
        return self.overdue + self.within + self.later


class Counted(NamedTuple):
    """What was read of the logs: their statistics, the counts, and the sums of these."""

    found: Survey
    counted: DataFrame
    totals: "Totals"


def count_live(
    live: LiveLogs, progress: JobProgress, options: ReadOptions, horizon: Horizon, *, topic: str | None = None
) -> Counted:
    """Count the scheduled messages of the logs, of one topic if given, while retention may remove segments.

    Raises UnknownTopicError for a topic without a record, and what `survey` raises.
    """
    found: Survey | None = None

    def work(logs: Sequence[NodeLog]) -> Counted:
        nonlocal found
        with progress.stage("survey"):
            found = survey(live.spark, logs, options, known=found)
        if topic is not None and not any(topic in segment.topics for segment in found.found):
            raise UnknownTopicError(f"the log has no record of the topic {topic!r}")
        with progress.stage("count"):
            counted = count_due(live.spark, found, horizon, topic=topic)
            return Counted(found, counted, totals_of(counted, horizon))

    return live.read(work)


def count_due(
    spark: SparkSession, surveyed: Survey, horizon: Horizon, *, topic: str | None = None
) -> DataFrame:
    """Counts waiting messages by topic and second of the horizon. Spark keeps them for several queries.

    Columns: `topic`; `second` from the start of the horizon, -1 for overdue messages, the number of the
    horizon's seconds for later ones; `messages`. Limited to one topic if given.
    """

    def emit(_number: int, table: Table) -> dict[str, np.ndarray]:
        return {"about": _ended_elsewhere(table.rows)}

    def collect(_number: int, table: Table, references: pa.Table) -> pa.Table:
        return _count(table, references["about"].to_numpy(), horizon, topic)

    counted = shuffle(spark, surveyed.segments, emit, collect, _COUNTED)
    return counted.groupBy("topic", "second").agg(F.sum("messages").alias("messages")).persist()


def _ends(rows: Rows) -> np.ndarray:
    """The offsets of the timers of clients that these rows end or replace."""
    found: np.ndarray = rows["origin"][has_origin(rows) & (rows["flags"] & FLAG_LEASE == 0)]
    return found


def _ended_elsewhere(rows: Rows) -> np.ndarray:
    """References to timers of other segments; a segment finds those to its own by itself."""
    ends = _ends(rows)
    return ends[ends < rows["offset"][0]].astype(np.int64) if len(rows) else ends.astype(np.int64)


def _count(table: Table, about: np.ndarray, horizon: Horizon, topic: str | None) -> pa.Table:
    rows = table.rows
    waiting = (rows["kind"] == Kind.TIMER) & (rows["flags"] & FLAG_LEASE == 0)
    for ended in (about.astype(np.uint64), _ends(rows)):
        if len(rows):
            places = np.minimum(np.searchsorted(rows["offset"], ended), len(rows) - 1)
            # An end without its timer here belongs to a timer removed with an earlier segment.
            waiting[places[rows["offset"][places] == ended]] = False
    if topic is not None:
        waiting &= rows["topic"] == (
            table.topics.index(topic) if topic in table.topics else len(table.topics)
        )
    due_s = rows["due_ms"][waiting] // SECOND_MS - horizon.from_s
    seconds = np.clip(due_s, _OVERDUE, horizon.seconds)
    width = horizon.seconds - _OVERDUE + 1
    keys, counts = np.unique(
        rows["topic"][waiting].astype(np.int64) * width + (seconds - _OVERDUE), return_counts=True
    )
    return pa.table(
        {
            "topic": pa.array(table.topics, pa.string()).take(pa.array(keys // width)),
            "second": pa.array((keys % width + _OVERDUE).astype(np.int32)),
            "messages": pa.array(counts.astype(np.int64)),
        }
    )


class Totals(NamedTuple):
    """Messages of all topics: for each second of the horizon, and outside of it."""

    per_second: np.ndarray
    overdue: int
    later: int


def totals_of(counted: DataFrame, horizon: Horizon) -> Totals:
    """The sums over topics; 8 bytes in the driver for each second of the horizon."""
    found = counted.groupBy("second").agg(F.sum("messages").alias("messages")).toArrow()
    per_second = np.zeros(horizon.seconds - _OVERDUE + 1, np.int64)
    per_second[found["second"].to_numpy() - _OVERDUE] = found["messages"].to_numpy()
    return Totals(per_second[1:-1], int(per_second[0]), int(per_second[-1]))


def forecast(
    counted: DataFrame, totals: Totals, horizon: Horizon, *, rate: int | None = None, top: int = 10
) -> Forecast:
    """Sums up the counts: the busiest times and topics, and with a `rate` the jitter for each topic."""
    return Forecast(
        from_ms=horizon.from_ms,
        until_ms=horizon.until_ms,
        overdue=totals.overdue,
        within=int(totals.per_second.sum()),
        later=totals.later,
        busiest={
            unit: _busiest(totals.per_second, horizon, unit, top) for unit in ("second", "minute", "hour")
        },
        topics=_topics(counted, horizon, rate, top),
        flattening=None if rate is None else flatten(totals.per_second, rate),
    )


def in_units(per_second: np.ndarray, horizon: Horizon, unit: str) -> list[SlotInfo]:
    """The minutes, hours or days that are not empty, in order; the first may begin before the horizon."""
    begins_s, counts = _summed(per_second, horizon, unit)
    return [_slot(unit, int(begins_s[place]), int(counts[place])) for place in np.flatnonzero(counts)]


def _summed(per_second: np.ndarray, horizon: Horizon, unit: str) -> tuple[np.ndarray, np.ndarray]:
    """Where the units of the horizon begin, epoch seconds, and the messages in each."""
    unit_s = UNITS_S[unit]
    first_s = horizon.from_s // unit_s * unit_s
    begins_s = np.arange(first_s, horizon.from_s + horizon.seconds, unit_s)
    places = np.maximum(begins_s - horizon.from_s, 0)
    return begins_s, np.add.reduceat(per_second, places)


def _busiest(per_second: np.ndarray, horizon: Horizon, unit: str, top: int) -> list[SlotInfo]:
    """The units with the most messages, the earlier of equal ones first, without empty ones."""
    begins_s, counts = _summed(per_second, horizon, unit)
    places = np.argsort(-counts, kind="stable")[:top]
    return [_slot(unit, int(begins_s[place]), int(counts[place])) for place in places if counts[place]]


def _slot(unit: str, start_s: int, count: int) -> SlotInfo:
    return SlotInfo(unit, start_s * SECOND_MS, (start_s + UNITS_S[unit]) * SECOND_MS, count)


def _topics(counted: DataFrame, horizon: Horizon, rate: int | None, top: int) -> list[TopicPeak]:
    """The topics with the busiest seconds, each with the first of its busiest."""
    fullest = F.max(F.struct("messages", (-F.col("second")).alias("before"))).alias("fullest")
    peaks = (
        _within(counted, horizon)
        .groupBy("topic")
        .agg(F.sum("messages").alias("messages"), fullest)
        .select("topic", "messages", -F.col("fullest.before"), "fullest.messages")
        .toDF("topic", "messages", "second", "peak")
        .orderBy(F.desc("peak"), "topic")
        .limit(top)
        .collect()
    )
    advice = {} if rate is None else _flattened(counted, horizon, rate, [row.topic for row in peaks])
    return [
        TopicPeak(
            row.topic,
            row.messages,
            _slot("second", horizon.from_s + row.second, row.peak),
            advice.get(row.topic),
        )
        for row in peaks
    ]


def _within(counted: DataFrame, horizon: Horizon) -> DataFrame:
    return counted.where((F.col("second") > _OVERDUE) & (F.col("second") < horizon.seconds))


def _flattened(
    counted: DataFrame, horizon: Horizon, rate: int, topics: Sequence[str]
) -> dict[str, Flattening]:
    """The jitter for each of these topics alone; a task holds the seconds of one topic."""
    names = list(topics)

    def advise(key: tuple[pa.Scalar, ...], part: pa.Table) -> pa.Table:
        per_second = np.zeros(horizon.seconds, np.int64)
        per_second[part["second"].to_numpy()] = part["messages"].to_numpy()
        found = msgspec.json.encode(flatten(per_second, rate)).decode()
        return pa.table({"topic": [names[key[0].as_py()]], "found": [found]})

    if not names:
        return {}
    number = F.array_position(F.array(*map(F.lit, names)), F.col("topic")).cast("int") - 1
    chosen = _within(counted, horizon).where(F.col("topic").isin(names)).withColumn("number", number)
    rows: Iterable[tuple[str, str]] = (
        group_by_number(chosen, "number", len(names))
        .applyInArrow(advise, "topic string, found string")
        .collect()
    )
    return {topic: msgspec.json.decode(found, type=Flattening) for topic, found in rows}


def write_counts(counted: DataFrame, horizon: Horizon, url: str) -> None:
    """Write the counts of the horizon as a Parquet file for people (WRITTEN), in order of time."""
    due_ms = (F.col("second").cast("bigint") + horizon.from_s) * SECOND_MS
    kept = _within(counted, horizon).select(
        "topic", due_ms.alias("due_ms"), F.timestamp_millis(due_ms).alias("due"), "messages"
    )
    write_one_file(kept.repartition(1).sortWithinPartitions("due_ms", "topic"), WRITTEN, url)
