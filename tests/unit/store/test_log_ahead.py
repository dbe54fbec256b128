"""Zeros that are written ahead of the log, and small writes of whole sectors past the page cache."""

import errno
import fcntl
import os
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.faulty import FaultyFiles, SimulatedCrashError
from timerwheel.store import quarantine
from timerwheel.store.errors import LogFailedError, NoSpaceError, StoreError
from timerwheel.store.files import DIRECT_BYTES_MAX, SECTOR_BYTES, DiskFiles
from timerwheel.store.log import AHEAD_BYTES_MAX, PREPARED_BYTES, PREPARED_SPACE_MIN, CommitLog
from timerwheel.store.log_reader import LogReader
from timerwheel.store.record import FLAG_MORE, Kind, decode, encode, fault, padded
from timerwheel.store.segment import SEGMENT_HEADER_SIZE, end_of_writing

LOG_ID = bytes(range(16))
DIRECTORY = Path("/data/log")
FATES = 64


def record(number: int, body: bytes | None = None, *, more: bool = False) -> bytes:
    body = bytes((number + i) % 250 + 1 for i in range(100)) if body is None else body
    flags = FLAG_MORE if more else 0
    return encode(Kind.TIMER, b"orders", b"", body, 1_000 + number, 5_000, 1_000 + number, flags)


def opened(
    files: FaultyFiles | DiskFiles, directory: Path = DIRECTORY, size: int = 8 << 20, *, direct: bool = True
) -> CommitLog:
    log = CommitLog(directory, files, size, direct_io=direct)
    log.open(new_log_id=LOG_ID, now_ms=7)
    log.recover_tail(0, now_ms=0)
    return log


def stored(log: CommitLog, *numbers: int) -> None:
    assert log.append([[record(number)] for number in numbers], sync=True, now_ms=9).error is None


def numbers_in(log: LogReader) -> list[int]:
    found = [decode(raw) for _, raw in log.scan(0)]
    assert all(one.body == decode(record(one.header.store_ms - 1_000)).body for one in found)
    return [one.header.store_ms - 1_000 for one in found]


def size_of_last(log: CommitLog) -> int:
    return log.file(log.bases[-1]).size()


@pytest.fixture(params=[False, True], ids=["buffered", "direct"])
def files(request):
    faulty = FaultyFiles()
    faulty.direct = request.param
    return faulty


# ---------------------------------------------------------------------- padding


@pytest.mark.parametrize("count", [8, 64, 504, 512])
def test_a_padded_record_is_intact_and_says_the_same_but_its_size_and_crc(count):
    before, after = record(1), padded(record(1), count)
    assert fault(after) is None
    assert len(after) == len(before) + count
    old, new = decode(before), decode(after)
    assert new[1:] == old[1:]
    assert new.header == old.header._replace(size=len(after), crc=new.header.crc)
    assert new.header.size_without_padding() == len(before)
    assert new.header.crc != old.header.crc


def test_each_synced_write_ends_with_a_sector_and_gives_back_what_was_stored():
    log = opened(FaultyFiles())
    for number in range(5):
        unit = [record(number, more=True), record(number)]
        done = log.append([[record(50)], unit], sync=True, now_ms=9)
        assert (log.tail - log.bases[-1]) % SECTOR_BYTES == 0
        assert done.offsets[1] == done.offsets[0] + len(record(50))
        assert unit[0] == record(number, more=True)
        assert log.read(done.offsets[1] + len(unit[0])) == unit[1]
        assert len(unit[1]) > len(record(number))


def test_without_a_sync_and_without_direct_writes_nothing_is_padded():
    for log, sync in ((opened(FaultyFiles()), False), (opened(FaultyFiles(), direct=False), True)):
        done = log.append([[record(1)], [record(2)]], sync=sync, now_ms=9)
        assert done.error is None
        assert log.tail == SEGMENT_HEADER_SIZE + len(record(1)) + len(record(2))


@pytest.mark.parametrize("size", [1000, 1024, 1504, 4097])
def test_padding_makes_no_segment_larger_than_it_may_be(files, size):
    log = opened(files, size=size)
    for number in range(40):
        stored(log, number)
    ends = [span.end - span.base for span in log.spans()]
    assert max(ends) <= size
    assert all(log.file(span.base).size() <= size for span in log.spans())
    assert numbers_in(log) == list(range(40))


# ---------------------------------------------------------------------- zeros ahead


def test_zeros_are_written_ahead_once_for_many_small_writes(files):
    log = opened(files)
    for number in range(50):
        stored(log, number)
    assert size_of_last(log) - (log.tail - log.bases[-1]) > PREPARED_BYTES // 2
    assert sum(step.startswith("append 10") and len(step.split()[1]) == 7 for step in files.trace) == 1


def test_a_large_write_has_no_zeros_ahead(files):
    log = opened(files)
    assert log.append([[record(1, b"x" * AHEAD_BYTES_MAX)]], sync=True, now_ms=9).error is None
    assert size_of_last(log) == log.tail


def test_without_a_sync_nothing_is_written_ahead(files):
    log = opened(files)
    log.append([[record(1)]], sync=False, now_ms=9)
    assert size_of_last(log) == log.tail


def test_with_little_space_nothing_is_written_ahead_and_messages_have_it_all(files):
    log = opened(files)
    files.space_bytes = PREPARED_SPACE_MIN - 1
    stored(log, 1)
    assert size_of_last(log) == log.tail - log.bases[-1]


def test_zeros_that_do_not_fit_are_taken_back_and_the_message_is_stored(files):
    log = opened(files)
    files.free_bytes = lambda _directory: 1 << 40  # as where others fill the disk at the same time
    files.space_bytes = PREPARED_BYTES // 2
    stored(log, 1)
    assert numbers_in(log) == [1]
    assert size_of_last(log) == log.tail - log.bases[-1]


def test_a_planned_stop_ends_the_segment_with_its_records(files):
    log = opened(files)
    stored(log, 1, 2)
    log.finish()
    assert size_of_last(log) == log.tail - log.bases[-1]
    for fate in range(FATES):
        after = files.after_crash(random.Random(fate))
        assert opened(after).file(0).size() == log.tail
        assert numbers_in(opened(after)) == [1, 2]


def test_a_log_that_failed_is_not_cut_by_a_stop(files):
    log = opened(files)
    stored(log, 1)
    files.fail_sync = True
    with pytest.raises(LogFailedError):
        stored(log, 2)
    with pytest.raises(LogFailedError):
        log.finish()
    assert size_of_last(log) > log.tail


def test_after_a_kill_the_zeros_are_cut_and_nothing_is_quarantined(files):
    log = opened(files)
    stored(log, 1, 2)
    tail = log.tail
    again = files.after_kill()
    other = CommitLog(DIRECTORY, again, 8 << 20, direct_io=True)
    other.open(new_log_id=LOG_ID, now_ms=7)
    assert other.tail == tail
    assert other.recover_tail(0, now_ms=0) is None
    assert quarantine.listed(again, DIRECTORY) == []
    assert (other.tail, size_of_last(other)) == (tail, tail)
    stored(other, 3)
    assert numbers_in(other) == [1, 2, 3]


@pytest.mark.parametrize("zeros", [1, 7, 8, 100, 512, 5_000, 3 << 20])
def test_a_body_that_ends_with_zeros_is_not_taken_for_zeros_ahead(files, zeros):
    log = opened(files)
    unit = [record(1, b"x" + bytes(zeros))]
    assert log.append([unit], sync=True, now_ms=9).error is None
    again = files.after_kill()
    for reader in (LogReader(DIRECTORY, again), CommitLog(DIRECTORY, again, 8 << 20)):
        reader.open(new_log_id=LOG_ID, now_ms=0) if isinstance(reader, CommitLog) else reader.open_readonly()
        assert reader.tail == log.tail
        assert [raw for _, raw in reader.scan(0)] == unit


def test_to_another_process_the_log_ends_with_its_records_while_it_is_written(files):
    log = opened(files)
    for number in range(3):
        stored(log, number)
        reader = LogReader(DIRECTORY, files)
        reader.open_readonly()
        assert reader.tail == log.tail
        assert numbers_in(reader) == list(range(number + 1))


def test_to_another_process_records_that_are_written_while_it_looks_for_the_end_count(files):
    log = opened(files)
    stored(log, 0)
    file, read = log.file(0), log.file(0).read
    later = iter(range(1, 4))

    def read_and_write(position, size):
        found = read(position, size)
        if position + size > log.tail and (number := next(later, None)) is not None:
            stored(log, number)  # right after the reader has seen zeros there
        return found

    file.read = read_and_write
    end = end_of_writing(file, 0)
    assert end == log.tail
    assert numbers_in(log) == [0, 1, 2, 3]


@pytest.mark.parametrize("reads", range(9))
@pytest.mark.parametrize("numbers", [(), (0,), (0, 1, 2)])
def test_to_another_process_a_log_is_sound_whose_zeros_are_cut_while_it_looks_for_the_end(
    files, reads, numbers
):
    """As by a planned stop; `reads` says before which of its reads."""
    log = opened(files)
    stored(log, 7)
    for number in numbers:
        stored(log, number)
    file, read, left = log.file(0), log.file(0).read, iter(range(reads))

    def finish_and_read(position, size):
        if next(left, None) is None:
            log.finish()
        return read(position, size)

    file.read = finish_and_read
    end = end_of_writing(file, 0)
    assert end == log.tail
    assert end <= file.size()
    file.read = read
    assert numbers_in(log) == [7, *numbers]


@pytest.mark.parametrize("torn_bytes", [1, 40, 120, 600])
def test_what_was_torn_is_kept_in_quarantine_without_the_zeros_behind_it(files, torn_bytes):
    log = opened(files)
    stored(log, 1)
    tail = log.tail
    torn = (record(2, b"y" * 1_000))[:torn_bytes]
    log.file(0).write(tail, torn)
    again = files.after_kill()
    other = CommitLog(DIRECTORY, again, 8 << 20, direct_io=True)
    other.open(new_log_id=LOG_ID, now_ms=7)
    cut = other.recover_tail(0, now_ms=0)
    assert cut.offset == tail
    assert torn_bytes <= cut.size < torn_bytes + SECTOR_BYTES
    [kept] = quarantine.listed(again, DIRECTORY)
    data = bytes(again.names_now[str(kept.path)].data[SEGMENT_HEADER_SIZE:])
    assert data.rstrip(b"\0") == torn.rstrip(b"\0")
    assert numbers_in(other) == [1]


# ---------------------------------------------------------------------- power cuts


@pytest.mark.parametrize("fate", range(FATES))
def test_what_single_appends_stored_over_rolls_is_all_there_after_a_power_cut(files, fate):
    log = opened(files, size=2_048)
    for number in range(30):
        stored(log, number)
    assert len(log.bases) > 2
    after = opened(files.after_crash(random.Random(fate)), size=2_048)
    assert numbers_in(after) == list(range(30))


def test_a_power_cut_at_any_step_of_a_roll_leaves_what_was_acknowledged():
    for direct in (False, True):
        step = 0
        while True:
            step += 1
            files = FaultyFiles(step)
            files.direct = direct
            done: list[int] = []
            try:
                log = opened(files, size=1_500)
                for number in range(12):
                    stored(log, number)
                    done.append(number)
            except (SimulatedCrashError, StoreError):
                assert files.dead
            if not files.dead:
                break
            for fate in range(8):
                after = opened(files.after_crash(random.Random(fate)), size=1_500)
                found = numbers_in(after)
                assert found[: len(done)] == done, (direct, files.trace[-1], fate)
                assert found in (done, [*done, len(done)])
                stored(after, 40)
                assert numbers_in(after) == [*found, 40]
        assert step > 30


Append = tuple[list[tuple[int, int]], bool]
APPENDS = st.lists(
    st.tuples(
        st.lists(
            st.tuples(st.integers(1, 3), st.sampled_from((0, 30, 300, 700, 40_000))), min_size=1, max_size=4
        ),
        st.booleans(),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(
    lives=st.lists(
        st.tuples(APPENDS, st.sampled_from(("stop", "kill", "cut", "step")), st.integers(0, 1 << 30)),
        min_size=1,
        max_size=4,
    ),
    size=st.sampled_from((1_024, 4_096, 100_000)),
    direct=st.booleans(),
)
def test_whatever_is_appended_and_however_each_life_ends_acknowledged_units_stay_whole_and_in_order(
    lives, size, direct
):
    """A log over several lives: each appends units, synced or not, and stops, is killed or loses power."""
    files, number = FaultyFiles(), 0
    sure: list[list[int]] = []  # units that must be there
    for appends, end, seed in lives:
        rng = random.Random(seed)
        files.direct = direct
        files.crash_at = files.steps + rng.randint(1, 40) if end == "step" else None
        maybe: list[list[int]] = []  # units that may be there, in order, after those
        try:
            log = opened(files, size=size)
            for units, sync in appends:
                made, kept = [], []
                for count, body in units:
                    kept.append(list(range(number, number + count)))
                    made.append(
                        [sized(n, body, more=n < number + count - 1) for n in range(number, number + count)]
                    )
                    number += count
                maybe += kept
                assert log.append(made, sync=sync, now_ms=9).error is None
                if sync:
                    sure, maybe = sure + maybe, []
            if end == "stop":
                log.sync()
                log.finish()
                sure, maybe = sure + maybe, []
        except (SimulatedCrashError, StoreError):
            assert files.dead
        files = files.after_kill() if end == "kill" else files.after_crash(rng)
        found = units_in(opened(files, size=size))
        more = found[len(sure) :]
        assert found[: len(sure)] == sure
        assert more == maybe[: len(more)]
        sure = found


def sized(number: int, body: int, *, more: bool) -> bytes:
    return encode(Kind.TIMER, b"t", b"", b"z" * body, number, 5_000, 0, FLAG_MORE if more else 0)


def units_in(log: CommitLog) -> list[list[int]]:
    found: list[list[int]] = [[]]
    for _, raw in log.scan(0):
        header = decode(raw).header
        found[-1].append(header.store_ms)
        if not header.flags & FLAG_MORE:
            found.append([])
    assert found.pop() == []
    return found


# ---------------------------------------------------------------------- the real disk


def is_direct(fd):
    return bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT)


def test_on_a_real_disk_small_writes_go_past_the_page_cache_and_are_read_through_it(tmp_path, monkeypatch):
    if DiskFiles().direct_fault(tmp_path) is not None:
        pytest.skip(f"no direct writes in {tmp_path}")
    log = opened(DiskFiles(), tmp_path / "log")
    written: list[tuple[int, int]] = []
    pwrite = os.pwrite

    def watched(fd, data, position):
        if is_direct(fd):
            written.append((position, len(data)))
        return pwrite(fd, data, position)

    monkeypatch.setattr("timerwheel.store.files.os.pwrite", watched)
    for number in range(20):
        stored(log, number)
        assert numbers_in(log) == list(range(number + 1))  # reads the page that the next write changes
    assert len(written) == 19, "all but the first, which begins behind the header"
    assert all(position % SECTOR_BYTES == size % SECTOR_BYTES == 0 for position, size in written)
    large = [record(100, b"x" * DIRECT_BYTES_MAX)]
    log.append([large], sync=True, now_ms=9)
    assert len(written) == 19
    log.finish()
    log.close()
    assert [raw for _, raw in opened(DiskFiles(), tmp_path / "log").scan(0)][-1] == large[0]


def test_a_file_system_that_refuses_direct_writes_takes_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(DiskFiles, "direct_fault", lambda _self, _directory: None)
    log = opened(DiskFiles(), tmp_path / "log")

    pwrite = os.pwrite
    file = log.file(0)

    def refusing(fd, data, position):
        if is_direct(fd):
            raise OSError(errno.EINVAL, "Invalid argument")
        return pwrite(fd, data, position)

    monkeypatch.setattr("timerwheel.store.files.os.pwrite", refusing)
    for number in range(5):
        stored(log, number)
    assert numbers_in(log) == list(range(5))
    assert file.sector_bytes == 0


def test_the_try_leaves_nothing_behind(tmp_path):
    (tmp_path / "direct.probe").write_bytes(b"left over")
    DiskFiles().direct_fault(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert DiskFiles().direct_fault(tmp_path / "missing") is not None


def test_the_try_says_what_it_met_and_takes_no_lack_of_space_or_files_for_a_refusal(tmp_path, monkeypatch):
    opens, pwrite = os.open, os.pwrite

    def refuse(name, fault, of):
        def called(*args):
            if of(*args):
                raise OSError(fault, os.strerror(fault))
            return {"open": opens, "pwrite": pwrite}[name](*args)

        with monkeypatch.context() as patched:
            patched.setattr(f"timerwheel.store.files.os.{name}", called)
            return DiskFiles().direct_fault(tmp_path)

    def is_for_direct(_path, flags, *_mode):
        return bool(flags & os.O_DIRECT)

    refused, full = "allows no direct writes", "could not try direct writes (No space left on device)"
    assert refuse("open", errno.EINVAL, is_for_direct) == refused
    assert refuse("open", errno.EMFILE, is_for_direct) == "could not try direct writes (Too many open files)"
    assert refuse("pwrite", errno.ENOSPC, lambda fd, *_: not is_direct(fd)) == full
    assert refuse("pwrite", errno.EINVAL, lambda fd, *_: is_direct(fd)) == refused
    assert list(tmp_path.iterdir()) == []


def test_once_a_direct_write_is_refused_none_is_tried_in_later_segments_and_that_is_said_once():
    files, said = FaultyFiles(), []
    log = CommitLog(DIRECTORY, files, 4_096, direct_io=True, on_no_direct=said.append)
    log.open(new_log_id=LOG_ID, now_ms=7)
    log.recover_tail(0, now_ms=0)
    stored(log, 0)
    assert log.file(0).sector_bytes == SECTOR_BYTES
    files.refuses_direct = True
    for number in range(1, 40):
        stored(log, number)
    assert len(log.bases) > 1
    assert said == ["takes no direct writes any more"]
    files.refuses_direct = False
    for number in range(40, 80):
        stored(log, number)
    assert log.file(log.bases[-1]).sector_bytes == 0
    assert numbers_in(log) == list(range(80))


def test_under_a_quota_that_free_space_does_not_show_zeros_are_tried_once_a_mebibyte(files, monkeypatch):
    log = opened(files)
    files.space_bytes = PREPARED_BYTES // 2
    monkeypatch.setattr(files, "free_bytes", lambda _directory: 1 << 40)
    before = len(files.trace)
    for number in range(50):
        stored(log, number)
    assert sum(step.startswith("truncate") for step in files.trace[before:]) == 1
    assert numbers_in(log) == list(range(50))
    files.space_bytes = 1 << 40
    while log.tail < PREPARED_BYTES - AHEAD_BYTES_MAX:
        log.append([[record(1, b"x" * 4_000)]], sync=True, now_ms=9)
    assert size_of_last(log) == log.tail
    while log.tail < PREPARED_BYTES + AHEAD_BYTES_MAX:
        log.append([[record(1, b"x" * 4_000)]], sync=True, now_ms=9)
    assert size_of_last(log) > log.tail


def test_a_refused_message_leaves_no_zeros_that_could_become_one(files):
    log = opened(files)
    stored(log, 1)
    files.space_bytes = 10
    assert isinstance(log.append([[record(2)]], sync=True, now_ms=9).error, NoSpaceError)
    files.space_bytes = 1 << 40
    for fate in range(FATES):
        assert numbers_in(opened(files.after_crash(random.Random(fate)))) == [1]
    stored(log, 3)
    assert numbers_in(log) == [1, 3]
