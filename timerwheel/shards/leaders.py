"""Which process serves each shard, as far as this node has heard.

A node asks its own process of each shard, which leads, or stands by and then knows who leads. While that one
does not answer, another node may lead: then the election is asked. What a call meets counts at once: a
process that is gone, or that names another leader. To be wrong costs a call, never a message: a process that
does not lead refuses.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Literal

import aiohttp
import msgspec
from yarl import URL

from timerwheel.clock import Clock
from timerwheel.errors import NotReadyError
from timerwheel.shards.connection_pool import ConnectionPool

LOOK_MS = 500
LOOK_AGAIN_MS = 100
"""Between two looks while nobody leads."""
LOOK_S_MAX = 2.0
HOLD_MS = 2_000
"""How long calls are held that come while a shard changes its leader; most changes take less."""
HUNG_MS = 10_000
"""How long a process may answer nothing before calls in progress are given up."""
REPLACED_S = 2.0
"""How long calls in progress may go on after another process has begun to lead."""
SEEK_MS = 1_000
"""How often the election is asked while the own process of a shard is away."""
READY = 200

Seek = Callable[[int], str | None]
"""Asks the election of a shard for the URL of its leader; may block."""

LocalRole = Literal["away", "starting", "standby", "leader"]

logger = logging.getLogger(__name__)


class ShardNotReadyError(NotReadyError):
    """No process serves the shard at the moment; nothing was stored."""

    def __init__(self, shard: int, why: str) -> None:
        super().__init__(f"shard {shard} is not ready: {why}")
        self.facts = {"shard": shard}


class ProcessReadiness(msgspec.Struct):
    """What `/readyz` of a shard's process says; a problem names the leader that it knows."""

    status: str | int = ""
    role: str = ""
    leader: str | None = None
    detail: str = ""
    refusing: str = ""
    refusing_code: str = "disk_reserve"  # of a process that says why, but not with which code
    set_aside: str = ""
    is_ready: bool = False


def _process_at(url: str) -> tuple[str | None, int | None]:
    """Return the host and the port in a URL, which distinguish processes."""
    parts = URL(url, encoded=True)
    return parts.host, parts.port


class Place:
    """What is known of one shard."""

    def __init__(self, number: int, own_url: str, public_url: str) -> None:
        self.number = number
        self.own_url = own_url
        """The URL at which this node reaches its process for the shard."""
        self.public_url = public_url
        """The URL at which others reach it, which the election knows."""
        self.role: LocalRole = "away"
        """What that process does."""
        self.leader: str | None = None
        """The URL of the process that serves the shard; None while nobody does."""
        self.held_until_ms = -1
        """Until when calls wait for the next leader."""
        self.why = "its process has not answered yet"
        """Why nobody leads."""
        self.readiness = ProcessReadiness()
        """What the process that serves the shard says of itself."""
        self.seek_ms = 0
        """When the election may be asked again."""
        self.answered_ms = 0
        """When the process that leads answered last, or this node's while none does."""
        self.served_by: str | None = None
        """The process that last said that it leads."""
        self.calls: dict[asyncio.Timeout, str] = {}
        """The limits of calls in progress, and the URL of the process that each of them waits for."""

    def give_up(self, in_s: float, *, but: str | None = None) -> None:
        """End the calls in progress after so many seconds: their process will not answer them.

        Those to the process at the URL `but` go on: it serves the shard now, and may have had them already.
        """
        at_s = asyncio.get_running_loop().time() + in_s
        kept = None if but is None else _process_at(but)
        for call, url in list(self.calls.items()):
            if kept is not None and _process_at(url) == kept:
                continue
            del self.calls[call]
            if not call.expired():
                call.reschedule(at_s)

    @property
    def shown_leader(self) -> str | None:
        """The URL at which anybody reaches the process that serves the shard."""
        return self.public_url if self.leader == self.own_url else self.leader

    def leads(self, url: str | None) -> None:
        """Take note of who leads, by its public URL."""
        self.leader = self.own_url if url == self.public_url else url


class Leaders:
    """See the module. Belongs to the event loop."""

    def __init__(
        self, places: Sequence[Place], pool: ConnectionPool, clock: Clock, seek: Seek | None = None
    ) -> None:
        self.places = places
        self._seek = seek
        self._pool = pool
        self._clock = clock
        self._changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def clock(self) -> Clock:
        """The clock of the node."""
        return self._clock

    @property
    def count(self) -> int:
        """How many shards there are."""
        return len(self.places)

    @property
    def missing(self) -> list[int]:
        """The shards that nobody leads, as far as is known."""
        return [place.number for place in self.places if place.leader is None]

    def url_of(self, shard: int) -> str:
        """Return the URL of the process that serves a shard; ShardNotReadyError."""
        place = self.places[shard]
        if place.leader is None:
            raise ShardNotReadyError(shard, place.why)
        return place.leader

    async def found(self, shard: int) -> str:
        """Return the URL of the process that serves a shard, or will in a moment; ShardNotReadyError."""
        place = self.places[shard]
        while place.leader is None:
            wait_ms = place.held_until_ms - self._clock.monotonic_ms()
            if wait_ms <= 0:
                break
            await self._clock.wait_for(self._changed, wait_ms)
        return self.url_of(shard)

    @contextlib.asynccontextmanager
    async def serving(self, shard: int, url: str) -> AsyncIterator[None]:
        """Wait in a block for the process of a shard at a URL; TimeoutError if no answer can be expected."""
        place = self.places[shard]
        async with asyncio.timeout(None) as limit:
            place.calls[limit] = url
            try:
                yield
            finally:
                place.calls.pop(limit, None)

    def gone(self, shard: int, url: str) -> None:
        """Take note that no process answers at this URL."""
        self._set(self.places[shard], url, None, f"{url} does not answer")

    def heard(self, shard: int, asked: str, leader: str | None) -> None:
        """Take note that the process at the URL `asked` does not lead, and who does by what it says."""
        self._set(self.places[shard], asked, leader, f"{asked} is not ready")

    def _set(self, place: Place, url: str, leader: str | None, why: str) -> None:
        """Take note of the leader after the one at this URL, unless there is another by now."""
        if place.leader != url:
            return
        place.leads(leader)
        if place.leader == url:
            place.leader = None
        place.why = why
        place.held_until_ms = self._clock.monotonic_ms() + HOLD_MS
        self._tell()

    def _tell(self) -> None:
        """Wake those who wait for a change."""
        changed, self._changed = self._changed, asyncio.get_running_loop().create_future()
        changed.set_result(None)

    async def all_known(self) -> None:
        """Return once somebody leads each shard."""
        while self.missing:
            await asyncio.shield(self._changed)

    async def watch(self) -> None:
        """Keep looking, until cancelled."""
        await asyncio.gather(*map(self._watch, self.places))

    async def _watch(self, place: Place) -> None:
        while True:
            try:
                await self._look(place)
            except Exception:  # a fault of ours must not leave a shard without a leader
                logger.exception("looking at shard %d failed; trying again", place.number)
            self._tell()
            await self._clock.sleep_for(LOOK_MS if place.leader is not None else LOOK_AGAIN_MS)

    async def _look(self, place: Place) -> None:
        before = place.leader
        own = await self._asked(place.own_url)
        of_leader = own
        if own is None:
            place.role = "away"
            found, why = None if before == place.own_url else before, "its process does not answer"
            found = found or await self._sought(place)
        elif own.is_ready:
            place.role, found, why = "leader", place.own_url, ""
        else:
            place.role = "standby" if own.role == "standby" else "starting"
            found = None if own.leader in (place.own_url, place.public_url) else own.leader
            why = own.detail or "its process is not ready"
        if found not in (None, place.own_url):
            assert found is not None
            of_leader = await self._asked(found)
            if of_leader is None or not of_leader.is_ready:
                found, why = None, f"{found} leads and is not ready"
        self._end_calls(place, found, has_answered=of_leader is not None)
        place.leader, place.why = found, why
        place.readiness = of_leader or ProcessReadiness()
        if place.leader is None and before is not None:
            place.held_until_ms = self._clock.monotonic_ms() + HOLD_MS

    def _end_calls(self, place: Place, leader: str | None, *, has_answered: bool) -> None:
        """Give up calls to a process that another has replaced, or that has answered nothing for long."""
        now_ms = self._clock.monotonic_ms()
        if has_answered:
            place.answered_ms = now_ms
        if leader is not None:
            before, place.served_by = place.served_by, leader
            if before not in (None, leader):
                place.give_up(REPLACED_S, but=leader)
        elif now_ms - place.answered_ms >= HUNG_MS:
            place.give_up(0)

    async def _sought(self, place: Place) -> str | None:
        """Return the process of another node that leads by what the election says."""
        now_ms = self._clock.monotonic_ms()
        if self._seek is None or now_ms < place.seek_ms:
            return None
        found = await asyncio.to_thread(self._seek, place.number)
        place.seek_ms = now_ms + SEEK_MS
        return None if found in (place.own_url, place.public_url) else found

    async def _asked(self, url: str) -> ProcessReadiness | None:
        """Return what a process says of itself; None if it does not answer."""
        timeout = aiohttp.ClientTimeout(total=LOOK_S_MAX)
        try:
            async with await self._pool.request("GET", f"{url}/readyz", timeout=timeout) as response:
                found = msgspec.json.decode(await response.read(), type=ProcessReadiness)
                found.is_ready = response.status == READY
        except (aiohttp.ClientError, OSError, TimeoutError, msgspec.DecodeError):
            return None
        return found
