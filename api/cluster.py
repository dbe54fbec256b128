"""The nodes that share a journal: which of them leads, and a planned hand-over."""

import asyncio

from timerwheel.clock import Clock
from timerwheel.errors import NotReadyError
from timerwheel.runtime.election import Election, Node, NoStandbyError, NotLeaderError
from timerwheel.store.errors import JournalAwayError

MOVE_MS_MAX = 20_000
"""How long a hand-over may take before its caller hears that nobody has taken over."""
LOOK_MS = 100


class Cluster:
    """One node's part in its cluster. Belongs to the event loop."""

    def __init__(self, election: Election, url: str, clock: Clock) -> None:
        self.election = election
        self.url = url
        self.moving = asyncio.Event()
        """Set when this node is to hand over."""
        self.is_copying = False
        """Whether it has reached the journal since the last engine, and copies it."""
        self.position: int | None = None
        """Up to which position of the journal it has copied, while it stands by."""
        self._clock = clock

    async def won(self) -> None:
        """Return once this node is to lead."""
        await self.election.won()

    @property
    def leads_until_ms(self) -> int:
        """Until when, by `Clock.uptime_ms`, the election can have chosen no other node."""
        return self.election.leads_until_ms

    def report(self, position: int) -> None:
        """Take note that the copy goes up to this position."""
        self.is_copying, self.position = True, position
        self.election.report(position)

    async def end(self, *, leave: bool = False) -> None:
        """Take note that no engine runs, and `leave` the election for now."""
        self.is_copying = False
        self.election.ended()
        if leave:
            await self.election.leave()
            self.moving.clear()

    @property
    def is_leader(self) -> bool:
        """Whether this node is to lead."""
        return self.election.is_won

    @property
    def leader_url(self) -> str | None:
        """Who leads, as far as this node has heard."""
        return self.election.leader_url

    async def moved(self) -> None:
        """Return once this node is to hand over."""
        await self.moving.wait()

    async def move(self) -> str:
        """Hand over to a standby; returns the URL of the node that leads then.

        Raises NotLeaderError, NoStandbyError if no other could lead, and NotReadyError without the journal.
        """
        if not self.is_leader:
            raise NotLeaderError(self.leader_url)
        if not any(node.url != self.url for node in await self.nodes()):
            raise NoStandbyError("no other node takes part: start a second one with the same journal")
        self.moving.set()
        until_ms = self._clock.monotonic_ms() + MOVE_MS_MAX
        while self._clock.monotonic_ms() < until_ms:
            await self._clock.sleep_for(LOOK_MS)
            leaders = [node.url for node in await self.nodes() if node.is_leader]
            if leaders and leaders != [self.url]:
                return leaders[0]
        raise NoStandbyError("no other node has taken over in time; look at its log")

    async def nodes(self) -> list[Node]:
        """Return who takes part. Raises NotReadyError if the journal does not say."""
        try:
            return await self.election.nodes()
        except JournalAwayError as error:
            raise NotReadyError(str(error)) from error
