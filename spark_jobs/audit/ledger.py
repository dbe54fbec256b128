"""The ledger judges the records of one segment, and the references to them, by the rules of the audit.

Runs in executors: imports neither LMDB nor an event loop.

Why it is enough to compare each record with its origin:
1. A record without an origin starts its own message (else `wrong_root`), unless it is the outcome of a
   task, which names its task. One with an origin belongs to the message of its origin (else
   `wrong_message`). So the records of a message form a tree below its root.
2. No timer is ended by two records (else `ended_twice` and similar). So the tree is a path.
3. Only a timer may be an origin (else `origin_no_timer`). So a path ends at its first MESSAGE or
   CANCEL: a message is delivered once, or recalled, or its last timer is pending.
4. Offsets grow along a path, so a path whose beginning retention removed enters the kept log once:
   two records with removed origins must differ in both origin and message.

With a checkpoint (`spark_jobs.audit.checkpoint`) the records before `Bounds.since` were judged earlier, and
of their segments only the open timers are here. A new record may end one of those. If it refers to another
place before `since`, something is wrong, but to say what takes that whole segment. If the log still has it,
the reference is `strange`, and a whole audit has to judge; else it is a finding, as nobody can know more.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timerwheel.model.admission import TASK_LOG_PREFIX
from timerwheel.spark_jobs.audit.findings import Fault, Rule
from timerwheel.state.batch import has_origin
from timerwheel.store.record import FLAG_EARLY, FLAG_LEASE, Kind
from timerwheel.store.table import Rows, Table

OUTCOMES = ("pending", "delivered", "early-delivered", "recalled", "rescheduled", "moved")
PENDING, DELIVERED, EARLY, RECALLED, RESCHEDULED, MOVED = range(len(OUTCOMES))

# Where a reference goes: to its timer; or, if retention removed the timer, to a segment chosen by the timer's
# offset and to one chosen by its message.
OF_TIMER, OF_DROPPED_TIMER, OF_DROPPED_ROOT = range(3)
_DROPPED = {OF_DROPPED_TIMER: "origin", OF_DROPPED_ROOT: "root"}  # what they have in common
_KIND_MAX = max(Kind)


class Bounds(NamedTuple):
    """Known facts about a log: where it begins, what retention removed, its clock, its damage."""

    begin: int  # offset of the first record that is kept
    whole: bool  # the log still has its very first segment
    last_ms: int  # the latest store time in the log
    bases: np.ndarray  # of the segments to judge
    damaged: list[tuple[int, int]]  # [offset, end) of regions without a whole record
    since: int = 0  # where the records begin that were not judged before
    kept_from: int = 0  # the base of the first segment that the log has now; `begin` is that of the audit


class Judgement(NamedTuple):
    """The result for one segment, in log order."""

    timers: Rows
    outcomes: np.ndarray  # indexes into OUTCOMES, one for each of `timers`
    ended_by: np.ndarray  # offset of the record that ended or replaced each, -1 if pending
    ended_ms: np.ndarray
    faults: list[Fault]
    carried: np.ndarray  # mask of the table's rows whose origin retention removed
    unproved: int  # records whose timer lies in a damaged region
    strange: int  # references that only a whole audit can judge
    out_of_order: int


# ---------------------------------------------------------------------- references


def references_of(rows: Rows, numbers: np.ndarray, bounds: Bounds) -> dict[str, np.ndarray]:
    """The references of a segment to earlier records; `numbers` maps topics of the table to the job's."""
    kept, dropped = _referring(rows, bounds)
    parts = [_columns(rows[kept], numbers, OF_TIMER, rows["origin"][kept])]
    if dropped.any():
        lost = rows[dropped]
        # These timers are gone. Their references meet in segments chosen by hash: over time most pending
        # timers were moved out of removed segments, so this has to spread over all of them.
        for sort, key in _DROPPED.items():
            places = (lost[key] >> np.uint64(3)) % np.uint64(len(bounds.bases))
            parts.append(_columns(lost, numbers, sort, bounds.bases[places.astype(np.int64)]))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def earlier_references(rows: Rows, numbers: np.ndarray, received: pa.Table) -> pa.Table:
    """The references of records judged before, whose timers retention had removed, that meet received ones.

    They are among the same timer's or message's, and have the columns of `references_of`.
    """
    parts = []
    for sort, key in _DROPPED.items():
        wanted = received[key].filter(pc.equal(received["sort"], sort)).to_numpy()
        chosen = rows[np.isin(rows[key].astype(np.int64), wanted)]
        parts.append(pa.table(_columns(chosen, numbers, sort, chosen["origin"])))
    return pa.concat_tables(parts)


def _referring(rows: Rows, bounds: Bounds) -> tuple[np.ndarray, np.ndarray]:
    """Masks of the rows whose origin the log may have, and of those whose origin retention removed."""
    refers = has_origin(rows) & (rows["origin"] < rows["offset"])
    before = rows["origin"] < bounds.begin
    return refers & ~before, refers & before & (not bounds.whole)


def _columns(rows: Rows, numbers: np.ndarray, sort: int, about: np.ndarray) -> dict[str, np.ndarray]:
    columns = {
        "about": about.astype(np.int64),
        "sort": np.full(len(rows), sort, np.int32),
        "origin": rows["origin"].astype(np.int64),
        "by": rows["offset"].astype(np.int64),
        "root": rows["root"].astype(np.int64),
        "store_ms": rows["store_ms"],
        "due_ms": rows["due_ms"],
        "prior_due_ms": rows["prior_due_ms"],
        "topic": numbers[rows["topic"]],
    }
    return columns | {name: rows[name].astype(np.int32) for name in ("queue", "rolls", "kind", "flags")}


# ---------------------------------------------------------------------- judging


class Ledger:
    """Judges one segment by its table and the references to it.

    With `before`, the table has the open timers of a segment that was judged before.
    """

    def __init__(
        self, table: Table, numbers: np.ndarray, names: list[str], bounds: Bounds, *, before: bool = False
    ) -> None:
        self._rows = table.rows
        self._topics = numbers[table.rows["topic"]]
        self._names = names
        self._bounds = bounds
        self._before = before
        self._strange = 0
        self._offsets = table.rows["offset"].astype(np.int64)
        self._faults: list[Fault] = []

    def judge(self, received: pa.Table) -> Judgement:
        """Apply every rule. Cost grows with the records of the segment; details cost only per fault."""
        references = _rows_of(received)
        if not self._before:
            self._judge_alone()
        ends, places, unproved = self._known(references[references["sort"] == OF_TIMER])
        self._judge_pairs(ends, places)
        ends, places = self._judge_twice(ends, places)
        for sort, key in _DROPPED.items():
            self._judge_dropped(references[references["sort"] == sort], sort, key)
        rows = self._rows
        outcomes = np.zeros(len(rows), np.int8)
        ended_by = np.full(len(rows), -1, np.int64)
        ended_ms = np.zeros(len(rows), np.int64)
        outcomes[places] = _outcomes(ends, rows[places])
        ended_by[places] = ends["by"]
        ended_ms[places] = ends["store_ms"]
        timers = rows["kind"] == Kind.TIMER
        return Judgement(
            rows[timers],
            outcomes[timers],
            ended_by[timers],
            ended_ms[timers],
            self._faults,
            _referring(rows, self._bounds)[1],
            unproved,
            self._strange,
            out_of_order(rows),
        )

    @property
    def _reports(self) -> np.ndarray:
        """Return the mask of the records in topics of outcomes: each names the task whose outcome it is."""
        reports = np.array([name.startswith(TASK_LOG_PREFIX) for name in self._names], bool)
        found: np.ndarray = reports[self._topics]
        return found

    # -- rules for a record by itself

    def _judge_alone(self) -> None:
        rows = self._rows
        kind = rows["kind"]
        ends = has_origin(rows)
        message = kind == Kind.MESSAGE
        timer = kind == Kind.TIMER
        lease = rows["flags"] & FLAG_LEASE != 0

        early = message & (rows["store_ms"] < rows["due_ms"])
        early_ms = (rows["due_ms"] - rows["store_ms"])[early].tolist()
        self._blame(Rule.EARLY, early, (f"delivered {ms:,} ms before its due time" for ms in early_ms))

        stray = ~ends & (message | timer) & (rows["root"] != rows["offset"])
        if stray.any():
            stray &= ~(message & self._reports)
        self._blame(
            Rule.WRONG_ROOT,
            stray,
            (f"it has no origin but names {root} as its message" for root in rows["root"][stray].tolist()),
        )
        self._blame(Rule.NO_ORIGIN, ~ends & (kind == Kind.CANCEL) & ~lease, "it names no timer")
        strange = (kind == 0) | (kind > _KIND_MAX) | (ends & ~message & ~timer & (kind != Kind.CANCEL))
        self._blame(Rule.WRONG_KIND, strange, (f"its kind is {number}" for number in kind[strange].tolist()))
        later = ends & (rows["origin"] >= rows["offset"])
        self._blame(
            Rule.UNKNOWN_ORIGIN,
            later,
            (f"its origin {origin} is not an earlier offset" for origin in rows["origin"][later].tolist()),
        )
        kept, dropped = _referring(rows, self._bounds)
        before = ends & ~kept & ~dropped & ~later
        self._blame(
            Rule.UNKNOWN_ORIGIN,
            before,
            (f"its origin {origin} is before the first record" for origin in rows["origin"][before].tolist()),
        )
        other = dropped & (rows["root"] > rows["origin"])
        self._blame(
            Rule.WRONG_MESSAGE,
            other,
            (f"its message {root} begins after its origin" for root in rows["root"][other].tolist()),
        )

    def _blame(self, rule: Rule, chosen: np.ndarray, details: Iterable[str] | str) -> None:
        """Record faults of rows of this segment."""
        if not chosen.any():
            return
        rows = self._rows[chosen]
        ends = has_origin(rows).tolist()
        self._note(
            [rule] * len(rows),
            rows["offset"].tolist(),
            [origin if end else None for end, origin in zip(ends, rows["origin"].tolist(), strict=True)],
            rows,
            self._topics[chosen],
            [details] * len(rows) if isinstance(details, str) else details,
        )

    # -- rules for a record and its timer

    def _known(self, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        """The ends whose origin is a timer of this segment, and the rows of those timers."""
        if not len(ends):
            return ends, np.zeros(0, np.int64), 0
        places = np.searchsorted(self._offsets, ends["origin"])
        places = np.minimum(places, max(len(self._offsets) - 1, 0))
        there = self._offsets[places] == ends["origin"] if len(self._offsets) else np.zeros(len(ends), bool)
        damaged = np.zeros(len(ends), bool)
        for offset, end in self._bounds.damaged:
            damaged |= (ends["origin"] >= offset) & (ends["origin"] < end)
        unproved = ~there & damaged
        missing = ~there & ~damaged
        earlier = missing & (ends["origin"] < self._bounds.since)
        self._blame_ends(
            Rule.UNKNOWN_ORIGIN, ends[missing & ~earlier], "no record begins at its origin {origin}"
        )
        gone = earlier & (ends["origin"] < self._bounds.kept_from)
        self._blame_ends(
            Rule.UNKNOWN_ORIGIN,
            ends[gone],
            "no timer was open at its origin {origin}, and retention has removed that segment",
        )
        self._strange += int(np.count_nonzero(earlier & ~gone))
        timers = there.copy()
        timers[there] = self._rows["kind"][places[there]] == Kind.TIMER
        self._blame_ends(
            Rule.ORIGIN_NO_TIMER, ends[there & ~timers], "the record at its origin {origin} is not a timer"
        )
        return ends[timers], places[timers], int(np.count_nonzero(unproved))

    def _judge_pairs(self, ends: np.ndarray, places: np.ndarray) -> None:
        timers = self._rows[places]
        roots = ends["root"] != timers["root"].astype(np.int64)
        self._blame_ends(Rule.WRONG_MESSAGE, ends[roots], "its timer {origin} belongs to another message")
        topics = (ends["topic"] != self._topics[places]) | (ends["queue"] != timers["queue"])
        topics |= (ends["flags"] ^ timers["flags"]) & FLAG_LEASE != 0
        self._blame_ends(
            Rule.WRONG_MESSAGE, ends[topics & ~roots], "its timer {origin} has another topic or queue"
        )
        prior = ends["prior_due_ms"] != timers["due_ms"]
        self._blame_due(ends[prior], timers[prior], "it states that its timer {origin} was due at {stated}")
        moved = (ends["kind"] == Kind.TIMER) & (ends["rolls"] > timers["rolls"])
        same = moved | (ends["kind"] == Kind.CANCEL)
        same |= (ends["kind"] == Kind.MESSAGE) & (ends["flags"] & FLAG_EARLY == 0)
        own = same & ~prior & (ends["due_ms"] != timers["due_ms"])
        self._blame_due(ends[own], timers[own], "it states that its message is due at {own}")

    def _blame_due(self, ends: np.ndarray, timers: Rows, what: str) -> None:
        details = [
            what.format(origin=end["origin"], stated=end["prior_due_ms"], own=end["due_ms"])
            + f", and the timer has {due_ms}"
            for end, due_ms in zip(ends, timers["due_ms"].tolist(), strict=True)
        ]
        self._blame_ends(Rule.WRONG_DUE, ends, details)

    def _judge_twice(self, ends: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The first end of each timer, and its row; every other is at fault."""
        order = np.lexsort((ends["by"], places))
        ends, places = ends[order], places[order]
        again = np.zeros(len(ends), bool)
        again[1:] = places[1:] == places[:-1]
        if again.any():
            firsts = np.maximum.accumulate(np.where(again, 0, np.arange(len(ends))))
            self._blame_again(ends[firsts[again]], ends[again])
        return ends[~again], places[~again]

    # -- rules for timers that retention removed

    def _judge_dropped(self, ends: np.ndarray, sort: int, key: str) -> None:
        ends = ends[np.lexsort((ends["by"], ends[key]))]
        again = ends[key][1:] == ends[key][:-1]
        if sort == OF_DROPPED_ROOT:  # the check by timer reports the others
            again &= ends["origin"][1:] != ends["origin"][:-1]
        again &= ends["by"][1:] >= self._bounds.since
        if again.any():
            places = np.flatnonzero(again) + 1
            self._blame_again(ends[places - 1], ends[places])

    # -- recording faults

    def _blame_again(self, firsts: np.ndarray, ends: np.ndarray) -> None:
        rules = [
            _twice(one, two) for one, two in zip(firsts["kind"].tolist(), ends["kind"].tolist(), strict=True)
        ]
        details = [
            f"timer {end['origin']} was ended at {first['by']}, and again by this record"
            if end["origin"] == first["origin"]
            else f"its message was continued at {first['by']}, and again by this record"
            for first, end in zip(firsts, ends, strict=True)
        ]
        self._blame_ends(rules, ends, details)

    def _blame_ends(self, rule: Rule | list[Rule], ends: np.ndarray, details: list[str] | str) -> None:
        """Record faults of references; `{origin}` in the details is the offset of their timer."""
        if not len(ends):
            return
        if isinstance(details, str):
            details = [details.format(origin=origin) for origin in ends["origin"].tolist()]
        rules = [rule] * len(ends) if isinstance(rule, Rule) else rule
        self._note(rules, ends["by"].tolist(), ends["origin"].tolist(), ends, ends["topic"], details)

    def _note(
        self,
        rules: Iterable[Rule],
        offsets: Iterable[int],
        timers: Iterable[int | None],
        rows: np.ndarray,
        topics: np.ndarray,
        details: Iterable[str],
    ) -> None:
        leases = (rows["flags"] & FLAG_LEASE != 0).tolist()
        names = [self._names[number] for number in topics.tolist()]
        roots, due_ms = rows["root"].tolist(), rows["due_ms"].tolist()
        columns = zip(rules, leases, names, offsets, timers, roots, due_ms, details, strict=True)
        self._faults += [Fault(*fields) for fields in columns]


def _rows_of(received: pa.Table) -> np.ndarray:
    """References as a structured array."""
    columns = {
        name: received[name].combine_chunks().to_numpy(zero_copy_only=False) for name in received.column_names
    }
    found = np.empty(len(received), [(name, column.dtype) for name, column in columns.items()])
    for name, column in columns.items():
        found[name] = column
    return found


def _outcomes(ends: np.ndarray, timers: Rows) -> np.ndarray:
    """The outcome of each timer."""
    early = ends["flags"] & FLAG_EARLY != 0
    moved = ends["rolls"] > timers["rolls"]
    kinds = ends["kind"]
    outcomes: np.ndarray = np.select(
        [kinds == Kind.CANCEL, kinds == Kind.TIMER],
        [RECALLED, np.where(moved, MOVED, RESCHEDULED)],
        np.where(early, EARLY, DELIVERED),
    )
    return outcomes


def _twice(first: int, second: int) -> Rule:
    kinds = {first, second}
    if kinds == {Kind.MESSAGE}:
        return Rule.DELIVERED_TWICE
    return Rule.RECALLED_AND_DELIVERED if kinds == {Kind.MESSAGE, Kind.CANCEL} else Rule.ENDED_TWICE


def on_time(rows: Rows) -> np.ndarray:
    """A mask of the rows that deliver a due timer to clients."""
    found: np.ndarray = (rows["kind"] == Kind.MESSAGE) & has_origin(rows)
    found &= rows["flags"] & (FLAG_EARLY | FLAG_LEASE) == 0
    return found


def out_of_order(rows: Rows) -> int:
    """Counts deliveries that follow one with the same queue and due time that was accepted later.

    Looks only within the segment. Roots give the order of acceptance.
    """
    rows = rows[on_time(rows)]
    rows = rows[np.lexsort((rows["due_ms"], rows["queue"], rows["topic"]))]  # stable: log order stays
    same = np.ones(max(len(rows) - 1, 0), bool)
    for name in ("due_ms", "queue", "topic"):
        same &= rows[name][1:] == rows[name][:-1]
    return int(np.count_nonzero(same & (rows["root"][1:] < rows["root"][:-1])))
