"""Workers of groups go on while leads move between two nodes, and nodes are killed: three shards on Kafka.

owed        an acknowledged send comes once, in one queue, and is received and acknowledged
repeats     only what was in flight when the lead of its shard changed is received again
for ever    what was acknowledged is never received again
ids         lead to their messages on any node, whatever has moved since
"""

import asyncio
import itertools
import os
import random
import signal
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from tests.e2e.kafka.test_cluster import until
from tests.e2e.kafka.test_shards import SHARDS, TOPICS, Nodes
from tests.harness.kafka.broker import Broker, missing
from tests.harness.kafka.clients import Clients
from tests.harness.processes import timerwheel
from tests.torture.audited import Auditor
from tests.torture.killing import seed_given
from tests.torture.process import Service
from timerwheel.model.ids import shard_in

pytest.importorskip("confluent_kafka")
pytestmark = [
    pytest.mark.torture,
    pytest.mark.skipif(missing(own=True) is not None, reason=f"needs Kafka: {missing(own=True)}"),
]

MOVES = int(os.environ.get("TIMERWHEEL_TORTURE_MOVES") or 20)
KILL_EVERY = 5
WORKERS = 3
SENDER_PAUSE_S = 0.05
DELAY_MS_MAX = 2_000
WORK_S_MAX = 0.5
INVISIBLE_MS = 600_000
"""Longer than the test: no lease ends by itself."""
PATIENCE_S = 120.0


@dataclass
class Change:
    """A shard changes its leader: from when it was asked, or killed, until the new one answers."""

    shard: int
    began_s: float
    ended_s: float = float("inf")


@dataclass
class Receipt:
    """One time that a message was received: asked for, held, and acknowledged, or not."""

    asked_s: float
    answered_s: float
    over_s: float = float("inf")
    acknowledged: bool = False


@dataclass
class Story:
    """What clients did, and what happened meanwhile."""

    owed: dict[str, str] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)
    ids: dict[str, str] = field(default_factory=dict)
    received: defaultdict[str, list[Receipt]] = field(default_factory=lambda: defaultdict(list))
    changes: list[Change] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    broker = Broker(tmp_path / "broker")
    try:
        broker.start()
        async with Nodes(tmp_path, Clients(broker.address)) as found:
            yield found
    finally:
        broker.kill()


async def test_workers_get_each_message_and_only_what_was_in_flight_again(
    nodes: Nodes, tmp_path: Path
) -> None:
    seed = seed_given()
    print(f"\nseed {seed}")
    dice = random.Random(seed)
    first, second = nodes.start("first"), nodes.start("second")
    await until(lambda: nodes.ready(first))
    await until(lambda: nodes.has_standby(second))
    pair = {"first": first, "second": second}
    story, sending, working = Story(), asyncio.Event(), asyncio.Event()
    for topic in TOPICS:
        made = await nodes.call(first, "PUT", f"/v1/topics/{topic}/groups/w", {"start": "head"})
        assert made.status in {200, 201}, made
    senders = [asyncio.create_task(send(nodes, pair, topic, story, sending, dice)) for topic in TOPICS]
    workers = [
        asyncio.create_task(work(nodes, pair, topic, story, working, dice))
        for topic in TOPICS
        for _ in range(WORKERS)
    ]
    later = {}
    for topic in TOPICS:
        sent = await nodes.call(
            first, "POST", "/v1/messages", {"topic": topic, "body": "later", "delay": "1h"}
        )
        later[topic] = sent.content["id"]
    for number in range(1, MOVES + 1):
        await asyncio.sleep(dice.uniform(0.5, 2))
        if number % KILL_EVERY:
            await move(nodes, pair, story, dice)
        else:
            await kill(nodes, pair, story, dice)
        for node in pair.values():
            for message_id in later.values():
                answer = await nodes.call(node, "GET", f"/v1/messages/{message_id}")
                assert (answer.status, answer.content.get("state")) == (200, "scheduled")
    sending.set()
    await asyncio.gather(*senders)
    await drained(nodes, first)
    working.set()
    await asyncio.gather(*workers)
    await settle(nodes, first, second, story)

    auditor = Auditor(tmp_path, nodes.address, cluster=nodes.cluster)
    found = auditor.audit()
    assert found["balanced"], found["rules"]
    books = {one["topic"]: one["accounts"] for one in found["topics"]}
    came = sum(books[topic][kind] for topic in TOPICS for kind in ("direct", "delivered", "early"))
    assert came == len(story.received)
    assert [books[topic]["pending"] for topic in TOPICS] == [1] * SHARDS


async def settle(nodes: Nodes, first: Service, second: Service, story: Story) -> None:
    """Compare what was sent with the queues, and with what workers got."""
    queued: Counter[str] = Counter()
    for topic in TOPICS:
        queued.update(one["id"] for one in await queue(nodes, second, topic))
    repeated = [one for one, times in story.received.items() if len(times) > 1]
    print(
        f"{len(story.owed):,} acknowledged, {len(queued):,} came, {len(repeated)} received again after "
        f"{len(story.changes)} changes; {dict(story.refusals)}"
    )
    assert not [one for one, count in queued.items() if count > 1], "twice in a queue"
    assert not story.owed.keys() - queued.keys(), "lost"
    assert len(queued) <= len(story.owed) + len(story.unknown), "refused, and came"
    assert story.received.keys() == queued.keys(), "never received, or of no queue"
    for message_id, times in story.received.items():
        assert [one.acknowledged for one in times].count(True) <= 1, (message_id, times)
        for one, following in itertools.pairwise(times):
            assert not one.acknowledged, (message_id, "was acknowledged, and came again", times)
            shard = shard_in(message_id)
            assert any(
                change.shard == shard
                and one.asked_s <= change.ended_s
                and change.began_s <= following.answered_s
                for change in story.changes
            ), (message_id, "came again, though its shard did not move meanwhile", times)
    for message_id in list(story.ids)[:20]:
        for node in (first, second):
            answer = await nodes.call(node, "GET", f"/v1/messages/{message_id}")
            assert answer.content["state"] == "delivered"


# ---------------------------------------------------------------------- clients


def some(pair: dict[str, Service], dice: random.Random) -> Service:
    return pair[dice.choice(sorted(pair))]


async def send(
    nodes: Nodes, pair: dict[str, Service], topic: str, story: Story, over: asyncio.Event, dice: random.Random
) -> None:
    while not over.is_set():
        body = f"{topic}-{len(story.owed)}"
        wanted = {"topic": topic, "body": body, "delay_ms": dice.randrange(DELAY_MS_MAX)}
        answer = await nodes.call(some(pair, dice), "POST", "/v1/messages", wanted)
        if answer.status == 201:
            story.owed[answer.content["id"]] = topic
            story.ids[answer.content["id"]] = topic
        elif answer.status == 503:
            story.refusals["sends"] += 1
        else:
            story.unknown.add(body)
        await asyncio.sleep(SENDER_PAUSE_S)


async def work(
    nodes: Nodes, pair: dict[str, Service], topic: str, story: Story, over: asyncio.Event, dice: random.Random
) -> None:
    """Receive some, work on them for a while, and acknowledge them at whichever node answers."""
    group = f"/v1/topics/{topic}/groups/w"
    while not over.is_set():
        asked_s = monotonic()
        wanted = {"max": 4, "wait_ms": 1_000, "invisible_ms": INVISIBLE_MS}
        answer = await nodes.call(some(pair, dice), "POST", f"{group}/receive", wanted)
        if answer.status != 200:
            story.refusals["receives"] += 1
            await asyncio.sleep(0.1)
            continue
        held: dict[str, Receipt] = {}
        for message in answer.content["messages"]:
            held[message["receipt"]] = one = Receipt(asked_s, monotonic())
            story.received[message["id"]].append(one)
        await asyncio.sleep(dice.uniform(0, WORK_S_MAX))
        while held:
            answer = await nodes.call(some(pair, dice), "POST", f"{group}/ack", {"receipts": [*held]})
            if answer.status == 200:
                for result in answer.content["results"]:
                    one = held.pop(result["receipt"])
                    one.over_s, one.acknowledged = monotonic(), result["ok"]
                    story.refusals["acks"] += not result["ok"]
            else:
                await asyncio.sleep(0.1)


async def drained(nodes: Nodes, node: Service) -> None:
    """Wait until each message was received and is acknowledged."""
    async with asyncio.timeout(PATIENCE_S):
        while (await nodes.call(node, "GET", "/v1/wheel")).content["pending"] > SHARDS:
            await asyncio.sleep(0.2)
        for topic in TOPICS:
            while True:
                group = (await nodes.call(node, "GET", f"/v1/topics/{topic}/groups/w")).content
                if not any(group[count] for count in ("lag", "in_flight", "waiting", "ready")):
                    break
                await asyncio.sleep(0.2)


async def queue(nodes: Nodes, node: Service, topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while True:
        path = f"/v1/topics/{topic}/queues/0/messages?offset={len(found)}&max=1000"
        page = (await nodes.call(node, "GET", path)).content["messages"]
        found += page
        if not page:
            return found


# ---------------------------------------------------------------------- what happens meanwhile


async def move(nodes: Nodes, pair: dict[str, Service], story: Story, dice: random.Random) -> None:
    """A planned hand-over of one shard."""
    shard = dice.randrange(SHARDS)
    node = some(pair, dice)
    await until(lambda: nodes.has_standby(node))
    before = (await nodes.leaders(node))[shard]
    change = Change(shard, monotonic())
    story.changes.append(change)
    moved = await asyncio.to_thread(timerwheel, "cluster", "move", "--shard", shard, "--url", node.url)
    assert moved.code == 0, moved.err

    async def has_moved() -> bool:
        leads = (await nodes.leaders(node))[shard : shard + 1]
        return leads not in ([], [before], [None]) and await nodes.ready(node)

    await until(has_moved)
    change.ended_s = monotonic()


async def kill(nodes: Nodes, pair: dict[str, Service], story: Story, dice: random.Random) -> None:
    """A node dies; the other one leads all shards, and it comes back as a standby."""
    name = dice.choice(sorted(pair))
    victim = pair.pop(name)
    [other] = pair.values()
    led = [shard for shard, url in enumerate(await nodes.leaders(other)) if url == victim.url]
    changes = [Change(shard, monotonic()) for shard in led]
    story.changes += changes
    victim.signal(signal.SIGKILL)
    await victim.killed()

    async def leads_all() -> bool:
        return await nodes.leaders(other) == [other.url] * SHARDS and await nodes.ready(other)

    await until(leads_all)
    for change in changes:
        change.ended_s = monotonic()
    nodes.start(name)
    await until(lambda: nodes.ready(victim))
    pair[name] = victim
    await until(lambda: nodes.has_standby(other))
