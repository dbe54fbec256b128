"""Small writes that the kernel carries out: what the log says, stores, and does when one goes wrong."""

import errno
import random
import select

import pytest

from tests.harness.faulty import FaultyFiles, SimulatedCrashError
from tests.unit.store.test_log_ahead import numbers_in, opened, record, size_of_last, stored
from timerwheel.store.errors import LogFailedError, NoSpaceError
from timerwheel.store.files import DIRECT_BYTES_MAX, SECTOR_BYTES, DiskFiles
from timerwheel.store.log import Appended, CommitLog
from timerwheel.store.record import fault

FATES = 64


@pytest.fixture
def files():
    return FaultyFiles()


def with_ring(files: FaultyFiles, size: int = 8 << 20) -> CommitLog:
    log = opened(files, size=size)
    assert log.open_ring() is None
    return log


def put(log: CommitLog, *numbers: int) -> Appended:
    """As the service does it: begun if that works, otherwise appended."""
    units = [[record(number)] for number in numbers]
    begun = log.begin(units)
    done = None if begun is None else log.end(begun)
    return log.append(units, sync=True, now_ms=9) if done is None else done


def test_what_was_begun_counts_when_it_has_ended(files):
    log = with_ring(files)
    stored(log, 0)
    before = log.tail
    units = [[record(1), record(2)], [record(3)]]
    begun = log.begin(units)
    assert (log.tail, log.synced) == (before, before)
    done = log.end(begun)
    assert done.error is None
    assert (log.tail, log.synced) == (before + begun.size, before + begun.size)
    assert done.offsets == [before, before + len(record(1)) + len(record(2))]
    assert log.read(done.offsets[1]) == units[1][-1]
    assert fault(units[1][-1]) is None
    assert len(units[1][-1]) > len(record(3))
    assert numbers_in(log) == [0, 1, 2, 3]


def test_begun_writes_and_appends_store_the_same_bytes(files):
    other = FaultyFiles()
    logs = with_ring(files), opened(other)
    for number in range(0, 60, 3):
        put(logs[0], number, number + 1)
        stored(logs[1], number, number + 1)
    assert logs[0].ring.begun > 15
    assert files.contents() == other.contents()


@pytest.mark.parametrize("size", [1_540, 2_500, 4_096])
def test_over_the_ends_of_segments_units_stay_in_order(files, size):
    log = with_ring(files, size)
    for number in range(40):
        put(log, number)
    assert len(log.bases) > 3
    assert log.ring.begun > 10
    assert numbers_in(log) == list(range(40))
    for fate in range(FATES):
        assert numbers_in(opened(files.after_crash(random.Random(fate)), size=size)) == list(range(40))


def test_what_a_begun_write_cannot_do_is_left_to_an_append(files):
    log = with_ring(files)
    assert log.begin([[record(0)]]) is None, "it begins behind the header, in a shared sector"
    stored(log, 0)
    assert log.begin([[record(1, b"x" * DIRECT_BYTES_MAX)]]) is None, "too large"
    log.append([[record(1)]], sync=False, now_ms=9)
    assert log.begin([[record(2)]]) is None, "what is before it is not synced"
    log.sync()
    assert log.begin([[record(2)]]) is None, "it would begin within a sector"
    stored(log, 2)
    assert log.begin([[record(3)]]) is not None
    assert log.ring.begun == 1


def test_without_direct_writes_or_a_kernel_that_takes_them_there_is_no_ring(files):
    assert opened(files, direct=False).open_ring() == "no direct writes"
    files.rings = False
    log = opened(files)
    assert log.open_ring() == "Operation not permitted"
    stored(log, 0)
    assert log.begin([[record(1)]]) is None


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP, errno.EAGAIN])
def test_a_refused_write_is_appended_and_no_other_is_begun(files, number):
    log = with_ring(files)
    stored(log, 0)
    log.ring.refuses = number
    assert put(log, 1).error is None
    assert log.ring_refused
    put(log, 2)
    assert log.ring.begun == 1
    assert numbers_in(log) == [0, 1, 2]


def test_a_short_write_is_written_again_as_a_whole(files):
    log = with_ring(files)
    stored(log, 0)
    log.ring.writes_max = SECTOR_BYTES
    units = [[record(1, b"a" * 700)], [record(2, b"b" * 700)]]
    begun = log.begin(units)
    assert log.end(begun) is None
    assert log.append(units, sync=True, now_ms=9).offsets == begun.offsets
    assert [raw for _, raw in log.scan(0)][1:] == [unit[0] for unit in units]


def test_without_space_a_begun_write_is_refused_as_an_append_is(files):
    log = with_ring(files)
    stored(log, 0)
    files.space_bytes = 10
    done = put(log, 1)
    assert isinstance(done.error, NoSpaceError)
    assert size_of_last(log) == log.tail
    files.space_bytes = 1 << 30
    stored(log, 2)
    assert numbers_in(log) == [0, 2]
    for fate in range(FATES):
        assert numbers_in(opened(files.after_crash(random.Random(fate)))) == [0, 2]


@pytest.mark.parametrize("when", ["write", "sync"])
def test_after_an_error_of_the_disk_nothing_more_is_written(files, when):
    log = with_ring(files)
    stored(log, 0)
    if when == "sync":
        files.fail_sync = True
    else:
        log.ring.refuses = errno.EIO
    before = log.tail
    begun = log.begin([[record(1)]])
    with pytest.raises(LogFailedError, match="disk contents are unknown"):
        log.end(begun)
    files.fail_sync = False
    steps = files.steps
    assert log.begin([[record(2)]]) is None
    for call in (lambda: log.append([[record(2)]], sync=True, now_ms=9), log.sync, log.finish):
        with pytest.raises(LogFailedError):
            call()
    assert (files.steps, log.tail) == (steps, before)


def test_a_power_cut_at_any_step_leaves_what_was_acknowledged():
    step = 0
    while True:
        step += 1
        files = FaultyFiles(step)
        done: list[int] = []
        try:
            log = with_ring(files, 2_500)
            for number in range(12):
                put(log, number)
                done.append(number)
        except SimulatedCrashError:
            pass
        if not files.dead:
            break
        for fate in range(8):
            after = opened(files.after_crash(random.Random(fate)), size=2_500)
            found = numbers_in(after)
            assert found in (done, [*done, len(done)]), (files.trace[-1], fate)
    assert log.ring.begun > 5
    assert step > 30


@pytest.mark.parametrize("fate", range(FATES))
def test_a_power_cut_between_begin_and_end_leaves_all_of_the_units_or_a_torn_tail(files, fate):
    log = with_ring(files)
    stored(log, 0)
    units = [[record(number, bytes([number + 1]) * 700)] for number in range(1, 4)]
    log.begin(units)
    after = opened(files.after_crash(random.Random(fate)))
    found = [raw for _, raw in after.scan(0)][1:]
    assert found == [unit[0] for unit in units][: len(found)]


def test_on_a_real_disk_begun_writes_are_read_through_the_page_cache(tmp_path):
    log = opened(DiskFiles(), tmp_path / "log")
    if (reason := log.open_ring()) is not None:
        pytest.skip(reason)
    stored(log, 0)
    for number in range(1, 30):
        begun = log.begin([[record(number)]])
        select.select([log.ring.fd], [], [])
        assert log.end(begun).error is None
        assert numbers_in(log) == list(range(number + 1))
    log.close()
    assert numbers_in(opened(DiskFiles(), tmp_path / "log")) == list(range(30))
