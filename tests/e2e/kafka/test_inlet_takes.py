"""How much the inlet takes at once, with a real broker; with limits that one answer of it exceeds."""

import asyncio
import time
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka")

from tests.harness.kafka.bridged import Bridged
from tests.harness.kafka.clients import Clients
from timerwheel.clock import SystemClock
from timerwheel.kafka import consumer as consuming
from timerwheel.kafka import inlet as inlets
from timerwheel.kafka.cluster import BridgeError, Cluster, StoppedError
from timerwheel.kafka.consumer import Batch, InletConsumer
from timerwheel.kafka.names import KafkaTopics
from timerwheel.model.kafka_counts import BridgeState
from timerwheel.model.messages import Outgoing, State
from timerwheel.state.config_table import ConfigTable

HOUR = [("TIMER_TOPIC", b"later"), ("TIMER_DELAY_SEC", b"3600")]
LARGE, BYTES_MAX, RECORDS_MAX = 300_000, 1_000_000, 50


def taken(kafka: Clients, inlet: str, count: int) -> list[Batch]:
    """What the inlet takes of a topic that has so many records."""
    cluster = Cluster(kafka.address, {}, KafkaTopics(inlet), "shop")
    consumer = InletConsumer(cluster, SystemClock())
    consumer.open({})
    batches: list[Batch] = []
    try:
        while sum(len(batch.records) for batch in batches) < count:
            batches.append(consumer.take())
    finally:
        consumer.close()
    assert [one.offset for batch in batches for one in batch.records] == list(range(count))
    return batches


@pytest.mark.parametrize("part", ["key", "value", "header"])
def test_no_more_bytes_are_taken_at_once_than_the_limit_and_a_record(
    kafka: Clients, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    monkeypatch.setattr(consuming, "TAKE_BYTES_MAX", BYTES_MAX)
    inlet, count = f"takes-{part}-{time.time_ns()}", 45
    kafka.make(inlet, partitions=1)
    large = b"\xff" * LARGE
    for number in range(count):
        kafka.send(
            inlet,
            large if part == "value" else b"%d" % number,
            [("h", large)] if part == "header" else [],
            large if part == "key" else None,
        )
    kafka.flush()
    sizes = [sum(one.size_bytes for one in batch.records) for batch in taken(kafka, inlet, count)]
    assert max(sizes) < BYTES_MAX + LARGE + 10  # the numbers of records


def test_no_more_records_are_taken_at_once_than_the_limit(
    kafka: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consuming, "TAKE_RECORDS_MAX", RECORDS_MAX)
    inlet, count = f"takes-{time.time_ns()}", 3 * RECORDS_MAX + 1
    kafka.make(inlet, partitions=1)
    for number in range(count):
        kafka.send(inlet, b"%d" % number)
    kafka.flush()
    assert max(len(batch.records) for batch in taken(kafka, inlet, count)) <= RECORDS_MAX


def test_an_inlet_that_stops_does_not_ask_for_the_end_of_each_partition(kafka: Clients) -> None:
    """Brokers may take seconds for each of them."""
    kafka.make(inlet := f"takes-{time.time_ns()}", partitions=3)
    consumer = InletConsumer(Cluster(kafka.address, {}, KafkaTopics(inlet), "shop"), SystemClock())
    consumer.stop()
    with pytest.raises(StoppedError):
        consumer.open({})
    consumer.close()


def test_an_inlet_that_is_compacted_is_refused(kafka: Clients) -> None:
    kafka.make(inlet := f"takes-{time.time_ns()}", cleanup_policy="compact")
    consumer = InletConsumer(Cluster(kafka.address, {}, KafkaTopics(inlet), "shop"), SystemClock())
    with pytest.raises(BridgeError, match="=compact and would lose records"):
        consumer.open({})
    consumer.close()


async def test_records_count_as_lost_only_if_nobody_took_them(
    kafka: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Ends of transactions and aborted records have offsets, too, which Kafka deletes as well."""
    monkeypatch.setattr(inlets, "NOTE_MS", 100)
    bridged = Bridged(kafka, tmp_path)
    inlet = bridged.topics.inlet
    kafka.make(inlet)
    kafka.transaction([(inlet, b"taken", HOUR)], commit=True)
    kafka.transaction([(inlet, b"aborted", HOUR)] * 5, commit=False)
    end = kafka.ends(inlet)[0]
    async with bridged.engine() as engine, bridged.inlet(engine):
        while [*engine.control.items(ConfigTable.KAFKA_INLET).values()] != [end]:
            await asyncio.sleep(0.01)
    assert end > 6  # there are markers
    assert bridged.counts.scheduled == 1
    kafka.delete_records(inlet)
    async with bridged.engine() as engine, bridged.inlet(engine):
        while bridged.counts.inlet_state != BridgeState.WORKING:
            await asyncio.sleep(0.01)
    assert bridged.counts.inlet_lost == 0
    assert "deleted" not in caplog.text
    for _ in range(3):
        kafka.send(inlet, b"never taken", HOUR)
    kafka.flush()
    kafka.delete_records(inlet)
    async with bridged.engine() as engine, bridged.inlet(engine):
        kafka.send(inlet, b"taken", HOUR)
        kafka.flush()
        while not bridged.counts.scheduled:
            await asyncio.sleep(0.01)
    assert bridged.counts.inlet_lost == 3
    assert f"Kafka deleted {inlet}/0 from offset {end} to {end + 2} before it was taken" in caplog.text


async def test_the_recall_of_a_message_that_cannot_be_read_is_rejected_and_holds_up_no_other(
    kafka: Clients, tmp_path: Path
) -> None:
    bridged = Bridged(kafka, tmp_path)
    inlet = bridged.topics.inlet
    kafka.make(inlet, partitions=1)
    delay = {"TIMER_DELAY_SEC": "3600"}
    async with bridged.engine() as engine:
        body = b"a message that cannot be read"
        [damaged] = await engine.sender.send([Outgoing("later", body, delay, dedup_key="k")])
        path, base = engine.core.log.path(0), engine.core.log.base_of(0)
    flip(path, path.read_bytes().index(body) - base)
    kafka.send(inlet, b"", [("TIMER_TOPIC", b"later"), ("TIMER_KEY", b"k"), ("TIMER_RECALL", b"true")])
    kafka.send(inlet, b"behind it", HOUR)
    kafka.flush()
    async with bridged.engine() as engine, bridged.inlet(engine):
        while not bridged.counts.scheduled:
            await asyncio.sleep(0.01)
        assert (bridged.counts.rejected, bridged.counts.recalls) == (1, 0)
        assert (await engine.messages.get(damaged.id)).state is State.SCHEDULED


def flip(path: Path, at: int) -> None:
    """Turn over a bit of a file."""
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
