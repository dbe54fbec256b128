"""A log on the local disk is put into a journal: all of it, or the directory stays what it was."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.faulty import PAGE, FaultyFiles, SimulatedCrashError
from tests.harness.memory_journal import MemoryJournal
from tests.unit.store.test_journaled_log import (
    DIRECTORY,
    LOG_ID,
    SEGMENT_BYTES,
    append,
    bodies,
    copy,
    opened,
    unit,
)
from timerwheel.store.errors import CorruptionError, JournalMismatchError
from timerwheel.store.journal import RunKind
from timerwheel.store.journal_fill import fill
from timerwheel.store.journaled_log import JournaledLog, read_mark
from timerwheel.store.log import CommitLog
from timerwheel.store.log_reader import START_FILE

COPY = Path("copy")


def local(files: FaultyFiles, *units: list[bytes], segment_bytes: int = SEGMENT_BYTES) -> list[bytes]:
    """A log of its own with these units, stopped in order; returns its records."""
    log = CommitLog(DIRECTORY, files, segment_bytes)
    log.open(new_log_id=LOG_ID, now_ms=7)
    append(log, *units)
    log.finish()
    found = bodies(log)
    log.close()
    return found


def several() -> list[list[bytes]]:
    return [unit(number, count=number % 4 + 1) for number in range(20)]


@pytest.mark.parametrize("run_bytes_max", [1 << 20, 2_000])
def test_a_service_goes_on_with_the_directory_and_another_one_copies_all(run_bytes_max: int) -> None:
    files, journal = FaultyFiles(), MemoryJournal()
    records = local(files, *several())
    found = fill(DIRECTORY, files, journal.leader(run_bytes_max=run_bytes_max))
    assert found.appended_bytes == found.tail
    used = opened(journal, files)
    assert (used.tail, used.log_id, bodies(used)) == (found.tail, LOG_ID, records)
    assert used.position == len(journal.runs) - 1  # it copied nothing, and the fence of its claim comes next
    append(used, unit(99))
    other = opened(journal, FaultyFiles())
    assert (bodies(other), other.tail) == (bodies(used), used.tail)


def test_runs_have_whole_units_and_the_manifest_comes_last() -> None:
    files, journal = FaultyFiles(), MemoryJournal()
    local(files, *several())
    files.write_whole(DIRECTORY / START_FILE, b"manifest")
    fill(DIRECTORY, files, journal.leader(run_bytes_max=2_000))
    runs = journal.without_fences()
    assert [run.kind for run in runs[:2]] == [RunKind.SEGMENT, RunKind.RECORDS]
    assert (runs[-1].kind, runs[-1].data) == (RunKind.START, b"manifest")
    other = opened(journal, FaultyFiles(), log_id=bytes(16))
    assert other.tail == runs[-1].base
    assert other.files.open_readonly(DIRECTORY / START_FILE).read(0, 100) == b"manifest"


def test_a_directory_is_filled_once() -> None:
    files, journal = FaultyFiles(), MemoryJournal()
    local(files, unit(1))
    fill(DIRECTORY, files, journal.leader())
    with pytest.raises(JournalMismatchError, match="copy of the journal memory, which has this log"):
        fill(DIRECTORY, files, journal.leader())


def test_a_copy_whose_journal_is_lost_is_put_into_another_one_up_to_its_last_whole_unit() -> None:
    files, lost, journal = FaultyFiles(), MemoryJournal("lost"), MemoryJournal("new")
    used = opened(lost, files)
    append(used, *several())
    records, tail = bodies(used), used.tail
    used.sync()
    last = files.open(used.path(used.bases[-1]))
    last.write(last.size(), unit(1, count=2)[0] + b"torn")  # a power cut left a part of what was not synced
    used.close()
    assert fill(DIRECTORY, files, journal.leader(), from_copy=True).tail == tail
    again = opened(journal, files)
    assert (bodies(again), again.tail) == (records, tail)
    assert bodies(opened(journal, FaultyFiles())) == records


def test_a_journal_that_was_only_claimed_is_filled_as_an_empty_one() -> None:
    files, journal = FaultyFiles(), MemoryJournal()
    records = local(files, *several())
    for _ in range(3):
        journal.leader().claim()
    fill(DIRECTORY, files, journal.leader())
    assert bodies(opened(journal, FaultyFiles())) == records
    assert bodies(opened(journal, files)) == records


@pytest.mark.parametrize("place", ["synced", "behind the mark"])
def test_of_a_copy_that_cannot_be_read_nothing_is_left_out(place: str) -> None:
    files, journal = FaultyFiles(), MemoryJournal()
    local(files, *[unit(number, count=1, body_size=700) for number in range(40)], segment_bytes=1 << 20)
    filled = fill(DIRECTORY, files, journal.leader())
    if place == "behind the mark":
        used = JournaledLog(DIRECTORY, files, 1 << 20, journal.leader(files))
        copy(used)
        used.open(new_log_id=LOG_ID, now_ms=7, keep_from=0)
        used.recover_tail(0, now_ms=7)
        append(used, *[unit(number, count=1, body_size=700) for number in range(40, 50)])
        used.close()
    mark = read_mark(files, DIRECTORY)
    at = PAGE + 10 if place == "synced" else filled.tail + PAGE
    files.unreadable = [(f"{0:020}.log", at)]
    with pytest.raises(CorruptionError, match="the disk cannot read it"):
        fill(DIRECTORY, files, MemoryJournal().leader(), from_copy=True)
    assert read_mark(files, DIRECTORY) == mark


def test_a_copy_that_is_damaged_before_its_mark_is_refused() -> None:
    files, journal = FaultyFiles(), MemoryJournal()
    local(files, *[unit(number, count=1, body_size=700) for number in range(40)], segment_bytes=1 << 20)
    fill(DIRECTORY, files, journal.leader())
    mark = read_mark(files, DIRECTORY)
    files.names_now[f"{DIRECTORY}/{0:020}.log"].data[5_000] ^= 1
    with pytest.raises(CorruptionError):
        fill(DIRECTORY, files, MemoryJournal().leader(), from_copy=True)
    assert read_mark(files, DIRECTORY) == mark


def test_only_a_copy_is_filled_as_a_copy() -> None:
    files = FaultyFiles()
    local(files, unit(1))
    with pytest.raises(JournalMismatchError, match="not a copy of a journal"):
        fill(DIRECTORY, files, MemoryJournal().leader(), from_copy=True)


def of_another_service(_files: FaultyFiles, journal: MemoryJournal) -> None:
    other = opened(journal, FaultyFiles(), log_id=bytes(16))
    append(other, unit(1))


def of_a_service_that_goes_on(files: FaultyFiles, journal: MemoryJournal) -> None:
    fill(DIRECTORY, files, journal.leader())
    append(opened(journal, FaultyFiles()), unit(99))
    files.unlink(DIRECTORY / "journal")


@pytest.mark.parametrize("use", [of_another_service, of_a_service_that_goes_on])
def test_a_journal_that_is_in_use_is_refused(use: Callable[[FaultyFiles, MemoryJournal], None]) -> None:
    files, journal = FaultyFiles(), MemoryJournal()
    local(files, *several())
    use(files, journal)
    before = journal.without_fences()
    with pytest.raises(JournalMismatchError, match="has another log"):
        fill(DIRECTORY, files, journal.leader())
    assert journal.without_fences() == before
    assert read_mark(files, DIRECTORY) is None


def test_a_log_that_ends_within_a_unit_or_a_record_is_refused() -> None:
    for cut in (unit(1, count=2)[:1], [unit(1)[0][:-8]]):
        files, journal = FaultyFiles(), MemoryJournal()
        local(files, unit(5), segment_bytes=1 << 16)
        last = files.open(DIRECTORY / f"{0:020}.log")
        last.write(last.size(), b"".join(cut))
        with pytest.raises(CorruptionError):
            fill(DIRECTORY, files, journal.leader())
        assert read_mark(files, DIRECTORY) is None


def test_a_unit_that_the_journal_cannot_take_is_told_with_what_to_raise() -> None:
    files, journal = FaultyFiles(), MemoryJournal()
    local(files, unit(1, count=4, body_size=600), segment_bytes=1 << 16)
    with pytest.raises(JournalMismatchError, match=r"raise max\.message\.bytes"):
        fill(DIRECTORY, files, journal.leader(run_bytes_max=1_000))


def test_a_fill_that_is_cut_off_anywhere_is_continued_by_the_next_one() -> None:
    step = 0
    while True:
        files, journal = FaultyFiles(), MemoryJournal()
        records = local(files, *several())
        files.crash_at = files.steps + step
        try:
            fill(DIRECTORY, files, journal.leader(files, 2_000))
        except SimulatedCrashError:
            files = files.after_crash(random.Random(step))
        else:
            break
        if read_mark(files, DIRECTORY) is None:
            fill(DIRECTORY, files, journal.leader(files, 2_000))
        assert bodies(opened(journal, files)) == records
        assert bodies(opened(journal, FaultyFiles())) == records
        step += 1
    assert step > len(journal.runs)
