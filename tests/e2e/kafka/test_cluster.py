"""Real nodes with one journal: who leads, what the other one answers, and who takes over when."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest

pytest.importorskip("confluent_kafka")

from tests.harness.kafka.clients import Clients
from tests.harness.ports import reserved_port
from tests.harness.processes import timerwheel
from tests.torture.process import Service
from timerwheel.client import Client
from timerwheel.kafka.election import leader_of
from timerwheel.settings import journal_of

LIMIT_S = 60


class Answer(NamedTuple):
    status: int
    content: Any
    headers: Any


class Team:
    """Nodes of one cluster, by name."""

    def __init__(self, path: Path, kafka: Clients) -> None:
        self._path = path
        self.journal = f"kafka://{kafka.address}/shop-{time.time_ns()}"
        self._nodes: dict[str, Service] = {}
        self._stack = AsyncExitStack()
        self._session = aiohttp.ClientSession()

    async def __aenter__(self) -> "Team":
        await self._stack.enter_async_context(self._session)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def start(self, name: str, *flags: object) -> Service:
        """Start a node, or start it again at its address with its disk."""
        node = self._nodes.get(name)
        if node is None:
            data, errors = self._path / name, self._path / f"{name}.stderr"
            node = Service(data, reserved_port(), errors, forked=True)
            self._nodes[name] = self._stack.enter_context(node)
        node.start("--journal", self.journal, *flags)
        return node

    async def call(self, node: Service, method: str, path: str, body: object = None) -> Answer:
        try:
            async with self._session.request(method, node.url + path, json=body) as response:
                return Answer(response.status, await response.json(content_type=None), response.headers)
        except (aiohttp.ClientError, OSError) as error:
            return Answer(0, str(error), {})

    async def leads(self, node: Service) -> bool:
        return (await self.call(node, "GET", "/readyz"))[:2] == (200, {"status": "ready", "role": "leader"})

    async def stands_by(self, node: Service) -> bool:
        answer = await self.call(node, "GET", "/readyz")
        return answer.status == 503 and answer.content.get("role") == "standby"


async def until(true: Callable[[], Awaitable[object]]) -> None:
    end = time.monotonic() + LIMIT_S
    while not await true():
        assert time.monotonic() < end
        await asyncio.sleep(0.05)


@pytest.fixture
async def team(tmp_path: Path, kafka: Clients) -> AsyncIterator[Team]:
    async with Team(tmp_path, kafka) as found:
        yield found


async def pair(team: Team) -> tuple[Service, Service]:
    """A node that leads, and one that stands by."""
    first = team.start("first")
    await until(lambda: team.leads(first))
    second = team.start("second")
    await until(lambda: team.stands_by(second))
    return first, second


async def send(node: Service, *bodies: str, delay: str = "0s") -> None:
    async with Client(node.url) as client:
        for body in bodies:
            await client.send("orders", body, delay=delay)


async def has(team: Team, node: Service, *wanted: str) -> None:
    """These messages come, each once."""
    path = "/v1/topics/orders/queues/0/messages?offset=0&max=1000"
    found: list[str] = []

    async def all_came() -> bool:
        nonlocal found
        answer = await team.call(node, "GET", path)
        found = [one["body"] for one in answer.content.get("messages", [])]
        return len(found) >= len(wanted)

    await until(all_came)
    assert sorted(found) == sorted(wanted)


@pytest.mark.filterwarnings("ignore:list_groups")
async def test_a_standby_refuses_and_names_the_leader(team: Team) -> None:
    first, second = await pair(team)
    refused = await team.call(second, "POST", "/v1/messages", {"topic": "orders", "body": "x"})
    assert refused.status == 503
    assert refused.headers["Retry-After"] == "1"
    assert refused.content["code"] == "not_ready"
    assert refused.content["role"] == "standby"
    assert refused.content["leader"] == first.url
    assert refused.content["detail"] == f"the service is not ready: standby: {first.url} leads"
    assert (await team.call(second, "GET", "/healthz")).status == 200
    assert await asyncio.to_thread(leader_of, journal_of(team.journal), {}) == first.url
    nobody = journal_of(team.journal).of_shard(7)
    assert await asyncio.to_thread(leader_of, nobody, {}) is None


async def test_the_standby_takes_over_when_the_leader_is_killed(team: Team) -> None:
    first, second = await pair(team)
    await send(first, "one", "two")
    await send(first, "later", delay="8s")
    first.signal(signal.SIGKILL)
    await first.killed()
    await until(lambda: team.leads(second))
    await send(second, "three")

    await has(team, second, "later", "one", "three", "two")
    team.start("first")
    await until(lambda: team.stands_by(first))
    assert await team.leads(second)


async def test_a_leader_that_wakes_stands_by_and_acknowledges_nothing(team: Team) -> None:
    first, second = await pair(team)
    await send(first, "before")
    first.signal(signal.SIGSTOP)
    await until(lambda: team.leads(second))
    await send(second, "after")
    asked = asyncio.create_task(
        team.call(first, "POST", "/v1/messages", {"topic": "orders", "body": "never"})
    )
    await asyncio.sleep(0.1)
    first.signal(signal.SIGCONT)
    assert (await asked).status >= 500
    await until(lambda: team.stands_by(first))
    await has(team, second, "after", "before")


async def test_a_leader_that_wakes_does_not_tell_what_was_true_before(team: Team) -> None:
    """What it answers is stored without the journal: only the election can say that it is not old."""
    first, second = await pair(team)
    await send(first, "taken")
    async with Client(first.url) as client:
        waiting = await client.send("orders", "recalled", delay="1h")
    group = "/v1/topics/orders/groups/w"
    first.signal(signal.SIGSTOP)
    await until(lambda: team.leads(second))
    async with Client(second.url) as client:
        await client.recall(waiting.id)
    taken = await team.call(
        second, "POST", f"{group}/receive", {"create": True, "start": "head", "wait_ms": 20_000}
    )
    receipts = [one["receipt"] for one in taken.content["messages"]]
    assert (await team.call(second, "POST", f"{group}/ack", {"receipts": receipts})).status == 200
    calls: list[tuple[str, str, object]] = [
        ("GET", f"/v1/messages/{waiting.id}", None),
        ("GET", "/v1/messages", None),
        ("GET", "/v1/topics", None),
        ("GET", "/v1/topics/orders/queues/0/messages?offset=0", None),
        ("GET", "/v1/wheel", None),
        ("GET", "/readyz", None),
        ("POST", f"{group}/receive", {"create": True, "start": "head"}),
        ("DELETE", f"/v1/messages/{waiting.id}", None),
    ]
    asked = [asyncio.create_task(team.call(first, *call)) for call in calls for _ in range(4)]
    await asyncio.sleep(0.2)  # so that they wait in the sockets of the one that sleeps
    first.signal(signal.SIGCONT)
    answers = [await one for one in asked]
    assert {answer.status for answer in answers} <= {0, 503}, answers
    assert {answer.content["code"] for answer in answers if answer.status} == {"not_ready"}
    await until(lambda: team.stands_by(first))


async def test_a_leader_goes_on_answering_while_other_nodes_come_and_go(team: Team) -> None:
    """Each time the group elects again, and it waits until a killed node's session has ended."""
    first, second = await pair(team)
    asked: list[int] = []
    over = asyncio.Event()

    async def ask() -> None:
        while not over.is_set():
            asked.append((await team.call(first, "GET", "/v1/topics")).status)
            await asyncio.sleep(0.02)

    asking = asyncio.create_task(ask())
    second.signal(signal.SIGKILL)
    await second.killed()
    third = team.start("third")
    await until(lambda: team.stands_by(third))

    async def has_forgotten() -> bool:
        nodes = (await team.call(first, "GET", "/v1/cluster")).content["nodes"]
        return {node["url"] for node in nodes} == {first.url, third.url}

    await until(has_forgotten)
    over.set()
    await asking
    assert set(asked) == {200}


async def test_a_leader_that_is_stopped_hands_over_at_once(team: Team) -> None:
    first, second = await pair(team)
    await send(first, "before")
    first.signal(signal.SIGTERM)
    await first.stopped()
    await until(lambda: team.leads(second))
    await has(team, second, "before")


@pytest.mark.torture
async def test_the_lead_moves_on_request_and_back(team: Team) -> None:
    first, second = await pair(team)
    await send(first, "before")

    async def has_copied() -> bool:
        nodes = (await team.call(second, "GET", "/v1/cluster")).content["nodes"]
        return [node["behind"] for node in nodes] == [0, 0]

    await until(has_copied)
    shown = await asyncio.to_thread(timerwheel, "cluster", "status", "--url", second.url, "--json")
    assert shown.json["node"] == second.url
    assert shown.json["role"] == "standby"
    assert {node["url"]: node["role"] for node in shown.json["nodes"]} == {
        first.url: "leader",
        second.url: "standby",
    }
    refused = await asyncio.to_thread(timerwheel, "cluster", "move", "--url", second.url)
    assert refused.code == 1
    assert f"{first.url} does" in refused.err
    moved = await asyncio.to_thread(timerwheel, "cluster", "move", "--url", first.url)
    assert moved.out == f"{second.url} leads now\n"
    await until(lambda: team.leads(second))
    await until(lambda: team.stands_by(first))
    await send(second, "after")
    async with Client(second.url) as client:
        assert await client.move_leader() == first.url
    await until(lambda: team.leads(first))
    await has(team, first, "after", "before")


async def test_of_two_nodes_that_were_given_one_url_the_later_one_leads_and_goes_on(team: Team) -> None:
    """By mistake, as with the default of two machines. Each takes the other for its former self, but once."""
    first = team.start("first")
    await until(lambda: team.leads(first))
    second = team.start("second", "--node-url", first.url)
    await until(lambda: team.leads(second))
    refused = await team.call(first, "POST", "/v1/messages", {"topic": "orders", "body": "never"})
    assert refused.status >= 500
    await until(lambda: team.stands_by(first))
    for number in range(20):
        await send(second, str(number))
        await asyncio.sleep(0.2)
    await has(team, second, *map(str, range(20)))
    claims = [node.errors().count("claimed the Kafka topic") for node in (first, second)]
    assert claims == [1, 1]


async def test_a_node_without_others_keeps_the_lead(team: Team) -> None:
    only = team.start("first")
    await until(lambda: team.leads(only))
    refused = await team.call(only, "POST", "/v1/cluster/move")
    assert (refused.status, refused.content["code"]) == (409, "no_standby")
    assert await team.leads(only)


@pytest.mark.torture
async def test_a_node_that_was_killed_and_has_no_standby_leads_again_at_once(team: Team) -> None:
    """It need not wait until the group has forgotten its former self."""
    only = team.start("first")
    await until(lambda: team.leads(only))
    await send(only, "before")
    only.signal(signal.SIGKILL)
    await only.killed()
    team.start("first")
    nodes = None

    async def answers() -> bool:
        nonlocal nodes
        nodes = await team.call(only, "GET", "/v1/cluster")
        return await team.leads(only)

    await until(answers)
    await has(team, only, "before")
    await asyncio.sleep(8)  # until the group has decided, in the node's favour
    assert await team.leads(only)
    await send(only, "after")
    await has(team, only, "after", "before")
