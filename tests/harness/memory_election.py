"""An election in memory, whose outcome the test decides: the same protocol as Kafka's, and no broker."""

import asyncio

from timerwheel.runtime.election import Node


class MemoryElection:
    """`timerwheel.runtime.election.Election` of one node."""

    def __init__(self, url: str = "http://node") -> None:
        self.url = url
        self.is_won = False
        self.leader_url: str | None = None
        self.leads_until_ms = 1 << 62
        self.positions: list[int] = []
        self.left = 0
        self.asked = 0
        self.others: list[Node] = []
        """The other nodes, as the test wants them."""
        self.has_room: bool | None = None
        self.is_aside = False
        self._won = asyncio.Event()
        self._lost = asyncio.Event()

    def win(self) -> None:
        self.is_won, self.leader_url = True, self.url
        self._won.set()

    def lose(self) -> None:
        self.is_won = False
        self._lost.set()

    async def won(self) -> None:
        await self._won.wait()

    async def lost(self) -> None:
        await self._lost.wait()

    def ended(self) -> None:
        if self._lost.is_set():
            self._won.clear()
            self._lost.clear()

    async def leave(self) -> None:
        self.left += 1
        self.lose()

    def report(self, position: int) -> None:
        self.positions.append(position)

    async def nodes(self) -> list[Node]:
        self.asked += 1
        return [Node(self.url, self.is_won, 0, self.has_room, self.is_aside), *self.others]

    def say_room(self, *, has_room: bool) -> None:
        self.has_room = has_room

    def stand_aside(self, *, is_aside: bool) -> None:
        self.is_aside = is_aside
