"""Logs that no service would write, each with one thing wrong: the audit names that, and nothing else.

All are audited in one run, as so many nodes.
"""

import json
from collections import defaultdict
from pathlib import Path

import msgspec
import pytest
from pyspark.errors import PySparkException

from tests.harness.permissions import wide_in
from timerwheel.model.ids import Ids
from timerwheel.spark_jobs.audit import job as audit_module
from timerwheel.spark_jobs.audit.findings import Rule
from timerwheel.spark_jobs.audit.job import audit
from timerwheel.spark_jobs.errors import JobError
from timerwheel.spark_jobs.logs import find_logs
from timerwheel.spark_jobs.progress import JobProgress
from timerwheel.spark_jobs.segment_stats import ReadOptions, survey
from timerwheel.store.files import DiskFiles
from timerwheel.store.log import CommitLog
from timerwheel.store.record import (
    FLAG_EARLY,
    FLAG_LEASE,
    HEADER_SIZE,
    Kind,
    decode_header,
    encode,
    replace,
)

NOW_MS = 1_800_000_000_000
DUE_MS = NOW_MS + 5_000
LOG_ID = bytes(range(16))
SEGMENT_BYTES = 400  # a few records
NASTY = "<script>alert('$x$')</script>"


class Forge:
    """Writes a log record by record; each is known by its offset."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.log = CommitLog(data / "log", DiskFiles(), SEGMENT_BYTES)
        self.log.open(new_log_id=LOG_ID, now_ms=NOW_MS)
        self.records: dict[int, bytes] = {}

    def append(self, record: bytes) -> int:
        [offset] = self.log.append([[record]], sync=True, now_ms=NOW_MS).offsets
        self.records[offset] = record
        return offset

    def timer(self, due_ms: int = DUE_MS, topic: str = "orders", **fields: int) -> int:
        values = {"store_ms": NOW_MS, "due_ms": due_ms, "enqueue_ms": NOW_MS} | fields
        return self.append(encode(Kind.TIMER, topic.encode(), b"", b"body", **values))

    def message(self, store_ms: int = NOW_MS, due_ms: int = NOW_MS, **fields: int) -> int:
        values = {"store_ms": store_ms, "due_ms": due_ms, "enqueue_ms": NOW_MS} | fields
        return self.append(encode(Kind.MESSAGE, b"orders", b"", b"body", **values))

    def end(self, timer: int, kind: int = Kind.MESSAGE, **fields: int) -> int:
        """What the service writes when a timer ends: when it is due, or a recall at once."""
        record = self.records[timer]
        header = decode_header(record)
        fresh = header.root == 2**64 - 1
        at_ms = header.due_ms + 3 if kind == Kind.MESSAGE else NOW_MS + 1
        values = {
            "origin": timer,
            "root": timer if fresh else header.root,
            "root_crc": header.crc if fresh else header.root_crc,
            "store_ms": at_ms,
            "due_ms": header.due_ms,
            "rolls": header.rolls,
            "level": header.level,
        }
        return self.append(replace(record, header, kind=kind, **(values | fields)))

    def cut(self, before: int, *, noted: bool = True) -> None:
        """Remove the segments before the one that holds an offset, as retention does: it notes so."""
        keep = self.log.base_of(before)
        for base in [base for base in self.log.bases if base < keep]:
            self.log.path(base).unlink()
        if noted:
            (self.data / "log" / "start").write_text(json.dumps({"offset": keep, "queues": []}))

    def roll(self) -> int:
        """Records until another segment begins."""
        last = self.log.bases[-1]
        while self.log.bases[-1] == last:
            at = self.message()
        return at

    def id_of(self, offset: int) -> str:
        return Ids(LOG_ID).encode(offset, decode_header(self.records[offset]).crc)


STORIES = {}


def story(function):
    """Tells a log by a forge; gives what is to be found: (rule, offset at fault, root of the message)."""
    STORIES[function.__name__] = function
    return function


@story
def all_is_well(forge):
    forge.end(forge.timer())
    forge.end(forge.timer(), Kind.CANCEL)
    forge.end(forge.timer(), store_ms=NOW_MS, due_ms=NOW_MS, flags=FLAG_EARLY)
    again = forge.end(forge.timer(), Kind.TIMER, due_ms=DUE_MS + 700)
    moved = forge.end(again, Kind.TIMER, rolls=1)
    forge.end(moved)
    forge.timer()
    forge.message()
    return []


@story
def a_timer_is_delivered_twice(forge):
    timer = forge.timer()
    forge.end(timer)
    forge.roll()
    return [(Rule.DELIVERED_TWICE, forge.end(timer), timer)]


@story
def a_timer_is_delivered_three_times(forge):
    timer = forge.timer()
    forge.end(timer)
    return [(Rule.DELIVERED_TWICE, forge.end(timer), timer) for _ in range(2)]


@story
def a_recalled_timer_is_delivered(forge):
    timer = forge.timer()
    forge.end(timer, Kind.CANCEL)
    forge.roll()
    return [(Rule.RECALLED_AND_DELIVERED, forge.end(timer), timer)]


@story
def a_delivered_timer_is_recalled(forge):
    timer = forge.timer()
    forge.end(timer)
    return [(Rule.RECALLED_AND_DELIVERED, forge.end(timer, Kind.CANCEL), timer)]


@story
def a_rescheduled_timer_is_delivered_too(forge):
    timer = forge.timer()
    forge.end(timer, Kind.TIMER, due_ms=DUE_MS + 700)
    return [(Rule.ENDED_TWICE, forge.end(timer), timer)]


@story
def a_delivery_is_early(forge):
    timer = forge.timer()
    return [(Rule.EARLY, forge.end(timer, store_ms=DUE_MS - 1), timer)]


@story
def a_direct_message_is_early(forge):
    message = forge.message(due_ms=NOW_MS + 1)
    return [(Rule.EARLY, message, message)]


@story
def a_message_is_due_at_another_time_than_its_timer(forge):
    timer = forge.timer()
    return [(Rule.WRONG_DUE, forge.end(timer, due_ms=DUE_MS - 1), timer)]


@story
def a_moved_timer_is_due_at_another_time(forge):
    timer = forge.timer()
    forge.roll()
    return [(Rule.WRONG_DUE, forge.end(timer, Kind.TIMER, rolls=1, due_ms=DUE_MS + 1), timer)]


@story
def a_delivery_misremembers_when_its_timer_was_due(forge):
    timer = forge.timer()
    header = decode_header(forge.records[timer])
    fields = {"root": timer, "root_crc": header.crc, "origin": timer, "prior_due_ms": DUE_MS + 1}
    return [(Rule.WRONG_DUE, forge.message(DUE_MS, DUE_MS, **fields), timer)]


@story
def an_origin_is_between_two_records(forge):
    timer = forge.timer()
    return [(Rule.UNKNOWN_ORIGIN, forge.end(timer, origin=timer + 8), timer)]


@story
def an_origin_is_later_than_its_end(forge):
    timer = forge.timer()
    return [(Rule.UNKNOWN_ORIGIN, forge.end(timer, origin=forge.log.tail + 8_000), timer)]


@story
def an_origin_is_before_the_first_record(forge):
    timer = forge.timer()
    return [(Rule.UNKNOWN_ORIGIN, forge.end(timer, origin=0), timer)]


@story
def an_origin_is_a_message(forge):
    message = forge.message(due_ms=NOW_MS)
    forge.roll()
    return [(Rule.ORIGIN_NO_TIMER, forge.end(message), message)]


@story
def a_timer_that_was_recalled_is_rescheduled_by_its_recall(forge):
    timer = forge.timer()
    cancel = forge.end(timer, Kind.CANCEL)
    return [(Rule.ORIGIN_NO_TIMER, forge.end(cancel, Kind.TIMER), timer)]


@story
def a_delivery_ends_the_timer_of_another_message(forge):
    one, other = forge.timer(), forge.timer()
    crc = decode_header(forge.records[other]).crc
    return [(Rule.WRONG_MESSAGE, forge.end(one, root=other, root_crc=crc), other)]


@story
def a_delivery_ends_the_timer_of_another_topic(forge):
    timer = forge.timer(topic="tickets")
    header = decode_header(forge.records[timer])
    fields = {"root": timer, "root_crc": header.crc, "origin": timer, "prior_due_ms": DUE_MS}
    forge.roll()
    return [(Rule.WRONG_MESSAGE, forge.message(DUE_MS, DUE_MS, **fields), timer)]


@story
def a_delivery_ends_the_timer_of_another_queue(forge):
    timer = forge.timer(queue=1)
    header = decode_header(forge.records[timer])
    fields = {"root": timer, "root_crc": header.crc, "origin": timer, "prior_due_ms": DUE_MS}
    forge.roll()
    return [(Rule.WRONG_MESSAGE, forge.message(DUE_MS, DUE_MS, queue=2, **fields), timer)]


@story
def a_delivery_ends_a_timer_that_a_group_held(forge):
    timer = forge.timer(flags=FLAG_LEASE)
    header = decode_header(forge.records[timer])
    fields = {"root": timer, "root_crc": header.crc, "origin": timer, "prior_due_ms": DUE_MS}
    return [(Rule.WRONG_MESSAGE, forge.message(DUE_MS, DUE_MS, **fields), timer)]


@story
def a_second_timer_of_one_message_comes_from_nowhere(forge):
    timer = forge.timer()
    forge.end(timer)
    crc = decode_header(forge.records[timer]).crc
    return [(Rule.WRONG_ROOT, forge.timer(root=timer, root_crc=crc), timer)]


@story
def a_message_comes_again_from_nowhere(forge):
    message = forge.message()
    crc = decode_header(forge.records[message]).crc
    return [(Rule.WRONG_ROOT, forge.message(root=message, root_crc=crc), message)]


@story
def the_outcome_of_a_task_names_its_task(forge):
    times_ms = {"store_ms": NOW_MS, "due_ms": NOW_MS, "enqueue_ms": NOW_MS}
    task = forge.append(encode(Kind.MESSAGE, b"%TASK%mail", b"", b"body", **times_ms))
    identity = {"root": task, "root_crc": decode_header(forge.records[task]).crc}
    forge.append(encode(Kind.MESSAGE, b"%TASKLOG%mail", b"", b"{}", **times_ms, **identity))
    return []


@story
def a_recall_names_no_timer(forge):
    record = encode(Kind.CANCEL, b"orders", b"", b"", store_ms=NOW_MS, due_ms=DUE_MS, enqueue_ms=NOW_MS)
    cancel = forge.append(record)
    return [(Rule.NO_ORIGIN, cancel, cancel)]


@story
def a_timer_is_ended_by_settings(forge):
    timer = forge.timer()
    return [(Rule.WRONG_KIND, forge.end(timer, Kind.CONTROL), timer)]


@story
def a_kind_is_unknown(forge):
    record = encode(9, b"orders", b"", b"", store_ms=NOW_MS, due_ms=DUE_MS, enqueue_ms=NOW_MS)
    offset = forge.append(record)
    return [(Rule.WRONG_KIND, offset, offset)]


@story
def a_lease_comes_back_early(forge):
    timer = forge.timer(topic="orders/g", flags=FLAG_LEASE)
    return [(Rule.EARLY, forge.end(timer, store_ms=DUE_MS - 1), timer)]


@story
def a_lease_comes_back_twice(forge):
    timer = forge.timer(topic="orders/g", flags=FLAG_LEASE)
    forge.end(timer)
    return [(Rule.DELIVERED_TWICE, forge.end(timer), timer)]


@story
def a_topic_would_be_a_script(forge):
    timer = forge.timer(topic=NASTY)
    return [(Rule.EARLY, forge.end(timer, store_ms=DUE_MS - 1), timer)]


@story
def two_messages_of_one_due_time_come_in_the_wrong_order(forge):
    one, other = forge.timer(), forge.timer()
    forge.roll()  # what is compared lies in one segment
    forge.end(other)
    forge.end(one)
    return []


@story
def a_timer_is_overdue(forge):
    forge.timer(due_ms=NOW_MS + 1)
    forge.timer(due_ms=NOW_MS + 40_000)
    forge.message(NOW_MS + 100_000)
    return []


@story
def retention_dropped_what_was_moved_and_recalled(forge):
    moved, recalled, waits = forge.timer(), forge.timer(), forge.timer()
    first = forge.roll()
    forge.end(moved, Kind.TIMER, rolls=1)
    forge.end(recalled, Kind.CANCEL)
    forge.end(forge.end(waits, Kind.TIMER, due_ms=DUE_MS + 5))
    forge.cut(first)
    return []


@story
def a_timer_that_retention_dropped_ends_twice(forge):
    timer = forge.timer()
    first = forge.roll()
    forge.end(timer)
    forge.roll()
    again = forge.end(timer)
    forge.cut(first)
    return [(Rule.DELIVERED_TWICE, again, timer)]


@story
def a_message_whose_timers_were_dropped_goes_on_twice(forge):
    timer = forge.timer()
    later = forge.end(timer, Kind.TIMER, due_ms=DUE_MS + 5)
    first = forge.roll()
    forge.end(timer, store_ms=DUE_MS + 5)
    forge.roll()
    again = forge.end(later)
    forge.cut(first)
    return [(Rule.DELIVERED_TWICE, again, timer)]


@story
def the_first_segment_is_lost(forge):
    timer = forge.timer()
    first = forge.roll()
    forge.end(timer)
    forge.cut(first, noted=False)
    return []


@story
def a_timer_is_damaged_and_was_delivered(forge):
    timer = forge.timer()
    forge.roll()
    forge.end(timer)
    path, base = forge.log.path(forge.log.base_of(timer)), forge.log.base_of(timer)
    data = bytearray(path.read_bytes())
    data[timer - base + HEADER_SIZE] ^= 1
    path.write_bytes(data)
    return []


@pytest.fixture(scope="module")
def told(spark, tmp_path_factory):
    """The audit of all stories, and for each what is to be found: (rule, offset, root, id)."""
    directory = tmp_path_factory.mktemp("forged")
    expected = {}
    for name, tell in STORIES.items():
        forge = Forge(directory / name)
        found = tell(forge)
        forge.log.close()
        expected[name] = sorted(
            (rule, offset, root, None if "lease" in name else forge.id_of(root))
            for rule, offset, root in found
        )
    (directory / "tables").mkdir()
    logs = find_logs([str(directory / "*")])
    found = survey(spark, logs, ReadOptions(str(directory / "tables"), salvage=True))
    return audit(spark, JobProgress(spark, show=False), found, None), expected


@pytest.mark.parametrize("name", list(STORIES))
def test_what_is_wrong_is_named_and_nothing_else(told, name):
    result, expected = told
    found = [f for f in result.findings if f.node == name]
    assert sorted((f.rule, f.offset, f.root, f.id) for f in found) == expected[name]
    assert all(f.lease == ("lease" in name) for f in found)


def test_rules_are_counted_and_the_books_do_not_balance(told):
    result, expected = told
    counts = defaultdict(int)
    for found in expected.values():
        for rule, *_ in found:
            counts[rule] += 1
    assert result.rules == counts
    assert result.findings_total == sum(counts.values()) == len(result.findings)
    assert not result.balanced


def test_every_rule_is_broken_by_some_forgery(told):
    assert set(told[0].rules) == {str(rule) for rule in Rule}


def test_what_damage_hides_is_no_finding(told):
    result, _ = told
    lost, damaged = sorted(result.damaged, key=lambda region: region.node, reverse=True)
    assert lost.node == "the_first_segment_is_lost"
    assert damaged.node == "a_timer_is_damaged_and_was_delivered"
    assert result.unproved == result.damaged_total == 2


def test_what_is_overdue_or_out_of_order_is_counted_and_is_no_finding(told):
    result, _ = told
    assert (result.messages.overdue, result.messages.overdue_ms) == (1, 99_999)
    assert result.out_of_order == 1


def test_damage_is_an_error_that_names_the_way_on(spark, told, tmp_path):
    region = min(told[0].damaged, key=lambda region: region.node)
    logs = find_logs([str(Path(region.path).parent.parent)])
    with pytest.raises(PySparkException, match=f"at log offset {region.offset}.*--salvage"):
        survey(spark, logs, ReadOptions(str(tmp_path)))


def test_findings_are_capped_and_counted(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(audit_module, "FINDINGS_MAX", 3)
    forge = Forge(tmp_path / "node")
    timers = [forge.timer() for _ in range(6)]
    ends = [forge.end(timer, store_ms=DUE_MS - 1) for timer in timers]
    forge.log.close()
    found = survey(spark, find_logs([str(tmp_path / "node")]), ReadOptions(str(tmp_path)))
    result = audit(spark, JobProgress(spark, show=False), found, None)
    assert [f.offset for f in result.findings] == ends[:3]
    assert result.findings_total == 6
    assert result.rules == {"early": 6}


def test_the_command_names_the_offending_id_and_exits_with_1(run_audit, tmp_path):
    forge = Forge(tmp_path / "node")
    forge.end(forge.timer(), store_ms=DUE_MS - 1)
    forge.log.close()
    done = run_audit("--data", str(forge.data), "--report-only", "--utc")
    assert done.exit_code == 1
    assert forge.id_of(64) in done.output
    assert "the books do not balance: 1 early" in done.output
    [out] = tmp_path.glob("audit-*")
    assert sorted(path.name for path in out.iterdir()) == ["audit.json", "report.html"]


def test_the_command_gives_one_json_document(run_audit, tmp_path):
    forge = Forge(tmp_path / "node")
    all_is_well(forge)
    forge.log.close()
    done = run_audit("--data", str(forge.data), "--json", "--out", "out", "--conf", "spark.secret=x")
    assert done.exit_code == 0
    document = json.loads(done.output)
    assert document["balanced"]
    assert document == json.loads((tmp_path / "out" / "audit.json").read_bytes())
    assert document["run"]["command"] == f"timerwheel audit --data {forge.data}"
    assert len(list((tmp_path / "out").rglob("*.parquet"))) > 1
    assert wide_in(tmp_path / "out") == [], "an audit is not for everybody to read"
    again = run_audit("--data", str(forge.data), "--out", "out")
    assert "not an empty directory" in str(again.exception)


def test_damage_without_salvage_leaves_nothing_that_looks_like_an_audit(run_audit, tmp_path):
    forge = Forge(tmp_path / "node")
    a_timer_is_damaged_and_was_delivered(forge)
    forge.log.close()
    done = run_audit("--data", str(forge.data), "--out", "out")
    assert isinstance(done.exception, JobError)
    assert "--salvage" in str(done.exception)
    assert not (tmp_path / "out").exists()
    assert run_audit("--data", str(forge.data), "--out", "out", "--salvage").exit_code == 1


def test_a_finding_is_plain_json(told):
    [finding] = [f for f in told[0].findings if f.node == "a_delivery_is_early"]
    assert json.loads(msgspec.json.encode(finding)) == {
        "node": "a_delivery_is_early",
        "id": finding.id,
        "rule": "early",
        "lease": False,
        "topic": "orders",
        "offset": finding.offset,
        "timer": 64,
        "root": 64,
        "due_ms": DUE_MS,
        "detail": "delivered 1 ms before its due time",
    }
