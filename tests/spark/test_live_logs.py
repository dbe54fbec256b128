"""Jobs that read a log while its service runs: what retention removes under them is no fault of the log."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from tests.harness.audits import whole
from tests.harness.world import World
from timerwheel.spark_jobs.archive.check import verify
from timerwheel.spark_jobs.archive.job import archive
from timerwheel.spark_jobs.audit.checkpoint import open_checkpoint
from timerwheel.spark_jobs.audit.job import TABLES, Audit, audit_live, audit_since
from timerwheel.spark_jobs.audit.report import Run, audit_page
from timerwheel.spark_jobs.errors import JobError, job_error
from timerwheel.spark_jobs.forecast.horizon import horizon_of
from timerwheel.spark_jobs.forecast.job import count_live
from timerwheel.spark_jobs.live_logs import ATTEMPTS_MAX, LiveLogs, Removed
from timerwheel.spark_jobs.logs import NodeLog, find_logs
from timerwheel.spark_jobs.progress import JobProgress
from timerwheel.spark_jobs.rebuild.job import Rebuild
from timerwheel.spark_jobs.segment_stats import ReadOptions
from timerwheel.spark_jobs.segments import SegmentGoneError
from timerwheel.state.log_manifest import LogStart, encode_start
from timerwheel.store.files import DiskFiles
from timerwheel.store.log_reader import START_FILE
from timerwheel.store.segment import segment_name

RETENTION_MS = 10_000
WAITING = 7
NOW_MS = 1_800_000_000_000
RUN = Run("timerwheel audit", NOW_MS, {}, {}, "out")


class Node:
    """A service with some segments, of which retention removes the first ones when it is asked to.

    Timers that wait are in them, so retention moves these to the end of the log.
    """

    def __init__(self, data: Path) -> None:
        self.data = data
        self._world = World(data)
        self._world.files = DiskFiles()
        asyncio.run(self._live())

    async def _live(self) -> None:
        await self._world.open()
        await self._world.send(*[900_000_000] * WAITING)
        for _ in range(4):
            await self._segment()
        await self._world.engine.close()

    async def _segment(self) -> None:
        await self._world.send(300, 400)
        await self._world.advance(1_000)
        await self._world.roll()

    def grow(self) -> None:
        async def run() -> None:
            await self._world.open()
            await self._segment()
            await self._world.engine.close()

        asyncio.run(run())

    def retire(self) -> None:
        async def run() -> None:
            await self._world.open(retention_ms=RETENTION_MS)
            await self._world.advance(2 * RETENTION_MS)
            await self._world.send(5_000)
            await self._world.retention_turn()
            await self._world.engine.close()

        before = self.log.segments[0].base
        asyncio.run(run())
        assert self.log.segments[0].base > before

    @property
    def log(self) -> NodeLog:
        [found] = find_logs([str(self.data)])
        return found

    @property
    def url(self) -> str:
        return str(self.data)


class Retiring(JobProgress):
    """Lets retention remove segments when a stage begins, for the first time."""

    def __init__(self, spark, stage: str, node: Node) -> None:
        super().__init__(spark, show=False)
        self._at, self._node = stage, node

    @contextlib.contextmanager
    def stage(self, name):
        if name == self._at:
            self._at = ""
            self._node.retire()
        with super().stage(name) as step:
            yield step


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path / "node-1")


def gone(before: NodeLog, node: Node) -> Removed:
    """What retention has removed since the log was listed."""
    first = node.log.segments[0].base
    assert first > before.segments[0].base
    return Removed("node-1", before.segments[0].base, first)


def without_reading(result: Audit) -> dict[str, object]:
    """An audit without what it says about how it read the logs."""
    found = {name: getattr(result, name) for name in result.__struct_fields__}
    del found["removed"], found["reading"], found["nodes"]
    return found | {"ranges": [(one.begin, one.until, one.records) for one in result.nodes]}


@pytest.mark.parametrize(("stage", "sidecars"), [("survey", True), ("survey", False), ("judge", True)])
def test_an_audit_covers_what_retention_left_and_says_what_it_removed(spark, node, tmp_path, stage, sidecars):
    before, live, out = node.log, LiveLogs(spark, [node.log]), tmp_path / "out"
    for table in TABLES:
        (out / table).mkdir(parents=True)
    options = ReadOptions(str(tmp_path / "staging"), sidecars=sidecars)
    result = audit_live(live, Retiring(spark, stage, node), options, str(out))
    assert result.removed == [gone(before, node)]
    assert result.balanced
    assert result.damaged == []
    assert result.timers["pending"] == WAITING + 1
    assert without_reading(result) == without_reading(whole(spark, node.url, tmp_path / "again"))
    timers = spark.read.parquet(str(out / "timers"))
    assert timers.count() == timers.select("offset").distinct().count() == sum(result.timers.values())
    assert result.removed[0].text in audit_page(result, RUN)


def test_an_audit_that_has_read_all_records_does_not_miss_what_retention_removes(spark, node, tmp_path):
    live, before = LiveLogs(spark, [node.log]), whole(spark, node.url, tmp_path / "before")
    progress = Retiring(spark, "judge", node)
    result = audit_live(live, progress, ReadOptions(str(tmp_path / "staging"), sidecars=False), None)
    assert result.removed == []
    assert without_reading(result) == without_reading(before)


@pytest.mark.parametrize("stage", ["survey", "judge"])
def test_an_audit_with_a_checkpoint_says_it_too_and_goes_on_from_there(spark, node, tmp_path, stage):
    before, live = node.log, LiveLogs(spark, [node.log])
    progress = Retiring(spark, stage, node)
    with open_checkpoint(str(tmp_path / "kept"), "now") as kept:
        options = ReadOptions(str(tmp_path / "staging"))
        result, following = audit_since(live, progress, kept, options, None, now_ms=NOW_MS)
        kept.commit(following)
    assert result.removed == [gone(before, node)]
    assert without_reading(result) == without_reading(whole(spark, node.url, tmp_path / "again"))
    with open_checkpoint(str(tmp_path / "kept"), "now") as kept:
        live = LiveLogs(spark, [node.log])
        options = ReadOptions(str(tmp_path / "more"))
        again, _ = audit_since(live, progress, kept, options, None, now_ms=NOW_MS)
    assert again.removed == []
    assert again.reading is not None
    assert again.reading.nodes[0].why_whole is None


@pytest.mark.parametrize("stage", ["survey", "count"])
def test_a_forecast_counts_the_messages_that_retention_moved(spark, node, tmp_path, stage):
    before, live = node.log, LiveLogs(spark, [node.log])
    options = ReadOptions(str(tmp_path / "staging"))
    _, _, totals = count_live(live, Retiring(spark, stage, node), options, horizon_of(NOW_MS, 1_000))
    assert live.removed == [gone(before, node)]
    assert totals.overdue + int(totals.per_second.sum()) + totals.later == WAITING + 1


@pytest.mark.parametrize("stage", ["survey", "pages", "groups"])
def test_a_dry_rebuild_builds_the_index_of_what_retention_left(spark, node, tmp_path, stage):
    (tmp_path / "staging").mkdir()
    before = node.log
    job = Rebuild(spark, Retiring(spark, stage, node), ReadOptions(str(tmp_path / "staging")))
    report = job.run([before], dry_run=True)
    if stage != "groups":  # the tables of this log have all that is needed from here on
        assert report.removed == [gone(before, node)]
        assert report.nodes[0].before is not None
        assert report.nodes[0].before.same_pending
    assert report.nodes[0].pending >= WAITING
    assert report.nodes[0].damaged == []


def test_an_archive_has_what_retention_left_and_names_what_it_never_got(spark, node, tmp_path):
    before, url = node.log, str(tmp_path / "archive")
    [result] = archive(
        spark, Retiring(spark, "archive", node), [before], url, now_ms=NOW_MS, chunk_bytes_max=1
    )
    assert result.removed == gone(before, node)
    assert result.lost == []
    assert result.archived == len(node.log.segments) - 1
    assert verify(spark, JobProgress(spark, show=False), url, [result.log_id]).problems == []


def test_a_segment_that_the_manifest_still_names_is_damage_as_ever(spark, node, tmp_path):
    live, lost = LiveLogs(spark, [node.log]), node.log.segments[1]
    (Path(lost.directory) / segment_name(lost.base)).unlink()
    staging = str(tmp_path / "staging")
    with pytest.raises(Exception, match="the segment is missing") as caught:
        audit_live(live, JobProgress(spark, show=False), ReadOptions(staging), None)
    assert "the segment is missing" in str(job_error(caught.value))
    result = audit_live(live, JobProgress(spark, show=False), ReadOptions(staging, salvage=True), None)
    assert [(one.offset, one.end) for one in result.damaged] == [(lost.base, lost.end)]
    assert result.removed == []


def test_what_is_gone_without_retention_ends_the_job(spark, node):
    def work(_logs):
        raise SegmentGoneError("moved")

    with pytest.raises(SegmentGoneError, match="moved"):
        LiveLogs(spark, [node.log]).read(work)


def test_a_job_that_retention_always_outruns_ends_with_what_to_do(spark, node):
    for _ in range(ATTEMPTS_MAX - 3):
        node.grow()
    bases = [segment.base for segment in node.log.segments]
    attempts = 0

    def work(_logs):
        nonlocal attempts
        attempts += 1
        DiskFiles().write_whole(node.data / "log" / START_FILE, encode_start(LogStart(bases[attempts], [])))
        raise SegmentGoneError("removed again")

    with pytest.raises(JobError, match="give it more cores"):
        LiveLogs(spark, [node.log]).read(work)
    assert attempts == ATTEMPTS_MAX
