"""A node of a new cluster makes the journal, then takes part in the election about it."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path

from tests.harness.clock import ManualClock
from tests.harness.faulty import FaultyFiles
from tests.harness.memory_election import MemoryElection
from tests.harness.memory_journal import MemoryJournal
from timerwheel.engine import Engine, LogOptions
from timerwheel.settings import Settings


class ElectionAbout(MemoryElection):
    """Notes whether the journal was there when this node began to take part."""

    def __init__(self, journal: MemoryJournal) -> None:
        super().__init__()
        self._journal = journal
        self.was_there: bool | None = None

    def won(self) -> Coroutine[None, None, None]:
        self.was_there = not self._journal.is_missing
        return super().won()


def test_the_journal_is_there_before_a_node_takes_part(tmp_path: Path) -> None:
    """A member of a consumer group whose topic is made later hears of it seconds later."""

    async def run() -> None:
        journal = MemoryJournal()
        journal.is_missing = True
        election = ElectionAbout(journal)
        election.win()
        engine = await Engine.open(
            Settings(data=tmp_path, disk_reserve_bytes=0),
            ManualClock(),
            FaultyFiles(),
            threads=False,
            log=LogOptions(journal=journal.leader(), election=election),
        )
        assert election.was_there
        await engine.close()

    asyncio.run(run())
