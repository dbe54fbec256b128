"""All brokers of the log are gone for a minute, while clients go on: refused, nothing lost, and by itself."""

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import aiohttp
import pytest

from tests.harness.kafka.broker import Brokers, missing
from tests.torture.audited import Auditor
from tests.torture.books import now_ms
from tests.torture.killing import seed_given
from tests.torture.nodes import Nodes, two_nodes
from tests.torture.process import Service

pytest.importorskip("confluent_kafka")
pytestmark = [
    pytest.mark.torture,
    pytest.mark.skipif(missing(own=True) is not None, reason=f"needs Kafka: {missing(own=True)}"),
]

AWAY_S = float(os.environ.get("TIMERWHEEL_TORTURE_AWAY_S") or 60)
PATIENCE_S = 120.0
CALL_S = aiohttp.ClientTimeout(total=40)
CLIENTS = 4
OVERDUE_MS = 5_000
PAUSE_S = 0.05
TOPIC = "t"
READS = ("/v1/messages", f"/v1/topics/{TOPIC}", f"/v1/topics/{TOPIC}/queues/0/messages?offset=0", "/v1/wheel")


@dataclass
class Sent:
    """What clients sent: numbers by what became of them, and when each is due."""

    due_ms: dict[int, int] = field(default_factory=dict)
    owed: set[int] = field(default_factory=set)
    unknown: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    answers: Counter[tuple[int, str]] = field(default_factory=Counter)
    """Answers to what was asked while both nodes refused."""
    refused_since: float = float("inf")


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    made = Brokers(tmp_path / "brokers")
    try:
        made.start()
        yield made
    finally:
        made.kill()


@pytest.fixture
async def nodes(tmp_path: Path, brokers: Brokers) -> AsyncIterator[Nodes]:
    async with two_nodes(tmp_path, brokers) as found:
        yield found


async def test_a_minute_without_brokers_is_refused_and_all_goes_on_by_itself(
    nodes: Nodes, brokers: Brokers, tmp_path: Path
) -> None:
    seed = seed_given()
    print(f"\nseed {seed}")
    first, _ = await nodes.leading_pair()
    assert await nodes.send(first, "other", [now_ms()]) == 201
    await nodes.copied(first)
    sent, over = Sent(), asyncio.Event()
    dice = [random.Random(seed + number) for number in range(CLIENTS)]
    clients = [asyncio.create_task(send(nodes, sent, over, one)) for one in dice]
    await asyncio.sleep(5)
    brokers.kill()
    began = monotonic()
    await refuse(nodes, sent, began)
    brokers.start()
    await until_taken(sent)
    await asyncio.sleep(10)
    over.set()
    await asyncio.gather(*clients)
    came = await settle(nodes, sent)
    audited = Auditor(tmp_path, brokers.address).audit()
    assert audited["balanced"], audited["rules"]
    books = next(one["accounts"] for one in audited["topics"] if one["topic"] == TOPIC)
    assert books["direct"] + books["delivered"] + books["early"] == came
    assert books["pending"] == 0


async def refuse(nodes: Nodes, sent: Sent, began: float) -> None:
    """Until the minute is over, no call is answered with success."""
    async with asyncio.timeout(PATIENCE_S):
        while {(await nodes.call(node, "GET", "/readyz"))[0] for node in nodes.each} != {503}:
            await asyncio.sleep(0.05)
    print(f"both nodes refuse {monotonic() - began:.1f} s after the brokers died")
    sent.refused_since = monotonic()
    reads: Counter[tuple[int, str]] = Counter()
    while monotonic() - began < AWAY_S:
        for node in nodes.each:
            for path in READS:
                status, content = await nodes.call(node, "GET", path, timeout=CALL_S)
                reads[status, content.get("code", "")] += 1
            assert (await nodes.call(node, "GET", "/healthz"))[0] == 200
        await asyncio.sleep(0.5)
    assert set(reads) == {(503, "not_ready")}, reads
    assert set(sent.answers) == {(503, "not_ready")}, sent.answers
    print(f"{sent.answers.total():,} sends and {reads.total()} reads were answered 503")


async def until_taken(sent: Sent) -> None:
    """The brokers are back."""
    began, stored = monotonic(), len(sent.owed)
    async with asyncio.timeout(PATIENCE_S):
        while len(sent.owed) == stored:
            await asyncio.sleep(0.02)
    print(f"sends are taken {monotonic() - began:.1f} s after the brokers were back")


async def settle(nodes: Nodes, sent: Sent) -> int:
    """What was acknowledged came once, and what was overdue in due order; returns how many came."""
    leader = await leader_of(nodes)
    last_ms = max(sent.due_ms[one] for one in sent.owed | sent.unknown)
    await asyncio.sleep(max(last_ms + 2_000 - now_ms(), 0) / 1000)
    found = await nodes.read(leader, TOPIC, len(sent.owed))
    came = [int(one["body"]) for one in found]
    print(f"{len(sent.owed):,} acknowledged, {len(sent.unknown)} unknown, {len(came):,} came")
    assert not sent.owed - set(came), "lost"
    assert not set(came) - sent.owed - sent.unknown, "refused, and came"
    assert len(set(came)) == len(came), "twice"
    assert all(one["delivered_ms"] >= one["due_ms"] for one in found), "early"
    overdue = [one["due_ms"] for one in found if one["delivered_ms"] - one["due_ms"] > OVERDUE_MS]
    assert overdue == sorted(overdue)
    print(f"{len(overdue):,} fell due while the brokers were away")
    assert overdue
    return len(came)


async def send(nodes: Nodes, sent: Sent, over: asyncio.Event, dice: random.Random) -> None:
    """Send one message after the other to whichever node takes it; due soon, or while no broker is there."""
    while not over.is_set():
        number = len(sent.due_ms)
        due_ms = sent.due_ms[number] = now_ms() + int(dice.uniform(0, AWAY_S + 5) * 1000)
        wanted = {"topic": TOPIC, "body": str(number), "deliver_at_ms": due_ms}
        for node in dice.sample(nodes.each, 2):
            asked = monotonic()
            status, content = await nodes.call(node, "POST", "/v1/messages", wanted, CALL_S)
            if asked >= sent.refused_since:  # one that was on its way may be 500 `outcome_unknown`
                sent.answers[status, content.get("code", "")] += 1
            if status == 201:
                sent.owed.add(number)
                break
            if status != 503:
                sent.unknown.add(number)
                break
        else:
            sent.refused.add(number)
        await asyncio.sleep(PAUSE_S)


async def leader_of(nodes: Nodes) -> Service:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            for node in nodes.each:
                if (await nodes.call(node, "GET", "/readyz"))[0] == 200:
                    return node
            await asyncio.sleep(0.05)
