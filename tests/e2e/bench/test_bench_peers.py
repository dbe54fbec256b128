"""beanstalkd and Redis as the bench runs them: what is scheduled comes once, whole, and not early."""

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bench.body import body, read_heads
from bench.peers.beanstalkd import Beanstalkd
from bench.peers.redis import Redis
from bench.peers.system import HOST, System
from bench.wires import wire as wires

COUNT = 1_000
ARRAY = 100
DEADLINE_S = 60
Make = Callable[[Path], System]


def needing(kind: type[System], *values: object) -> list[object]:
    """Parameters, skipped with the line that would install what is missing."""
    missing = kind.missing()
    mark = pytest.mark.skipif(missing is not None, reason=f"not installed: {missing}")
    return [
        pytest.param(lambda path, value=value: kind(path, value), marks=mark, id=f"{kind.__name__}-{value}")
        for value in values
    ]


EVERY_PEER = needing(Beanstalkd, 0, 50) + needing(Redis, "always", "everysec")

PEERS_THAT_WRITE_BEFORE_THEY_ANSWER = needing(Beanstalkd, 0, 50) + needing(Redis, "always")
"""With everysec Redis puts a write off, up to two seconds, while the sync before it still runs, and answers
all the same: on a busy disk a SIGKILL takes what was answered."""


@asynccontextmanager
async def running(system: System) -> AsyncIterator[System]:
    """Started, and ended whatever happens."""
    try:
        async with asyncio.timeout(DEADLINE_S):
            await system.start()
            yield system
    finally:
        system.stop()


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection, closed in the end."""
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def send(system: System, topic: str, delay_ms: int) -> None:
    """COUNT messages, in arrays over one connection; returns when all are answered."""
    spec = system.sender(topic)
    wire = wires.sender(spec)
    async with connected(spec["port"]) as (reader, writer):
        writer.write(wire.greeting())
        for first in range(0, COUNT, ARRAY):
            now_ms = time.time_ns() // 1_000_000
            bodies = [body(number, (now_ms + delay_ms) * 1000) for number in range(first, first + ARRAY)]
            writer.write(wire.request(bodies, [now_ms + delay_ms] * ARRAY, now_ms))
        answered = 0
        while answered < COUNT // ARRAY:
            data = await reader.read(1 << 16)
            assert data, "the system hung up"
            answered += wire.feed(data)
    assert answered == COUNT // ARRAY


async def receive(system: System, topic: str) -> tuple[list[int], list[int]]:
    """Numbers and lateness in microseconds of COUNT messages or more; returns when the topic is empty."""
    spec = system.receiver(topic)
    wire = wires.receiver(spec)
    numbers: list[int] = []
    late_us: list[int] = []
    async with connected(spec["port"]) as (reader, writer):
        writer.write(wire.begin())
        while len(numbers) < COUNT:
            data = await reader.read(1 << 16)
            assert data, "the system hung up"
            received = wire.feed(data)
            now_us = time.time_ns() // 1_000
            writer.write(received.reply)
            found, dues_us = read_heads(received.bodies)
            numbers += found.tolist()
            late_us += (now_us - dues_us).tolist()
        while not await empty(system, topic):
            pass
    return numbers, late_us


async def empty(system: System, topic: str) -> bool:
    """Whether the system says that it keeps nothing for the topic, in whatever state."""
    name = topic.encode()
    async with connected(system.sender(topic)["port"]) as (reader, writer):
        if isinstance(system, Redis):
            writer.write(b"EXISTS due:%b body:%b ready:%b\r\n" % (name, name, name))
            return await reader.readline() == b":0\r\n"
        writer.write(b"stats-tube %b\r\n" % name)
        said = await reader.readuntil(b"\n\r\n")
        states = (b"ready", b"reserved", b"delayed", b"buried")
        return all(b"\ncurrent-jobs-%b: 0\n" % state in said for state in states)


@pytest.mark.parametrize("make", EVERY_PEER)
async def test_what_is_scheduled_comes_once_and_not_early_and_is_gone(make: Make, tmp_path: Path):
    async with running(make(tmp_path / "peer")) as system:
        await system.prepare("orders")
        async with asyncio.TaskGroup() as group:
            receiving = group.create_task(receive(system, "orders"))
            group.create_task(send(system, "orders", 1_000))
        numbers, late_us = receiving.result()
    assert sorted(numbers) == list(range(COUNT))
    assert min(late_us) >= 0
    assert not system.processes


@pytest.mark.parametrize("make", PEERS_THAT_WRITE_BEFORE_THEY_ANSWER)
async def test_what_was_answered_is_there_after_sigkill_and_a_new_start(make: Make, tmp_path: Path):
    system = make(tmp_path / "peer")
    async with running(system):
        await system.prepare("orders")
        await send(system, "orders", 3_000)
        system.stop(signal.SIGKILL)
        await system.start()
        numbers, late_us = await receive(system, "orders")
    assert sorted(numbers) == list(range(COUNT))
    assert min(late_us) >= 0


@pytest.mark.parametrize("make", EVERY_PEER)
async def test_topics_do_not_mix(make: Make, tmp_path: Path):
    async with running(make(tmp_path / "peer")) as system:
        for topic in ("first", "second"):
            await system.prepare(topic)
            await send(system, topic, 1_000)
        for topic in ("second", "first"):
            numbers, _ = await receive(system, topic)
            assert sorted(numbers) == list(range(COUNT))


@pytest.mark.parametrize("make", EVERY_PEER)
async def test_a_running_peer_says_its_version_and_what_it_uses(make: Make, tmp_path: Path):
    async with running(make(tmp_path / "peer")) as system:
        await system.prepare("orders")
        await send(system, "orders", 60_000)
        used = system.usage()
        assert system.version().replace(".", "").isdigit()
        assert used.resident_bytes > 0
        assert system.settings
