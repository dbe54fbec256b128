"""The run of the crash matrix on a log with a journal: the disk is kept, torn, or another, empty one.

What was acknowledged is in the journal, so the promises hold even if nothing of the disk is left. The steps
are those of the disk, and each claim, each run and each trim of the journal.
"""

import asyncio
from pathlib import Path

import pytest

from tests.crash.test_crash_matrix import Books, check_books, send, settings_in, workload
from tests.harness.clock import ManualClock
from tests.harness.crashes import Crash, keep_index, work_until_stopped
from tests.harness.drive import settle
from tests.harness.faulty import FaultyFiles
from tests.harness.memory_journal import MemoryJournal
from timerwheel.engine import Engine, LogOptions
from timerwheel.errors import OutcomeUnknownError, UnitTooLargeError
from timerwheel.offline.fsck import fsck
from timerwheel.store.errors import JournalFencedError, JournalMismatchError
from timerwheel.store.files import DiskFiles
from timerwheel.store.journal import RunKind, labelled
from timerwheel.store.journaled_log import JournaledLog

FATES = 2


class JournalBooks(Books):
    """The books, and the journal, which no crash reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.journal = MemoryJournal()


async def opened(directory: Path, files: FaultyFiles, clock: ManualClock, books: JournalBooks) -> Engine:
    log = LogOptions(journal=books.journal.leader(files, 5_000))
    return await Engine.open(settings_in(directory), clock, files, threads=False, log=log)


async def run_once(directory: Path, crash_at: int | None) -> tuple[FaultyFiles, ManualClock, JournalBooks]:
    clock, files, books = ManualClock(), FaultyFiles(crash_at), JournalBooks()
    opening = opened(directory, files, clock, books)
    await work_until_stopped(
        opening, lambda engine: workload(engine, clock, books), close=crash_at is not None
    )
    return files, clock, books


async def finish(directory: Path, files: FaultyFiles, clock: ManualClock, books: JournalBooks) -> None:
    engine = await opened(directory, files, clock, books)
    await settle(engine)
    await check_books(engine, clock, books)
    await engine.close()


def test_the_run_takes_every_kind_of_step(tmp_path: Path) -> None:
    files, _, books = asyncio.run(run_once(tmp_path, None))
    kinds = {step.split()[0] for step in files.trace}
    assert kinds >= {"claim", "store", "trim", "create", "append", "sync", "write", "rename", "unlink"}
    assert books.journal.start > 0
    assert len(books.seen) > 15


def test_a_crash_at_any_step_loses_nothing_and_repeats_nothing(crashes: list[Crash]) -> None:
    for crash in crashes:
        for fate, files in crash.fates(FATES):
            with crash.again("kept", fate) as (directory, clock, books):
                asyncio.run(finish(directory, files, clock, books))


def test_a_crash_at_any_step_loses_nothing_when_the_disk_is_lost(crashes: list[Crash]) -> None:
    for crash in (one for one in crashes if one.meets("lost", ("kept", "lost"))):
        with crash.again("lost", 0) as (directory, clock, books):
            asyncio.run(finish(directory, FaultyFiles(), clock, books))


def test_a_leader_that_was_replaced_acknowledges_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        books, clock = JournalBooks(), ManualClock()
        directories = [tmp_path / "first", tmp_path / "second"]
        for directory in directories:
            directory.mkdir()
        first = await opened(directories[0], FaultyFiles(), clock, books)
        await workload(first, clock, books)
        second = await opened(directories[1], FaultyFiles(), clock, books)
        before = books.journal.runs.copy()
        with pytest.raises(OutcomeUnknownError, match="another process has claimed the journal"):
            await send(first, books, 1_000)
        assert await first.failed() == "another process has claimed the journal"
        assert isinstance(first.journal_lost, JournalFencedError)
        assert books.journal.runs == before
        await first.close()
        await settle(second)
        await check_books(second, clock, books)
        await second.close()

    asyncio.run(run())


def test_the_index_of_an_emptied_disk_is_the_one_that_was_lost(tmp_path: Path) -> None:
    async def run() -> None:
        books, clock, files = JournalBooks(), ManualClock(), FaultyFiles()
        engine = await opened(tmp_path, files, clock, books)
        await workload(engine, clock, books)
        before = await engine.messages.wheel()
        await engine.close()
        keep_index(tmp_path, "lost")
        again = await opened(tmp_path, FaultyFiles(), clock, books)
        assert await again.messages.wheel() == before
        assert again.core.log.bases == engine.core.log.bases
        assert again.core.log.log_id == engine.core.log.log_id
        await again.close()

    asyncio.run(run())


async def left_behind(home: Path, clock: ManualClock, books: JournalBooks) -> FaultyFiles:
    """The disk of a node that was away while another one led, and dropped segments."""
    files = FaultyFiles()
    first = await opened(home / "away", files, clock, books)
    await first.close()
    second = await opened(home / "leads", FaultyFiles(), clock, books)
    await workload(second, clock, books)
    await second.close()
    assert books.journal.start > 0
    return files


def test_a_copy_that_lacks_what_a_leader_has_dropped_is_made_again(tmp_path: Path) -> None:
    async def run() -> None:
        books, clock = JournalBooks(), ManualClock()
        files = await left_behind(tmp_path, clock, books)
        await finish(tmp_path / "away", files, clock, books)

    asyncio.run(run())


def test_fsck_accepts_the_index_of_a_copy_that_ends_before_the_log_begins(tmp_path: Path) -> None:
    """A standby was killed after it copied what a leader had dropped, and before it replayed that."""

    async def run() -> None:
        books, clock, home = JournalBooks(), ManualClock(), tmp_path / "away"
        leader = books.journal.leader(run_bytes_max=5_000)
        kept = LogOptions(journal=leader)
        first = await Engine.open(settings_in(home), clock, DiskFiles(), threads=False, log=kept)
        await send(first, books, 3_600_000)
        await first.close()
        second = await opened(tmp_path / "leads", FaultyFiles(), clock, books)
        await workload(second, clock, books)
        await second.close()
        log = JournaledLog(home / "log", DiskFiles(), settings_in(home).segment_size_bytes, leader)
        log.attach(leader.extent())
        log.catch_up(leader.extent().end)
        log.close()
        report = fsck(home)
        assert report.ok, report.findings
        assert [one.code for one in report.findings if one.code != "sidecar_stale"] == ["index_missing"]
        again = await Engine.open(settings_in(home), clock, threads=False, log=kept)
        await settle(again)
        await check_books(again, clock, books)
        await again.close()

    asyncio.run(run())


def test_a_copy_is_kept_when_something_else_has_deleted_from_its_journal(tmp_path: Path) -> None:
    """It may be the last one of what was deleted."""

    async def run() -> None:
        books, clock = JournalBooks(), ManualClock()
        files = await left_behind(tmp_path, clock, books)
        leader = await opened(tmp_path / "leads", FaultyFiles(), clock, books)
        for _ in range(100):
            await send(leader, books, 3_600_000)
        await leader.close()
        kinds = [labelled(*run).kind for run in books.journal.runs]
        books.journal.start = max(at for at, kind in enumerate(kinds) if kind is RunKind.SEGMENT)
        before = files.contents()
        with pytest.raises(JournalMismatchError, match="were deleted, but not by this service"):
            await opened(tmp_path / "away", files, clock, books)
        assert files.contents() == before

    asyncio.run(run())


def test_a_request_that_the_journal_does_not_take_at_once_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        books, clock = JournalBooks(), ManualClock()
        engine = await opened(tmp_path, FaultyFiles(), clock, books)
        before = books.journal.runs.copy()
        with pytest.raises(UnitTooLargeError, match="the journal stores at most 5000 at once"):
            await send(engine, books, *range(1_000, 1_020))
        assert books.journal.runs == before
        await send(engine, books, 1_000)
        await engine.close()

    asyncio.run(run())
