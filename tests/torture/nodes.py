"""Two nodes with one journal in Kafka."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from tests.harness.kafka.broker import Broker, Brokers
from tests.harness.ports import reserved_port
from tests.torture.books import now_ms
from tests.torture.process import Service

CALL_S = aiohttp.ClientTimeout(total=2)
PATIENCE_S = 90.0
ARRAY = 1_000
FILLERS = 4
HOUR_MS, MONTH_MS = 3_600_000, 30 * 86_400_000


class Nodes:
    """Nodes with one journal, called over plain HTTP."""

    def __init__(self, path: Path, broker: Broker | Brokers, session: aiohttp.ClientSession) -> None:
        self.flags = ("--journal", f"kafka://{broker.address}/shop")
        self.session = session
        self.each = [
            Service(path / f"node{number}", reserved_port(), path / f"stderr-{number}") for number in (1, 2)
        ]

    async def leading_pair(self) -> tuple[Service, Service]:
        """A node that leads, and one that has copied everything."""
        first, second = self.each
        first.start(*self.flags)
        await first.ready()
        second.start(*self.flags)
        return first, second

    async def copied(self, leader: Service) -> None:
        """Wait until the other node has what the leader has."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                nodes = (await self.call(leader, "GET", "/v1/cluster"))[1].get("nodes", [])
                if [node["behind"] for node in nodes] == [0, 0]:
                    return
                await asyncio.sleep(0.1)

    async def call(
        self, node: Service, method: str, path: str, body: Any = None, timeout: aiohttp.ClientTimeout = CALL_S
    ) -> tuple[int, Any]:
        """Status and content; 0 without an answer."""
        data = None if body is None else orjson.dumps(body)
        headers = {"content-type": "application/json"}
        try:
            async with self.session.request(
                method, node.url + path, data=data, headers=headers, timeout=timeout
            ) as answer:
                return answer.status, orjson.loads(await answer.read())
        except (aiohttp.ClientError, OSError, TimeoutError):
            return 0, {}

    async def fill(self, node: Service, count: int) -> None:
        """Let so many messages wait for an hour to a month."""
        dice, left = random.Random(1), count // ARRAY

        async def some() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                dues = [now_ms() + dice.randint(HOUR_MS, MONTH_MS) for _ in range(ARRAY)]
                status = await self.send(node, "far", dues)
                assert status == 201, status

        await asyncio.gather(*(some() for _ in range(FILLERS)))

    async def send(self, node: Service, topic: str, dues_ms: list[int]) -> int:
        """Send an array; its messages say when they are due."""
        wanted = [{"topic": topic, "body": f"{due_ms:>200}", "deliver_at_ms": due_ms} for due_ms in dues_ms]
        return (await self.call(node, "POST", "/v1/messages", wanted, aiohttp.ClientTimeout(total=60)))[0]

    async def read(self, node: Service, topic: str, count: int) -> list[Any]:
        """All messages of the topic's queue, once there are so many."""
        found: list[Any] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(found) < count:
                path = f"/v1/topics/{topic}/queues/0/messages?offset={len(found)}&max=1000&wait_ms=1000"
                status, page = await self.call(node, "GET", path, timeout=aiohttp.ClientTimeout(total=30))
                found += page["messages"] if status == 200 else []
        return found


@asynccontextmanager
async def two_nodes(path: Path, broker: Broker | Brokers) -> AsyncIterator[Nodes]:
    """Nodes that may be started; what still runs is ended afterwards."""
    async with aiohttp.ClientSession() as session:
        found = Nodes(path, broker, session)
        with found.each[0], found.each[1]:
            yield found
