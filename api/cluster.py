"""The nodes that share a journal: which of them leads, a planned hand-over, and one for lack of disk."""

import asyncio
import contextlib
import logging

from timerwheel.clock import Clock
from timerwheel.errors import NotReadyError
from timerwheel.runtime.disk_space import DiskSpace
from timerwheel.runtime.election import Election, Node, NoStandbyError, NotLeaderError
from timerwheel.runtime.room import Part, Room, Standing
from timerwheel.store.errors import JournalAwayError

MOVE_MS_MAX = 20_000
"""How long a hand-over may take before its caller hears that nobody has taken over."""
SEEN_MS_MAX = 5_000
"""How long a hand-over looks for a node that could lead: one that is changing groups is in none just then."""
LOOK_MS = 100
ROOM_LOOK_MS = 1_000
"""How often a node looks whether its disk has room."""
NODES_LOOK_MS = 2_000
"""How often a node that is short of room asks about the others."""

logger = logging.getLogger(__name__)


class Cluster:
    """One node's part in its cluster. Belongs to the event loop."""

    def __init__(self, election: Election, url: str, clock: Clock, disk: DiskSpace) -> None:
        self.election = election
        self.url = url
        self.moving = asyncio.Event()
        """Set when this node is to hand over."""
        self.is_copying = False
        """Whether it has reached the journal since the last engine, and copies it."""
        self.position: int | None = None
        """Up to which position of the journal it has copied, while it stands by."""
        self.room = Room()
        self.lacks_room = False
        """Whether it waits for room to open the copy."""
        self._clock = clock
        self._disk = disk
        self._standing = Standing()
        self._asked_ms: int | None = None  # when it asked last about the others
        self._joining: asyncio.Future[None] | None = None

    async def won(self) -> None:
        """Return once this node is to lead."""
        await self.election.won()

    @property
    def leads_until_ms(self) -> int:
        """Until when, by `Clock.uptime_ms`, the election can have chosen no other node."""
        return self.election.leads_until_ms

    def report(self, position: int) -> None:
        """Take note that the copy goes up to this position."""
        if not self.is_copying:
            self.opened()
        self.is_copying, self.position = True, position
        self.election.report(position)

    def no_room(self) -> None:
        """Take note that there was no room to open the copy: this node waits for some."""
        self.lacks_room = True
        self.room.failed()

    def opened(self) -> None:
        """Take note that there was room to open the copy."""
        if self.lacks_room:
            logger.warning("there is room on the disk again: this node goes on")
        self.lacks_room = False
        self.room.worked()

    async def end(self, *, leave: bool = False) -> None:
        """Take note that no engine runs, and `leave` the election for now."""
        self.is_copying = False
        if self._joining is not None:
            self._joining.cancel()
            self._joining = None
        is_lost = not self.is_leader
        self.election.ended()
        if is_lost and not leave:
            self.moving.clear()  # the lead went without it: when this node leads again, it is to keep it
        if leave:
            await self.election.leave()
            self.election.stand_aside(is_aside=self._standing.is_aside)
            self.moving.clear()
            self._asked_ms = None

    def take_part(self) -> None:
        """Take part in the election, without an engine that could lead; `end` comes before the next call."""
        self._joining = asyncio.ensure_future(self.election.won())
        self._joining.add_done_callback(_seen)

    async def watch(self) -> None:
        """Look after the room on the disk, until cancelled."""
        while True:
            try:
                await self.look()
            except Exception:  # a fault of ours must not end the looks: nobody would hand over any longer
                logger.exception("looking at the room on the disk failed; trying again")
            await self._clock.sleep_for(ROOM_LOOK_MS)

    async def look(self) -> None:
        """Tell the others whether there is room here, and hand over or stand aside if there is not."""
        room = self.room
        try:
            room.measured(await asyncio.to_thread(self._disk.look), self._disk.reserve_bytes)
        except OSError as error:  # the directory is not there yet, or not just now
            logger.debug("cannot see how much of the disk is free: %s", error)
        self.election.say_room(has_room=not room.is_short)
        now_ms, others = self._clock.monotonic_ms(), None
        if not room.is_short:
            self._asked_ms = None
        elif self._asked_ms is None or now_ms >= self._asked_ms + NODES_LOOK_MS:
            self._asked_ms = now_ms
            with contextlib.suppress(JournalAwayError):
                others = [node for node in await self.election.nodes() if node.url != self.url]
        part = Part.STANDS_BY
        if self.is_leader:
            part = Part.CANNOT_LEAD if self.lacks_room else Part.LEADS
        step = self._standing.decide(now_ms, part, is_short=room.is_short, others=others)
        if not step.hands_over:
            if part is Part.STANDS_BY:
                self.election.stand_aside(is_aside=step.is_aside)
        elif not self.moving.is_set():
            logger.warning("this node has too little free disk: it lets a node lead that has room")
            self.moving.set()

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

        Raises NotLeaderError, NoStandbyError if no other could lead or has taken over in time, and
        NotReadyError if the journal does not answer before anything is done: a caller asks again then, and
        may ask the next leader, which would hand the lead back.
        """
        if not self.is_leader:
            raise NotLeaderError(self.leader_url)
        await self._find_standby()
        self.moving.set()
        until_ms = self._clock.monotonic_ms() + MOVE_MS_MAX
        while self._clock.monotonic_ms() < until_ms:
            await self._clock.sleep_for(LOOK_MS)
            with contextlib.suppress(NotReadyError):
                leaders = [node.url for node in await self.nodes() if node.is_leader]
                if leaders and leaders != [self.url]:
                    return leaders[0]
        raise NoStandbyError(
            "the hand-over began, but no node took over in time. Check this node's log and "
            "`timerwheel cluster status`"
        )

    async def _find_standby(self) -> None:
        """Return once another node could be chosen. Raises NoStandbyError and NotReadyError."""
        until_ms = self._clock.monotonic_ms() + SEEN_MS_MAX
        while True:
            others = [node for node in await self.nodes() if node.url != self.url]
            if others and all(node.has_room is False for node in others):
                raise NoStandbyError(
                    f"no other node has room on its disk: {', '.join(node.url for node in others)}; free "
                    "some there first"
                )
            if not all(node.is_aside for node in others):
                return
            if self._clock.monotonic_ms() >= until_ms:
                break
            await self._clock.sleep_for(LOOK_MS)
        if not others:
            raise NoStandbyError("no other node takes part: start a second one with the same journal")
        raise NoStandbyError(
            f"no other node can be chosen yet: {', '.join(node.url for node in others)}; ask again soon"
        )

    async def nodes(self) -> list[Node]:
        """Return who takes part. Raises NotReadyError if the journal does not say."""
        try:
            return await self.election.nodes()
        except JournalAwayError as error:
            raise NotReadyError(str(error)) from error


def _seen(joining: "asyncio.Future[None]") -> None:
    """Note that an error is known: the next try meets it again if it lasts."""
    if not joining.cancelled():
        joining.exception()
