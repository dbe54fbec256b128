"""Tallies: the counts of one segment, as rows of one shape that Spark adds up. Runs in executors.

Their number grows with topics, hours and faults, not with records.

| sort | what | beside `count` |
|---|---|---|
| record | the type of record: see `RECORDS`; `carried`: retention removed the timer | |
| timer | the outcome of the timer: see `ledger.OUTCOMES` | |
| timer | `overdue`: pending too long | `most_ms`: the longest |
| lateness | - | deliveries on time by `hour_ms` of the due time and `bucket`; `most_ms`: the latest |
| log | `unproved`, `out_of_order` | |
| rule | the rule that was broken | |
| finding | the rule that was broken | `at`: offset; `finding`: all of it, as MessagePack |

Of a segment that was judged before, `timer` rows say what changed: as many fewer are `pending` as ended.
With a checkpoint there are also rows about each piece (`spark_jobs.audit.plan`), which are not added up:

| sort | what | beside `count` |
|---|---|---|
| piece | `open`: open timers by topic; one row has no topic | `at`: the piece; `most_ms`: the least due |
| piece | `dropped`: records whose timers retention removed | `at` |
| piece | `strange`: references that only a whole audit can judge | `at` |
"""

from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timerwheel.spark_jobs.audit.findings import Finding
from timerwheel.spark_jobs.audit.lateness import buckets_of
from timerwheel.spark_jobs.audit.ledger import OUTCOMES, PENDING, Bounds, Judgement, on_time
from timerwheel.spark_jobs.columns import arrow_schema
from timerwheel.state.batch import has_origin
from timerwheel.store.record import FLAG_EARLY, FLAG_LEASE, Kind
from timerwheel.store.table import Rows, Table
from timerwheel.wheel.geometry import HOUR_MS

OVERDUE_MS = 60_000  # a timer pending this long after its due time, by the log's clock, is reported

TALLIES = (
    "node string, lease boolean, topic string, sort string, what string, hour_ms bigint, bucket int, "
    "count bigint, most_ms bigint, at bigint, finding binary"
)
SCHEMA = arrow_schema(TALLIES)
PIECE = "piece"
RECORDS = ("other", "direct", "delivered", "early", "recalled", "scheduled", "replaced")


def tallies(
    node: str, table: Table, judged: Judgement, findings: Sequence[Finding], bounds: Bounds, kept_max: int
) -> pa.Table:
    """All tallies of a segment, with the first `kept_max` findings in full."""
    rows = table.rows
    parts = [
        _by_topic(rows, np.array(RECORDS), _record_types(rows), "record"),
        _by_topic(rows[judged.carried], np.array(["carried"]), 0, "record"),
        _by_topic(judged.timers, np.array(OUTCOMES), judged.outcomes, "timer"),
        _overdue(judged, bounds),
        _lateness(rows),
    ]
    named = [_with_names(part, table.topics) for part in parts]
    return _filled(node, [*named, _log(judged), _broken(findings), _kept(findings[:kept_max])])


def tallies_of_ends(
    node: str, table: Table, judged: Judgement, findings: Sequence[Finding], bounds: Bounds, kept_max: int
) -> pa.Table:
    """What changed in a segment that was judged before; `table` has its open timers."""
    ended = judged.outcomes != PENDING
    timers = judged.timers[ended]
    fewer = _by_topic(timers, np.array(OUTCOMES), PENDING, "timer")
    place = fewer.schema.get_field_index("count")
    parts = [
        _by_topic(timers, np.array(OUTCOMES), judged.outcomes[ended], "timer"),
        fewer.set_column(place, "count", pc.negate(fewer["count"])),
        _overdue(judged, bounds),
    ]
    named = [_with_names(part, table.topics) for part in parts]
    return _filled(node, [*named, _log(judged), _broken(findings), _kept(findings[:kept_max])])


def tallies_of_piece(
    node: str, number: int, topics: list[str], timers: Rows | None, *, dropped: int, strange: int
) -> pa.Table:
    """The rows about a piece: its open timers if they changed, and the other counts if there are any."""
    parts = []
    if timers is not None:
        columns = {
            "topic": timers["topic"],
            "lease": timers["flags"] & FLAG_LEASE != 0,
            "due_ms": timers["due_ms"],
        }
        found = (
            pa.table(columns).group_by(["topic", "lease"]).aggregate([("due_ms", "count"), ("due_ms", "min")])
        )
        open_timers = {
            "topic": found["topic"],
            "lease": found["lease"],
            "sort": pa.repeat(pa.scalar(PIECE), len(found)),
            "what": pa.repeat(pa.scalar("open"), len(found)),
            "count": found["due_ms_count"],
            "most_ms": found["due_ms_min"],
        }
        parts.append(_with_names(pa.table(open_timers), topics))
        parts.append(pa.table({"sort": [PIECE], "what": ["open"], "count": [0]}))
    for what, count in (("dropped", dropped), ("strange", strange)):
        if count:
            parts.append(pa.table({"sort": [PIECE], "what": [what], "count": [count]}))
    rows = _filled(node, parts)
    place = rows.schema.get_field_index("at")
    return rows.set_column(place, SCHEMA.field("at"), pa.array(np.full(len(rows), number, np.int64)))


def _with_names(part: pa.Table, topics: list[str]) -> pa.Table:
    place = part.schema.get_field_index("topic")
    names = pa.array(topics, pa.string()).take(part["topic"].combine_chunks())
    return part.set_column(place, "topic", names)


def _filled(node: str, parts: Sequence[pa.Table]) -> pa.Table:
    """All columns of TALLIES."""
    if not parts:
        return SCHEMA.empty_table()
    found = pa.concat_tables(parts, promote_options="default")
    columns = []
    for field in SCHEMA:
        if field.name == "node":
            columns.append(pa.repeat(pa.scalar(node), len(found)))
        elif field.name in found.column_names:
            columns.append(found[field.name].cast(field.type))
        else:
            columns.append(pa.nulls(len(found), field.type))
    return pa.table(columns, schema=SCHEMA)


def _record_types(rows: Rows) -> np.ndarray:
    """The type of each record, as an index into RECORDS."""
    kind, ends = rows["kind"], has_origin(rows)
    message, timer = kind == Kind.MESSAGE, kind == Kind.TIMER
    early = rows["flags"] & FLAG_EARLY != 0
    chosen = [message & ~ends, message & ~early, message, (kind == Kind.CANCEL) & ends, timer & ~ends, timer]
    found: np.ndarray = np.select(chosen, list(range(1, len(RECORDS))), 0)
    return found


def _by_topic(rows: Rows, whats: np.ndarray, what: np.ndarray | int, sort: str) -> pa.Table:
    columns = {
        "topic": rows["topic"],
        "lease": rows["flags"] & FLAG_LEASE != 0,
        "code": np.broadcast_to(what, len(rows)).astype(np.int32),
    }
    found = pa.table(columns).group_by(list(columns)).aggregate([([], "count_all")])
    return pa.table(
        {
            "topic": found["topic"],
            "lease": found["lease"],
            "sort": pa.repeat(pa.scalar(sort), len(found)),
            "what": pa.array(whats.tolist(), pa.string()).take(found["code"].combine_chunks()),
            "count": found["count_all"],
        }
    )


def _overdue(judged: Judgement, bounds: Bounds) -> pa.Table:
    over_ms = bounds.last_ms - judged.timers["due_ms"]
    chosen = (judged.outcomes == PENDING) & (over_ms > OVERDUE_MS)
    rows = judged.timers[chosen]
    columns = {"topic": rows["topic"], "lease": rows["flags"] & FLAG_LEASE != 0, "over_ms": over_ms[chosen]}
    found = pa.table(columns).group_by(["topic", "lease"]).aggregate(_many_and_most("over_ms"))
    return pa.table(
        {
            "topic": found["topic"],
            "lease": found["lease"],
            "sort": pa.repeat(pa.scalar("timer"), len(found)),
            "what": pa.repeat(pa.scalar("overdue"), len(found)),
            "count": found["over_ms_count"],
            "most_ms": found["over_ms_max"],
        }
    )


def _lateness(rows: Rows) -> pa.Table:
    rows = rows[on_time(rows)]
    late_ms = np.maximum(rows["store_ms"] - rows["due_ms"], 0)
    counted = pa.table(
        {
            "topic": rows["topic"],
            "hour_ms": rows["due_ms"] // HOUR_MS * HOUR_MS,
            "bucket": buckets_of(late_ms),
            "late_ms": late_ms,
        }
    )
    found = counted.group_by(["topic", "hour_ms", "bucket"]).aggregate(_many_and_most("late_ms"))
    return pa.table(
        {
            "topic": found["topic"],
            "lease": pa.repeat(pa.scalar(value=False), len(found)),
            "sort": pa.repeat(pa.scalar("lateness"), len(found)),
            "hour_ms": found["hour_ms"],
            "bucket": found["bucket"],
            "count": found["late_ms_count"],
            "most_ms": found["late_ms_max"],
        }
    )


def _many_and_most(column: str) -> list[tuple[str, str]]:
    return [(column, "count"), (column, "max")]


def _log(judged: Judgement) -> pa.Table:
    counts = {"unproved": judged.unproved, "out_of_order": judged.out_of_order}
    return pa.table({"sort": ["log"] * len(counts), "what": list(counts), "count": list(counts.values())})


def _broken(findings: Sequence[Finding]) -> pa.Table:
    rules = pa.array([finding.rule for finding in findings], pa.string())
    leases = pa.array([finding.lease for finding in findings], pa.bool_())
    found = (
        pa.table({"what": rules, "lease": leases}).group_by(["what", "lease"]).aggregate([([], "count_all")])
    )
    return pa.table(
        {
            "lease": found["lease"],
            "sort": pa.repeat(pa.scalar("rule"), len(found)),
            "what": found["what"],
            "count": found["count_all"],
        }
    )


def _kept(findings: Sequence[Finding]) -> pa.Table:
    return pa.table(
        {
            "lease": pa.array([finding.lease for finding in findings], pa.bool_()),
            "sort": pa.array(["finding"] * len(findings), pa.string()),
            "what": pa.array([finding.rule for finding in findings], pa.string()),
            "at": pa.array([finding.offset for finding in findings], pa.int64()),
            "finding": pa.array([msgspec.msgpack.encode(finding) for finding in findings], pa.binary()),
        }
    )
