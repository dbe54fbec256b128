"""An audit with a checkpoint reads what is new, and finds what a whole audit finds."""

import asyncio
import contextlib
import json
import os
import random
import re
import shutil
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import s3fs
from pyspark.errors import PySparkException

from tests.harness import group_log
from tests.harness.audits import incremental, reading, same, whole
from tests.harness.group_log import GroupLog, RandomGroups
from tests.harness.histories import RETENTION_MS, STEPS, History
from tests.harness.object_store import BUCKET, object_store
from tests.harness.permissions import wide_in
from tests.spark import test_audit_forged
from tests.spark.test_audit_forged import DUE_MS, NOW_MS, STORIES, Forge
from timerwheel.errors import TimerwheelError
from timerwheel.spark_jobs.audit import job as audit_module
from timerwheel.spark_jobs.audit.checkpoint import open_checkpoint
from timerwheel.spark_jobs.audit.findings import Rule
from timerwheel.spark_jobs.audit.job import TABLES, Audit, audit
from timerwheel.spark_jobs.audit.output import read_run
from timerwheel.spark_jobs.errors import JobError
from timerwheel.spark_jobs.logs import find_logs
from timerwheel.spark_jobs.out_directory import out_directory
from timerwheel.spark_jobs.progress import JobProgress
from timerwheel.spark_jobs.segment_stats import ReadOptions, survey
from timerwheel.store.files import DiskFiles
from timerwheel.store.record import HEADER_SIZE, Kind
from timerwheel.wheel.geometry import HOUR_MS


class DiskHistory(History):
    """A history on the real disk, with a copy of its log from which retention removes nothing any more."""

    def __init__(self, directory: Path, kept: Path, seed: int) -> None:
        super().__init__(directory, seed)
        self.world.files = DiskFiles()
        self.log = directory / "log"
        self.kept = kept / "log"

    async def begin(self, steps: int) -> None:
        """Live for a while, with retention too, and then begin with the copy."""
        await self.world.open(retention_ms=RETENTION_MS, segment_size_bytes=12_000)
        await self.go_on(steps, STEPS)
        self.begin_copy()

    def begin_copy(self) -> None:
        shutil.rmtree(self.kept, ignore_errors=True)
        self.kept.mkdir(parents=True)
        if (self.log / "start").exists():
            shutil.copy(self.log / "start", self.kept)
        self.link()

    async def go_on(self, count: int, steps: Sequence[Callable[[History], Awaitable[None]]]) -> None:
        for _ in range(count):
            step = self.random.choice(steps)
            with contextlib.suppress(TimerwheelError):
                await (self.world.crash() if step is History.crash else step(self))
            if self.kept.exists():
                self.link()

    def link(self) -> None:
        """Hard links grow with their segments, and outlive the removal of those."""
        for path in self.log.glob("*.log"):
            if not (self.kept / path.name).exists():
                os.link(path, self.kept / path.name)

    def removed(self) -> int:
        """How many segments only the copy has."""
        return sum(not (self.log / path.name).exists() for path in self.kept.glob("*.log"))


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(6))
def test_after_each_step_of_a_random_history_the_findings_are_those_of_a_whole_audit(spark, tmp_path, seed):
    lives = [
        DiskHistory(tmp_path / "data" / name, tmp_path / "kept" / name, seed * 10 + number)
        for number, name in enumerate(("node-1", "node-2"))
    ]
    chance = random.Random(seed)
    steps = [step for step in STEPS if step is not History.retain]
    again = []

    def check() -> Audit:
        found = incremental(spark, str(tmp_path / "data" / "*"), str(tmp_path / "checkpoint"), tmp_path)
        for one in lives:
            if why := reading(found)[one.log.parent.name]:
                again.append(why)
                one.begin_copy()
        expected = same(whole(spark, str(tmp_path / "kept" / "*"), tmp_path))
        assert not [(name, one, expected[name]) for name, one in same(found).items() if one != expected[name]]
        assert found.balanced
        return found

    async def live() -> int:
        for one, before in zip(lives, (0, 150), strict=True):
            await one.begin(before)
        check()
        for turns in range(1, 16):
            for one in lives:
                await one.world.advance(RETENTION_MS // 2)
                one.link()
                await one.world.retention_turn()
                await one.go_on(chance.choice((3, 25, 60)), steps)
                await one.world.roll()
                one.link()
            found = check()
            if turns >= 5 and found.messages.carried and sum(one.removed() for one in lives) > 1:
                break
        else:
            raise AssertionError("retention never removed and carried anything")
        for one in lives:
            await one.world.engine.close()
        return turns

    turns = asyncio.run(live())
    assert all(why.startswith("retention removed records") for why in again)
    assert (
        len(again) <= turns
    )  # of two for each turn; a deleted topic leaves segments that retention soon removes


def prefix(source: Path, target: Path, until: int) -> None:
    """Copies the log of a data directory up to an offset."""
    shutil.rmtree(target, ignore_errors=True)
    (target / "log").mkdir(parents=True)
    for path in sorted((source / "log").glob("*.log")):
        base = int(path.stem)
        if base < until:
            (target / "log" / path.name).write_bytes(path.read_bytes()[: until - base])


@pytest.fixture(scope="module")
def forged(tmp_path_factory) -> tuple[Path, dict[str, list[int]]]:
    """All forged logs, with their first segments, and where the records of each begin and end."""
    directory = tmp_path_factory.mktemp("forged")
    places = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Forge, "cut", lambda *_, **_more: None)
        for number, (name, tell) in enumerate(STORIES.items()):
            patch.setattr(test_audit_forged, "LOG_ID", bytes([number] * 16))
            forge = Forge(directory / name)
            tell(forge)
            places[name] = [*forge.records, forge.log.tail]
            forge.log.close()
    return directory, places


@pytest.mark.parametrize("shares", [(0.4, 0.75), pytest.param((0.9,), marks=pytest.mark.torture)])
def test_a_forged_record_behind_the_checkpoint_is_found_as_a_whole_audit_finds_it(
    spark, forged, tmp_path, shares
):
    directory, places = forged
    data = tmp_path / "data"
    for share in (*shares, 1):
        for name, offsets in places.items():
            prefix(directory / name, data / name, offsets[int(share * (len(offsets) - 1))])
        found = incremental(spark, str(data / "*"), str(tmp_path / "checkpoint"), tmp_path, salvage=True)
        expected = same(whole(spark, str(data / "*"), tmp_path, salvage=True))
        assert not [(name, one, expected[name]) for name, one in same(found).items() if one != expected[name]]
    assert set(found.rules) == {str(rule) for rule in Rule}
    why = reading(found)
    assert why["all_is_well"] is None
    assert "refer to earlier ones that are not open timers" in str(why["a_timer_is_delivered_three_times"])


@pytest.mark.torture
def test_retries_of_groups_in_logs_of_this_and_earlier_versions_that_grow_by_torn_units(
    spark, tmp_path, monkeypatch
):
    drop_before = GroupLog.drop_before

    def link_and_drop(log: GroupLog, base: int) -> None:
        for path in (log.data / "log").glob("*.log"):
            with contextlib.suppress(FileExistsError):
                os.link(path, tmp_path / "all" / log.data.name / "log" / path.name)
        drop_before(log, base)

    monkeypatch.setattr(GroupLog, "drop_before", link_and_drop)
    tails = {}
    for seed in range(3):
        monkeypatch.setattr(group_log, "LOG_ID", bytes([seed] * 16))
        (tmp_path / "all" / f"g{seed}" / "log").mkdir(parents=True)
        lived = RandomGroups(tmp_path / "lived" / f"g{seed}", seed)
        lived.live(300)
        link_and_drop(lived.log, 0)
        tails[f"g{seed}"] = lived.log.log.tail
    data = tmp_path / "data"
    for share in (0.3, 0.6, 0.61, 1):
        for name, tail in tails.items():
            prefix(tmp_path / "all" / name, data / name, int(share * tail))
        found = incremental(spark, str(data / "*"), str(tmp_path / "checkpoint"), tmp_path)
        expected = same(whole(spark, str(data / "*"), tmp_path))
        assert not [(name, one, expected[name]) for name, one in same(found).items() if one != expected[name]]
        assert set(reading(found).values()) == {None}
    assert found.leases.pending > 0
    assert min(found.leases.scheduled, found.leases.replaced, found.leases.recalled) > 0


class Night:
    """A forged log, audited again and again with one checkpoint, each time beside a whole audit."""

    def __init__(self, spark: Any, directory: Path) -> None:
        self.spark = spark
        self.forge = Forge(directory / "data" / "node")
        self.data = str(directory / "data" / "*")
        self.checkpoint = directory / "checkpoint"
        self.directory = directory

    def audit(self, out: str | None = None, **options: bool) -> Audit:
        return incremental(
            self.spark, self.data, str(self.checkpoint), self.directory / "staging", out, **options
        )

    def whole(self, **options: bool) -> Audit:
        return whole(self.spark, self.data, self.directory / "staging", **options)

    def why(self, found: Audit) -> str | None:
        return reading(found)["node"]

    def judged(self) -> list[Path]:
        """The files of the segments that were judged completely."""
        paths = sorted((self.forge.data / "log").glob("0*"))
        return [path for path in paths if int(path.stem) < self.forge.log.bases[-1]]


@pytest.fixture
def night(spark, tmp_path) -> Night:
    return Night(spark, tmp_path)


def test_segments_that_were_judged_before_are_not_read(night):
    forge = night.forge
    timers = [forge.timer() for _ in range(9)]
    forge.end(timers[0])
    first = night.audit()
    assert [one.segments for one in first.reading.nodes] == [len(forge.log.bases)]
    forge.end(timers[1])
    forge.end(timers[2], Kind.CANCEL)
    forge.roll()
    expected = night.whole()
    judged = [path for path in night.judged() if int(path.stem) < first.nodes[0].until]
    for path in judged[:-1]:
        path.write_bytes(b"not a segment")
    found = night.audit()
    assert same(found) == same(expected)
    [read] = found.reading.nodes
    assert (read.since, read.until) == (first.nodes[0].until, found.nodes[0].until)
    assert read.segments == len(forge.log.bases) - len(judged) + 1
    with pytest.raises(PySparkException, match="salvage"):
        night.whole()


def test_a_log_that_has_not_grown_gives_the_same_again_and_no_file_changes(night):
    night.forge.end(night.forge.timer(), store_ms=DUE_MS - 1)
    first = night.audit()
    files = sorted(path for path in night.checkpoint.rglob("*.side"))
    found = night.audit()
    assert same(found) == same(first)
    assert (first.reading.findings_new, found.reading.findings_new) == (1, 0)
    assert sorted(path for path in night.checkpoint.rglob("*.side")) == files


def test_an_empty_log_can_be_the_first_that_is_judged(night):
    assert night.audit().records == 0
    night.forge.end(night.forge.timer())
    assert same(night.audit()) == same(night.whole())


def test_timers_of_judged_segments_become_overdue_by_the_clock_of_new_records(night):
    late, later = night.forge.timer(due_ms=NOW_MS + 1), night.forge.timer(due_ms=NOW_MS + 90_000)
    night.forge.roll()
    assert night.audit().messages.overdue == 0
    night.forge.message(NOW_MS + 100_000)
    found = night.audit()
    assert (found.messages.overdue, found.messages.overdue_ms) == (1, 99_999)
    assert same(found) == same(night.whole())
    night.forge.end(late, store_ms=NOW_MS + 150_000)
    night.forge.end(later, store_ms=NOW_MS + 150_000)
    found = night.audit()
    assert found.messages.overdue == found.messages.pending == 0
    assert same(found) == same(night.whole())


def test_a_second_end_is_a_finding_also_after_retention_removed_the_timer(night):
    timer, waits = night.forge.timer(), night.forge.timer()
    night.forge.end(timer)
    first = night.forge.roll()
    night.audit()
    again = night.forge.end(timer)
    night.forge.end(waits)
    night.forge.cut(first)
    found = night.audit()
    assert night.why(found) is None
    [finding] = found.findings
    assert (finding.rule, finding.offset, finding.timer) == (Rule.UNKNOWN_ORIGIN, again, timer)
    assert "retention has removed that segment" in finding.detail
    assert found.messages.carried == 0
    assert night.whole().balanced, "the log alone no longer shows it"


def test_two_records_that_end_a_dropped_timer_are_found_on_two_sides_of_the_checkpoint(night):
    timer, other = night.forge.timer(), night.forge.timer()
    later = night.forge.end(other, Kind.TIMER, due_ms=DUE_MS + 5)
    first = night.forge.roll()
    night.forge.cut(first)
    night.forge.end(timer)
    night.forge.end(other, store_ms=DUE_MS + 5)
    assert night.audit().balanced
    night.forge.roll()
    ends = [night.forge.end(timer), night.forge.end(later)]
    found = night.audit()
    assert [one.offset for one in found.findings] == ends
    assert same(found) == same(night.whole())
    assert night.why(found) is None
    third = night.forge.end(timer)
    assert [one.offset for one in night.audit().findings] == [*ends, third]


def test_damage_that_was_reported_stays_reported_and_hides_what_it_did(night):
    timer, other = night.forge.timer(), night.forge.timer()
    path = night.forge.log.path(night.forge.log.base_of(timer))
    night.forge.roll()
    data = bytearray(path.read_bytes())
    data[timer + HEADER_SIZE] ^= 1
    path.write_bytes(data)
    with pytest.raises(PySparkException, match="salvage"):
        night.audit()
    assert not (night.checkpoint / "checkpoint.json").exists()
    assert night.audit(salvage=True).damaged_total == 1
    night.forge.end(timer)
    night.forge.end(other)
    found = night.audit()  # the damage is behind: nothing of it is read
    assert (found.damaged_total, found.unproved) == (1, 1)
    assert same(found) == same(night.whole(salvage=True))


def test_a_log_that_does_not_fit_the_checkpoint_is_read_from_its_beginning(night, tmp_path):
    forge = night.forge
    forge.end(forge.timer())
    night.audit()
    copy = tmp_path / "copy"
    shutil.copytree(forge.data, copy)
    open_timer = forge.timer()
    night.audit()
    # A power cut took the tail, and other records are there now.
    forge.log.close()
    shutil.rmtree(forge.data)
    shutil.copytree(copy, forge.data)
    found = night.audit()
    assert "and had been read until" in night.why(found)
    assert same(found) == same(night.whole())
    night.forge = forge = Forge(tmp_path / "data" / "node")
    forge.message()
    forge.end(forge.timer())
    found = night.audit()
    assert night.why(found) is None
    assert found.messages.pending == 0, f"timer {open_timer} was lost, not left open"
    assert same(found) == same(night.whole())


def test_records_that_differ_from_those_that_were_judged_are_noticed(night, tmp_path):
    forge = night.forge
    forge.message()
    forge.log.sync()
    shutil.copytree(forge.data, tmp_path / "copy")
    timer = forge.timer()
    night.audit()
    shutil.rmtree(forge.data)
    shutil.copytree(tmp_path / "copy", forge.data)
    night.forge = Forge(tmp_path / "data" / "node")
    assert night.forge.timer(due_ms=DUE_MS + 1) == timer
    night.forge.roll()
    found = night.audit()
    assert "are not those that were read there" in night.why(found)
    assert same(found) == same(night.whole())


def test_a_log_may_go_on_in_a_new_segment_exactly_where_it_was_judged_to(night, spark, tmp_path):
    forge = night.forge
    timers = [forge.timer() for _ in range(2)]
    second = forge.log.base_of(forge.roll())
    forge.end(timers[0])
    forge.log.sync()
    data = tmp_path / "prefix" / "node"
    prefix(forge.data, data, second)
    checkpoint, staging = str(tmp_path / "checkpoint"), tmp_path / "staging"
    first = incremental(spark, str(data), checkpoint, staging)
    assert first.nodes[0].until == second
    expected = same(night.whole())
    prefix(forge.data, data, forge.log.tail)
    (data / "log" / f"{0:020d}.log").unlink()
    (data / "log" / "start").write_text(json.dumps({"offset": second, "queues": []}))
    found = incremental(spark, str(data), checkpoint, staging)
    assert reading(found) == {"node": None}
    assert same(found) == expected


def test_retention_that_was_faster_than_the_audits_is_said(night):
    night.forge.timer()
    night.audit()
    night.forge.roll()
    night.forge.cut(night.forge.roll())
    found = night.audit()
    assert "retention removed records" in night.why(found)
    assert same(found) == same(night.whole())


def test_nodes_may_come_go_return_and_be_replaced(spark, tmp_path, monkeypatch):
    forges = {}
    for number, name in enumerate(("a", "b", "c")):
        monkeypatch.setattr(test_audit_forged, "LOG_ID", bytes([number] * 16))
        forges[name] = Forge(tmp_path / name)
        forges[name].end(forges[name].timer(), store_ms=DUE_MS - 1)

    def check(*names: str) -> Audit:
        data = [str(tmp_path / name) for name in names]
        found = incremental(spark, data, str(tmp_path / "checkpoint"), tmp_path / "staging")
        surveyed = survey(spark, find_logs(data), ReadOptions(str(tmp_path / "staging")))
        assert same(found) == same(audit(spark, JobProgress(spark, show=False), surveyed, None))
        for name in names:
            forges[name].end(forges[name].timer())
        return found

    assert check("a", "b").reading.absent == []
    found = check("b", "c")
    assert found.reading.absent == ["a"]
    assert reading(found) == {"b": None, "c": "the checkpoint does not have this log"}
    found = check("a", "b", "c")
    assert reading(found) == {"a": None, "b": None, "c": None}
    assert [one.node for one in found.findings] == ["a", "b", "c"]
    (tmp_path / "a").rename(tmp_path / "renamed")
    forges["renamed"] = forges["a"]
    forges["renamed"].log.directory = tmp_path / "renamed" / "log"
    found = check("renamed")
    assert reading(found) == {"renamed": None}
    assert [one.node for one in found.findings] == ["renamed"]
    monkeypatch.setattr(test_audit_forged, "LOG_ID", b"x" * 16)
    forges["b"].log.close()
    shutil.rmtree(tmp_path / "b")
    forges["b"] = Forge(tmp_path / "b")
    found = check("b")
    assert reading(found) == {"b": "the checkpoint does not have this log"}
    assert found.reading.absent == ["c", "renamed"]


def test_two_copies_of_one_log_are_refused(night, tmp_path):
    shutil.copytree(night.forge.data, tmp_path / "data" / "copy")
    with pytest.raises(JobError, match="hold the same log"):
        night.audit()


@pytest.mark.torture
def test_lists_are_cut_and_old_hours_summed_up_as_in_a_whole_audit(night, monkeypatch):
    for name, count in (("FINDINGS_MAX", 3), ("HOURS_MAX", 4), ("TOPICS_MAX", 2)):
        monkeypatch.setattr(audit_module, name, count)
    chance = random.Random(7)
    for turn in range(4):
        for hour in chance.sample(range(12), 3):
            due_ms = NOW_MS + (hour + turn) * HOUR_MS
            for topic in chance.sample(("orders", "tickets", "lamps"), 2):
                timer = night.forge.timer(due_ms=due_ms, topic=topic)
                night.forge.end(timer, store_ms=due_ms + chance.randrange(5_000) - 20)
                night.forge.end(timer, store_ms=due_ms - 1)
        found = night.audit()
        assert same(found) == same(night.whole())
    assert found.hours_total > 4 + 3
    assert found.findings_total > len(found.findings) == 3
    rows = pa.concat_tables(map(pq.read_table, night.checkpoint.rglob("sums-*.parquet")))
    kept = rows.filter(pc.equal(rows["sort"], "lateness"))["hour_ms"]
    assert kept.null_count > 0
    assert len(kept.drop_null().unique()) < found.hours_total


def test_the_tables_of_all_nights_are_those_of_a_whole_audit(night, tmp_path):
    forge, chance = night.forge, random.Random(3)
    timers: list[int] = []
    for turn in range(3):
        timers += [forge.timer() for _ in range(6)]
        for timer in chance.sample(timers, 4):
            timers.remove(timer)
            forge.end(timer, chance.choice((Kind.MESSAGE, Kind.CANCEL)))
        out = tmp_path / f"out-{turn}"
        with out_directory(str(out), *TABLES) as place:
            night.audit(place)
    with out_directory(str(tmp_path / "whole"), *TABLES) as place:
        found = survey(night.spark, find_logs([night.data]), ReadOptions(str(tmp_path / "staging")))
        audit(night.spark, JobProgress(night.spark, show=False), found, place)
    nights = [
        {
            (row["node"], row["offset"]): row
            for row in pq.read_table(tmp_path / f"out-{turn}/timers").to_pylist()
        }
        for turn in range(3)
    ]
    every = pq.read_table(tmp_path / "whole" / "timers").to_pylist()
    assert nights[0] | nights[1] | nights[2] == {(row["node"], row["offset"]): row for row in every}
    assert len(nights[2]) < len(every), "only what was stored or ended since"
    late = [pq.read_table(tmp_path / f"out-{turn}/lateness")["delivered"].to_pylist() for turn in range(3)]
    whole_late = pq.read_table(tmp_path / "whole" / "lateness")["delivered"].to_pylist()
    assert sum(map(sum, late)) == sum(whole_late)


def test_tables_of_an_attempt_that_was_given_up_are_not_left(night, tmp_path):
    timer = night.forge.timer()
    night.forge.end(timer)
    for _ in range(3):
        night.forge.roll()
    night.audit()
    night.forge.end(timer)
    with out_directory(str(tmp_path / "out"), *TABLES) as place:
        found = night.audit(place)
    assert "open timers" in night.why(found)
    rows = pq.read_table(tmp_path / "out" / "timers")["offset"].to_pylist()
    assert rows == [timer]
    assert len(pq.read_table(tmp_path / "out" / "findings")) == 1


# ---------------------------------------------------------------------- what may happen to the checkpoint


def test_a_run_that_dies_at_any_rename_leaves_a_checkpoint_from_which_the_next_goes_on(night, monkeypatch):
    timers = [night.forge.timer() for _ in range(6)]
    night.audit()
    replace = Path.replace
    deaths = 0
    for place in ("before", "after"):
        for dies in (True, False):
            night.forge.end(timers.pop())
            night.forge.roll()

            def stop(path: Path, target: str, *, place: str = place, dies: bool = dies) -> None:
                ends = dies and Path(target).name == "checkpoint.json"
                if ends and place == "before":
                    raise InterruptedError
                replace(path, target)
                if ends:
                    raise InterruptedError

            monkeypatch.setattr(Path, "replace", stop)
            if dies:
                with pytest.raises(InterruptedError):
                    night.audit()
                deaths += 1
            else:
                assert same(night.audit()) == same(night.whole())
    assert deaths == 2
    named = json.loads((night.checkpoint / "checkpoint.json").read_bytes())
    paths = {one["path"] for log in named["logs"] for one in log["open"]}
    paths |= {one["path"] for one in named["sums"]}
    left = {str(path.relative_to(night.checkpoint)) for path in night.checkpoint.glob("*/*.*")}
    assert left - {"_lock/audit"} == paths


def test_of_two_runs_at_once_one_is_refused_and_learns_who_is_at_work(night):
    night.forge.timer()
    with (
        open_checkpoint(str(night.checkpoint), "2026-11-23T10:00:00Z"),
        pytest.raises(JobError, match=f"another audit is at work.*process {os.getpid()}.*10:00:00Z"),
    ):
        night.audit()
    assert night.audit().records == 1


@pytest.mark.parametrize(("what", "how"), [("open", "flipped"), ("sums", "missing")])
def test_a_damaged_file_of_the_checkpoint_is_named_and_nothing_is_judged(night, what, how):
    timer = night.forge.timer()
    night.forge.roll()
    night.audit()
    night.forge.end(timer)
    document = (night.checkpoint / "checkpoint.json").read_bytes()
    for path in night.checkpoint.rglob(f"{what}-*"):
        if how == "missing":
            path.unlink()
        else:
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
    with pytest.raises(
        JobError, match=f"cannot be used: .*{what}-.*; remove the directory, or choose another"
    ):
        night.audit()
    assert (night.checkpoint / "checkpoint.json").read_bytes() == document


@pytest.mark.torture
def test_in_an_object_store_the_checkpoint_is_objects_and_its_lock_too(spark, night, monkeypatch):
    with object_store() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
            monkeypatch.setitem(spark.sparkContext.environment, name, value)
        s3fs.S3FileSystem.clear_instance_cache()
        night.checkpoint = f"s3://{BUCKET}/audits/nightly"
        timer, other = night.forge.timer(), night.forge.timer()
        assert same(night.audit()) == same(night.whole())
        night.forge.roll()
        night.forge.end(timer)
        found = night.audit()
        assert night.why(found) is None
        assert same(found) == same(night.whole())
        names = [name.removeprefix("audits/nightly/") for name in store.names()]
        assert "checkpoint.json" in names
        assert not [name for name in names if name.startswith("_lock")]
        assert len({name.split("/")[0] for name in names}) == 2, "one generation is left"
        with (
            open_checkpoint(night.checkpoint, "then"),
            pytest.raises(JobError, match=r"another audit is at work.*delete s3://"),
        ):
            night.audit()
        with open_checkpoint(night.checkpoint, "then") as late:
            assert late.document is not None
            store.client.delete_object(Bucket=BUCKET, Key="audits/nightly/_lock/audit.json")
            with pytest.raises(JobError, match="no longer has the lock"):
                late.commit(late.document)
        night.forge.end(other)
        assert same(night.audit()) == same(night.whole())
    s3fs.S3FileSystem.clear_instance_cache()


# ---------------------------------------------------------------------- the command


def test_the_command_says_what_it_read_and_goes_on_from_there(run_audit, night, tmp_path):
    timer = night.forge.timer()
    words = ("--data", str(night.forge.data), "--checkpoint", "nightly", "--utc")
    done = run_audit(*words, "--out", "first")
    assert done.exit_code == 0, done.output
    assert re.search(r"^read +1 of 1 segments *$", done.output, re.MULTILINE)
    assert wide_in(tmp_path / "nightly") == [], "a checkpoint is not for everybody to read"
    night.forge.roll()
    night.forge.end(timer, store_ms=DUE_MS - 1)
    done = run_audit(*words, "--out", "second", "--report-only", "--scan")
    assert done.exit_code == 1
    count = len(night.forge.log.bases)
    assert re.search(
        rf"^read +{count} of {count} segments; the rest was judged before \(.* 20.*\) *$",
        done.output,
        re.MULTILINE,
    )
    assert re.search(r"^new findings +1 of 1 *$", done.output, re.MULTILINE)
    done = run_audit(*words, "--out", "third", "--json")
    assert done.exit_code == 1, "what was found before still counts"
    document = json.loads(done.output)
    assert document == json.loads((tmp_path / "third" / "audit.json").read_bytes())
    assert document["reading"]["findings_new"] == 0
    assert document["reading"]["nodes"][0]["segments"] == 1
    assert document["run"]["command"].endswith("--checkpoint nightly")
    page = (tmp_path / "third" / "report.html").read_text()
    assert "judged before" in page
    assert [run.nodes[0].begin for run in map(read_run, ("first", "third"))] == [
        document["nodes"][0]["begin"],
        document["reading"]["nodes"][0]["since"],
    ], "audits that continue each other can be counted together"


def test_a_job_that_fails_leaves_the_checkpoint_as_it_was(run_audit, night, tmp_path):
    night.forge.timer()
    words = ("--data", str(night.forge.data), "--checkpoint", "nightly")
    assert run_audit(*words, "--out", "first").exit_code == 0
    document = (tmp_path / "nightly" / "checkpoint.json").read_bytes()
    at = night.forge.message()
    night.forge.roll()
    path, base = night.forge.log.path(night.forge.log.base_of(at)), night.forge.log.base_of(at)
    data = bytearray(path.read_bytes())
    data[at - base + HEADER_SIZE] ^= 1
    path.write_bytes(data)
    done = run_audit(*words, "--out", "second")
    assert "--salvage" in str(done.exception)
    assert not (tmp_path / "second").exists()
    assert (tmp_path / "nightly" / "checkpoint.json").read_bytes() == document


def test_a_directory_with_something_else_is_refused_before_spark_starts(run_audit, night, tmp_path):
    (tmp_path / "nightly").mkdir()
    (tmp_path / "nightly" / "mine").touch()
    done = run_audit("--data", str(night.forge.data), "--checkpoint", "nightly", "--out", "out")
    assert isinstance(done.exception, JobError)
    assert "not the checkpoint of an audit: it has mine" in str(done.exception)
    assert [path.name for path in (tmp_path / "nightly").iterdir()] == ["mine"]
