"""An outlet or inlet without a server: services of one data directory, and the topics that they use."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from tests.harness.kafka.clients import Clients
from timerwheel.engine import Engine
from timerwheel.kafka.cluster import Cluster
from timerwheel.kafka.front import service_name
from timerwheel.kafka.inlet import Inlet
from timerwheel.kafka.names import KafkaTopics
from timerwheel.kafka.outlet import Outlet
from timerwheel.kafka.outlets import Outlets
from timerwheel.kafka.positions import Run
from timerwheel.model.kafka_counts import KafkaCounts
from timerwheel.model.messages import Outgoing
from timerwheel.settings import Settings

_numbers = itertools.count(1)


class Bridged:
    """Services of one data directory, of which one runs at a time, and the topics to which they send."""

    def __init__(self, kafka: Clients, home: Path) -> None:
        number = f"{next(_numbers)}-{time.time_ns() % 1_000_000_007}"
        self.kafka = kafka
        self.address = kafka.address
        self.home = home
        self.topics = KafkaTopics(f"timers.{number}")
        self.target, self.later = f"orders-{number}", f"later-{number}"
        self.counts = KafkaCounts()

    @asynccontextmanager
    async def engine(self) -> AsyncIterator[Engine]:
        engine = await Engine.open(Settings(data=self.home / "data"))
        try:
            yield engine
        finally:
            await engine.close()

    def cluster(self, engine: Engine) -> Cluster:
        return Cluster(self.address, {}, self.topics, service_name(engine.core.log.log_id))

    @asynccontextmanager
    async def outlet(self, engine: Engine, *named: str) -> AsyncIterator[None]:
        outlets = Outlets(engine, self.topics, named)
        await outlets.open()
        run = Run(f"run {next(_numbers)}")
        self.counts = KafkaCounts()
        outlet = Outlet(engine, self.cluster(engine), outlets, self.counts, run)
        running = asyncio.create_task(outlet.run())
        try:
            yield
        finally:  # else the outlet's thread would go on when a test has failed, and its process never end
            outlet.stop()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await outlet.close()

    @asynccontextmanager
    async def inlet(self, engine: Engine, properties: Mapping[str, str] | None = None) -> AsyncIterator[None]:
        outlets = Outlets(engine, self.topics, ())
        await outlets.open()
        self.counts = KafkaCounts()
        cluster = Cluster(self.address, properties or {}, self.topics, "shop")
        inlet = Inlet(engine, cluster, outlets, self.counts)
        running = asyncio.create_task(inlet.run())
        try:
            yield
        finally:
            inlet.stop()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await inlet.close()

    async def came(self, topic: str, count: int) -> list[str]:
        found = await asyncio.to_thread(self.kafka.read_count, topic, count)
        return [(one.value or b"").decode() for one in found]


async def send(engine: Engine, topic: str, bodies: Iterable[str]) -> None:
    """Send messages that are due at once, and return when they are in their queue."""
    end = engine.queues.queue_bounds(topic, 0)[1]
    receipts = await engine.sender.send([Outgoing(topic, body.encode()) for body in bodies])
    while engine.queues.queue_bounds(topic, 0)[1] < end + len(receipts):
        await asyncio.sleep(0.001)


def names(prefix: str, count: int) -> Iterator[str]:
    return (f"{prefix} {number}" for number in range(count))
