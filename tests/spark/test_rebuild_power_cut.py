"""A power cut behind a rebuild: what a killed service had written and not synced stays under the index."""

import asyncio
import random
import shutil
from pathlib import Path

import pytest

from tests.harness.drive import small_settings
from tests.harness.faulty import FaultyFiles
from tests.harness.index_dump import pending_of
from tests.harness.world import World
from timerwheel.runtime.recovery import recover
from timerwheel.spark_jobs.logs import find_logs
from timerwheel.spark_jobs.rebuild.job import Rebuild
from timerwheel.spark_jobs.segment_stats import ReadOptions

FATES = 20


async def killed(data: Path) -> World:
    """A service that does not sync, killed: its last segment and what is in it are only in memory."""
    world = World(data)
    await world.open(flush="async", flush_interval_ms=60_000)
    await world.send(*range(500, 15_500, 1_000), body=b"b" * 200)
    await world.advance(5_000)
    await world.roll()
    await world.send(*range(70_000, 90_000, 5_000), body=b"b" * 200)
    await world.engine.abandon()
    return world


def to_disk(files: FaultyFiles) -> None:
    """Put what this layer holds where other processes read it."""
    for name, content in files.contents().items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(content)


@pytest.fixture
def world(tmp_path):
    world = asyncio.run(killed(tmp_path / "data"))
    shutil.rmtree(world.directory / "index")
    to_disk(world.files)
    return world


def fates(files: FaultyFiles) -> list[dict[str, bytes]]:
    return [files.after_crash(random.Random(fate)).contents() for fate in range(FATES)]


def test_after_a_rebuild_a_power_cut_takes_nothing_that_the_new_index_holds(spark, progress, world, tmp_path):
    written = world.files.contents()
    assert any(left != written for left in fates(world.files)), "without the rebuild much would be lost"
    (tmp_path / "staging").mkdir()
    job = Rebuild(spark, progress, ReadOptions(str(tmp_path / "staging")), files=world.files)
    job.run(find_logs([str(world.directory)]))
    assert all(left == written for left in fates(world.files))
    pending = pending_of(world.directory)
    assert len(pending.splitlines()) == 14
    survivor = world.files.after_crash(random.Random(0))
    found = recover(small_settings(world.directory), survivor, world.clock.now_ms())
    assert (found.rebuilt, found.replayed_records) == (None, 0)
    found.writer.index.close()
    found.log.close()


def test_a_log_that_cannot_be_synced_gets_no_new_index(spark, progress, world, tmp_path):
    before = sorted(path.name for path in world.directory.iterdir())
    world.files.fail_sync = True
    job = Rebuild(spark, progress, ReadOptions(str(tmp_path / "staging")), files=world.files)
    with pytest.raises(OSError, match="Input/output error"):
        job.run(find_logs([str(world.directory)]))
    assert sorted(path.name for path in world.directory.iterdir()) == before
    assert not (tmp_path / "staging").exists()
