"""Topics of the service that change while they go out."""

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka")

from tests.harness.kafka.bridged import Bridged, names, send
from tests.harness.kafka.clients import CALL_S, Clients
from tests.harness.relay import Relay
from timerwheel.errors import FixedOutletError
from timerwheel.kafka import cluster, outlet
from timerwheel.kafka.outlets import Outlets
from timerwheel.kafka.positions import Noted
from timerwheel.kafka.producer import Opened, TransactionalProducer
from timerwheel.model.kafka_counts import BridgeState
from timerwheel.model.messages import Outgoing

FAR = 1 << 40


@pytest.fixture
def bridged(kafka: Clients, tmp_path: Path) -> Bridged:
    made = Bridged(kafka, tmp_path)
    kafka.make(made.target, made.later)
    return made


def test_the_topic_of_positions_is_compacted_while_it_is_small(bridged: Bridged) -> None:
    cluster.Cluster(bridged.address, {}, bridged.topics).make_topics()
    found = bridged.kafka.configured(bridged.topics.positions)
    assert (found["cleanup.policy"], found["segment.bytes"]) == ("compact", str(16 << 20))


async def test_a_second_service_on_an_inlet_warns_and_one_that_starts_again_does_not(
    bridged: Bridged, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    warning = (
        f"another service, with data of its own, has taken from the Kafka topic {bridged.topics.inlet}, at"
    )
    for place in ("one", "one", "other"):
        assert warning not in caplog.text
        bridged.home = tmp_path / place
        async with bridged.engine() as engine, bridged.outlet(engine):
            while bridged.counts.outlet_state != BridgeState.WORKING:
                await asyncio.sleep(0.01)
    assert warning in caplog.text


async def test_a_new_queue_goes_out_though_the_first_one_always_has_messages(
    bridged: Bridged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outlet, "LOOK_MS", FAR)  # so the first one is never found idle
    async with bridged.engine() as engine, bridged.outlet(engine, bridged.target):
        await send(engine, bridged.target, ["first"])
        await bridged.came(bridged.target, 1)
        await engine.topics.change(bridged.target, queues=2)
        await engine.sender.send([Outgoing(bridged.target, b"second", queue=1)])
        await engine.sender.send([Outgoing(bridged.target, b"third", queue=0)])
        assert sorted(await bridged.came(bridged.target, 3)) == ["first", "second", "third"]


@pytest.mark.parametrize("way", ["purge", "delete"])
async def test_what_was_purged_or_deleted_does_not_count_as_lost(
    bridged: Bridged, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with bridged.engine() as engine:
        async with bridged.outlet(engine, bridged.target):
            await send(engine, bridged.target, ["1"])
            await bridged.came(bridged.target, 1)
        await send(engine, bridged.target, names("gone", 5))
        if way == "purge":
            await engine.topic_purges.purge(bridged.target, scheduled=True, delivered=True)
        else:
            await engine.topic_deletions.delete(bridged.target, wait_ms=FAR)
        await send(engine, bridged.target, ["2"])
        async with bridged.outlet(engine, bridged.target):
            assert await bridged.came(bridged.target, 2) == ["1", "2"]
            assert bridged.counts.lost == 0
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]


@pytest.mark.parametrize("way", ["stop", "delete"])
async def test_of_a_topic_that_goes_out_again_nothing_goes_that_came_before(
    bridged: Bridged, way: str
) -> None:
    topic = bridged.target
    for number in range(2):  # at once, and by the positions in Kafka
        async with bridged.engine() as engine, bridged.outlet(engine, bridged.later):
            await engine.topics.change(topic, to_kafka=True)
            await send(engine, topic, [f"{number} first"])
            await bridged.came(topic, 2 * number + 1)
            if way == "stop":
                await engine.topics.change(topic, to_kafka=False)
            else:
                await engine.topic_deletions.delete(topic, wait_ms=FAR)
                await engine.topic_deletions.delete(bridged.later, wait_ms=FAR)
            assert engine.topics.to_kafka(topic) is (False if way == "stop" else None)
            assert engine.topics.to_kafka(bridged.later)  # by the settings
            await send(engine, topic, ["kept"])
            if number == 0:
                await engine.topics.change(topic, to_kafka=True)
                await send(engine, topic, ["0 again"])
                await bridged.came(topic, 2)
    async with bridged.engine() as engine, bridged.outlet(engine, topic):
        assert engine.topics.to_kafka(topic)  # the settings win
        with pytest.raises(FixedOutletError):
            await engine.topics.change(topic, to_kafka=False)
        await send(engine, topic, ["last"])
        assert await bridged.came(topic, 4) == ["0 first", "0 again", "1 first", "last"]


async def test_what_was_sent_last_is_noted_though_nothing_follows(
    bridged: Bridged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outlet, "NOTE_MS", 2_000)
    async with bridged.engine() as engine, bridged.outlet(engine, bridged.target):
        noted = Outlets(engine, bridged.topics, ()).noted
        for number in range(2):
            await send(engine, bridged.target, [str(number)])
            while noted().sent.get(bridged.target) != {0: number + 1}:
                await asyncio.sleep(0.01)


async def test_a_time_without_brokers_does_not_make_transactions_small(
    bridged: Bridged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "CALL_S", 0.1)
    monkeypatch.setattr(outlet, "RETRY_MS", 1)
    tries: list[Noted] = []

    def tried(producer: TransactionalProducer, noted: Noted, topics: Iterable[str] = ()) -> Opened:
        tries.append(noted)
        return really_open(producer, noted, topics)

    really_open = TransactionalProducer.open
    monkeypatch.setattr(TransactionalProducer, "open", tried)
    async with Relay() as relay:
        broker, bridged.address = f"kafka://{bridged.address}", relay.url.removeprefix("http://")
        async with bridged.engine() as engine, bridged.outlet(engine, bridged.target):
            await send(engine, bridged.target, names("waiting", 100))
            while len(tries) < 6:
                await asyncio.sleep(0.01)
            monkeypatch.setattr(cluster, "CALL_S", CALL_S)
            relay.target = broker
            await bridged.came(bridged.target, 100)
            assert bridged.counts.transactions == 1
