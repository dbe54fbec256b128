"""A service behind its own doors whose requests are raw bytes, on files in memory and clocks of the test."""

import asyncio
import json
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec

from tests.harness.apps import app_of
from tests.harness.clock import ManualClock
from tests.harness.faulty import FaultyFiles
from tests.harness.served import Served
from timerwheel.api.fast_path.fast_path import FAST_PATH
from timerwheel.engine import Engine
from timerwheel.settings import Serving, Settings, take_over

MESSAGE = b'{"topic":"orders","body":"pay","delay_ms":3600000}'
GATHER_MS = 5
ITS_OWN = {"date", "x-request-id"}
PATIENCE_S = 60


async def until(found: Callable[[], bool]) -> None:
    """Let the loop run until it is so."""
    async with asyncio.timeout(PATIENCE_S):
        while not found():
            await asyncio.sleep(0)


class Answer(NamedTuple):
    status: bytes
    headers: dict[str, str]
    content: bytes

    @property
    def shown(self):
        """What does not depend on when and where it was asked."""
        content = [json.loads(line) for line in self.content.splitlines()]
        for item in [part for parts in content for part in (parts if isinstance(parts, list) else [parts])]:
            item.pop("id", None)
            item.pop("due_ms", None)
        rest = {name: value for name, value in self.headers.items() if name not in ITS_OWN}
        return self.status, rest, content


class Client:
    """One connection; requests go out as they are written."""

    def __init__(self, reader, writer):
        self.reader = reader
        self.writer = writer

    def write(self, *parts):
        self.writer.write(b"".join(parts))

    async def answer(self):
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        status, *lines = head.split("\r\n")[:-2]
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        size = int(headers.get("content-length", 0))
        return Answer(status.encode(), headers, await self.reader.readexactly(size))


class Running:
    """A service on files in memory whose clock is the test's."""

    def __init__(self, app, server, engine, files, clocks, writers):
        self.path = app.get(FAST_PATH)
        self.server = server
        self.engine = engine
        self.files = files
        self.clock, self.guard_clock = clocks
        self._writers = writers

    async def client(self):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        self._writers.append(writer)
        return Client(reader, writer)

    async def ask(self, *parts):
        """The answer over a connection that has been used, as most have."""
        client = await self.client()
        client.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await client.answer()
        client.write(*parts)
        return await client.answer()

    async def statuses(self, headers, request):
        """The statuses of two requests in a row with each of these headers, by the name of the header."""
        found = {}
        for name, header in headers.items():
            answers = [await self.ask(request(*lines_of(header))) for _ in range(2)]
            found[name] = [int(answer.status.split()[1]) for answer in answers]
        return found

    def gather(self):
        """From now on nothing is stored until the clock moves."""
        take_over(self.engine.settings, msgspec.structs.replace(self.engine.settings, gather_ms=GATHER_MS))

    async def store(self, count):
        """Let the clock move until so many messages are stored."""
        async with asyncio.timeout(PATIENCE_S):
            while len(await self.stored()) < count:
                self.clock.advance(GATHER_MS)
                await asyncio.sleep(0)

    async def stored(self):
        page = await self.engine.messages.pending()
        return [
            (m.topic, m.body, m.due_ms - m.enqueue_ms, m.properties, m.queue, m.level) for m in page.messages
        ]


@asynccontextmanager
async def running(data, *, fast=True, limits=None, files=None, **settings):
    data.mkdir(exist_ok=True)
    files = files or FaultyFiles()
    clock, guard_clock, writers = ManualClock(), ManualClock(), []
    engine = await Engine.open(Settings(data=data, disk_reserve_bytes=0, **settings), clock, files)
    app = app_of(engine, Serving(fast_path=fast), limits, guard_clock)
    server = Served(app)
    await server.start_server()
    try:
        yield Running(app, server, engine, files, (clock, guard_clock), writers)
    finally:
        for writer in writers:
            writer.close()
        take_over(engine.settings, msgspec.structs.replace(engine.settings, gather_ms=0))
        clock.advance(GATHER_MS)
        await server.close()
        await engine.close()


def lines_of(headers):
    """Headers as lines of a request."""
    return [f"{name}: {value}".encode() for name, value in headers.items()]


def post(
    body=MESSAGE, *more, path=b"/v1/messages", host=b"localhost", version=b"1.1", kind=b"application/json"
):
    lines = [b"POST %b HTTP/%b" % (path, version), b"Host: " + host]
    lines += [b"Content-Type: " + kind] if kind is not None else []
    return b"\r\n".join([*lines, b"Content-Length: %d" % len(body), *more, b"", body])
