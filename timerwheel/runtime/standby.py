"""A standby: a process that copies the journal and replays it until the election is won, and then leads."""

import asyncio
from collections.abc import Callable
from typing import Final

from timerwheel.clock import Clock
from timerwheel.runtime.election import Candidate
from timerwheel.runtime.recovery import Recovered, Replica
from timerwheel.runtime.threads import Threads
from timerwheel.store.errors import NoSpaceError

STANDBY_INTERVAL_MS: Final = 100
"""How often a standby looks for what the leader has appended."""


class Standby:
    """One process before it leads. Belongs to the event loop; its copy is worked on by the index thread."""

    def __init__(self, copy: Callable[[], Replica], clock: Clock, threads: Threads) -> None:
        """`copy` opens the copy of the journal, again after the disk was full."""
        self._new_copy = copy
        self._copy = copy()
        self._clock = clock
        self._threads = threads

    async def lead(self, election: Candidate | None, report: Callable[[int, int], None]) -> Recovered:
        """Stand by until the election is won, then claim the journal and recover; without one, at once.

        Raises JournalAwayError, JournalMismatchError and CopyDamagedError, and NoSpaceError if the copy
        does not fit though it is to lead.
        """
        won: asyncio.Future[None] | None = None
        try:
            if election is not None:
                await self._threads.index(self._copy.find_journal)
                won = asyncio.ensure_future(election.won())
                while not won.done():
                    await self._follow(election, won)
                await won
            return await self._threads.index(self._copy.lead, self._clock.now_ms(), report)
        except BaseException:
            if won is not None:
                won.cancel()
            await asyncio.shield(
                self._threads.index(self._copy.close)
            )  # in its turn: a step may be under way
            raise

    async def _follow(self, election: Candidate, won: asyncio.Future[None]) -> None:
        """Copy what is new, then wait a moment, or until it is won."""
        try:
            await self._threads.index(self._copy.step, self._clock.now_ms())
        except NoSpaceError:
            await self._clock.wait_for(won, STANDBY_INTERVAL_MS)
            if not won.done():
                raise
            await self._threads.index(self._copy.close)
            self._copy = self._new_copy()  # to lead, it may use what a standby leaves free
        else:
            election.report(self._copy.position)
            await self._clock.wait_for(won, STANDBY_INTERVAL_MS)
