"""A real HTTP receiver of webhooks on loopback that behaves as badly as it is told to."""

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from aiohttp import web


@dataclass
class Got:
    """One request as it came."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    method: str = "POST"


@dataclass
class Receiver:
    """Answers 200 to every path unless `behave` says otherwise; `got` has all that came.

    Behaviours by path: an int is a status, a (status, headers) pair an answer with headers, and the words
    `hang` (never answers), `reset` (drops the connection), `trickle` (never ends its answer), `flood` (a
    megabyte of answer), `garbage` (no HTTP), `hang_up` (closes an idle connection after its answer),
    `interim` (three answers 103 before its own) and `chatter` (answers 100 without an end).
    Bytes are the answer as it goes out.
    """

    addresses: int = 1
    """How many: 127.0.0.1, 127.0.0.2 and so on, each a host of its own."""
    behave: dict[str, object] = field(default_factory=dict)
    got: list[Got] = field(default_factory=list)
    under_way: Counter[str] = field(default_factory=Counter)
    most_under_way: Counter[str] = field(default_factory=Counter)
    connections: set[object] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.changed = asyncio.Condition()
        self._released = asyncio.Event()
        self._hanging: object = 200

    async def __aenter__(self) -> "Receiver":
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, backlog=2048)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]
        for at in range(2, self.addresses + 1):
            await web.TCPSite(self._runner, f"127.0.0.{at}", self.port, backlog=2048).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.release()
        await self._runner.cleanup()

    def release(self) -> None:
        """Let everything that hangs go on, with a 200."""
        self._released.set()

    def answer_hanging(self, status: int, headers: Mapping[str, str]) -> None:
        """As `release`, with this answer."""
        self._hanging = (status, headers)
        self._released.set()

    def url(self, path: str = "hook", address: int = 1) -> str:
        return f"http://127.0.0.{address}:{self.port}/{path}"

    def bodies(self, path: str = "hook") -> list[bytes]:
        return [got.body for got in self.got if got.path == path]

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until requests have made something true; the limit only keeps a failure from hanging."""
        async with asyncio.timeout(120), self.changed:
            await self.changed.wait_for(true)

    async def arrived(self, count: int, path: str = "hook") -> None:
        await self.until(lambda: len(self.bodies(path)) >= count)

    async def _note(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = request.match_info["path"]
        self.connections.add(request.transport)
        body = await request.read()
        self.got.append(Got(path, request.headers.copy(), body, request.method))
        self.under_way[path] += 1
        self.most_under_way[path] = max(self.most_under_way[path], self.under_way[path])
        await self._note()
        try:
            return await self._answer_as_set(request, self.behave.get(path, 200))
        finally:
            self.under_way[path] -= 1

    async def _answer_as_set(self, request: web.Request, told: object) -> web.StreamResponse:
        assert request.transport is not None
        if told == "hang":
            await self._released.wait()
            told = self._hanging
        if isinstance(told, list):
            return await self._answer_as_set(request, told.pop(0) if len(told) > 1 else told[0])
        if isinstance(told, int):
            return web.Response(status=told, body=b"answer")
        if isinstance(told, tuple):
            return web.Response(status=told[0], headers=told[1])
        if told == "trickle":
            return await self._trickle(request)
        if told == "flood":
            return web.Response(body=b"f" * (1 << 20))
        if isinstance(told, bytes):
            request.transport.write(told)
            await self._released.wait()
        await self._misbehave(request.transport, told)
        return web.Response()

    async def _misbehave(self, transport: asyncio.Transport, told: object) -> None:
        """Do something to the connection before the answer, which may then be none."""
        if told == "reset":
            transport.abort()
        elif told == "garbage":
            transport.write(b"no HTTP at all\r\n\r\n")
            transport.close()
        elif told == "interim":
            transport.write(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 3)
        elif told == "chatter":
            await self._chatter(transport)
        elif told == "hang_up":
            asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(_hang_up(transport)))

    async def _chatter(self, transport: asyncio.Transport) -> None:
        while not transport.is_closing() and not self._released.is_set():
            transport.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 100)
            await asyncio.sleep(0)

    async def _trickle(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(status=200)
        with contextlib.suppress(ConnectionError):
            await answer.prepare(request)
            while not self._released.is_set():
                await answer.write(b".")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._released.wait(), 0.01)
        return answer


async def _hang_up(transport: asyncio.Transport) -> None:
    for _ in range(20):
        await asyncio.sleep(0)
    transport.close()


def grouped(got: list[Got]) -> dict[str, list[bytes]]:
    """Bodies by path."""
    found: dict[str, list[bytes]] = defaultdict(list)
    for one in got:
        found[one.path].append(one.body)
    return found
