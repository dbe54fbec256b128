"""How much the inlet takes at once, with a real broker; with limits that one answer of it exceeds."""

import time

import pytest

pytest.importorskip("confluent_kafka")

from tests.harness.kafka.clients import Clients
from timerwheel.clock import SystemClock
from timerwheel.kafka import consumer as consuming
from timerwheel.kafka.cluster import Cluster, StoppedError
from timerwheel.kafka.consumer import Batch, InletConsumer
from timerwheel.kafka.names import KafkaTopics

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
