"""A log with its bytes in a journal, without an engine: runs, copies, marks and who may lead."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.faulty import FaultyFiles, SimulatedCrashError
from tests.harness.memory_journal import MemoryJournal
from timerwheel.store.errors import (
    FormatError,
    JournalAwayError,
    JournalFencedError,
    JournalMismatchError,
    LogFailedError,
    NoSpaceError,
)
from timerwheel.store.journal import FENCE, Parts, Run, RunKind, counts, in_parts, is_empty, label, labelled
from timerwheel.store.journaled_log import (
    MARK_FILE,
    SPACE_BYTES,
    JournaledLog,
    largest_unit_bytes,
    read_mark,
)
from timerwheel.store.log import CommitLog
from timerwheel.store.log_reader import START_FILE
from timerwheel.store.record import FLAG_MORE, Kind, encode

DIRECTORY = Path("log")
SEGMENT_BYTES = 1024
LOG_ID = bytes(range(16))


def record(number: int, body_size: int = 100, *, more: bool = False) -> bytes:
    return encode(
        Kind.TIMER,
        b"orders",
        b"",
        bytes([number % 251]) * body_size,
        store_ms=1_000 + number,
        due_ms=5_000,
        enqueue_ms=1_000,
        flags=FLAG_MORE if more else 0,
    )


def unit(number: int, count: int = 1, body_size: int = 100) -> list[bytes]:
    return [record(number + i, body_size, more=i < count - 1) for i in range(count)]


def opened(
    journal: MemoryJournal, files: FaultyFiles, *, run_bytes_max: int = 1 << 20, log_id: bytes = LOG_ID
) -> JournaledLog:
    log = JournaledLog(DIRECTORY, files, SEGMENT_BYTES, journal.leader(files, run_bytes_max))
    copy(log)
    log.open(new_log_id=log_id, now_ms=7, keep_from=log.bases[0] if log.bases else 0)
    log.recover_tail(0, now_ms=7)
    return log


def copy(log: JournaledLog) -> None:
    extent = log.claim()
    log.attach(extent)
    log.catch_up(extent.end)


def append(log: CommitLog, *units: list[bytes]) -> list[int]:
    done = log.append(units, sync=True, now_ms=9)
    assert done.error is None
    return done.offsets


def bodies(log: CommitLog) -> list[bytes]:
    return [found.data for found in log.scan(log.start)]


def segments(files: FaultyFiles) -> dict[str, bytes]:
    return {Path(name).name: data for name, data in files.contents().items() if name.endswith(".log")}


def test_what_is_appended_is_read_back_here_and_from_an_empty_disk() -> None:
    journal, files, other = MemoryJournal(), FaultyFiles(), FaultyFiles()
    log = opened(journal, files)
    units = [unit(number, count) for number, count in ((0, 1), (1, 3), (4, 2), (6, 5), (11, 1))]
    offsets = append(log, *units[:3]) + append(log, *units[3:])
    assert len(log.bases) > 1
    for offset, records in zip(offsets, units, strict=True):
        assert log.read(offset) == records[0]
    copied = opened(journal, other, log_id=bytes(16))
    assert bodies(copied) == [one for records in units for one in records]
    assert copied.log_id == LOG_ID
    assert segments(other) == segments(files)


def test_a_run_has_whole_units_of_one_segment() -> None:
    journal = MemoryJournal()
    log = opened(journal, FaultyFiles(), run_bytes_max=400)
    append(log, *(unit(number, number % 2 + 1, 20) for number in range(12)))
    kinds = set()
    for run in journal.without_fences():
        kinds.add(run.kind)
        assert len(run.data) <= 400
        assert log.base_of(run.base) == log.base_of(run.end - 1)
    assert kinds == {RunKind.SEGMENT, RunKind.RECORDS}


def test_the_copy_is_neither_synced_nor_padded_by_an_append() -> None:
    files = FaultyFiles()
    log = opened(MemoryJournal(), files)
    before = len(files.trace)
    append(log, unit(1))
    assert [step.split()[0] for step in files.trace[before:]] == ["store", "append"]
    assert log.tail == log.start + len(record(1))


def test_without_space_for_the_copy_nothing_goes_to_the_journal() -> None:
    journal, files = MemoryJournal(), FaultyFiles()
    log = opened(journal, files)
    stored, files.space_bytes = len(journal.runs), SPACE_BYTES + 10
    done = log.append([unit(1)], sync=True, now_ms=9)
    assert done.offsets == []
    assert "no space" in str(done.error)
    assert len(journal.runs) == stored
    files.space_bytes = 1 << 30
    append(log, unit(1))


def test_a_second_leader_sees_all_and_the_first_acknowledges_nothing_more() -> None:
    journal = MemoryJournal()
    first = opened(journal, FaultyFiles())
    append(first, unit(1))
    second = opened(journal, FaultyFiles())
    assert bodies(second) == [record(1)]
    with pytest.raises(JournalFencedError, match="another process"):
        append(first, unit(2))
    append(second, unit(3))
    with pytest.raises(LogFailedError):
        append(first, unit(4))
    assert bodies(opened(journal, FaultyFiles())) == [record(1), record(3)]


def test_after_a_failed_append_a_log_appends_no_more() -> None:
    journal = MemoryJournal()
    log = opened(journal, FaultyFiles())
    journal.is_away = True
    with pytest.raises(JournalAwayError):
        append(log, unit(1))
    journal.is_away = False
    with pytest.raises(LogFailedError):
        append(log, unit(1))
    assert bodies(opened(journal, FaultyFiles())) == []


def test_a_start_drops_what_is_behind_the_mark_and_copies_it_again() -> None:
    journal, files = MemoryJournal(), FaultyFiles()
    log = opened(journal, files)
    append(log, *map(unit, range(5)))
    log.sync()
    marked = read_mark(files, DIRECTORY)
    assert marked is not None
    append(log, *map(unit, range(5, 15)))
    left = files.after_kill()
    last = sorted(name for name in left.names_now if name.endswith(".log"))[-1]
    left.names_now[last].data[-50:] = b"\x5a" * 50
    again = opened(journal, left)
    assert bodies(again) == [record(number) for number in range(15)]
    assert segments(left) == segments(files)


def test_what_is_before_the_mark_is_not_copied_again() -> None:
    journal, files = MemoryJournal(), FaultyFiles()
    log = opened(journal, files)
    append(log, *map(unit, range(12)))
    log.sync()
    journal.runs[:] = [(text, bytes(len(data))) for text, data in journal.runs]
    assert len(bodies(opened(journal, files.after_kill()))) == 12


@pytest.mark.parametrize("damage", ["mark", "header", "record", "cut", "segment"])
def test_a_damaged_copy_is_made_again_from_the_beginning(damage: str) -> None:
    journal, files = MemoryJournal(), FaultyFiles()
    log = opened(journal, files)
    append(log, *map(unit, range(12)))
    log.sync()
    left = files.after_kill()
    names = sorted(name for name in left.names_now if name.endswith(".log"))
    assert len(names) > 1
    if damage == "mark":
        left.names_now[str(DIRECTORY / MARK_FILE)].data[5] ^= 1
    elif damage == "header":
        left.names_now[names[0]].data[20] ^= 1
    elif damage == "record":
        left.names_now[names[-1]].data[100] ^= 1
    elif damage == "cut":
        del left.names_now[names[-1]].data[-1:]
    else:
        del left.names_now[names[1]]
    assert bodies(opened(journal, left)) == [record(number) for number in range(12)]
    assert segments(left) == segments(files)


def test_a_copy_whose_runs_were_trimmed_meanwhile_is_made_again() -> None:
    journal, files = MemoryJournal(), FaultyFiles()
    log = opened(journal, files)
    append(log, unit(0))
    log.sync()
    left = files.after_kill()
    append(log, *map(unit, range(1, 12)))
    log.trim(log.bases[1])
    again = opened(journal, left)
    assert again.bases == log.bases[1:]


def test_a_log_of_its_own_is_never_changed() -> None:
    files = FaultyFiles()
    own = CommitLog(DIRECTORY, files, SEGMENT_BYTES)
    own.open(new_log_id=LOG_ID, now_ms=7)
    append(own, unit(1))
    before = files.contents()
    with pytest.raises(JournalMismatchError, match="has a log of its own"):
        opened(MemoryJournal(), files)
    assert files.contents() == before


@pytest.mark.parametrize(
    ("other", "match"),
    [
        ("empty", "is empty"),
        ("only_claimed", "is empty"),
        ("other", "a copy of the journal"),
        ("short", "lost records"),
    ],
)
def test_a_copy_is_kept_when_its_journal_is_not_what_it_was(other: str, match: str) -> None:
    journal, files = MemoryJournal(), FaultyFiles()
    log = opened(journal, files)
    append(log, unit(1))
    append(log, unit(2))
    log.sync()
    before = files.contents()
    if other == "empty":
        journal.runs.clear()
    elif other == "only_claimed":
        journal.start = len(journal.runs)
        journal.leader().claim()
    elif other == "other":
        journal.name = "another"
    else:
        del journal.runs[-1]
    with pytest.raises(JournalMismatchError, match=match):
        opened(journal, files)
    assert files.contents() == before


def test_a_journal_without_its_first_segment_is_refused() -> None:
    journal = MemoryJournal()
    append(opened(journal, FaultyFiles()), unit(1))
    journal.start = 2  # behind the fence and the header
    with pytest.raises(JournalMismatchError, match="does not begin with a segment"):
        opened(journal, FaultyFiles())


def test_a_journal_that_was_only_claimed_is_empty() -> None:
    """As one is whose first leader has died before it stored anything."""
    journal, files = MemoryJournal(), FaultyFiles()
    for _ in range(3):
        journal.leader().claim()
    assert is_empty(journal.leader(), journal.extent())
    copied = JournaledLog(DIRECTORY, files, SEGMENT_BYTES, journal.leader(files))
    for _ in range(2):  # as a standby does, which waits for a log
        copied.attach(copied.extent())
        copied.catch_up(copied.extent().end)
        assert (copied.bases, copied.position) == ((), 3)
    append(opened(journal, files), unit(1))
    assert not is_empty(journal.leader(), journal.extent())
    assert bodies(opened(journal, FaultyFiles())) == [record(1)]


@pytest.mark.parametrize("tail", [None, 0, 64, (1 << 48) - 1])
def test_a_fence_counts_nowhere(tail: int | None) -> None:
    assert not counts(FENCE, tail)
    assert labelled(label(FENCE), FENCE.data) == FENCE


@pytest.mark.parametrize("is_known", [True, False])
def test_trim_keeps_all_from_a_segment_on(is_known: bool) -> None:
    journal, files = MemoryJournal(), FaultyFiles()
    log = opened(journal, files)
    append(log, *map(unit, range(20)))
    if not is_known:
        log.sync()
        log = opened(journal, files)
    log.trim(log.bases[2])
    kept = opened(journal, FaultyFiles())
    assert kept.bases == log.bases[2:]
    assert bodies(kept) == [found.data for found in log.scan(log.bases[2])]


def test_the_newest_manifest_reaches_an_empty_disk() -> None:
    journal, files = MemoryJournal(), FaultyFiles()
    log = opened(journal, files, run_bytes_max=300)
    append(log, unit(1))
    log.write_start(b"a" * 1_000)
    log.write_start(b"b" * 700)
    append(log, unit(2))
    other = FaultyFiles()
    copied = JournaledLog(DIRECTORY, other, SEGMENT_BYTES, journal.leader())
    copy(copied)
    assert other.contents()[str(DIRECTORY / START_FILE)] == b"b" * 700
    assert copied.tail == log.tail


def test_a_manifest_counts_only_if_its_leader_finished_it() -> None:
    parts = Parts()
    first, second = in_parts(8, b"ab", 1), in_parts(8, b"cde", 1)
    assert [parts.add(run) for run in (first[0], *second)] == [None, None, None, b"cde"]
    records = Run(RunKind.RECORDS, 8, b"x")
    assert [parts.add(run) for run in (first[0], records, first[1])] == [None, None, None]


@pytest.mark.parametrize("run", [Run(RunKind.SEGMENT, 0, b"h"), Run(RunKind.START, 1 << 60, b"", 2, 3)])
def test_a_run_survives_its_label(run: Run) -> None:
    assert labelled(label(run), run.data) == run


@pytest.mark.parametrize("text", [b"", b"records", b"later 0 0 1", b"records x 0 1", b"\xff 0 0 1"])
def test_a_label_of_another_version_is_refused(text: bytes) -> None:
    with pytest.raises(FormatError, match="use a newer version"):
        labelled(text, b"")


def test_the_largest_unit_is_that_of_records_that_count_only_together() -> None:
    parts = [unit(0, 1), unit(1, 3), unit(4, 2)]
    records = [one for part in parts for one in part]
    assert largest_unit_bytes(records) == sum(map(len, parts[1]))


def counted(runs: Sequence[Run]) -> bytes:
    tail, found = None, b""
    for run in runs:
        if counts(run, tail):
            found += run.data
            tail = run.end
    return found


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 1 << 32), crashes=st.integers(0, 6))
def test_whatever_leaders_do_the_journal_has_what_was_acknowledged_once(seed: int, crashes: int) -> None:
    """Leaders append, roll, sync, crash at any step with any disk, and overlap with their successors."""
    rng = random.Random(seed)
    journal = MemoryJournal()
    acknowledged: list[bytes] = []
    number = 0
    files = FaultyFiles()
    for _ in range(crashes + 1):
        files.crash_at = files.steps + rng.randrange(1, 60)
        older = None
        try:
            log = opened(journal, files, run_bytes_max=rng.choice((1_000, 1 << 20)))
            for _ in range(rng.randrange(12)):
                units = [
                    unit(number := number + 1, 1, rng.randrange(200)) for _ in range(rng.randrange(1, 4))
                ]
                append(log, *units)
                acknowledged += [one for part in units for one in part]
                if rng.random() < 0.3:
                    log.sync()
            older = log
        except SimulatedCrashError:
            pass
        files.crash_at = None
        left = files.after_crash(rng)
        files = rng.choice((left, files.after_kill(), FaultyFiles()))
        if older is not None and rng.random() < 0.5:  # it lives on beside the next
            successor = opened(journal, FaultyFiles())
            with pytest.raises(LogFailedError):
                append(older, unit(0))
            assert [one for one in bodies(successor) if one in acknowledged] == acknowledged
    last = opened(journal, files)
    found = bodies(last)
    assert [one for one in found if one in set(acknowledged)] == acknowledged
    assert len(found) == len(set(found))
    runs = [labelled(*one) for one in journal.runs]
    assert counted(runs) == b"".join(data for _, data in sorted(segments(files).items()))


def test_a_run_without_bytes_confirms_the_lead_and_leaves_the_log_as_it_is() -> None:
    journal, files = MemoryJournal(), FaultyFiles()
    log = opened(journal, files)
    append(log, unit(1))
    before, runs = segments(files), len(journal.runs)
    log.confirm()
    assert len(journal.runs) == runs + 1
    append(log, unit(2))
    log.confirm()
    assert segments(files).keys() == before.keys()
    other = FaultyFiles()
    copied = opened(journal, other)
    assert bodies(copied) == bodies(log)
    with pytest.raises(JournalFencedError):
        log.confirm()
    with pytest.raises(LogFailedError):
        append(log, unit(3))


def test_a_journal_is_made_for_an_empty_directory_alone() -> None:
    files, journal = FaultyFiles(), MemoryJournal()
    journal.is_missing = True
    log = opened(journal, files)
    append(log, unit(1))
    log.sync()
    journal.is_missing = True  # somebody has deleted it
    again = JournaledLog(DIRECTORY, files, SEGMENT_BYTES, journal.leader(files))
    for ask in (again.extent, again.claim):
        with pytest.raises(JournalMismatchError, match="there is no journal"):
            ask()
    assert journal.is_missing


def test_a_mark_for_which_there_is_no_space_is_written_once_there_is() -> None:
    files, journal = FaultyFiles(), MemoryJournal()
    log = opened(journal, files)
    append(log, unit(1))
    files.space_bytes = 10
    with pytest.raises(NoSpaceError, match="No space left"):
        log.sync()
    files.space_bytes = 1 << 40
    log.sync()
    mark = read_mark(files, DIRECTORY)
    assert mark is not None
    assert mark.offset == log.tail
    append(log, unit(2))
