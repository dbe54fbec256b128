"""The log and a power cut: what was stored is there afterwards, what was refused is not.

The files are those of `tests/harness/faulty.py`; each test tries many things that a disk may do.
"""

import random
from pathlib import Path

import pytest

from tests.harness.faulty import FaultyFiles
from timerwheel.store.errors import NoSpaceError
from timerwheel.store.files import SECTOR_BYTES
from timerwheel.store.log import CommitLog
from timerwheel.store.record import Kind, decode, encode
from timerwheel.store.segment import segment_name

LOG_ID = bytes(range(16))
SEGMENT_BYTES = 1024
DIRECTORY = Path("/data/log")
FATES = 64


def record(number: int) -> bytes:
    return encode(
        Kind.TIMER,
        b"orders",
        b"",
        bytes((number + i) % 251 for i in range(100)),
        store_ms=1_000 + number,
        due_ms=5_000,
        enqueue_ms=1_000,
    )


@pytest.fixture(params=[False, True], ids=["buffered", "direct"])
def files(request):
    faulty = FaultyFiles()
    faulty.direct = request.param
    return faulty


def opened(files: FaultyFiles) -> CommitLog:
    log = CommitLog(DIRECTORY, files, SEGMENT_BYTES, direct_io=True)
    log.open(new_log_id=LOG_ID, now_ms=7)
    log.recover_tail(0, now_ms=0)
    return log


def without_padding(raw: bytes) -> bytes:
    found = decode(raw)
    again = encode(
        found.header.kind,
        found.topic.encode(),
        found.properties,
        found.body,
        found.header.store_ms,
        found.header.due_ms,
        found.header.enqueue_ms,
    )
    assert raw[len(again) :].count(0) == len(raw) - len(again) < SECTOR_BYTES
    return again


def bodies(log: CommitLog) -> list[bytes]:
    return [without_padding(raw) for _, raw in log.scan(0)]


UNITS = [record(number) for number in range(12)]


@pytest.mark.parametrize("fate", range(FATES))
def test_units_stored_over_a_roll_by_one_append_are_all_read_back_after_a_power_cut(files, fate):
    log = opened(files)
    assert log.append([[unit] for unit in UNITS], sync=True, now_ms=9).error is None
    assert len(log.bases) > 1
    assert bodies(opened(files.after_crash(random.Random(fate)))) == UNITS


@pytest.mark.parametrize("fate", range(FATES))
def test_a_log_that_rolled_without_a_sync_opens_after_a_power_cut_with_a_prefix(files, fate):
    log = opened(files)
    assert log.append([[unit] for unit in UNITS], sync=False, now_ms=9).error is None
    sealed = len([unit for offset, unit in log.scan(0) if offset < log.bases[-1]])
    found = bodies(opened(files.after_crash(random.Random(fate))))
    assert found == UNITS[: len(found)]
    assert len(found) >= sealed, "a sealed segment was synced before its successor"


@pytest.mark.parametrize("fate", range(FATES))
def test_segments_that_were_removed_stay_removed_after_a_power_cut(files, fate):
    log = opened(files)
    for number in range(12):
        log.append([[record(number)]], sync=True, now_ms=9)
    kept = log.bases[1:]
    assert log.drop_before(kept[0])
    after = files.after_crash(random.Random(fate))
    assert [name for name in after.names(DIRECTORY) if name.endswith(".log")] == [
        segment_name(base) for base in kept
    ]


@pytest.mark.parametrize("sync", [True, False])
def test_after_a_refused_append_the_last_step_is_a_sync(files, sync):
    log = opened(files)
    log.append([[record(0)]], sync=True, now_ms=9)
    files.space_bytes = 10
    assert isinstance(log.append([[record(1)]], sync=sync, now_ms=9).error, NoSpaceError)
    assert [step.split()[0] for step in files.trace[-3:]] == ["append", "truncate", "sync"]


@pytest.mark.parametrize("fate", range(FATES))
def test_a_refused_unit_is_not_there_after_a_power_cut(files, fate):
    log = opened(files)
    log.append([[record(0)]], sync=True, now_ms=9)
    files.space_bytes = 2 * len(record(1)) - 10
    done = log.append([[record(1)], [record(2)]], sync=True, now_ms=9)
    assert isinstance(done.error, NoSpaceError)
    files.space_bytes = 1 << 30
    stored = UNITS[: 1 + len(done.offsets)]
    after = opened(files.after_crash(random.Random(fate)))
    assert bodies(after) == stored
    after.append([[record(7)]], sync=True, now_ms=9)
    assert bodies(after) == [*stored, record(7)]


@pytest.mark.parametrize("fate", range(FATES))
def test_what_a_restart_recovered_survives_the_power_cut_after_it(files, fate):
    """The process is killed with its writes in the page cache, started again, and then the power fails."""
    opened(files).append([[unit] for unit in UNITS[:3]], sync=False, now_ms=9)
    again = files.after_kill()
    log = opened(again)
    recovered = bodies(log)
    assert recovered == UNITS[:3]
    assert log.synced == log.tail
    assert bodies(opened(again.after_crash(random.Random(fate)))) == recovered


@pytest.mark.parametrize("fate", range(FATES))
def test_a_torn_tail_that_a_restart_cut_stays_cut_after_the_power_cut_after_it(files, fate):
    log = opened(files)
    log.append([[record(0)]], sync=True, now_ms=9)
    log.file(0).write(log.tail, record(1)[:-7])  # without the padding and one byte
    again = files.after_kill()
    assert bodies(opened(again)) == [record(0)]
    assert "truncate 00000000000000000000.log" in again.trace
    assert bodies(opened(again.after_crash(random.Random(fate)))) == [record(0)]
