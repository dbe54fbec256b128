"""Two nodes of a service in three shards on Kafka: any node takes any call, wherever the leaders are."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest

pytest.importorskip("confluent_kafka")

from tests.e2e.kafka.test_cluster import Answer, until
from tests.harness.kafka.clients import Clients
from tests.harness.ports import reserved_ports
from tests.harness.processes import timerwheel
from tests.torture.process import Service
from timerwheel.client import Client
from timerwheel.model.ids import shard_in

SHARDS = 3
TOPICS = ("a", "b", "invoices")  # one of each shard


class Nodes:
    """Nodes of one service, by name."""

    def __init__(self, path: Path, kafka: Clients) -> None:
        self._path = path
        self.address = kafka.address
        self.cluster = f"shop-{time.time_ns()}"
        self._nodes: dict[str, Service] = {}
        self._stack = AsyncExitStack()
        self._session = aiohttp.ClientSession()

    async def __aenter__(self) -> "Nodes":
        await self._stack.enter_async_context(self._session)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def start(self, name: str, *flags: object) -> Service:
        node = self._nodes.get(name)
        if node is None:
            data, errors = self._path / name, self._path / f"{name}.stderr"
            node = self._nodes[name] = self._stack.enter_context(
                Service(data, reserved_ports(1 + SHARDS), errors, forked=True)
            )
        node.start("--journal", f"kafka://{self.address}/{self.cluster}", "--shards", SHARDS, *flags)
        return node

    async def call(self, node: Service, method: str, path: str, body: object = None) -> Answer:
        try:
            async with self._session.request(method, node.url + path, json=body) as response:
                return Answer(response.status, await response.json(content_type=None), response.headers)
        except (aiohttp.ClientError, OSError) as error:
            return Answer(0, str(error), {})

    async def ready(self, node: Service) -> bool:
        return (await self.call(node, "GET", "/readyz?for=send")).status == 200

    async def leaders(self, node: Service) -> list[str | None]:
        """The node that leads each shard."""
        found = await self.call(node, "GET", "/v1/cluster")
        if found.status != 200:
            return []
        ports = [one["leader"] and int(one["leader"].rpartition(":")[2]) for one in found.content["shards"]]
        return [port and f"http://127.0.0.1:{port - 1 - shard}" for shard, port in enumerate(ports)]

    async def has_standby(self, node: Service) -> bool:
        found = await self.call(node, "GET", "/v1/cluster")
        return found.status == 200 and all(
            [one["behind"] for one in shard["nodes"]] == [0, 0] for shard in found.content["shards"]
        )


@pytest.fixture
async def nodes(tmp_path: Path, kafka: Clients) -> AsyncIterator[Nodes]:
    async with Nodes(tmp_path, kafka) as found:
        yield found


async def bodies(nodes: Nodes, node: Service, topic: str) -> list[str]:
    answer = await nodes.call(node, "GET", f"/v1/topics/{topic}/queues/0/messages?offset=0")
    return sorted(one["body"] for one in answer.content["messages"])


async def test_ids_and_receipts_outlive_moves_and_a_killed_node_and_each_message_comes_once(
    nodes: Nodes,
) -> None:
    first = nodes.start("first")
    await until(lambda: nodes.ready(first))
    second = nodes.start("second")
    await until(lambda: nodes.has_standby(second))
    assert await nodes.leaders(second) == [first.url] * SHARDS

    async with Client(first.url) as one, Client(second.url) as other:
        # Any node takes any call.
        sent = {topic: await other.send(topic, f"{topic} later", delay="1h") for topic in TOPICS}
        assert sorted(shard_in(one_sent.id) or 0 for one_sent in sent.values()) == [0, 1, 2]
        for topic in TOPICS:
            await one.send(topic, f"{topic} now")
            assert (await other.get(sent[topic].id)).state == "scheduled"
        answer = await nodes.call(
            second, "POST", "/v1/topics/b/groups/w/receive", {"create": True, "start": "head"}
        )
        receipt = answer.content["messages"][0]["receipt"]

        # A planned move: what was in flight may come again, nothing else does.
        shard = shard_in(sent["b"].id)
        moved = await asyncio.to_thread(timerwheel, "cluster", "move", "--shard", shard, "--url", second.url)
        assert moved.out == f"{second.url} leads shard {shard} now\n"

        async def has_moved() -> bool:
            return (await nodes.leaders(first))[shard or 0] == second.url and await nodes.ready(first)

        await until(has_moved)
        assert [leader for leader in await nodes.leaders(first) if leader == first.url] == [first.url] * 2
        assert (await one.get(sent["b"].id)).state == "scheduled"
        acked = await nodes.call(first, "POST", "/v1/topics/b/groups/w/ack", {"receipts": [receipt]})
        again = await nodes.call(first, "POST", "/v1/topics/b/groups/w/receive", {"wait_ms": 500})
        redelivered = [one_message["body"] for one_message in again.content["messages"]]
        assert redelivered == ([] if acked.content["results"][0]["ok"] else ["b now"])

        # A node that dies: the other one leads all shards, and old ids lead to their messages.
        first.signal(signal.SIGKILL)
        await first.killed()

        async def leads_all() -> bool:
            return await nodes.leaders(second) == [second.url] * SHARDS and await nodes.ready(second)

        await until(leads_all)
        for topic in TOPICS:
            assert await bodies(nodes, second, topic) == [f"{topic} now"]
            assert (await other.recall(sent[topic].id)).state == "recalled"
    nodes.start("first")
    await until(lambda: nodes.ready(first))
    async with Client(first.url) as one:
        for topic in TOPICS:
            assert (await one.get(sent[topic].id)).state == "recalled"
