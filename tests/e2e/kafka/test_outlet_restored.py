"""From where an outlet goes on whose data was restored, and is older than what was sent."""

import asyncio
import itertools
import shutil
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka")

from tests.harness.kafka.clients import Clients
from timerwheel.engine import Engine
from timerwheel.kafka.cluster import Cluster
from timerwheel.kafka.front import service_name
from timerwheel.kafka.names import KafkaTopics
from timerwheel.kafka.outlet import Outlet
from timerwheel.kafka.outlets import Outlets
from timerwheel.kafka.positions import Run
from timerwheel.kafka.producer import TransactionalProducer
from timerwheel.model.kafka_counts import KafkaCounts
from timerwheel.model.messages import Outgoing
from timerwheel.settings import Settings

_numbers = itertools.count(1)


class Bridged:
    """Services of one data directory, of which one runs at a time, and the topics to which they send."""

    def __init__(self, kafka: Clients, home: Path) -> None:
        number = f"{next(_numbers)}-{time.time_ns() % 1_000_000_007}"
        self.kafka = kafka
        self.home = home
        self.topics = KafkaTopics(f"timers.{number}")
        self.target, self.later = f"orders-{number}", f"later-{number}"
        kafka.make(self.topics.inlet, self.target, self.later)

    @asynccontextmanager
    async def engine(self) -> AsyncIterator[Engine]:
        engine = await Engine.open(Settings(data=self.home / "data"))
        yield engine
        await engine.close()

    def cluster(self, engine: Engine) -> Cluster:
        return Cluster(self.kafka.address, {}, self.topics, service_name(engine.core.log.log_id))

    @asynccontextmanager
    async def outlet(self, engine: Engine, *named: str) -> AsyncIterator[None]:
        outlets = Outlets(engine, self.topics, named)
        await outlets.open()
        run = Run(f"run {next(_numbers)}")
        outlet = Outlet(engine, self.cluster(engine), outlets, KafkaCounts(), run)
        running = asyncio.create_task(outlet.run())
        yield
        outlet.stop()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await outlet.close()

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


@pytest.fixture
def bridged(kafka: Clients, tmp_path: Path) -> Bridged:
    return Bridged(kafka, tmp_path)


@pytest.mark.parametrize("starts", [0, 1, 2])
async def test_messages_that_came_after_a_restore_go_out_though_kafka_has_positions_beyond_them(
    bridged: Bridged, starts: int
) -> None:
    """They were in the queue before the outlet asked for its positions: Kafka was away, over some starts."""
    target, data, backup = bridged.target, bridged.home / "data", bridged.home / "backup"
    async with bridged.engine() as engine, bridged.outlet(engine, target):
        await send(engine, target, names("before", 2))
        assert await bridged.came(target, 2) == list(names("before", 2))
    shutil.copytree(data, backup)
    async with bridged.engine() as engine, bridged.outlet(engine, target):
        await send(engine, target, names("lost", 5))
        await bridged.came(target, 7)
    shutil.rmtree(data)
    backup.rename(data)
    for start in range(starts):
        async with bridged.engine() as engine:
            await Outlets(engine, bridged.topics, (target,)).open()
            await send(engine, target, names(f"new {start}", 10))
    async with bridged.engine() as engine:
        await Outlets(engine, bridged.topics, (target,)).open()
        await send(engine, target, names(f"new {starts}", 10))
        async with bridged.outlet(engine, target):
            new = [name for start in range(starts + 1) for name in names(f"new {start}", 10)]
            assert (await bridged.came(target, 7 + len(new)))[7:] == new
    async with bridged.engine() as engine, bridged.outlet(engine, target):
        await send(engine, target, ["last"])
        assert (await bridged.came(target, 8 + len(new)))[7 + len(new) :] == ["last"]


async def test_a_kill_between_the_note_in_kafka_and_that_in_the_log_leaves_nothing_out_and_repeats_nothing(
    bridged: Bridged,
) -> None:
    target, data, backup = bridged.target, bridged.home / "data", bridged.home / "backup"
    async with bridged.engine() as engine, bridged.outlet(engine, target):
        await send(engine, target, names("before", 2))
        await bridged.came(target, 2)
    shutil.copytree(data, backup)
    async with bridged.engine() as engine, bridged.outlet(engine, target):
        await send(engine, target, names("lost", 5))
        await bridged.came(target, 7)
    shutil.rmtree(data)
    backup.rename(data)
    async with bridged.engine() as engine:
        outlets = Outlets(engine, bridged.topics, (target,))
        await outlets.open()
        await send(engine, target, names("new", 10))
        producer = TransactionalProducer(bridged.cluster(engine), engine.clock, Run("killed"))
        await asyncio.to_thread(producer.open, outlets.noted())
        await asyncio.to_thread(producer.send, [], {target: {0: 2}})
        producer.close()
    async with bridged.engine() as engine, bridged.outlet(engine, target):
        assert (await bridged.came(target, 17))[7:] == list(names("new", 10))


async def test_a_topic_that_the_restored_data_did_not_send_goes_out_from_its_first_message(
    bridged: Bridged,
) -> None:
    target, later, data, backup = (
        bridged.target,
        bridged.later,
        bridged.home / "data",
        bridged.home / "backup",
    )
    async with bridged.engine() as engine, bridged.outlet(engine, target):
        pass
    shutil.copytree(data, backup)
    async with bridged.engine() as engine, bridged.outlet(engine, target, later):
        await send(engine, later, names("lost", 3))
        await bridged.came(later, 3)
    shutil.rmtree(data)
    backup.rename(data)
    async with bridged.engine() as engine:
        async with bridged.outlet(engine, target):
            await send(engine, target, ["open"])
            await bridged.came(target, 1)
        async with bridged.outlet(engine, target, later):
            await send(engine, later, names("new", 5))
            assert (await bridged.came(later, 8))[3:] == list(names("new", 5))
