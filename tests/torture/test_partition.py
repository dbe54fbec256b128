"""A leader that is cut off from the brokers, but not from its clients, in a network namespace."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from time import monotonic

import aiohttp
import pytest

from tests.harness.kafka.broker import Broker, missing
from tests.harness.ports import reserved_port
from tests.torture.process import Service

pytest.importorskip("confluent_kafka")


def forbidden() -> str | None:
    """Why there can be no namespace here."""
    if shutil.which("ip") is None:
        return "apt-get install iproute2"
    return None if os.geteuid() == 0 else "root, for network namespaces"


pytestmark = [
    pytest.mark.torture,
    pytest.mark.skipif(missing(own=True) is not None, reason=f"needs Kafka: {missing(own=True)}"),
    pytest.mark.skipif(forbidden() is not None, reason=f"needs {forbidden()}"),
]

CUT_OFF_S = 60.0
PATIENCE_S = 90.0
CALL_S = aiohttp.ClientTimeout(total=30)
BROKERS, CLIENTS = "10.213.1", "10.213.2"
"""Two networks of the namespace: the one to the brokers is cut."""


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Namespace:
    """A network namespace with two links to this one."""

    def __init__(self, name: str) -> None:
        self.name = name

    def make(self) -> None:
        ip("netns", "add", self.name)
        self._in("link", "set", "lo", "up")
        for place, network in (("b", BROKERS), ("c", CLIENTS)):
            here, there = f"{self.name}{place}0", f"{self.name}{place}1"
            ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", self.name)
            ip("addr", "add", f"{network}.1/24", "dev", here)
            ip("link", "set", here, "up")
            self._in("addr", "add", f"{network}.2/24", "dev", there)
            self._in("link", "set", there, "up")

    def cut(self) -> None:
        """Let nothing through to the brokers: no refusal either."""
        self._in("link", "set", f"{self.name}b1", "down")

    def heal(self) -> None:
        self._in("link", "set", f"{self.name}b1", "up")

    def remove(self) -> None:
        subprocess.run(["ip", "netns", "del", self.name], check=False, capture_output=True)

    def _in(self, *arguments: str) -> None:
        ip("-n", self.name, *arguments)


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    found = Namespace(f"tw{os.getpid() % 100_000}")
    try:
        found.make()
        yield found
    finally:
        found.remove()


@pytest.fixture
def broker(tmp_path: Path, namespace: Namespace) -> Iterator[Broker]:
    assert namespace.name
    made = Broker(tmp_path / "broker", host=f"{BROKERS}.1")
    try:
        made.start()
        yield made
    finally:
        made.kill()


class Nodes:
    def __init__(self, path: Path, namespace: Namespace, broker: Broker) -> None:
        self.flags = ("--journal", f"kafka://{broker.address}/shop")
        self.inside = Service(path / "inside", reserved_port(), path / "stderr-1", f"{CLIENTS}.2")
        self.inside.command = ["ip", "netns", "exec", namespace.name, *self.inside.command]
        self.outside = Service(path / "outside", reserved_port(), path / "stderr-2")
        self.session: aiohttp.ClientSession

    async def call(self, node: Service, method: str, path: str, body: object = None) -> tuple[int, str]:
        """Status and code; 0 without an answer."""
        try:
            async with self.session.request(method, node.url + path, json=body, timeout=CALL_S) as answer:
                return answer.status, (await answer.json(content_type=None)).get("code", "")
        except (aiohttp.ClientError, OSError, TimeoutError):
            return 0, ""

    async def send(self, node: Service, body: str) -> int:
        return (await self.call(node, "POST", "/v1/messages", {"topic": "t", "body": body}))[0]

    async def until(self, node: Service, status: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while (await self.call(node, "GET", "/readyz"))[0] != status:
                await asyncio.sleep(0.05)

    async def bodies(self, node: Service, count: int) -> list[str]:
        path = f"{node.url}/v1/topics/t/queues/0/messages?offset=0&max=1000"
        async with asyncio.timeout(PATIENCE_S):
            while True:
                async with self.session.get(path, timeout=CALL_S) as answer:
                    found = [one["body"] for one in (await answer.json()).get("messages", [])]
                if len(found) >= count:
                    return found
                await asyncio.sleep(0.05)


@pytest.fixture
async def nodes(tmp_path: Path, namespace: Namespace, broker: Broker) -> AsyncIterator[Nodes]:
    found = Nodes(tmp_path, namespace, broker)
    async with aiohttp.ClientSession() as found.session:
        with found.inside, found.outside:
            yield found


async def test_a_node_that_is_cut_off_refuses_and_goes_on_by_itself(
    nodes: Nodes, namespace: Namespace
) -> None:
    nodes.inside.start(*nodes.flags, "--open-to-all")
    await nodes.inside.ready()
    sent = [f"before {number}" for number in range(50)]
    for body in sent:
        assert await nodes.send(nodes.inside, body) == 201
    namespace.cut()
    began = monotonic()
    await nodes.until(nodes.inside, 503)
    print(f"\nrefuses {monotonic() - began:.1f} s after it was cut off")
    answers = set()
    while monotonic() - began < CUT_OFF_S:
        answers.add(await nodes.call(nodes.inside, "POST", "/v1/messages", {"topic": "t", "body": "during"}))
        answers.add(await nodes.call(nodes.inside, "GET", "/v1/messages"))
        await asyncio.sleep(0.5)
    assert answers == {(503, "not_ready")}
    namespace.heal()
    began = monotonic()
    await nodes.until(nodes.inside, 200)
    print(f"takes messages {monotonic() - began:.1f} s after the network was back")
    assert await nodes.send(nodes.inside, "after") == 201
    assert sorted(await nodes.bodies(nodes.inside, 51)) == sorted([*sent, "after"])


async def test_a_leader_that_is_cut_off_is_replaced_and_answers_nothing_more(
    nodes: Nodes, namespace: Namespace
) -> None:
    nodes.inside.start(*nodes.flags, "--open-to-all")
    await nodes.inside.ready()
    nodes.outside.start(*nodes.flags)
    sent = [f"before {number}" for number in range(50)]
    for body in sent:
        assert await nodes.send(nodes.inside, body) == 201
    status = {}
    async with asyncio.timeout(PATIENCE_S):
        while status.get("role") != "standby":
            status = await nodes.outside.status(nodes.session)
            await asyncio.sleep(0.05)
    namespace.cut()
    began = monotonic()
    answers: list[tuple[float, tuple[int, str]]] = []

    async def ask() -> None:
        while monotonic() - began < CUT_OFF_S:
            asked_s = monotonic() - began
            answers.append((asked_s, await nodes.call(nodes.inside, "GET", "/v1/topics/t")))
            await asyncio.sleep(0.05)

    asking = asyncio.create_task(ask())
    await nodes.until(nodes.outside, 200)
    replaced_s = monotonic() - began
    print(f"\nreplaced {replaced_s:.1f} s after it was cut off")
    late = [await nodes.send(nodes.inside, f"never {number}") for number in range(20)]
    assert not [status for status in late if 200 <= status < 300]
    for number in range(50):
        sent.append(f"after {number}")
        assert await nodes.send(nodes.outside, sent[-1]) == 201
    await asking
    last_s = max(asked_s for asked_s, answer in answers if answer[0] == 200)
    print(f"its last read was asked {last_s:.1f} s after it was cut off")
    assert last_s < replaced_s
    namespace.heal()
    async with asyncio.timeout(PATIENCE_S):
        while (await nodes.inside.status(nodes.session)).get("role") != "standby":
            await asyncio.sleep(0.05)
    assert sorted(await nodes.bodies(nodes.outside, 100)) == sorted(sent)
