"""Backups of a directory whose service runs, and what is made of them: whole, private, and never half."""

import asyncio
import contextlib
import errno
import fcntl
import os
import resource
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import orjson
import pytest

from tests.harness import golden
from tests.harness.clock import ManualClock
from tests.harness.scratch import scratch
from tests.harness.world import World
from timerwheel import tokens
from timerwheel.errors import SettingsError
from timerwheel.model.messages import Outgoing
from timerwheel.offline.backup import files
from timerwheel.offline.backup.backup import TRIES_MAX, back_up
from timerwheel.offline.backup.files import BackupDamagedError, read_manifest, verify_files
from timerwheel.offline.backup.restore import restore_backup
from timerwheel.offline.fsck import fsck
from timerwheel.runtime.data_directory import MANIFEST_FILE
from timerwheel.state.log_manifest import UNFINISHED_LOG
from timerwheel.store.errors import CorruptionError, FormatError, LockedError
from timerwheel.store.files import DiskFiles
from timerwheel.store.lock import DirectoryLock
from timerwheel.store.log_reader import START_FILE

NOW_FILE = "now"


@pytest.fixture(scope="module")
def life() -> Iterator[Path]:
    """The directory of a service that was stopped, with something of everything in it."""

    async def live(data: Path) -> None:
        world = World(data)
        world.files = DiskFiles()
        await world.open(retention_ms=golden.RETENTION_MS)
        await golden.live(world)
        golden.put_beside(data, world.engine.core.log.log_id.hex(), world.clock.now_ms())
        await world.engine.close()
        (data / NOW_FILE).write_text(str(world.clock.now_ms()))

    with scratch() as root:
        asyncio.run(live(root / "data"))
        yield root / "data"


@pytest.fixture
def room() -> Iterator[Path]:
    with scratch() as root:
        yield root


@pytest.fixture
async def lived(life, room):
    """The same, running."""
    shutil.copytree(life, room / "data")
    now_ms = int((room / "data" / NOW_FILE).read_text())
    (room / "data" / NOW_FILE).unlink()
    world = await opened(room / "data", now_ms, retention_ms=golden.RETENTION_MS)
    yield world
    await world.engine.close()


@pytest.fixture
def target(room):
    return room / "backup"


async def opened(directory, now_ms, **limits):
    """What was restored, at that time."""
    other = World(directory)
    other.files = DiskFiles()
    other.clock = ManualClock(now_ms)
    await other.open(**limits)
    return other


def but_leases(told):
    """What a copy of the directory tells, too: leases, and what waits behind them, are in memory alone."""
    groups = [
        [topic, group, ordered, waiting, ready]
        for topic, group, ordered, _lag, _in_flight, waiting, ready, _parked in told["groups"]
    ]
    return told | {"groups": groups}


@contextlib.contextmanager
def files_of(room_bytes: int) -> Iterator[None]:
    """As a full disk: this process cannot write a file of more bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def last_segment(data):
    return max(data.glob("log/*.log"))


async def test_a_backup_whose_start_is_larger_than_other_files_may_be_is_verified_and_restored(
    lived, target, room, monkeypatch
):
    beside = [lived.directory / name for name in files.BESIDE]
    size_max = max(path.stat().st_size for path in beside if path.exists())
    assert (lived.directory / "log" / START_FILE).stat().st_size > size_max
    monkeypatch.setattr(files, "BESIDE_BYTES_MAX", size_max)
    now_ms = lived.clock.now_ms()
    back_up(lived.directory, target, now_ms)
    verify_files(target)
    restore_backup(target, room / "new", now_ms)
    assert [finding.code for finding in fsck(room / "new").findings] == ["index_missing"]
    back_up(lived.directory, target, now_ms)


async def test_a_backup_that_nobody_could_read_leaves_the_last_one_in_its_place(lived, target, monkeypatch):
    now_ms = lived.clock.now_ms()
    before = back_up(lived.directory, target, now_ms)
    for _ in range(3):
        await lived.roll()
    with monkeypatch.context() as patched:
        patched.setattr(files, "MANIFEST_BYTES_MAX", (target / "log" / MANIFEST_FILE).stat().st_size)
        with pytest.raises(FormatError, match="the previous one stays"):
            back_up(lived.directory, target, now_ms)
        assert verify_files(target).until == before.until
    assert back_up(lived.directory, target, now_ms).until > before.until


async def test_what_is_restored_says_what_the_service_said_when_the_backup_began(lived, target, room):
    before, now_ms = await golden.told(lived), lived.clock.now_ms()
    report = back_up(lived.directory, target, now_ms)
    assert report.start > 0, "the log begins with a manifest of retention"
    await lived.send(0, 5_000)
    manifest = restore_backup(target, room / "new", now_ms)
    assert (manifest.start, manifest.until) == (report.start, report.until)
    other = await opened(room / "new", now_ms)
    assert but_leases(await golden.told(other)) == but_leases(before)
    assert other.engine.recovered.truncation is None
    await other.engine.close()
    assert fsck(room / "new").findings == []
    assert tokens.read(room / "new").all == tokens.read(lived.directory).all


async def test_a_stopped_service_is_backed_up_likewise(lived, target, room):
    before, now_ms = await golden.told(lived), lived.clock.now_ms()
    await lived.engine.close()
    back_up(lived.directory, target, now_ms)
    restore_backup(target, room / "new", now_ms)
    other = await opened(room / "new", now_ms)
    assert await golden.told(other) == before
    await other.engine.close()


async def test_a_backup_changes_nothing_in_the_directory_that_it_is_of(lived, target):
    def files():
        log = (lived.directory / "log").iterdir()
        return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes()) for path in log}

    before = files()
    back_up(lived.directory, target, 0)
    assert files() == before


async def test_the_next_backup_copies_only_what_is_new(lived, target):
    await lived.roll()  # so that the last segment has room
    first = back_up(lived.directory, target, 0)
    kept = {path.name: path.stat().st_ino for path in (target / "log").glob("*.log")}
    await lived.engine.sender.send([Outgoing("filler", b"f")])  # the last segment grows before it is sealed
    await lived.roll()
    await lived.roll()
    second = back_up(lived.directory, target, 1)
    assert (first.copied_segments, first.linked_segments) == (first.segments, 0)
    assert second.linked_segments == first.segments - 1
    assert second.copied_segments == second.segments - second.linked_segments
    now = {path.name: path.stat().st_ino for path in (target / "log").glob("*.log")}
    same = [name for name, inode in kept.items() if now.get(name) == inode]
    assert len(same) == second.linked_segments
    assert verify_files(target).until == second.until > first.until


async def test_what_retention_removed_is_gone_from_the_next_backup(lived, target):
    first = back_up(lived.directory, target, 0)
    await lived.roll()
    await lived.advance(2 * golden.DAY_MS)
    await lived.roll()
    await lived.retention_turn()
    second = back_up(lived.directory, target, 1)
    assert second.start > first.start
    assert min((target / "log").glob("*.log")).name == f"{second.start:020d}.log"
    verify_files(target)


async def test_retention_that_is_faster_makes_the_backup_begin_again(lived, target, room):
    await lived.engine.schedules.delete("daily")  # a start would plan its missed run
    await lived.roll()
    await lived.engine.close()
    lived.clock.advance(
        2 * golden.DAY_MS
    )  # while it is stopped, or its own loop would remove segments already
    await lived.open()
    await lived.roll()
    reached, go_on = threading.Event(), threading.Event()

    def wait_once(_done, _total):
        reached.set()
        assert go_on.wait(60)

    running = asyncio.create_task(asyncio.to_thread(back_up, lived.directory, target, 0, wait_once))
    await asyncio.to_thread(reached.wait)
    assert await lived.retention_turn() > 0
    before = await golden.told(lived)
    go_on.set()
    report = await running
    assert report.restarts == 1
    assert report.start == lived.engine.core.log.bases[0]
    now_ms = lived.clock.now_ms()
    restore_backup(target, room / "new", now_ms)
    other = await opened(room / "new", now_ms)
    assert but_leases(await golden.told(other)) == but_leases(before)
    await other.engine.close()


async def test_a_unit_that_is_not_complete_is_left_out(lived, target):
    until = back_up(lived.directory, target, 0).until
    path = last_segment(lived.directory)
    whole = path.read_bytes()[: until - int(path.stem)]
    path.write_bytes(whole + whole[64:104])
    assert back_up(lived.directory, target, 1).until == until
    assert (target / "log" / path.name).read_bytes() == whole


async def test_a_write_that_is_taken_back_while_it_is_copied_is_not_in_the_backup(lived, target):
    path = last_segment(lived.directory)
    whole = path.read_bytes()[: lived.engine.core.log.tail - int(path.stem)]
    record = whole[64 : 64 + int.from_bytes(whole[64:68], "little")]
    path.write_bytes(whole + record)
    calls = []

    def take_back(done, total):
        calls.append(done)
        if done == total and path.stat().st_size > len(whole):
            path.write_bytes(whole)

    report = back_up(lived.directory, target, 0, take_back)
    assert report.until == int(path.stem) + len(whole)
    assert (target / "log" / path.name).read_bytes() == whole


async def test_damage_in_a_sealed_segment_is_named_and_the_backup_that_was_there_stays(lived, target):
    await lived.roll()
    first = back_up(lived.directory, target, 0)
    await lived.roll()
    path = sorted(lived.directory.glob("log/*.log"))[-2]
    raw = bytearray(path.read_bytes())
    raw[200] ^= 1
    path.write_bytes(raw)
    with pytest.raises(CorruptionError, match=path.name):
        back_up(lived.directory, target, 1)
    assert verify_files(target).until == first.until


@pytest.mark.parametrize("room_bytes", [40, 2_000])
async def test_a_disk_without_room_is_named_with_the_file_that_does_not_fit(lived, target, room, room_bytes):
    whole = room / "whole"
    back_up(lived.directory, whole, 0)
    with pytest.raises(OSError, match="File too large") as of_backup, files_of(room_bytes):
        back_up(lived.directory, target, 0)
    with pytest.raises(OSError, match="File too large") as of_restore, files_of(room_bytes):
        restore_backup(whole, room / "new", 0)
    assert of_backup.value.filename.startswith(str(target / "log.new"))
    assert of_restore.value.filename.startswith(str(room / "new"))


async def test_with_salvage_damage_is_copied_unchanged_and_reported_each_time(lived, target, room):
    await lived.roll()
    path = sorted(lived.directory.glob("log/*.log"))[-2]
    raw = bytearray(path.read_bytes())
    raw[200] ^= 1
    path.write_bytes(raw)
    for now_ms in range(2):
        report = back_up(lived.directory, target, now_ms, salvage=True)
        assert len(report.damage) == 1
        assert path.name in report.damage[0]
    restore_backup(target, room / "new", 0)
    assert (room / "new" / "log" / path.name).read_bytes() == raw


def without_links(*_: object) -> None:
    raise OSError(errno.EPERM, "Operation not permitted")


def damage(path: Path, *places: int) -> bytes:
    """Change a byte at each place; returns what the file had."""
    whole = path.read_bytes()
    raw = bytearray(whole)
    for place in places:
        raw[place] ^= 1
    path.write_bytes(raw)
    return whole


@pytest.mark.parametrize("has_links", [True, False])
async def test_damage_in_the_log_does_not_replace_the_intact_copy_of_the_last_backup(
    lived, target, monkeypatch, has_links
):
    for _ in range(2):
        await lived.send(0, 5_000)
        await lived.roll()
    back_up(lived.directory, target, 0)
    path = sorted(lived.directory.glob("log/*.log"))[-2]
    whole = damage(path, 200)
    if not has_links:
        monkeypatch.setattr(os, "link", without_links)
    for now_ms in (1, 2):
        report = back_up(lived.directory, target, now_ms, salvage=True)
        [line] = report.damage
        assert path.name in line
        assert line.endswith("the backup keeps its intact copy")
        assert (target / "log" / path.name).read_bytes() == whole
        assert [one.damage for one in verify_files(target).segments] == [None] * report.segments
    # It can take the place of the damaged file.
    await lived.engine.close()
    shutil.copyfile(target / "log" / path.name, path)
    assert fsck(lived.directory).ok


async def test_a_copy_that_is_damaged_itself_is_not_kept(lived, target):
    await lived.roll()
    back_up(lived.directory, target, 0)
    path = sorted(lived.directory.glob("log/*.log"))[-2]
    damage(path, 200)
    damage(target / "log" / path.name, 250)
    report = back_up(lived.directory, target, 1, salvage=True)
    assert not report.damage[0].endswith("copy")
    assert (target / "log" / path.name).read_bytes() == path.read_bytes()


async def test_a_copy_of_a_log_that_went_on_otherwise_is_not_kept(life, room, target):
    now_ms = int((life / NOW_FILE).read_text())
    for body in (b"one", b"two"):
        shutil.copytree(life, room / body.decode(), ignore=shutil.ignore_patterns(NOW_FILE))
        world = await opened(room / body.decode(), now_ms, retention_ms=golden.RETENTION_MS)
        await world.roll()
        await world.send(5_000, 5_000, 5_000, body=body)
        await world.roll()
        await world.engine.close()
    paths = [sorted((room / name).glob("log/*.log"))[-2] for name in ("one", "two")]
    assert [paths[0].name, paths[0].stat().st_size] == [paths[1].name, paths[1].stat().st_size]
    back_up(room / "one", target, 0)
    damage(paths[1], 100)
    report = back_up(room / "two", target, 1, salvage=True)
    assert not report.damage[0].endswith("copy")
    assert (target / "log" / paths[1].name).read_bytes() == paths[1].read_bytes()


async def test_a_segment_that_was_damaged_when_it_was_backed_up_is_copied_again(lived, target, monkeypatch):
    monkeypatch.setattr(files, "COMPARED_BYTES", 64)  # so that the damage lies between what is compared
    await lived.roll()
    path = sorted(lived.directory.glob("log/*.log"))[-2]
    whole = path.read_bytes()
    raw = bytearray(whole)
    raw[200] ^= 1
    path.write_bytes(raw)
    damaged = back_up(lived.directory, target, 0, salvage=True)
    path.write_bytes(whole)
    mended = back_up(lived.directory, target, 1)
    assert (target / "log" / path.name).read_bytes() == whole
    assert (len(damaged.damage), mended.damage) == (1, [])
    assert mended.linked_segments == mended.segments - 2, "all but this one and the last"


async def test_damage_in_the_last_segment_is_an_error_after_some_tries(lived, target):
    path = last_segment(lived.directory)
    raw = bytearray(path.read_bytes())
    raw[200] ^= 1
    path.write_bytes(raw)
    with pytest.raises(CorruptionError, match=path.name):
        back_up(lived.directory, target, 0, salvage=True)
    assert TRIES_MAX > 1
    assert read_manifest(target) is None


@pytest.mark.parametrize("name", ["*.log", "start", "tokens.json", "archived"])
async def test_a_changed_byte_in_a_backup_is_found_and_not_restored(lived, target, room, name):
    back_up(lived.directory, target, 0)
    path = min((target / "log").glob(name))
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    told = f"^{path} is not what was backed up: its size is right, .* Delete that file and run `.* create`"
    with pytest.raises(BackupDamagedError, match=told):
        verify_files(target)
    with pytest.raises(BackupDamagedError, match=told):
        restore_backup(target, room / "new", 0)
    assert not (room / "new" / "log").exists()
    path.unlink()
    back_up(lived.directory, target, 1)
    verify_files(target)


@pytest.mark.parametrize("name", ["../../elsewhere", "/tmp/elsewhere", "x", "backup.json"])
async def test_a_manifest_that_names_other_files_is_none(lived, target, room, name):
    back_up(lived.directory, target, 0)
    path = target / "log" / MANIFEST_FILE
    manifest = orjson.loads(path.read_bytes())
    manifest["files"].append({"name": name, "size": 0, "crc": 0})
    path.write_bytes(orjson.dumps(manifest))
    with pytest.raises(FormatError, match="not a manifest of a backup"):
        verify_files(target)
    with pytest.raises(FormatError, match="not a manifest of a backup"):
        restore_backup(target, room / "new", 0)


async def test_a_missing_file_of_a_backup_is_found(lived, target, room):
    back_up(lived.directory, target, 0)
    min((target / "log").glob("*.log")).unlink()
    with pytest.raises(BackupDamagedError, match=r"\.log is not what was backed up: it is missing"):
        verify_files(target)
    with pytest.raises(BackupDamagedError, match=r"\.log is not what was backed up: it is missing"):
        restore_backup(target, room / "new", 0)


async def test_only_the_owner_can_read_a_backup_and_what_was_restored(lived, target, room):
    for _ in range(2):
        back_up(lived.directory, target, 0)
    restore_backup(target, room / "new", 0)
    for place in (target, room / "new"):
        for path in (place, *place.rglob("*")):
            assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


# ---------------------------------------------------------------------- refusals


async def test_a_backup_is_not_made_within_its_own_directory_nor_around_it(lived, room):
    for place in (lived.directory, lived.directory / "b", room):
        with pytest.raises(SettingsError, match="outside"):
            back_up(lived.directory, place, 0)


async def test_nothing_is_restored_within_the_backup_whose_next_run_would_remove_it(lived, target, room):
    back_up(lived.directory, target, 0)
    (room / "link").symlink_to(target / "log")
    before = sorted(room.rglob("*"))
    for place in (target, target / "new", target / "log" / "new", room / "link" / "new", room):
        with pytest.raises(SettingsError, match="outside the backup"):
            restore_backup(target, place, 0)
    assert sorted(room.rglob("*")) == before


async def test_a_backup_is_not_made_where_something_else_is(lived, target, room):
    target.mkdir()
    (target / "notes.txt").write_text("mine")
    with pytest.raises(FormatError, match=r"notes\.txt"):
        back_up(lived.directory, target, 0)
    shutil.copytree(lived.directory / "log", room / "other" / "log")
    with pytest.raises(FormatError, match="log of a service"):
        back_up(lived.directory, room / "other", 0)


async def test_a_backup_of_another_log_is_left_alone(lived, target, room):
    back_up(lived.directory, target, 0)
    other = await opened(room / "new", 0)
    with pytest.raises(FormatError, match=lived.engine.core.log.log_id.hex()):
        back_up(other.directory, target, 0)
    await other.engine.close()
    verify_files(target)


def test_a_restore_that_another_one_overtakes_removes_nothing_of_it(life, target, room, monkeypatch):
    back_up(life, target, 0)
    data, flock = room / "new", fcntl.flock

    def overtaken(fd: int, how: int) -> None:
        """Another restore does all its work before this one has the lock."""
        monkeypatch.setattr(fcntl, "flock", flock)
        restore_backup(target, data, 0)
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", overtaken)
    with pytest.raises(FormatError, match="it has log"):
        restore_backup(target, data, 0)
    assert tokens.read(data).all == tokens.read(life).all
    assert sorted(path.name for path in data.iterdir()) == ["archived", "log", "tokens.json"]


@pytest.mark.parametrize("reads", ["verify", "restore"])
async def test_a_backup_that_is_replaced_while_it_is_read_is_not_called_damaged(lived, target, room, reads):
    await lived.roll()
    back_up(lived.directory, target, 0)
    await lived.send(0)

    def replace(done: int, _total: int) -> None:
        if done == 0:
            back_up(lived.directory, target, 1)

    read = (
        partial(verify_files, target)
        if reads == "verify"
        else partial(restore_backup, target, room / "new", 0)
    )
    with pytest.raises(LockedError, match="was replaced by a run"):
        read(replace)
    assert not (room / "new").exists()
    verify_files(target)


def token_named(name: str) -> tokens.Token:
    secret = tokens.new_secret()
    scopes = (tokens.Scope.ADMIN,)
    return tokens.Token(name=name, starts="tw_", sha256=tokens.hash_of(secret), scopes=scopes, made_ms=0)


def test_a_token_that_is_created_during_a_restore_is_added_to_those_of_the_backup(life, target, room):
    back_up(life, target, 0)
    data = room / "new"

    def create(done: int, _total: int) -> None:
        if done == 0:
            tokens.create(data, token_named("made-during-it"))

    restore_backup(target, data, 0, create)
    names = [token.name for token in tokens.read(data).all]
    assert names == [*(token.name for token in tokens.read(life).all), "made-during-it"]


async def test_two_runs_do_not_write_one_backup(lived, target):
    with DirectoryLock(target, purpose="test", now_text="now"), pytest.raises(LockedError):
        back_up(lived.directory, target, 0)


async def test_a_directory_without_a_log_is_named(room, target):
    with pytest.raises(FormatError, match="not a data directory"):
        back_up(room / "nothing", target, 0)
    with pytest.raises(FormatError, match="does not contain a finished backup"):
        restore_backup(room / "nothing", room / "new", 0)


async def test_no_service_starts_in_a_backup_and_no_backup_is_made_of_one(lived, target, room):
    back_up(lived.directory, target, 0)
    with pytest.raises(FormatError, match="is a backup"):
        await opened(target, 0)
    with pytest.raises(FormatError, match="is a backup"):
        back_up(target, room / "b", 0)
    verify_files(target)


async def test_no_service_starts_where_a_restore_was_not_finished(world):
    (world.directory / UNFINISHED_LOG).mkdir(parents=True)
    with pytest.raises(FormatError, match="an unfinished restore"):
        await world.open()
    assert not (world.directory / "log").exists()


async def test_file_systems_of_their_own_can_hold_the_backup_and_what_is_restored(lived, target, room):
    for mounted in (target, room / "new"):
        (mounted / "lost+found").mkdir(parents=True)
    for _ in range(2):
        back_up(lived.directory, target, 0)
    verify_files(target)
    restore_backup(target, room / "new", 0)
    assert {path.name for path in (room / "new").iterdir()} >= {"log", "lost+found"}


async def test_a_restore_leaves_a_directory_alone_that_is_not_new(lived, target, room):
    back_up(lived.directory, target, 0)
    (room / "new").mkdir()
    for name in ("notes.txt", "tokens.json"):
        (room / "new" / name).write_text("mine")
        with pytest.raises(FormatError, match="is not new"):
            restore_backup(target, room / "new", 0)
        assert (room / "new" / name).read_text() == "mine"
        (room / "new" / name).unlink()
    with pytest.raises(FormatError, match="is not new"):
        restore_backup(target, lived.directory, 0)
