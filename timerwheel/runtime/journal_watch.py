"""What a leader does about its journal besides appending: tidy up, check its settings, confirm the lead."""

from collections.abc import Callable
from typing import Final

from timerwheel.clock import Clock
from timerwheel.runtime.election import Candidate
from timerwheel.runtime.threads import Threads
from timerwheel.store.errors import StoreError
from timerwheel.store.journaled_log import JournaledLog

TIDY_INTERVAL_MS: Final = 1_000
JOURNAL_CHECK_MS: Final = 60_000
"""How often a leader looks at the settings of what keeps the journal."""


class JournalWatch:
    """See the module. Belongs to the event loop."""

    def __init__(
        self,
        log: JournaledLog,
        threads: Threads,
        clock: Clock,
        election: Candidate | None,
        fail: Callable[[str], None],
    ) -> None:
        """`fail` ends the engine, for a reason."""
        self._log = log
        self._threads = threads
        self._clock = clock
        self._election = election
        self._fail = fail

    async def run(self) -> None:
        """Each second: let the journal tidy up, and others know how far this process is; until cancelled."""
        while True:
            await self._clock.sleep_for(TIDY_INTERVAL_MS)
            await self._threads.log(self._log.rest)
            if self._election is not None:
                self._election.report(self._log.position)

    async def run_checks(self) -> None:
        """Each minute, until cancelled: raise StoreError if the journal would lose messages by now."""
        while True:
            await self._clock.sleep_for(JOURNAL_CHECK_MS)
            await self._threads.ask(self._log.check_journal)

    async def confirm(self) -> None:
        """Have the journal confirm that this process leads; the engine fails if it does not."""
        try:
            await self._threads.log(self._log.confirm)
        except StoreError as error:
            self._fail(str(error))
            raise
