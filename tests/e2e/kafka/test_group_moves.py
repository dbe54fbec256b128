"""Workers hold leases and acknowledge while another node begins to lead: what they receive a second time.

held      received before and never acknowledged: received again, at once or when the lease has ended
tried     received before, and the acknowledgement was not answered with 2xx: received again, or stored
done      acknowledged with 2xx: never received again
later     received from the new leader: once
"""

import asyncio
import random
import signal
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

pytest.importorskip("confluent_kafka")

from tests.e2e.kafka.test_cluster import Answer, Team, pair, until
from tests.e2e.kafka.test_shards import SHARDS, TOPICS, Nodes
from tests.harness.kafka.clients import Clients
from tests.torture.process import Service

pytestmark = pytest.mark.torture

MESSAGES = 400
HELD = 20
WORKERS = 8
TAKEN = 2
WORK_S_MAX = 0.2
UNDER_WAY = 3
"""So many acknowledgements are under way when the lead begins to change."""
INVISIBLE_MS = 4_000
RETRY_MS = 1_000
"""Leases survive a planned move: what is held is received again when both times are over, counted from the
first receive."""
BACKOFF = {"type": "exponential", "initial_ms": RETRY_MS, "factor": 1.0, "max_ms": RETRY_MS}
PATIENCE_S = 90.0
OK = 200
REFUSED = {0, 503}

Ask = Callable[[str, str, object], Awaitable[Answer]]


@dataclass
class Lease:
    """One time that a message was received."""

    id: str
    receipt: str
    received_s: float = field(default_factory=monotonic)
    was_tried: bool = False
    is_acknowledged: bool = False


class Crew:
    """Workers of one group. Each tries to acknowledge once, as it would just before it dies."""

    def __init__(self, ask: Ask, topic: str) -> None:
        self._ask = ask
        self._group = f"/v1/topics/{topic}/groups/w"
        self.topic = topic
        self.sent: set[str] = set()
        self.leases: defaultdict[str, list[Lease]] = defaultdict(list)
        self.held: list[Lease] = []
        self.over = asyncio.Event()
        self.under_way = 0
        self.answers: list[int] = []
        """How acknowledgements were answered while the lead changed."""

    async def begin(self) -> None:
        """Send messages, and hold some of them."""
        made = await self._ask("PUT", self._group, {"start": "head", "backoff": BACKOFF})
        assert made.status in {200, 201}, made
        wanted = [{"topic": self.topic, "body": str(number)} for number in range(MESSAGES)]
        sent = await self._ask("POST", "/v1/messages", wanted)
        self.sent = {one["id"] for one in sent.content}
        assert len(self.sent) == MESSAGES
        while len(self.held) < HELD:
            self.held += await self._receive(HELD - len(self.held))

    async def _receive(self, count: int) -> list[Lease]:
        body = {"max": count, "wait_ms": 200, "invisible_ms": INVISIBLE_MS}
        answer = await self._ask("POST", f"{self._group}/receive", body)
        if answer.status != OK:
            await asyncio.sleep(0.02)
            return []
        found = [Lease(one["id"], one["receipt"]) for one in answer.content["messages"]]
        for lease in found:
            self.leases[lease.id].append(lease)
        return found

    async def _acknowledge(self, lease: Lease) -> None:
        lease.was_tried = True
        self.under_way += 1
        answer = await self._ask("POST", f"{self._group}/ack", {"receipts": [lease.receipt]})
        self.under_way -= 1
        self.answers.append(answer.status)
        lease.is_acknowledged = answer.status == OK and answer.content["results"][0]["ok"]

    async def work(self) -> None:
        """Receive and acknowledge while the lead changes."""
        while not self.over.is_set():
            taken = await self._receive(TAKEN)
            await asyncio.sleep(random.uniform(0, WORK_S_MAX))
            await asyncio.gather(*map(self._acknowledge, taken))

    async def finish(self) -> None:
        """Receive and acknowledge until nothing is left."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found = await self._receive(MESSAGES)
                while found:
                    await asyncio.gather(*map(self._acknowledge, found))
                    found = [lease for lease in found if not lease.is_acknowledged]
                answer = await self._ask("GET", self._group, None)
                group = answer.content if answer.status == OK else {}
                if not any(group.get(count, 1) for count in ("lag", "in_flight", "waiting", "ready")):
                    return

    def judge(self, changed_s: float) -> None:
        """Compare all leases; the new leader answered at `changed_s`."""
        assert self.leases.keys() == self.sent, "lost, or of nobody"
        again = {one: leases for one, leases in self.leases.items() if len(leases) > 1}
        tried = [leases[0] for leases in self.leases.values() if leases[0].was_tried]
        unanswered = [lease for lease in tried if not lease.is_acknowledged]
        print(
            f"\n{len(self.sent)} sent, {len(self.held)} held, {len(tried) - len(unanswered)} acknowledged at "
            f"once, {len(unanswered)} tried in vain; {len(again)} received again, the last after "
            f"{max(leases[-1].received_s for leases in again.values()) - changed_s:.1f} s"
        )
        for leases in again.values():
            assert not any(lease.is_acknowledged for lease in leases[:-1]), "acknowledged, and received again"
            assert all(lease.received_s <= changed_s for lease in leases[:-1]), (
                "received twice from the new leader"
            )
        assert {lease.id for lease in self.held} <= again.keys(), "held, and not received again"
        assert again.keys() <= {lease.id for lease in (*self.held, *unanswered)}
        assert OK in self.answers
        assert tried


class Balancer:
    """Sends each call to one node, and after a refusal the next one to the other."""

    def __init__(self, call: Callable[..., Awaitable[Answer]], *nodes: Service) -> None:
        self._call = call
        self._nodes = list(nodes)

    async def __call__(self, method: str, path: str, body: object) -> Answer:
        node = self._nodes[0]
        answer = await self._call(node, method, path, body)
        if answer.status in REFUSED and self._nodes[0] is node:
            self._nodes.append(self._nodes.pop(0))
        return answer


async def across(crews: list[Crew], change: Callable[[], Awaitable[None]]) -> None:
    """Let workers work while the lead changes, and judge what came."""
    for crew in crews:
        await crew.begin()
    working = [asyncio.create_task(crew.work()) for crew in crews for _ in range(WORKERS)]

    async def all_work() -> bool:
        return all(len(crew.answers) >= TAKEN for crew in crews)

    await until(all_work)
    began_s = monotonic()
    while not sum(crew.under_way for crew in crews) >= UNDER_WAY:
        await asyncio.sleep(0)
    await change()
    changed_s = monotonic()
    print(f"changed after {changed_s - began_s:.1f} s")
    for crew in crews:
        crew.over.set()
    await asyncio.gather(*working)
    await asyncio.gather(*(crew.finish() for crew in crews))
    for crew in crews:
        crew.judge(changed_s)


async def followed(team: Team) -> tuple[Service, Service]:
    """A node that leads, and one that has copied all."""
    first, second = await pair(team)

    async def has_copied() -> bool:
        found: Any = (await team.call(second, "GET", "/v1/cluster")).content
        return [one["behind"] for one in found.get("nodes", [])] == [0, 0]

    await until(has_copied)
    return first, second


async def test_across_a_planned_move_only_what_was_in_flight_comes_again(
    tmp_path: Path, kafka: Clients
) -> None:
    async with Team(tmp_path, kafka) as team:
        first, second = await followed(team)

        async def move() -> None:
            assert (await team.call(first, "POST", "/v1/cluster/move")).content == {"leader": second.url}
            await until(lambda: team.leads(second))

        await across([Crew(Balancer(team.call, first, second), "orders")], move)


async def test_across_a_killed_leader_only_what_was_in_flight_comes_again(
    tmp_path: Path, kafka: Clients
) -> None:
    async with Team(tmp_path, kafka) as team:
        first, second = await followed(team)

        async def kill() -> None:
            first.signal(signal.SIGKILL)
            await first.killed()
            await until(lambda: team.leads(second))

        await across([Crew(Balancer(team.call, first, second), "orders")], kill)


@pytest.mark.parametrize("how", ["moved", "killed"])
async def test_across_changes_of_all_shards_only_what_was_in_flight_comes_again(
    tmp_path: Path, kafka: Clients, how: str
) -> None:
    async with Nodes(tmp_path, kafka) as nodes:
        first = nodes.start("first")
        await until(lambda: nodes.ready(first))
        second = nodes.start("second")
        await until(lambda: nodes.has_standby(second))

        async def leads_all() -> bool:
            return await nodes.leaders(second) == [second.url] * SHARDS and await nodes.ready(second)

        async def change() -> None:
            if how == "moved":
                for shard in range(SHARDS):
                    moved = await nodes.call(second, "POST", f"/v1/cluster/move?shard={shard}")
                    assert moved.status == OK, moved
            else:
                first.signal(signal.SIGKILL)
                await first.killed()
            await until(leads_all)

        await across([Crew(Balancer(nodes.call, first, second), topic) for topic in TOPICS], change)
