"""Nobody but the owner and the group reads what the service writes, whatever the umask."""

import logging
import os
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest

from tests.harness import golden
from tests.harness.permissions import umask, wide_in
from tests.harness.world import World
from timerwheel.offline.backup.backup import back_up
from timerwheel.offline.backup.restore import restore_backup
from timerwheel.runtime.data_directory import close_to_others
from timerwheel.runtime.recovery import REBUILD_MARK
from timerwheel.spark_jobs.archive.chunk_writer import ChunkWriter
from timerwheel.spark_jobs.archive.lock import ArchiveLock
from timerwheel.spark_jobs.archive.manifest import ArchivedSegment
from timerwheel.spark_jobs.archive.restored_log import restored_log
from timerwheel.spark_jobs.archive.store import Archive
from timerwheel.spark_jobs.storage import write_atomically
from timerwheel.state.log_manifest import LogStart
from timerwheel.store.errors import IndexDamagedError
from timerwheel.store.files import DiskFiles

NOBODY = 65534
PRIVATE = {"file_mode": 0o600, "directory_mode": 0o700}


@pytest.fixture(params=[0, 0o022], ids=["umask 000", "umask 022"])
def world(request, tmp_path):
    """A world on a real disk under a umask that closes nothing to readers; its directory is not there yet."""
    world = World(tmp_path / "a" / "data")
    world.files = DiskFiles()
    with umask(request.param):
        yield world


async def lived(world: World) -> World:
    """After a life with something of everything, and with an index that was set aside."""
    await world.open(retention_ms=golden.RETENTION_MS)
    await golden.live(world)
    golden.put_beside(world.directory, world.engine.core.log.log_id.hex(), world.clock.now_ms())
    await world.engine.close()
    (world.directory / REBUILD_MARK).touch()
    await world.open()
    return world


async def test_no_file_of_a_data_directory_is_for_everybody_to_read(world):
    await lived(world)
    names = {path.name for path in world.directory.rglob("*")}
    assert names >= {"log", "start", "index", "index.aside", "data.mdb", "lock.mdb"}
    assert names >= {"lock", "tokens.json", "archived"}
    assert {path.suffix for path in (world.directory / "log").iterdir()} == {".log", ".side", ".keys", ""}
    assert wide_in(world.directory.parent) == []
    await world.engine.close()


async def test_the_mark_of_a_damaged_index_is_not_for_everybody_to_write(world):
    await world.open()
    with pytest.raises(IndexDamagedError):
        world.engine.core.index.index.report_damage("it was hit")
    assert (world.directory / REBUILD_MARK).exists()
    assert wide_in(world.directory) == []
    await world.engine.abandon()


async def test_a_backup_and_what_is_restored_from_it_are_their_owners_alone(world, tmp_path):
    await lived(world)
    for _ in range(2):
        back_up(world.directory, tmp_path / "b" / "backup", 1)
    await world.engine.close()
    restore_backup(tmp_path / "b" / "backup", tmp_path / "c" / "data", 1)
    assert wide_in(tmp_path / "b" / "backup", tmp_path / "c" / "data", **PRIVATE) == []


async def test_a_backup_that_was_opened_to_others_is_closed_by_the_next_run(world, tmp_path):
    await world.open()
    await world.send(0)
    back_up(world.directory, tmp_path / "backup", 1)
    open_to_all(tmp_path / "backup")
    back_up(world.directory, tmp_path / "backup", 2)
    await world.engine.close()
    assert wide_in(tmp_path / "backup", **PRIVATE) == []


@pytest.mark.usefixtures("world")
def test_an_archive_is_not_for_everybody_to_read(tmp_path):
    archive = Archive(str(tmp_path / "x" / "archive"))
    facts = {"made_ms": 0, "records": 1, "last_store_ms": 1, "queues": [], "lost": [], "beginning": None}
    row = {"store_ms": [1], "size": [104], "topic": ["orders"], "offset": [64]}
    with ArchiveLock(archive.url, "0" * 32, "now") as lock:
        with ChunkWriter(lock.run, row_group_bytes=1) as writer:
            writer.add(pa.record_batch(row))
            assert wide_in(tmp_path / "x") == []
            writer.commit("n", [ArchivedSegment(base=0, end=168, **facts)])
        assert wide_in(tmp_path / "x") == []
    write_atomically(str(tmp_path / "x" / "staged" / "rows"), b"rows")
    assert wide_in(tmp_path / "x") == []
    assert not archive.is_open_to_others
    (tmp_path / "x" / "archive").chmod(0o755)
    assert archive.is_open_to_others


@pytest.mark.usefixtures("world")
def test_a_log_restored_from_an_archive_is_not_for_everybody_to_read(tmp_path):
    with restored_log(tmp_path / "r" / "data", 4096, "now") as target:
        target.begin(b"i" * 16, 4096, 1)
        target.finish(LogStart(4096, []))
    assert wide_in(tmp_path / "r") == []


# ---------------------------------------------------------------------- what was there before


def open_to_all(place):
    for path in (place, *place.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o777 if path.is_dir() else 0o666)


async def test_a_start_closes_what_an_earlier_version_left_open_and_says_so(world, caplog):
    await lived(world)
    await world.engine.close()
    open_to_all(world.directory)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        await world.open()
    assert wide_in(world.directory) == []
    [said] = [record.message for record in caplog.records if "changed their permissions" in record.message]
    assert f"files and directories in {world.directory}" in said
    caplog.clear()
    await world.restart()
    assert "changed their permissions" not in caplog.text
    await world.engine.close()


async def test_a_start_closes_its_own_files_in_a_directory_that_has_others_and_leaves_those(world):
    await world.open()
    await world.engine.close()
    other = world.directory / "photos"
    other.mkdir()
    (other / "cat.jpg").write_bytes(b"")
    open_to_all(world.directory)
    await world.open()
    await world.engine.close()
    assert {path.partition(": ")[0] for path in wide_in(world.directory)} == {
        str(world.directory),
        str(other),
        str(other / "cat.jpg"),
    }


async def test_a_start_follows_the_link_to_an_index_elsewhere_and_no_link_within(world, tmp_path):
    await world.open()
    await world.engine.close()
    (world.directory / "index").rename(tmp_path / "fast-disk")
    (world.directory / "index").symlink_to(tmp_path / "fast-disk")
    (tmp_path / "mine").write_text("mine")
    (world.directory / "log" / "link").symlink_to(tmp_path / "mine")
    open_to_all(tmp_path / "fast-disk")
    (tmp_path / "mine").chmod(0o666)
    await world.open()
    await world.engine.close()
    assert wide_in(tmp_path / "fast-disk") == []
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o666


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
def test_a_start_names_what_belongs_to_another_user_and_is_open_to_all(caplog):
    with tempfile.TemporaryDirectory() as name:  # pytest's own directories are closed to other users
        place = Path(name)
        place.chmod(0o755)
        (place / "log").mkdir()
        (place / "log" / "segment").touch()
        open_to_all(place)
        os.seteuid(NOBODY)
        try:
            found = close_to_others(place)
        finally:
            os.seteuid(0)
        assert found.changed == 0
        assert set(found.refused) == {place, place / "log", place / "log" / "segment"}
        assert f"3 files and directories in {place} that belong to another user" in caplog.text
