"""What audits left in their directories, for what reads it later: which part of which log each accounts for.

Neither Spark nor the logs are needed.
"""

import itertools
from collections.abc import Sequence

import msgspec

from timerwheel.errors import TimerwheelError
from timerwheel.spark_jobs.audit.report import DOCUMENT
from timerwheel.spark_jobs.storage import join, names_in, read_bytes, shown


class AuditOutputError(TimerwheelError):
    """The output of audits that cannot be read, or counted together."""

    code = "audit_output"


class Covered(msgspec.Struct, frozen=True):
    """The range of offsets of one log that an audit accounts for; the log is known by its node."""

    node: str
    begin: int
    until: int


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
        nodes = [Covered(one.node, one.since, one.until) for one in found.reading.nodes]
    return AuditRun(url, found.run.ended_ms, nodes)


def check_apart(runs: Sequence[AuditRun]) -> None:
    """Raise AuditOutputError if two audits account for the same part of a log: it would count twice."""
    ranges = sorted(
        (one.node, one.begin, one.until, run.url)
        for run in runs
        for one in run.nodes
        if one.until > one.begin
    )
    for before, after in itertools.pairwise(ranges):
        if before[0] == after[0] and after[1] < before[2]:
            raise AuditOutputError(
                f"{shown(before[3])} and {shown(after[3])} both account for offsets from {after[1]} of "
                f"{before[0]}: give one of them, or audits that continue each other (--checkpoint)"
            )


def files_of(url: str, table: str) -> list[str]:
    """The Parquet files of one of an audit's tables; raises AuditOutputError if it has none."""
    place = join(url, table)
    names = [name for name in names_in(place) if name.endswith(".parquet")]
    if not names:
        raise AuditOutputError(f"{shown(url)} has no table {table}: it was made with --report-only")
    return [join(place, name) for name in names]
