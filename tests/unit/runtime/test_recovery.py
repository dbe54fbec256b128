import errno

import numpy as np
import pytest

from timerwheel.index.writer import IndexWriter
from timerwheel.runtime.recovery import ROOM_BYTES, recover, room_bytes
from timerwheel.settings import Settings
from timerwheel.state.log_manifest import LOG_DIRECTORY
from timerwheel.store.errors import CorruptionError, NoSpaceError
from timerwheel.store.files import DiskFiles
from timerwheel.store.log import CommitLog
from timerwheel.store.record import Kind, decode_header, encode, replace
from timerwheel.wheel.slot_table import ENTRY_DTYPE, TABLE, net

NOW_MS = 1_750_000_000_000
SEGMENT_BYTES = 4096
TIMERS = 400


def told(data):
    """A log of many segments: 400 timers, of which every second was delivered; returns those that wait."""
    log = CommitLog(data / LOG_DIRECTORY, DiskFiles(), SEGMENT_BYTES)
    log.open(new_log_id=bytes(16), now_ms=NOW_MS)
    waiting = []
    for number in range(TIMERS):
        timer = encode(
            *(Kind.TIMER, b"orders", b"", b"body"),
            store_ms=NOW_MS,
            due_ms=NOW_MS + number * 977_000,
            enqueue_ms=NOW_MS,
        )
        [offset] = log.append([[timer]], sync=False, now_ms=NOW_MS).offsets
        if number % 2:
            waiting.append(offset)
            continue
        header = decode_header(timer)
        fired = replace(
            *(timer, header),
            kind=Kind.MESSAGE,
            origin=offset,
            root=offset,
            root_crc=header.crc,
            store_ms=NOW_MS,
            due_ms=header.due_ms,
            rolls=0,
            level=0,
        )
        log.append([[fired]], sync=True, now_ms=NOW_MS)
    log.close()
    return waiting


def recovered(data, *, records_max=200_000, map_size_bytes=1 << 24):
    settings = Settings(
        data=data,
        segment_size_bytes=SEGMENT_BYTES,
        index_records_max=records_max,
        index_map_size_bytes=map_size_bytes,
    )
    return recover(settings, DiskFiles(), NOW_MS)


def close(found):
    found.writer.index.close()
    found.log.close()


def entries_left(found):
    """Offsets of the timers that the wheel holds, in log order."""
    with found.writer.index.read() as txn:
        parts = [value.rows(ENTRY_DTYPE) for _, value in txn.pages(TABLE, b"")]
    return sorted(net(np.concatenate(parts))["offset"].tolist())


@pytest.mark.parametrize("records_max", [1, 60, 200_000])
def test_rebuilt_wheel_holds_what_waits_however_often_it_commits(tmp_path, records_max):
    waiting = told(tmp_path)
    found = recovered(tmp_path, records_max=records_max)
    assert found.replayed_records == TIMERS + TIMERS // 2
    assert found.state.pending == len(waiting)
    assert (found.state.until, found.state.memtable.count, found.state.immutable) == (found.log.tail, 0, None)
    assert found.writer.state.until == found.log.tail
    assert entries_left(found) == waiting
    close(found)


def test_rebuild_that_met_damage_goes_on_behind_what_it_had_committed(tmp_path):
    waiting = told(tmp_path)
    segments = sorted((tmp_path / LOG_DIRECTORY).glob("*.log"))
    place = segments[len(segments) // 2]
    sound = place.read_bytes()
    place.write_bytes(sound[:-1] + b"!")
    with pytest.raises(CorruptionError, match="CRC"):
        recovered(tmp_path, records_max=1)
    place.write_bytes(sound)
    found = recovered(tmp_path, records_max=1)
    assert found.rebuilt is None
    assert 0 < found.replayed_records < TIMERS
    assert entries_left(found) == waiting
    assert found.state.pending == len(waiting)
    close(found)


@pytest.mark.parametrize("fails", ["from then on", "once"])
@pytest.mark.parametrize("commits", [0, 1, 5])
def test_commit_that_fails_ends_the_rebuild_and_the_next_goes_on_from_the_last_one(
    tmp_path, monkeypatch, commits, fails
):
    waiting = told(tmp_path)
    left = commits
    commit = IndexWriter.commit

    def commit_while_there_is_space(writer, memtable, snapshot):
        nonlocal left
        left -= 1
        if left == -1 or (left < 0 and fails == "from then on"):
            raise NoSpaceError("no space")
        commit(writer, memtable, snapshot)

    with monkeypatch.context() as patched:
        patched.setattr(IndexWriter, "commit", commit_while_there_is_space)
        with pytest.raises(NoSpaceError):
            recovered(tmp_path, records_max=1)
    found = recovered(tmp_path, records_max=1)
    assert entries_left(found) == waiting
    assert found.state.pending == len(waiting)
    close(found)


def test_an_index_whose_map_is_too_small_names_the_setting(tmp_path):
    told(tmp_path)
    with pytest.raises(NoSpaceError, match="start with a larger index_map_size"):
        recovered(tmp_path, map_size_bytes=1 << 16)


class FullDisk(DiskFiles):
    """A disk that takes no new segment."""

    def open(self, path, *, create=False, direct=False):
        if create:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().open(path, create=create, direct=direct)

    def free_bytes(self, directory):
        assert directory.is_dir()
        return 3 << 20


def test_a_start_without_room_says_where_how_much_and_what_may_go(tmp_path):
    (tmp_path / "index.aside").mkdir()
    settings = Settings(data=tmp_path, segment_size_bytes=SEGMENT_BYTES)
    with pytest.raises(NoSpaceError) as refused:
        recover(settings, FullDisk(), NOW_MS)
    text = str(refused.value)
    assert "No space left on device. Nothing is lost. The disk of " in text
    assert f"{tmp_path} has 3 MiB free and needs up to 4 MiB; free some space and start again; " in text
    assert text.endswith(f"{tmp_path / 'index.aside'} may be deleted")


def test_the_error_of_a_start_without_files_to_open_does_not_ask_for_room_on_the_disk(tmp_path):
    class NoFiles(DiskFiles):
        def open(self, path, *, create=False, direct=False):  # noqa: ARG002
            raise OSError(errno.EMFILE, "Too many open files", str(path))

    with pytest.raises(NoSpaceError) as refused:
        recover(Settings(data=tmp_path), NoFiles(), NOW_MS)
    assert str(refused.value).endswith("Too many open files")


@pytest.mark.parametrize("sidecars", [False, True])
def test_the_room_that_is_asked_for_is_enough_for_the_index_and_less_where_sidecars_tell(tmp_path, sidecars):
    told(tmp_path)
    if sidecars:
        log = CommitLog(tmp_path / LOG_DIRECTORY, DiskFiles(), SEGMENT_BYTES)
        log.open(new_log_id=bytes(16), now_ms=NOW_MS)
        for base in log.bases[:-1]:
            log.write_sidecar(base, None)
        log.close()
    asked = room_bytes(Settings(data=tmp_path), 0) - ROOM_BYTES
    close(found := recovered(tmp_path, records_max=100))
    used = (tmp_path / "index" / "data.mdb").stat().st_size
    assert asked + ROOM_BYTES > used
    assert (asked <= (TIMERS + TIMERS // 2) * 140) == sidecars
    assert room_bytes(Settings(data=tmp_path), found.log.tail) == ROOM_BYTES
