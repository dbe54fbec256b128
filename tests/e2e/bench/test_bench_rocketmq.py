"""The broker of Apache RocketMQ as `bench` starts it and speaks to it. Skipped where its jars are not."""

import asyncio
import signal
import time

import pytest

from bench.body import body, read_heads
from bench.peers.rocketmq.broker import RocketMQ
from bench.wires import wire as wires
from bench.wires.wire import RefusedError
from tests.harness.processes import QUICK_JAVA

pytestmark = pytest.mark.skipif(RocketMQ.missing() is not None, reason=f"run: {RocketMQ.missing()}")

TIMEOUT_S = 120


@pytest.fixture(scope="module", autouse=True)
def quick_java():
    """None of these tests measures anything."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in QUICK_JAVA.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """One for the tests that do not kill it; it stops in good order."""
    system = RocketMQ(tmp_path_factory.mktemp("rocketmq") / "rocketmq")
    asyncio.run(system.start())
    yield system
    system.stop()


@pytest.fixture
async def own_broker(tmp_path):
    system = RocketMQ(tmp_path / "rocketmq")
    await system.start()
    yield system
    system.stop(signal.SIGKILL)


async def next_bytes(reader):
    data = await reader.read(65_536)
    assert data, "the broker hung up"
    return data


async def send(system, topic, dues_ms):
    """Number n is due at the nth time; returns when all are acknowledged."""
    spec = system.sender(topic)
    wire = wires.sender(spec)
    reader, writer = await asyncio.open_connection(spec["host"], spec["port"])
    bodies = [body(number, due_ms * 1000) for number, due_ms in enumerate(dues_ms)]
    try:
        writer.write(wire.greeting() + wire.request(bodies, dues_ms, time.time_ns() // 1_000_000))
        async with asyncio.timeout(TIMEOUT_S):
            while not wire.feed(await next_bytes(reader)):
                pass
    finally:
        writer.close()


async def receive(system, topic, count):
    """Numbers that came until `count` different ones had, and their least lateness in microseconds."""
    spec = system.receiver(topic)
    wire = wires.receiver(spec)
    reader, writer = await asyncio.open_connection(spec["host"], spec["port"])
    numbers, lateness_us = [], []
    try:
        writer.write(wire.begin())
        async with asyncio.timeout(TIMEOUT_S):
            while len(set(numbers)) < count:
                came = wire.feed(await next_bytes(reader))
                now_us = time.time_ns() // 1000
                writer.write(came.reply)
                found, dues_us = read_heads(came.bodies)
                numbers += found.tolist()
                lateness_us += (now_us - dues_us).tolist()
    finally:
        writer.close()
    return numbers, min(lateness_us)


async def test_each_message_comes_once_and_none_early(broker):
    await broker.prepare("orders")
    soon_ms = time.time_ns() // 1_000_000 + 1000
    receiving = asyncio.create_task(receive(broker, "orders", 1000))
    await send(broker, "orders", [soon_ms + number for number in range(1000)])
    numbers, least_late_us = await receiving
    assert sorted(numbers) == list(range(1000))
    assert least_late_us >= 0
    assert broker.usage().written_bytes > 0


@pytest.mark.torture
async def test_what_waits_outlives_a_kill_though_it_may_come_twice(own_broker):
    await own_broker.prepare("orders")
    soon_ms = time.time_ns() // 1_000_000 + 3000
    await send(own_broker, "orders", [soon_ms] * 100)
    own_broker.stop(signal.SIGKILL)
    await own_broker.start()
    numbers, least_late_us = await receive(own_broker, "orders", 100)
    assert set(numbers) == set(range(100))
    assert least_late_us >= 0


async def test_a_due_time_past_the_longest_delay_is_refused(broker):
    await broker.prepare("late")
    now_ms = time.time_ns() // 1_000_000
    await send(broker, "late", [now_ms + broker.max_delay_ms - 60_000])
    with pytest.raises(RefusedError, match="timer message illegal"):
        await send(broker, "late", [now_ms + broker.max_delay_ms + 60_000])
