"""A standby beside the run of the crash matrix: it copies and replays while the leader works, then leads.

What a standby has after any history must be what a start on an empty disk would find. It may stop at each of
its steps, and its disk lose what was not synced.
"""

import asyncio
import contextlib
import random
from pathlib import Path

import pytest

from tests.crash.test_crash_journal import JournalBooks, opened
from tests.crash.test_crash_matrix import check_books, send, settings_in, workload
from tests.harness.clock import ManualClock
from tests.harness.crashes import Crash
from tests.harness.drive import settle
from tests.harness.faulty import FaultyFiles, SimulatedCrashError
from tests.harness.memory_election import MemoryElection
from timerwheel.engine import Engine, LogOptions
from timerwheel.runtime.recovery import Replica
from timerwheel.store.errors import JournalAwayError, NoSpaceError

FATES = 2


class Watched(FaultyFiles):
    """The disk of a leader; a standby takes a step after so many of its steps."""

    def __init__(self, replica: "Replica | PatientReplica", clock: ManualClock, every: int) -> None:
        super().__init__()
        self._replica = replica
        self._clock = clock
        self._every = every
        self._count = 0
        self._is_inside = False

    def step(self, name: str) -> bool:
        crash = super().step(name)
        self._count += 1
        if self._count % self._every == 0 and not self._is_inside:
            self._is_inside = True
            with contextlib.suppress(SimulatedCrashError):  # which ends only the standby
                self._replica.step(self._clock.now_ms())
            self._is_inside = False
        return crash


def replica_in(directory: Path, files: FaultyFiles, books: JournalBooks) -> Replica:
    directory.mkdir(exist_ok=True)
    return Replica(settings_in(directory), files, books.journal.leader(files, 5_000))


async def lead(directory: Path, files: FaultyFiles, clock: ManualClock, books: JournalBooks) -> Engine:
    """A standby that is elected after one step."""
    election = MemoryElection()
    log = LogOptions(journal=books.journal.leader(files, 5_000), election=election)
    opening = asyncio.ensure_future(Engine.open(settings_in(directory), clock, files, threads=False, log=log))
    for _ in range(3):
        await asyncio.sleep(0)
    election.win()
    return await opening


@pytest.mark.parametrize("every", [1, 7, 40])
def test_a_standby_that_follows_at_any_distance_leads_with_the_same_state(tmp_path: Path, every: int) -> None:
    async def run() -> None:
        books, clock = JournalBooks(), ManualClock()
        mine = FaultyFiles()
        replica = replica_in(tmp_path / "standby", mine, books)
        (tmp_path / "leader").mkdir()
        leader = await opened(tmp_path / "leader", Watched(replica, clock, every), clock, books)
        await workload(leader, clock, books)
        assert books.journal.start > 0  # retention has dropped segments, so manifests came
        assert 0 < replica.position <= len(books.journal.runs)
        wheel = await leader.messages.wheel()
        replica.step(clock.now_ms())
        await leader.abandon()
        replica.close()
        engine = await lead(tmp_path / "standby", mine, clock, books)
        assert await engine.messages.wheel() == wheel
        await settle(engine)
        await check_books(engine, clock, books)
        await engine.close()

    asyncio.run(run())


async def run_once(directory: Path, crash_at: int | None) -> tuple[FaultyFiles, ManualClock, JournalBooks]:
    """A leader that works to its end on another disk, and a standby that stops at one of its steps."""
    clock, files, books = ManualClock(), FaultyFiles(crash_at), JournalBooks()
    other = directory.with_name(f"{directory.name}.leader")
    other.mkdir()
    replica = replica_in(directory, files, books)
    leader = await opened(other, Watched(replica, clock, 25), clock, books)
    await workload(leader, clock, books)
    await leader.abandon()
    with contextlib.suppress(SimulatedCrashError):
        replica.step(clock.now_ms())
    with contextlib.suppress(SimulatedCrashError):
        replica.close()
    return files, clock, books


def test_a_standby_that_stopped_at_any_step_leads_after_its_next_start(crashes: list[Crash]) -> None:
    for crash in crashes:
        for fate, files in crash.fates(FATES):
            with crash.again("kept", fate) as (directory, clock, books):
                asyncio.run(take_over(directory, files, clock, books))


async def take_over(directory: Path, files: FaultyFiles, clock: ManualClock, books: JournalBooks) -> None:
    engine = await lead(directory, files, clock, books)
    await settle(engine)
    await check_books(engine, clock, books)
    await engine.close()


def test_a_standby_ends_without_having_led_and_lets_go_of_its_directory(tmp_path: Path) -> None:
    async def run() -> None:
        books, clock, files = JournalBooks(), ManualClock(), FaultyFiles()
        election = MemoryElection()
        log = LogOptions(journal=books.journal.leader(files, 5_000), election=election)
        opening = asyncio.ensure_future(
            Engine.open(settings_in(tmp_path), clock, files, threads=False, log=log)
        )
        while not election.positions:
            await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert books.journal.epoch == 0  # it has claimed nothing
        engine = await lead(tmp_path, files, clock, books)
        await engine.close()

    asyncio.run(run())


class QuotaFiles(FaultyFiles):
    """A disk with a quota, which does not show in what is free: any write may be the one that fails."""

    def free_bytes(self, _directory: Path) -> int:
        return 1 << 40


class PatientReplica:
    """A standby that goes on with another replica each time that there was no space, and gets some more."""

    def __init__(self, directory: Path, books: JournalBooks, dice: random.Random) -> None:
        self.files, self.refusals = QuotaFiles(), 0
        self._directory, self._books, self._dice = directory, books, dice
        self.files.space_bytes = 0
        self._replica = replica_in(directory, self.files, books)

    def step(self, now_ms: int) -> None:
        while self._replica.position < len(self._books.journal.runs):
            try:
                self._replica.step(now_ms)
            except NoSpaceError:
                self.refusals += 1
                self._replica.close()
                self.files.space_bytes += self._dice.randrange(20, 300 + 20 * self.refusals)
                self._replica = replica_in(self._directory, self.files, self._books)

    def close(self) -> None:
        self._replica.close()


@pytest.mark.parametrize("seed", range(4))
def test_a_copy_for_which_there_is_no_space_at_any_step_goes_on_once_there_is(
    tmp_path: Path, seed: int
) -> None:
    async def run() -> None:
        books, clock = JournalBooks(), ManualClock()
        standby = PatientReplica(tmp_path / "standby", books, random.Random(seed))
        (tmp_path / "leader").mkdir()
        leader = await opened(tmp_path / "leader", Watched(standby, clock, 10), clock, books)
        await workload(leader, clock, books)
        standby.step(clock.now_ms())
        wheel = await leader.messages.wheel()
        await leader.abandon()
        standby.close()
        assert standby.refusals > 20
        standby.files.space_bytes = 1 << 40
        engine = await lead(tmp_path / "standby", standby.files, clock, books)
        assert await engine.messages.wheel() == wheel
        await settle(engine)
        await check_books(engine, clock, books)
        await engine.close()

    asyncio.run(run())


def test_a_standby_that_is_behind_what_was_dropped_copies_again(tmp_path: Path) -> None:
    async def run() -> None:
        books, clock, mine = JournalBooks(), ManualClock(), FaultyFiles()
        replica = replica_in(tmp_path / "standby", mine, books)
        (tmp_path / "leader").mkdir()
        leader = await opened(tmp_path / "leader", FaultyFiles(), clock, books)
        await send(leader, books, 500)
        replica.step(clock.now_ms())
        await workload(leader, clock, books)
        assert books.journal.start > replica.position
        with pytest.raises(JournalAwayError, match="were dropped"):
            replica.step(clock.now_ms())
        replica.close()
        await leader.abandon()
        await take_over(tmp_path / "standby", mine, clock, books)

    asyncio.run(run())
