"""A rolling restart of three brokers and then of two nodes, under a light load: three shards on Kafka.

Brokers and nodes stop in good order and start again, one after the other. No send may have an unknown
outcome then, and each that was acknowledged comes once.
"""

import asyncio
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.e2e.kafka.test_cluster import Answer, until
from tests.e2e.kafka.test_shards import TOPICS, Nodes
from tests.harness.kafka.broker import Brokers, missing
from tests.harness.kafka.clients import Clients
from tests.torture.killing import seed_given
from tests.torture.process import Service

pytest.importorskip("confluent_kafka")
pytestmark = [
    pytest.mark.torture,
    pytest.mark.skipif(missing(own=True) is not None, reason=f"needs Kafka: {missing(own=True)}"),
]

DELAYS_MS = (0, 100, 1_000, 8_000)
SENDERS_OF_A_TOPIC = 2
SENDER_PAUSE_S = 0.04
RECALLS = 0.05
"""Share of the messages that are recalled at once."""
CALM_S = 3


@dataclass
class Story:
    """What was sent, by the body, and how calls were answered."""

    owed: set[str] = field(default_factory=set)
    recalled: set[str] = field(default_factory=set)
    other: Counter[tuple[int, str, str]] = field(default_factory=Counter)
    """By status and code, and for an outcome that is not known, why that is."""
    sent: int = 0

    def note(self, answer: Answer) -> None:
        """Count an answer that is none of the good ones."""
        is_problem = isinstance(answer.content, dict)
        code, detail = (
            (answer.content["code"], answer.content["detail"]) if is_problem else ("", answer.content)
        )
        self.other[answer.status, code, "" if code == "not_ready" else detail] += 1


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[Brokers]:
    found = Brokers(tmp_path / "brokers")
    try:
        found.start()
        yield found
    finally:
        found.kill()


async def test_a_rolling_restart_of_brokers_and_nodes_leaves_no_outcome_unknown(
    brokers: Brokers, tmp_path: Path
) -> None:
    seed = seed_given()
    print(f"\nseed {seed}")
    dice, story, over = random.Random(seed), Story(), asyncio.Event()
    async with Nodes(tmp_path, Clients(brokers.address)) as nodes:
        pair = {"first": nodes.start("first")}
        await until(lambda: nodes.ready(pair["first"]))
        pair["second"] = nodes.start("second")
        all_nodes = dict(pair)
        await until(lambda: calm(nodes, all_nodes))
        senders = [
            asyncio.create_task(send(nodes, pair, topic, story, over, dice))
            for topic in TOPICS
            for _ in range(SENDERS_OF_A_TOPIC)
        ]
        for broker in brokers.each:
            await asyncio.sleep(CALM_S)
            await asyncio.to_thread(broker.kill, signal.SIGTERM)
            await asyncio.sleep(CALM_S)
            await asyncio.to_thread(broker.start)
            await until(lambda: calm(nodes, all_nodes))
        for name in list(pair):
            await asyncio.sleep(CALM_S)
            node = pair.pop(name)  # as a load balancer does
            node.signal(signal.SIGTERM)
            await node.stopped()
            nodes.start(name)
            await until(lambda: calm(nodes, all_nodes))
            pair[name] = node
        over.set()
        await asyncio.gather(*senders)
        await until(lambda: delivered(nodes, all_nodes["first"]))
        came = Counter([body for topic in TOPICS for body in await bodies(nodes, pair["second"], topic)])
    print(f"{len(story.owed):,} acknowledged, {len(story.recalled)} recalled; {dict(story.other)}")
    assert not [body for body, times in came.items() if times > 1], "twice"
    assert came.keys() == story.owed - story.recalled
    assert {status for status, *_ in story.other} <= {503}, story.other


async def send(
    nodes: Nodes,
    pair: dict[str, Service],
    topic: str,
    story: Story,
    over: asyncio.Event,
    dice: random.Random,
) -> None:
    while not over.is_set():
        story.sent += 1
        body = f"{topic}-{story.sent}"
        wanted = {"topic": topic, "body": body, "delay_ms": dice.choice(DELAYS_MS)}
        answer = await nodes.call(pair[dice.choice(sorted(pair))], "POST", "/v1/messages", wanted)
        if answer.status == 201:
            story.owed.add(body)
            if dice.random() < RECALLS:
                path = f"/v1/messages/{answer.content['id']}"
                recall = await nodes.call(pair[dice.choice(sorted(pair))], "DELETE", path)
                if recall.status == 200:
                    story.recalled.add(body)
                elif recall.status != 409:
                    story.note(recall)
        else:
            story.note(answer)
        await asyncio.sleep(SENDER_PAUSE_S)


async def calm(nodes: Nodes, pair: dict[str, Service]) -> bool:
    return all([await nodes.ready(node) for node in pair.values()]) and await nodes.has_standby(pair["first"])


async def delivered(nodes: Nodes, node: Service) -> bool:
    answer = await nodes.call(node, "GET", "/v1/wheel")
    return answer.status == 200 and answer.content["pending"] == 0


async def bodies(nodes: Nodes, node: Service, topic: str) -> list[str]:
    found: list[str] = []
    while True:
        path = f"/v1/topics/{topic}/queues/0/messages?offset={len(found)}&max=1000"
        page = (await nodes.call(node, "GET", path)).content["messages"]
        if not page:
            return found
        found += [one["body"] for one in page]
