"""Nodes in front of shards, in this process: the real engines and servers, on free ports of the loopback."""

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp

from tests.harness.apps import app_of
from tests.harness.served import Served
from timerwheel.api.engine_handle import EngineHandle
from timerwheel.clock import SystemClock
from timerwheel.engine import Engine, LogOptions
from timerwheel.model.shards import Shard
from timerwheel.settings import Serving, Settings
from timerwheel.shards.connection_pool import ConnectionPool
from timerwheel.shards.forwarder import REST_S_MAX, Forwarder
from timerwheel.shards.front import Front
from timerwheel.shards.layout import data_of
from timerwheel.shards.leaders import Leaders, Place, Seek


class Shards:
    """The shards of a service, and any number of nodes in front of them. `async with` closes them."""

    def __init__(self, home: Path, count: int, **changed: Any) -> None:
        self.home = home
        self.count = count
        self.engines: list[Engine] = []
        self.urls: list[str] = []
        self.settings = Settings(**{"data": home, "disk_reserve_bytes": 0, **changed})
        self._stack = AsyncExitStack()
        self._servers: dict[int, Served] = {}

    async def __aenter__(self) -> "Shards":
        for shard in range(self.count):
            settings = Settings(
                **{
                    "disk_reserve_bytes": 0,
                    **{name: getattr(self.settings, name) for name in self.settings.__struct_fields__},
                    "data": data_of(self.home, shard),
                }
            )
            engine = await Engine.open(settings, log=LogOptions(shard=Shard(shard, self.count)))
            self._stack.push_async_callback(engine.close)
            self.engines.append(engine)
            server = self._servers[shard] = Served(app_of(engine))
            await server.start_server()
            self._stack.push_async_callback(server.close)
            self.urls.append(str(server.make_url("")).rstrip("/"))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def node(self, seek: Seek | None = None, rest_s_max: float = REST_S_MAX) -> "Node":
        """Start another node; `seek` asks the elections who leads. The rest of an answer may take so long."""
        node = Node(self, seek, rest_s_max)
        await self._stack.enter_async_context(node)
        return node

    async def end(self, shard: int) -> None:
        """End the process of a shard, as far as others can see."""
        await self._servers[shard].close()


class Node:
    """A node in front of shards."""

    def __init__(self, shards: Shards, seek: Seek | None, rest_s_max: float) -> None:
        self._shards = shards
        self._seek = seek
        self._rest_s_max = rest_s_max
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "Node":
        clock, urls, serving = SystemClock(), self._shards.urls, Serving()
        pool = await self._stack.enter_async_context(ConnectionPool(serving, urls))
        places = [Place(shard, url, url) for shard, url in enumerate(urls)]
        self.leaders = Leaders(places, pool, clock, self._seek)
        for place in self.leaders.places:
            place.leader, place.role = place.own_url, "leader"
        self.forwarder = Forwarder(self.leaders, pool, self._rest_s_max)
        handle = EngineHandle(self._shards.settings)
        front = Front(handle, serving, self.forwarder, "http://node", clock)
        server = Served(front.app())
        front.node.begin()
        await server.start_server()
        self._stack.push_async_callback(server.close)
        self.url = server.make_url("/")
        self.session = await self._stack.enter_async_context(aiohttp.ClientSession())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()
