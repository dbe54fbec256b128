"""A journal in memory, which outlives the machines that write it: the same rules as Kafka's, and no broker.

`leader` gives each machine its own view. With the file layer of a test, an append is a step at which the
machine may stop: before it, between two of its runs, or after all are stored and before it knows.
"""

from collections.abc import Generator, Iterator, Sequence

from tests.harness.faulty import FaultyFiles, SimulatedCrashError
from timerwheel.store.errors import JournalAwayError, JournalFencedError, JournalMismatchError
from timerwheel.store.journal import FENCE, Extent, Placed, Run, label, labelled


class MemoryJournal:
    """The part that stays: runs by their positions, and the epoch of the last claim."""

    def __init__(self, name: str = "memory") -> None:
        self.name = name
        self.epoch = 0
        self.start = 0
        self.runs: list[tuple[bytes, bytes]] = []
        self.is_away = False
        self.is_missing = False
        self.loses = ""
        """Why it would lose records, if somebody has changed its settings so."""

    def leader(self, files: FaultyFiles | None = None, run_bytes_max: int = 1 << 20) -> "MemoryLeader":
        return MemoryLeader(self, files or FaultyFiles(), run_bytes_max)

    def extent(self) -> Extent:
        return Extent(self.name, self.start, len(self.runs))

    def without_fences(self) -> list[Run]:
        """All runs, also those that were dropped, but for what claims have stored."""
        return [run for run in (labelled(*one) for one in self.runs) if run != FENCE]


class MemoryLeader:
    """`timerwheel.store.journal.Journal` of one machine."""

    def __init__(self, journal: MemoryJournal, files: FaultyFiles, run_bytes_max: int) -> None:
        self.journal = journal
        self.run_bytes_max = run_bytes_max
        self.rests = 0
        self._files = files
        self._epoch = 0

    def _reach(self) -> None:
        if self.journal.is_away:
            raise JournalAwayError("the journal does not answer")

    def extent(self, *, make: bool = True) -> Extent:
        self._reach()
        self._find(make=make)
        return self.journal.extent()

    def _find(self, *, make: bool) -> None:
        if self.journal.is_missing and not make:
            raise JournalMismatchError("there is no journal")
        self.journal.is_missing = False

    def claim(self, *, make: bool = True) -> Extent:
        self._reach()
        self._find(make=make)
        crash = self._files.step("claim the journal")
        self.journal.epoch += 1
        if crash:
            raise SimulatedCrashError("claim")
        self._epoch = self.journal.epoch
        found = self.journal.extent()
        self.append([FENCE])
        return found

    def read(self, start: int, end: int) -> Iterator[Placed]:
        self._reach()
        for position in range(max(start, self.journal.start), end):
            yield Placed(position, labelled(*self.journal.runs[position]))

    def follow(self, start: int) -> Generator[Placed | int, None, None]:
        while True:
            self._reach()
            if start < self.journal.start:
                raise JournalAwayError("runs that were wanted were dropped")
            if start == len(self.journal.runs):
                yield start
            else:
                yield Placed(start, labelled(*self.journal.runs[start]))
                start += 1

    def append(self, runs: Sequence[Run]) -> list[int]:
        positions = []
        for run in runs:
            crash = self._files.step("store in the journal")
            self._reach()
            if self._epoch != self.journal.epoch:
                raise JournalFencedError("another process has claimed the journal")
            assert len(run.data) <= self.run_bytes_max
            positions.append(len(self.journal.runs))
            self.journal.runs.append((label(run), run.data))
            if crash:
                raise SimulatedCrashError("append")
        return positions

    def rest(self) -> None:
        self.rests += 1

    def check(self) -> None:
        self._reach()
        if self.journal.loses:
            raise JournalMismatchError(self.journal.loses)

    def trim(self, position: int) -> None:
        self._reach()
        crash = self._files.step("trim the journal")
        self.journal.start = max(self.journal.start, position)
        if crash:
            raise SimulatedCrashError("trim")

    def close(self) -> None:
        self._epoch = 0
