"""What a real service leaves behind balances; its report and its tables say what happened."""

import asyncio
import contextlib
import json
import random
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from tests.harness.world import World
from timerwheel.cli import audit as audit_command
from timerwheel.groups.config import Exponential, GroupConfig, GroupTerms
from timerwheel.model.messages import Outgoing
from timerwheel.spark_jobs.audit.findings import Finding, Rule
from timerwheel.spark_jobs.audit.job import TABLES, Audit, audit
from timerwheel.spark_jobs.audit.lateness import buckets_of, lateness_of, top_ms
from timerwheel.spark_jobs.audit.report import Run, audit_page, versions, write_audit
from timerwheel.spark_jobs.errors import JobError
from timerwheel.spark_jobs.logs import find_logs
from timerwheel.spark_jobs.out_directory import out_directory
from timerwheel.spark_jobs.progress import JobProgress
from timerwheel.spark_jobs.segment_stats import ReadOptions, survey
from timerwheel.store.files import DiskFiles

RETENTION_MS = 10_000
NASTY = "<script>alert('$x$')</script>"
RUN = Run("timerwheel audit", 1_800_000_000_000, {"survey": 1.25}, versions(), "out")


async def plain_history(data) -> dict[str, int]:
    """Some of everything that clients do, with a crash; returns what was done how often."""
    world = World(data)
    world.files = DiskFiles()
    engine = await world.open()
    ids = await world.send_ids(0, 0, 500, 700, 900, 40_000, 50_000, 60_000, 70_000)
    await world.advance(600)
    await engine.recalls.recall(ids[5])
    await engine.recalls.reschedule(ids[6], {"TIMER_DELAY_MS": "80000"})
    await engine.recalls.reschedule(ids[7], {"TIMER_DELAY_MS": "0"})
    engine = await world.crash()
    await world.advance(5_000)
    engine = await world.lose_index()
    await engine.recalls.reschedule(ids[8], {"TIMER_DELAY_MS": "1500"})
    await world.advance(2_000)
    await world.send_ids(200_000, topic="tickets")
    delivered = len(await world.delivered())
    await engine.close()
    return {"direct": 2, "early": 1, "recalled": 1, "pending": 2, "delivered": delivered - 3, "replaced": 2}


async def long_history(data) -> None:
    """Random work of clients and of a group's workers while retention moves timers and drops segments."""
    rng = random.Random(5)
    world = World(data)
    world.files = DiskFiles()
    engine = await world.open(retention_ms=RETENTION_MS)
    quick = Exponential(initial_ms=1_000, factor=2.0, max_ms=60_000)
    await engine.groups.put("orders", "g", GroupConfig(backoff=quick, invisible_ms=5_000, max_attempts=3))
    waiting: dict[str, int] = {}
    dropped = 0
    for turn in range(25):
        for receipt in await world.send(*[rng.choice((300, 5_000, 40_000, 900_000)) for _ in range(6)]):
            waiting[receipt.id] = receipt.due_ms
        now_ms = world.clock.now_ms()
        ids = sorted(message_id for message_id, due_ms in waiting.items() if due_ms > now_ms)
        await engine.recalls.recall(ids[0])
        del waiting[ids[0]]
        delay_ms = rng.choice((0, rng.randint(1, 99_000)))
        waiting[ids[1]] = (await engine.recalls.reschedule(ids[1], {"TIMER_DELAY_MS": str(delay_ms)})).due_ms
        got = await engine.groups.receive(
            "orders", "g", count_max=6, invisible_ms=None, wait_ms=0, terms=GroupTerms(create=True)
        )
        if got:
            await engine.groups.ack("orders", "g", [d.receipt for d in got[:2]])
            await engine.groups.nack("orders", "g", [d.receipt for d in got[2:3]], delay_ms=2_000)
            await engine.groups.nack("orders", "g", [d.receipt for d in got[4:5]], delay_ms=900_000)
            for delivery in got[3:4]:
                await engine.groups.extend("orders", "g", [delivery.receipt], 30_000)
        if turn == 23:
            await engine.groups.rewind("orders", "g", to="tail")
        await world.advance(rng.choice((300, 4_000, 12_000)))
        await engine.sender.send([Outgoing("filler", b"f" * 900)])
        dropped += await world.retention_turn()
        if rng.random() < 0.2:
            engine = await getattr(world, rng.choice(("restart", "crash", "lose_index")))()
    assert dropped > 5
    await engine.close()


def test_segments_that_retention_removes_while_spark_starts_are_not_missed(run_audit, tmp_path, monkeypatch):
    world = World(tmp_path / "node-1")
    world.files = DiskFiles()

    async def live() -> None:
        await world.open()
        for _ in range(3):
            await world.send(300)
            await world.roll()
        await world.advance(1_000)
        await world.engine.close()

    async def retire() -> None:
        await world.open(retention_ms=RETENTION_MS)
        await world.advance(2 * RETENTION_MS)
        assert await world.retention_turn() > 0
        await world.engine.close()

    start = audit_command.spark_job

    @contextlib.contextmanager
    def slow_start(*words, **more):
        with start(*words, **more) as job:
            asyncio.run(retire())
            yield job

    asyncio.run(live())
    monkeypatch.setattr(audit_command, "spark_job", slow_start)
    done = run_audit("--data", str(tmp_path / "node-1"), "--out", "out")
    assert done.exit_code == 0, done.output
    assert "the books balance" in done.output


@pytest.fixture(scope="module")
def histories(tmp_path_factory):
    """A directory with the data directories `plain` and `long`, and what was done in the former."""
    directory = tmp_path_factory.mktemp("honest")

    async def make() -> dict[str, int]:
        await long_history(directory / "long")
        return await plain_history(directory / "plain")

    return directory, asyncio.run(make())


@pytest.fixture(scope="module")
def told(spark, histories, tmp_path_factory) -> tuple[Audit, str]:
    """The audit of both, and where its tables are."""
    directory, _ = histories
    out = tmp_path_factory.mktemp("out")
    progress = JobProgress(spark, show=False)
    with out_directory(str(out), *TABLES) as place:
        found = survey(
            spark, find_logs([str(directory / "*")]), ReadOptions(str(tmp_path_factory.mktemp("tables")))
        )
        return audit(spark, progress, found, place), place


def test_an_honest_history_balances(told):
    result, _ = told
    assert result.findings == []
    assert result.rules == {}
    assert result.balanced
    assert result.messages.difference == result.leases.difference == 0
    assert result.messages.overdue == result.out_of_order == result.unproved == 0


def test_a_history_with_retention_and_groups_has_something_of_everything(told):
    result, _ = told
    messages, leases = result.messages, result.leases
    assert min(result.timers.values()) > 0
    assert min(messages.carried, messages.direct, messages.early) > 0
    assert min(leases.scheduled, leases.replaced, leases.delivered, leases.recalled) > 0
    assert [group.topic for group in result.groups] == ["orders/g"]
    assert {"orders", "tickets", "filler"} <= {one.topic for one in result.topics}


def test_the_tables_say_what_was_done(spark, histories, told):
    _, done = histories
    timers = spark.read.parquet(f"{told[1]}/timers").where("node = 'plain'")
    outcomes = {row.outcome: row["count"] for row in timers.groupBy("outcome").count().collect()}
    assert outcomes == {
        "delivered": done["delivered"],
        "early-delivered": done["early"],
        "recalled": done["recalled"],
        "rescheduled": done["replaced"],
        "pending": done["pending"],
    }
    assert timers.where("lateness_ms = ended_ms - due_ms").count() == done["delivered"]
    assert timers.where("lateness_ms is not null").count() == done["delivered"]


def test_the_tables_add_up_to_the_report(spark, told):
    result, place = told
    timers = spark.read.parquet(f"{place}/timers")
    outcomes = {row.outcome: row["count"] for row in timers.groupBy("outcome").count().collect()}
    assert outcomes == {outcome: count for outcome, count in result.timers.items() if count}
    late = spark.read.parquet(f"{place}/lateness").selectExpr("sum(delivered)", "max(latest_ms)").first()
    assert tuple(late) == (result.messages.delivered, result.lateness.max_ms)
    assert (
        sum(bar.delivered for bar in result.histogram) == result.lateness.count == result.messages.delivered
    )
    assert sum(hour.lateness.count for hour in result.hours) == result.messages.delivered
    assert sum(one.accounts.pending for one in result.topics) == result.messages.pending
    assert spark.read.parquet(f"{place}/findings").count() == 0


class _Page(HTMLParser):
    """Whether tags are closed in order, what is loaded from elsewhere, and the text."""

    VOID = ("meta", "br", "path", "use", "img", "link", "input", "hr")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.loaded: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        self.loaded += [value for name, value in attrs if name in ("src", "href") and value[0] != "#"]

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_the_report_is_one_sound_page_that_loads_nothing(told, tmp_path):
    result, _ = told
    write_audit(str(tmp_path), result, RUN)
    text = (tmp_path / "report.html").read_text()
    page = _Page(text)
    assert page.open == []
    assert page.loaded == []
    assert not re.search(r"https?:|url\((?!#)|@import", text)
    assert "svg" in page.tags
    assert "The books balance." in page.text
    assert "orders/g" in page.text
    document = json.loads((tmp_path / "audit.json").read_bytes())
    assert document["balanced"]
    assert document["run"]["seconds"] == {"survey": 1.25}


def test_the_report_escapes_what_comes_from_the_log(told):
    result, _ = told
    finding = Finding(NASTY, "7" * 24, Rule.EARLY, False, NASTY, 64, 64, 64, 10**14, f"\x1b{NASTY}")
    builtins = {field: getattr(result, field) for field in Audit.__struct_fields__}
    broken = Audit(
        **builtins | {"balanced": False, "findings": [finding], "rules": {"early": 3}, "findings_total": 3}
    )
    page = _Page(audit_page(broken, RUN))
    assert "script" not in page.tags
    assert page.text.count(NASTY) == 3
    assert "\x1b" not in page.text
    assert finding.id in page.text
    assert "1 of 3 are shown" in page.text


def test_an_audit_of_nothing_has_a_report_and_tables(spark, tmp_path):
    async def make() -> None:
        world = World(tmp_path / "data")
        world.files = DiskFiles()
        await (await world.open()).close()

    asyncio.run(make())
    with out_directory(str(tmp_path / "out"), *TABLES) as place:
        found = survey(spark, find_logs([str(tmp_path / "data")]), ReadOptions(str(tmp_path)))
        result = audit(spark, JobProgress(spark, show=False), found, place)
        write_audit(place, result, RUN)
    assert result.balanced
    assert result.records == 0
    assert [spark.read.parquet(f"{place}/{table}").count() for table in TABLES] == [0, 0, 0]


def test_a_bucket_holds_what_it_says_and_is_at_most_a_sixteenth_too_high():
    late_ms = np.unique(np.concatenate([np.arange(5_000), 2 ** np.arange(52), 3 * 2 ** np.arange(50) - 1]))
    buckets = buckets_of(late_ms)
    tops = np.array([top_ms(bucket) for bucket in buckets.tolist()])
    assert (tops >= late_ms).all()
    assert (tops <= late_ms + late_ms // 16).all()
    assert (np.diff(buckets) >= 0).all()
    assert (late_ms[1:] > tops[:-1])[np.diff(buckets) > 0].all()


@pytest.mark.parametrize("seed", range(3))
def test_percentiles_are_those_of_the_sorted_list_up_to_a_bucket(seed):
    late_ms = np.sort((np.random.default_rng(seed).pareto(1, 2_001) * 20).astype(np.int64))
    told = lateness_of(
        (bucket, 1, ms) for bucket, ms in zip(buckets_of(late_ms).tolist(), late_ms.tolist(), strict=True)
    )
    assert (told.count, told.max_ms) == (2_001, late_ms[-1])
    for value, share in ((told.p50_ms, 0.5), (told.p90_ms, 0.9), (told.p99_ms, 0.99), (told.p999_ms, 0.999)):
        exact = late_ms[int(np.ceil(2_001 * share)) - 1]
        assert exact <= value <= exact + exact // 16


def test_a_directory_with_something_in_it_is_refused_and_left_alone(tmp_path):
    (tmp_path / "mine").touch()
    with pytest.raises(JobError, match="not an empty directory"), out_directory(str(tmp_path)):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("was_there", [True, False])
def test_a_job_that_fails_leaves_its_directory_as_it_was(tmp_path, was_there):
    out = tmp_path / "out"
    if was_there:
        out.mkdir()

    class _FailedError(Exception):
        pass

    def fill() -> None:
        with out_directory(str(out), "timers") as place:
            (out / "timers" / "part").touch()
            assert place == str(out)
            raise _FailedError

    with pytest.raises(_FailedError):
        fill()
    assert out.exists() == was_there
    assert not was_there or not list(out.iterdir())
