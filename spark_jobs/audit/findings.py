"""Findings: the records that break a rule of the audit. Runs in executors.

Only faulty records get here, so they can be handled one at a time.
"""

from bisect import bisect_right
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, Self

import msgspec
import pyarrow as pa

from timerwheel.model.ids import Ids
from timerwheel.spark_jobs.columns import arrow_schema
from timerwheel.spark_jobs.segments import Segment, open_segment
from timerwheel.store.files import ReadFile
from timerwheel.store.record import HEADER_SIZE, decode_header


class Rule(StrEnum):
    """The rules of the audit."""

    DELIVERED_TWICE = "delivered_twice"
    RECALLED_AND_DELIVERED = "recalled_and_delivered"
    ENDED_TWICE = "ended_twice"
    EARLY = "early"
    WRONG_DUE = "wrong_due"
    UNKNOWN_ORIGIN = "unknown_origin"
    ORIGIN_NO_TIMER = "origin_no_timer"
    WRONG_MESSAGE = "wrong_message"
    WRONG_ROOT = "wrong_root"
    NO_ORIGIN = "no_origin"
    WRONG_KIND = "wrong_kind"


MEANING = {
    Rule.DELIVERED_TWICE: "a timer, or a message, was delivered more than once",
    Rule.RECALLED_AND_DELIVERED: "a timer was both recalled and delivered",
    Rule.ENDED_TWICE: "a timer was ended or replaced more than once",
    Rule.EARLY: "a message was delivered before its due time",
    Rule.WRONG_DUE: "a record and its timer do not agree on the due time",
    Rule.UNKNOWN_ORIGIN: "a record ends a timer that the log does not have",
    Rule.ORIGIN_NO_TIMER: "a record ends a record that is not a timer",
    Rule.WRONG_MESSAGE: "a record ends the timer of another message, topic or queue",
    Rule.WRONG_ROOT: "a record starts a message but names another message",
    Rule.NO_ORIGIN: "a recall without a timer",
    Rule.WRONG_KIND: "a record of an unknown kind, or of a kind that cannot end a timer",
}


class Finding(msgspec.Struct, frozen=True):
    """One record that breaks a rule.

    `offset` is that of the record, `timer` that of the timer it refers to. If `lease` is set, both belong to
    a consumer group: there is no message id, and `topic` is `topic/group`.
    """

    node: str
    id: str | None
    rule: Rule
    lease: bool
    topic: str
    offset: int
    timer: int | None
    root: int
    due_ms: int
    detail: str


SCHEMA = arrow_schema(
    "node string, id string, rule string, lease boolean, topic string, offset bigint, timer bigint, "
    "root bigint, due_ms bigint, detail string"
)


class Heads:
    """Reads the heads of one log's records to find message ids: one read each."""

    def __init__(self, segments: Sequence[Segment], log_id: bytes) -> None:
        self._segments = segments
        self._bases = [segment.base for segment in segments]
        self._encode = Ids(log_id).encode
        self._files: dict[int, ReadFile] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

    def id_at(self, offset: int) -> str:
        """The id of the message that the record at `offset` names as its own."""
        number = bisect_right(self._bases, offset) - 1
        base = self._bases[number]
        file = self._files.get(base)
        if file is None:
            file = self._files[base] = open_segment(self._segments[number])
        header = decode_header(file.read(offset - base, HEADER_SIZE))
        return self._encode(*header.identity(offset))


class Fault(NamedTuple):
    """A record at fault, before its id is known."""

    rule: Rule
    lease: bool
    topic: str
    offset: int
    timer: int | None
    root: int
    due_ms: int
    detail: str


def findings_of(node: str, faults: Sequence[Fault], heads: Heads, ids_max: int) -> list[Finding]:
    """The faults in log order, the first `ids_max` of clients' messages with their ids."""
    found = []
    for fault in sorted(faults, key=lambda fault: fault.offset):
        message_id = None
        if not fault.lease and ids_max:
            message_id = heads.id_at(fault.offset)
            ids_max -= 1
        found.append(Finding(node, message_id, **fault._asdict()))
    return found


def table_of(findings: Sequence[Finding]) -> pa.Table:
    """Findings as rows of SCHEMA."""
    return pa.Table.from_pylist([msgspec.structs.asdict(finding) for finding in findings], SCHEMA)
