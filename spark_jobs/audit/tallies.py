"""Tallies: the counts of one segment, as rows of one shape that Spark adds up. Runs in executors.

Their number grows with topics, hours and faults, not with records.

| sort | what | beside `count` |
|---|---|---|
| record | the type of record: see `RECORDS`; `carried`: retention removed the timer | |
| timer | the outcome of the timer: see `ledger.OUTCOMES` | |
| timer | `overdue`: pending too long | `most_ms`: the longest |
| lateness | - | on time, by `hour_ms` of the due time, `bucket` and `at`, a segment; `most_ms`: latest |
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

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timerwheel.spark_jobs.audit.findings import Finding
from timerwheel.spark_jobs.audit.lateness import buckets_of
from timerwheel.spark_jobs.audit.ledger import OUTCOMES, PENDING, Bounds, Judgement, on_time
from timerwheel.spark_jobs.columns import arrow_schema, filled
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
LATENESS = "lateness"
RECORDS = ("other", "direct", "delivered", "early", "recalled", "scheduled", "replaced")


def tallies(
    node: str, table: Table, judged: Judgement, findings: Sequence[Finding], bounds: Bounds, kept_max: int
) -> pa.Table:
    """All tallies of a segment, with the first `kept_max` findings in full."""
    rows, topics = table.rows, table.topics
    parts = [
        _by_topic(rows, topics, RECORDS, _record_types(rows), "record"),
        _by_topic(rows[judged.carried], topics, ["carried"], 0, "record"),
        _by_topic(judged.timers, topics, OUTCOMES, judged.outcomes, "timer"),
        _lateness(rows, topics),
        *_of_judgement(judged, topics, findings, bounds, kept_max),
    ]
    return filled(pa.concat_tables(parts), SCHEMA, node=node)


def in_segment(found: pa.Table, base: int) -> pa.Table:
    """Tallies with the segment of the deliveries, for the table of lateness."""
    at = pc.if_else(pc.equal(found["sort"], LATENESS), pa.scalar(base, pa.int64()), found["at"])
    return found.set_column(found.schema.get_field_index("at"), "at", at)


def tallies_of_ends(
    node: str, table: Table, judged: Judgement, findings: Sequence[Finding], bounds: Bounds, kept_max: int
) -> pa.Table:
    """What changed in a segment that was judged before; `table` has its open timers."""
    ended = judged.outcomes != PENDING
    timers = judged.timers[ended]
    fewer = _by_topic(timers, table.topics, OUTCOMES, PENDING, "timer")
    place = fewer.schema.get_field_index("count")
    parts = [
        _by_topic(timers, table.topics, OUTCOMES, judged.outcomes[ended], "timer"),
        fewer.set_column(place, "count", pc.negate(fewer["count"])),
        *_of_judgement(judged, table.topics, findings, bounds, kept_max),
    ]
    return filled(pa.concat_tables(parts), SCHEMA, node=node)


def tallies_of_piece(
    node: str, number: int, topics: list[str], timers: Rows | None, *, dropped: int, strange: int
) -> pa.Table:
    """The rows about a piece: its open timers if they changed, and the other counts if there are any."""
    parts = [SCHEMA.empty_table()]
    if timers is not None:
        found = _groups(_owners(timers), {"topic": topics}, timers["due_ms"], "min")
        parts += [filled(one, SCHEMA, what="open") for one in (found, pa.table({"count": [0]}))]
    for what, count in (("dropped", dropped), ("strange", strange)):
        if count:
            parts.append(filled(pa.table({"count": [count]}), SCHEMA, what=what))
    return filled(pa.concat_tables(parts), SCHEMA, node=node, sort=PIECE, at=number)


def _of_judgement(
    judged: Judgement, topics: list[str], findings: Sequence[Finding], bounds: Bounds, kept_max: int
) -> list[pa.Table]:
    return [_overdue(judged, topics, bounds), _log(judged), _broken(findings), _kept(findings[:kept_max])]


def _record_types(rows: Rows) -> np.ndarray:
    """The type of each record, as an index into RECORDS."""
    kind, ends = rows["kind"], has_origin(rows)
    message, timer = kind == Kind.MESSAGE, kind == Kind.TIMER
    early = rows["flags"] & FLAG_EARLY != 0
    chosen = [message & ~ends, message & ~early, message, (kind == Kind.CANCEL) & ends, timer & ~ends, timer]
    found: np.ndarray = np.select(chosen, list(range(1, len(RECORDS))), 0)
    return found


def _owners(rows: Rows) -> dict[str, np.ndarray]:
    return {"topic": rows["topic"], "lease": rows["flags"] & FLAG_LEASE != 0}


def _groups(
    keys: Mapping[str, np.ndarray | pa.Array],
    names: Mapping[str, Sequence[str]],
    values: np.ndarray | None = None,
    of: str = "max",
) -> pa.Table:
    """How often each combination of keys occurs, and the `of` of its values, if there are any.

    Keys with `names` are indices into them: a segment has few of these, and many rows.
    """
    most = {} if values is None else {"most_ms": values}
    wanted = [([], "count_all"), *((name, of) for name in most)]
    found = pa.table({**keys, **most}).group_by(list(keys)).aggregate(wanted)
    found = found.rename_columns([*keys, "count", *most])
    for key, texts in names.items():
        named = pa.array(texts, pa.string()).take(found[key].combine_chunks())
        found = found.set_column(found.schema.get_field_index(key), key, named)
    return found


def _by_topic(
    rows: Rows, topics: list[str], whats: Sequence[str], what: np.ndarray | int, sort: str
) -> pa.Table:
    codes = np.broadcast_to(what, len(rows)).astype(np.int32)
    found = _groups({**_owners(rows), "what": codes}, {"topic": topics, "what": whats})
    return filled(found, SCHEMA, sort=sort)


def _overdue(judged: Judgement, topics: list[str], bounds: Bounds) -> pa.Table:
    over_ms = bounds.last_ms - judged.timers["due_ms"]
    chosen = (judged.outcomes == PENDING) & (over_ms > OVERDUE_MS)
    found = _groups(_owners(judged.timers[chosen]), {"topic": topics}, over_ms[chosen])
    return filled(found, SCHEMA, sort="timer", what="overdue")


def _lateness(rows: Rows, topics: list[str]) -> pa.Table:
    rows = rows[on_time(rows)]
    late_ms = np.maximum(rows["store_ms"] - rows["due_ms"], 0)
    keys = {
        "topic": rows["topic"],
        "hour_ms": rows["due_ms"] // HOUR_MS * HOUR_MS,
        "bucket": buckets_of(late_ms),
    }
    return filled(_groups(keys, {"topic": topics}, late_ms), SCHEMA, lease=False, sort=LATENESS)


def _log(judged: Judgement) -> pa.Table:
    counts = {"unproved": judged.unproved, "out_of_order": judged.out_of_order}
    return filled(pa.table({"what": list(counts), "count": list(counts.values())}), SCHEMA, sort="log")


def _broken(findings: Sequence[Finding]) -> pa.Table:
    keys = {
        "what": pa.array([finding.rule for finding in findings], pa.string()),
        "lease": pa.array([finding.lease for finding in findings], pa.bool_()),
    }
    return filled(_groups(keys, {}), SCHEMA, sort="rule")


def _kept(findings: Sequence[Finding]) -> pa.Table:
    rows = [
        {
            "lease": finding.lease,
            "sort": "finding",
            "what": finding.rule,
            "at": finding.offset,
            "finding": msgspec.msgpack.encode(finding),
        }
        for finding in findings
    ]
    return pa.Table.from_pylist(rows, SCHEMA)
