"""Fixtures of the HTTP tests: the real engine behind the real server, on a free port of the loopback."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import orjson
import pytest
from yarl import URL

from tests.harness.apps import app_of
from tests.harness.arrow_rows import MEDIA_TYPE, read_stream
from tests.harness.served import Served
from timerwheel.engine import Engine
from timerwheel.settings import Settings


class Answer(NamedTuple):
    status: int
    headers: Any
    content: Any

    @property
    def code(self) -> str:
        """The problem's code; the shape of every problem is checked on the way."""
        assert self.headers["Content-Type"] == "application/problem+json"
        assert self.content["status"] == self.status
        assert self.content["type"] == "urn:timerwheel:problem:" + self.content["code"]
        assert self.content["title"]
        assert self.content["detail"]
        return self.content["code"]


class Service:
    """One running service and a client for it; paths are sent as they are written."""

    def __init__(self, engine: Engine, url: URL, session: aiohttp.ClientSession) -> None:
        self.engine = engine
        self.url = url
        self._session = session

    async def call(self, method: str, path: str, **request: Any) -> Answer:
        url = URL(str(self.url).rstrip("/") + path, encoded=True)
        if isinstance(request.get("data"), bytes):
            request.setdefault("headers", {"Content-Type": "application/json"})
            request["data"] = BytesIO(request["data"])
        async with self._session.request(method, url, **request) as response:
            raw = await response.read()
            assert response.headers["X-Content-Type-Options"] == "nosniff"
            is_arrow = response.content_type == MEDIA_TYPE
            content = read_stream(raw) if is_arrow else orjson.loads(raw) if raw else None
            return Answer(response.status, response.headers, content)

    async def send(self, content: Any) -> Answer:
        return await self.call("POST", "/v1/messages", json=content)

    async def send_bytes(self, body: bytes, content_type: str = "application/json") -> Answer:
        headers = {"Content-Type": content_type}
        return await self.call("POST", "/v1/messages", data=body, headers=headers)

    async def read(self, topic: str, query: str = "offset=0&wait_ms=20000") -> Answer:
        return await self.call("GET", f"/v1/topics/{topic}/queues/0/messages?{query}")

    async def pending(self) -> int:
        return (await self.call("GET", "/v1/wheel")).content["pending"]

    async def topics(self) -> list[str]:
        """The topics that clients made."""
        listed = (await self.call("GET", "/v1/topics")).content["topics"]
        return [topic["topic"] for topic in listed if not topic["system"]]


StartService = Callable[..., Awaitable[Service]]


@pytest.fixture
async def start_service(tmp_path: Path) -> AsyncIterator[StartService]:
    """Starts services with settings of one's own, and stops them after the test."""
    async with AsyncExitStack() as stack:
        count = 0

        async def start(**changed: Any) -> Service:
            nonlocal count
            count += 1
            values = {"data": tmp_path / f"data{count}", "disk_reserve_bytes": 0, **changed}
            engine = await Engine.open(Settings(**values))
            stack.push_async_callback(engine.close)
            server = Served(app_of(engine))
            await server.start_server()
            stack.push_async_callback(server.close)
            session = await stack.enter_async_context(aiohttp.ClientSession())
            return Service(engine, server.make_url("/"), session)

        yield start


@pytest.fixture
async def service(start_service: StartService) -> Service:
    """A service with the usual settings."""
    return await start_service()
