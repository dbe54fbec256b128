"""From where an outlet goes on whose data was restored, and is older than what was sent."""

import asyncio
import shutil
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka")

from tests.harness.kafka.bridged import Bridged, names, send
from tests.harness.kafka.clients import Clients
from timerwheel.kafka.outlets import Outlets
from timerwheel.kafka.positions import Run
from timerwheel.kafka.producer import TransactionalProducer


@pytest.fixture
def bridged(kafka: Clients, tmp_path: Path) -> Bridged:
    made = Bridged(kafka, tmp_path)
    kafka.make(made.topics.inlet, made.target, made.later)
    return made


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
