"""What the tables of audits say about lateness: shares on time; percentiles by topic, time, hour of the day.

Needs neither Spark nor the logs. Memory grows with topics, hours and buckets, not with messages.
"""

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO, NamedTuple, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from timerwheel.spark_jobs.audit.lateness import Lateness, lateness_of, top_ms
from timerwheel.spark_jobs.audit.output import (
    AuditOutputError,
    AuditRun,
    Superseded,
    files_of,
    read_run,
    superseded,
    without,
)
from timerwheel.spark_jobs.audit.summary import Counted
from timerwheel.spark_jobs.audit.tallies import LATENESS
from timerwheel.spark_jobs.storage import open_binary, shown
from timerwheel.wheel.geometry import HOUR_MS

HOURS_MAX = 7 * 24
"""The longest span in hours that is shown by the hour; longer ones are shown by the day."""
TOPICS_OF_DAY = 12
_COLUMNS = ["topic", "hour_ms", "bucket", "delivered", "latest_ms"]
_PLACE = ["node", "segment"]
_Key = TypeVar("_Key")


class Period(msgspec.Struct, frozen=True):
    """The deliveries whose due time was in one hour or day."""

    start: str
    lateness: Lateness
    on_time: int


class TopicLateness(msgspec.Struct, frozen=True):
    """One topic. `worst_hour_ms` is the hour of the due time of its latest delivery."""

    topic: str
    lateness: Lateness
    on_time: int
    worst_hour_ms: int


class DayOfTopic(msgspec.Struct, frozen=True):
    """The p99 of a topic for each hour of the day, null where nothing was delivered."""

    topic: str
    p99_ms: list[int | None]


class Dashboard(msgspec.Struct, frozen=True):
    """The whole. `on_time` counts deliveries that were certainly late by `target_ms` at most.

    Topics are in the order of their p99, the latest first.
    """

    target_ms: int
    zone: str
    lateness: Lateness
    on_time: int
    counted: list[tuple[int, int]]  # (late by, deliveries), in order
    step: str  # of the periods: hour or day
    periods: list[Period]
    topics: list[TopicLateness]
    day: list[DayOfTopic]
    audits: list[AuditRun]


class _Row(NamedTuple):
    topic: str
    hour_ms: int
    counted: Counted


# ---------------------------------------------------------------------- reading


def read_rows(url: str, left_out: Sequence[Superseded] = ()) -> Iterator[_Row]:
    """The rows of an audit's table of lateness, but for what later audits judged again.

    Raises AuditOutputError if it has no table, or none that says which rows these are.
    """
    for name in files_of(url, LATENESS):
        with open_binary(name) as file:
            found = _table_of(file, url, _COLUMNS + (_PLACE if left_out else []))
        found = without(found, left_out, "segment", url)
        columns = (found[column].to_pylist() for column in _COLUMNS)
        for topic, hour_ms, bucket, delivered, latest_ms in zip(*columns, strict=True):
            yield _Row(topic, hour_ms, (bucket, delivered, latest_ms))


def _table_of(file: BinaryIO, url: str, columns: list[str]) -> pa.Table:
    try:
        known = pq.read_schema(file).names
        return pq.read_table(file, columns=[one for one in columns if one in known or one not in _PLACE])
    except (pa.ArrowInvalid, KeyError) as error:
        raise AuditOutputError(f"{shown(url)}: the table {LATENESS} is damaged: {error}") from None


# ---------------------------------------------------------------------- adding up


def dashboard(urls: Sequence[str], target_ms: int, zone: dt.tzinfo, zone_name: str) -> Dashboard:
    """Read audits and add up their lateness. Hours and days begin as in the zone.

    What several audits judged counts once, as the latest of them says.

    Raises AuditOutputError, and the errors of the storage.
    """
    runs = [read_run(url) for url in dict.fromkeys(urls)]
    left_out = superseded(runs)
    rows = [row for run in runs for row in read_rows(run.url, left_out[run.url])]
    topics = _grouped((row.topic, row) for row in rows)
    step, starts = _steps({row.hour_ms for row in rows}, zone)
    periods = _grouped((starts[row.hour_ms], row) for row in rows)
    return Dashboard(
        target_ms=target_ms,
        zone=zone_name,
        lateness=_lateness(rows),
        on_time=_on_time(rows, target_ms),
        counted=_counted(rows),
        step=step,
        periods=[
            Period(start.astimezone(zone).isoformat(), _lateness(found), _on_time(found, target_ms))
            for start, found in sorted(periods.items())
        ],
        topics=sorted(
            (_topic(name, found, target_ms) for name, found in topics.items()),
            key=lambda one: (-one.lateness.p99_ms, -one.lateness.max_ms, one.topic),
        ),
        day=_day(topics, zone),
        audits=runs,
    )


def _grouped(pairs: Iterable[tuple[_Key, _Row]]) -> dict[_Key, list[_Row]]:
    found: dict[_Key, list[_Row]] = defaultdict(list)
    for key, row in pairs:
        found[key].append(row)
    return found


def _steps(hours: set[int], zone: dt.tzinfo) -> tuple[str, dict[int, dt.datetime]]:
    """Whether to show hours or days, and the beginning of the one that each hour is in, in UTC.

    In the zone two hours of an autumn night would be equal: Python compares the times of one zone by what the
    clock shows, whichever of the two it means.
    """
    if not hours or max(hours) - min(hours) < HOURS_MAX * HOUR_MS:
        return "hour", {ms: dt.datetime.fromtimestamp(ms / 1_000, dt.UTC) for ms in hours}
    times = {ms: dt.datetime.fromtimestamp(ms / 1_000, zone) for ms in hours}
    days = {ms: time.replace(hour=0, minute=0, fold=0) for ms, time in times.items()}
    return "day", {ms: day.astimezone(dt.UTC) for ms, day in days.items()}


def _lateness(rows: Iterable[_Row]) -> Lateness:
    return lateness_of(row.counted for row in rows)


def _on_time(rows: Iterable[_Row], target_ms: int) -> int:
    return sum(
        delivered
        for _, _, (bucket, delivered, latest_ms) in rows
        if min(top_ms(bucket), latest_ms) <= target_ms
    )


def _counted(rows: Iterable[_Row]) -> list[tuple[int, int]]:
    """Deliveries by bucket, under its top, or the latest delivery in it if that is less."""
    buckets: dict[int, tuple[int, int]] = {}
    for _, _, (bucket, delivered, latest_ms) in rows:
        count, latest = buckets.get(bucket, (0, 0))
        buckets[bucket] = (count + delivered, max(latest, latest_ms))
    return [(min(top_ms(bucket), latest), count) for bucket, (count, latest) in sorted(buckets.items())]


def _topic(name: str, rows: Sequence[_Row], target_ms: int) -> TopicLateness:
    worst = max(rows, key=lambda row: (row.counted[2], -row.hour_ms))
    return TopicLateness(name, _lateness(rows), _on_time(rows, target_ms), worst.hour_ms)


def _day(topics: dict[str, list[_Row]], zone: dt.tzinfo) -> list[DayOfTopic]:
    """The topics with the most deliveries."""
    sizes = {name: sum(row.counted[1] for row in rows) for name, rows in topics.items()}
    chosen = sorted(sizes, key=lambda name: (-sizes[name], name))[:TOPICS_OF_DAY]
    days = []
    for name in chosen:
        hours = _grouped(
            (dt.datetime.fromtimestamp(row.hour_ms / 1_000, zone).hour, row) for row in topics[name]
        )
        days.append(
            DayOfTopic(name, [_lateness(hours[hour]).p99_ms if hour in hours else None for hour in range(24)])
        )
    return days
