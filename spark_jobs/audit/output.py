"""What audits left in their directories, for what reads it later: which part of which log each accounts for.

Neither Spark nor the logs are needed.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from timerwheel.errors import TimerwheelError
from timerwheel.spark_jobs.audit.report import DOCUMENT
from timerwheel.spark_jobs.storage import join, names_in, read_bytes, shown
from timerwheel.store.segment import SEGMENT_HEADER_SIZE


class AuditOutputError(TimerwheelError):
    """The output of audits that cannot be read, or counted together."""

    code = "audit_output"


class Covered(msgspec.Struct, frozen=True):
    """The range of offsets of one log that an audit accounts for; the log is known by its node.

    `whole` is whether it begins with a whole segment, unlike what an audit with a checkpoint reads.
    """

    node: str
    begin: int
    until: int
    whole: bool = True


class Superseded(NamedTuple):
    """What a later audit judged again: the rows of this log about segments from `base` on."""

    node: str
    base: int


class AuditRun(msgspec.Struct, frozen=True):
    """One audit."""

    url: str
    ended_ms: int
    nodes: list[Covered]


class _Run(msgspec.Struct):
    ended_ms: int


class _Since(msgspec.Struct):
    node: str
    since: int
    until: int


class _Reading(msgspec.Struct):
    nodes: list[_Since]


class _Document(msgspec.Struct):
    nodes: list[Covered]
    run: _Run
    reading: _Reading | None = None


def read_run(url: str) -> AuditRun:
    """The facts about the audit in a directory; raises AuditOutputError if there is none."""
    try:
        found = msgspec.json.decode(read_bytes(join(url, DOCUMENT)), type=_Document)
    except FileNotFoundError:
        raise AuditOutputError(
            f"{shown(url)} is not the directory of an audit: it has no {DOCUMENT}"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise AuditOutputError(f"{shown(url)}: {DOCUMENT} is not that of an audit: {error}") from None
    nodes = found.nodes
    if found.reading is not None:  # the tables have what this audit read, not what earlier ones did
        begins = {one.node: one.begin for one in found.nodes}
        nodes = [
            Covered(one.node, one.since, one.until, one.since == begins.get(one.node))
            for one in found.reading.nodes
        ]
    return AuditRun(url, found.run.ended_ms, nodes)


def superseded(runs: Sequence[AuditRun]) -> dict[str, list[Superseded]]:
    """What to leave out of each audit, by its URL, so that every record counts once.

    Where two audits account for the same part of a log, the judgement of the later one counts: the one that
    ended later, or of two that ended in the same millisecond the one whose URL sorts last. Raises
    AuditOutputError where the part that they share does not begin with a segment, or is not the end of the
    earlier one: what it says about that part cannot be separated from the rest then.
    """
    found: dict[str, list[Superseded]] = {run.url: [] for run in runs}
    order = sorted(runs, key=lambda run: (run.ended_ms, run.url))
    for (earlier, later), (before, after) in _pairs(order):
        if before.node != after.node or before.begin >= after.until or after.begin >= before.until:
            continue
        if after.until < before.until or (after.begin > before.begin and not after.whole):
            raise AuditOutputError(
                f"{shown(earlier.url)} and {shown(later.url)} both account for offsets from "
                f"{max(before.begin, after.begin)} of {after.node}, and the later one does not replace all "
                "of that: give one of them"
            )
        base = after.begin - SEGMENT_HEADER_SIZE if after.whole else 0
        found[earlier.url].append(Superseded(after.node, base))
    return found


def without(rows: pa.Table, left_out: Sequence[Superseded], column: str, url: str) -> pa.Table:
    """The rows of an audit's table without what later audits judged again; `column` has their places.

    Raises AuditOutputError for the table of an earlier version that has no such column.
    """
    if left_out and column not in rows.column_names:
        raise AuditOutputError(
            f"{shown(url)} was made by an earlier version, so what later audits judged again cannot be "
            "left out of it: do not give it together with them"
        )
    for node, base in left_out:
        again = pc.and_(pc.equal(rows["node"], node), pc.greater_equal(rows[column], base))
        rows = rows.filter(pc.invert(again))
    return rows


def _pairs(
    order: Sequence[AuditRun],
) -> Iterator[tuple[tuple[AuditRun, AuditRun], tuple[Covered, Covered]]]:
    for earlier, later in itertools.combinations(order, 2):
        for before, after in itertools.product(earlier.nodes, later.nodes):
            yield (earlier, later), (before, after)


def files_of(url: str, table: str) -> list[str]:
    """The Parquet files of one of an audit's tables; raises AuditOutputError if it has none."""
    place = join(url, table)
    names = [name for name in names_in(place) if name.endswith(".parquet")]
    if not names:
        raise AuditOutputError(f"{shown(url)} has no table {table}: it was made with --report-only")
    return [join(place, name) for name in names]
