"""The bridge to Kafka of two nodes with one journal: the leader sleeps, the other one leads, and it wakes."""

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.e2e.kafka.test_cluster import Answer, Team, until
from tests.harness.kafka.broker import Broker, missing
from tests.harness.kafka.clients import Clients
from tests.harness.kafka.kills import INLET, TARGET, Load
from tests.torture.killing import seed_given
from tests.torture.process import Service

pytest.importorskip("confluent_kafka")
pytestmark = [
    pytest.mark.torture,
    pytest.mark.skipif(missing(own=True) is not None, reason=f"needs Kafka: {missing(own=True)}"),
]

ROUNDS = int(os.environ.get("TIMERWHEEL_TORTURE_SLEEPS") or 6)
RATE = 400
OPENS_S = 0.25
"""The outlet opens within such a time after its node leads."""
LOOK_S = 2.5


@pytest.fixture
async def team(tmp_path: Path) -> AsyncIterator[tuple[Team, Clients]]:
    broker = Broker(tmp_path / "broker")
    try:
        broker.start()
        clients = Clients(broker.address)
        clients.wait()
        clients.make(INLET, TARGET, partitions=3)
        async with Team(tmp_path, clients) as found:
            yield found, clients
    finally:
        broker.kill()


async def test_a_leader_that_sleeps_at_any_moment_leaves_the_bridge_of_the_next_one_at_work(
    team: tuple[Team, Clients],
) -> None:
    """Half of them sleep just after they began to lead, when the outlet opens, the others later."""
    seed = seed_given()
    print(f"\nseed {seed}")
    nodes, clients = team
    dice = random.Random(seed)
    flags = ("--kafka", clients.address, "--kafka-inlet", INLET)
    leader = nodes.start("first", *flags)
    await until(lambda: nodes.leads(leader))
    standby = nodes.start("second", *flags)
    await until(lambda: nodes.stands_by(standby))
    count = RATE * 10 * ROUNDS
    load = Load(clients.address, count, RATE, seed)
    load.start()
    for number in range(ROUNDS):
        if number % 2:
            moving = await moved(nodes, leader, standby)
            leader, standby = standby, leader
            await asyncio.sleep(dice.uniform(0, OPENS_S))
            await sleep_and_wake(nodes, leader, standby)
            await moving
        else:
            await asyncio.sleep(dice.uniform(1, 2))
            await sleep_and_wake(nodes, leader, standby)
        leader, standby = standby, leader
    await asyncio.to_thread(load.join)
    found = await asyncio.to_thread(clients.read_count, TARGET, count)
    times = Counter(int(got.value or b"") for got in found)
    print(f"{count:,} sent, {len(found):,} came")
    assert times == dict.fromkeys(range(count), 1)
    assert not [got for got in found if got.stored_ms < int(got.header("TIMER_DUE_MS"))], "early"


async def moved(nodes: Team, leader: Service, standby: Service) -> asyncio.Task[Answer]:
    """Let the standby lead; return as soon as it does, with the call that asked for it."""
    moving = asyncio.create_task(nodes.call(leader, "POST", "/v1/cluster/move"))
    await until(lambda: nodes.leads(standby))
    return moving


async def sleep_and_wake(nodes: Team, leader: Service, standby: Service) -> None:
    """The leader sleeps until the bridge of the standby works, which goes on when the other wakes."""
    leader.signal(signal.SIGSTOP)
    await until(lambda: nodes.leads(standby))
    await until(lambda: outlet_works(standby))
    leader.signal(signal.SIGCONT)
    await asyncio.sleep(LOOK_S)
    assert await outlet_works(standby), standby.errors()
    await until(lambda: nodes.stands_by(leader))


async def outlet_works(node: Service) -> bool:
    async with aiohttp.ClientSession() as session, session.get(f"{node.url}/metrics") as answer:
        return 'timerwheel_kafka_working{side="outlet"} 1' in await answer.text()
