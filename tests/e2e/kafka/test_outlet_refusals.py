"""A target refuses the records that are at fault, and no others of their transaction."""

import random
from collections import Counter
from collections.abc import Collection

import pytest

pytest.importorskip("confluent_kafka")

from confluent_kafka import KafkaError, Producer

from tests.e2e.kafka.test_outlet_fences import NOTHING, Service
from tests.harness.kafka.clients import CALL_S, Clients
from timerwheel.kafka.translation import Produced

COUNT = 300
TARGETS = {
    "small": {"max_message_bytes": "1000"},
    "medium": {"max_message_bytes": "20000"},
    "compacted": {"cleanup_policy": "compact", "max_message_bytes": "5000"},
    "usual": {},
    "keyed": {"cleanup_policy": "compact"},
}


@pytest.mark.parametrize(
    "unkeyed", [{150}, {0}, {COUNT - 1}, {20, 150}, {1, 2, 290}, set(range(20, 150)), set(range(COUNT))]
)
def test_a_record_that_is_refused_takes_none_of_its_batch_along(
    kafka: Clients, unkeyed: Collection[int]
) -> None:
    """A compacted topic refuses a batch for each record without a key."""
    service = Service(kafka)
    kafka.make(target := f"{service.target}-compacted", cleanup_policy="compact")
    process = service.process("one", None)
    process.open(NOTHING)
    keys = [None if number in unkeyed else b"%d" % number for number in range(COUNT)]
    records = [Produced(target, key, b"%d" % number, ()) for number, key in enumerate(keys)]
    refused = process.send([*records, Produced(service.target, None, b"end", ())], {"orders": {0: COUNT}})
    process.close()
    assert [refusal.code for refusal in refused] == ["refused"] * len(unkeyed)
    assert [got.value for got in kafka.read_count(target, COUNT - len(unkeyed))] == [
        record.value for record in records if record.key is not None
    ]
    assert [got.value for got in kafka.read_count(service.topics.rejected, len(unkeyed))] == [
        record.value for record in records if record.key is None
    ]
    assert service.came(1) == [b"end"]


@pytest.mark.parametrize("place", [0, 25, 50])
def test_a_target_that_was_deleted_does_not_stop_one_that_takes_small_batches(
    kafka: Clients, place: int
) -> None:
    """Each batch is waited for, so the transaction has failed before all of it is produced."""
    service = Service(kafka)
    kafka.make(small := f"{service.target}-small", max_message_bytes="2000")
    records = [Produced(small, None, bytes(500), ()) for _ in range(50)]
    process = service.process("one", None)
    process.open(NOTHING)
    service.send(process, 0)
    assert process.send(records, {"small": {0: 50}}) == []
    kafka.delete(service.target)
    records.insert(place, Produced(service.target, None, b"1", ()))
    names = {f"{service.target}-small": {0: 100}, service.target: {0: 2}}
    (refused,) = process.send(records, names)
    process.close()
    assert refused.code == "unknown_topic"
    assert len(kafka.read_count(small, 100)) == 100


def drawn(chance: random.Random, topics: Collection[str], number: int) -> Produced:
    """A record of any size, or none, with any key, or none."""
    size = int(chance.choice([30, 300, 900, 2_000, 6_000, 30_000]) * chance.uniform(0.5, 1.5))
    return Produced(
        chance.choice([*topics]),
        chance.choice([b"%d" % number] * 18 + [None, b""]),
        None if chance.random() < 0.05 else bytes(size),
        [("number", b"%d" % number), ("null", None), ("null", b"")],
    )


def taken_alone(kafka: Clients, records: Collection[Produced]) -> list[Produced]:
    """Those that their topics take, of records that are sent one by one."""
    taken: list[Produced] = []
    producer = Producer({"bootstrap.servers": kafka.address, "message.max.bytes": 1 << 24})
    for record in records:

        def delivered(error: KafkaError | None, _: object, record: Produced = record) -> None:
            if error is None:
                taken.append(record)

        producer.produce(
            record.topic, record.value, record.key, headers=[*record.headers], on_delivery=delivered
        )
        assert producer.flush(CALL_S) == 0
    return taken


@pytest.mark.parametrize("seed", range(2))
def test_each_record_of_a_mixed_transaction_comes_once_or_is_refused_for_its_own_sake(
    kafka: Clients, seed: int
) -> None:
    chance = random.Random(seed)
    service = Service(kafka)
    topics = [f"{service.target}-{name}" for name in TARGETS]
    for topic, config in zip(topics, TARGETS.values(), strict=True):
        kafka.make(topic, partitions=chance.choice([1, 3]), **config)
    process = service.process("one", None)
    process.open(NOTHING)
    records: list[Produced] = []
    for count in (50, 300, 50):
        some = [drawn(chance, topics, len(records) + at) for at in range(count)]
        records += some
        process.send(some, {topic: {0: len(records)} for topic in topics})
    process.close()
    came: Counter[int] = Counter()
    for topic in topics:
        last: dict[int, int] = {}
        for got in kafka.read_count(topic, 1):
            number = int(got.header("number"))
            record = records[number]
            assert (got.key, got.value, got.headers) == (record.key, record.value, record.headers)
            assert last.get(got.partition, -1) < number
            last[got.partition] = number
            came[number] += 1
    rejected = [int(got.header("number")) for got in kafka.read_count(service.topics.rejected, 1)]
    assert came + Counter(rejected) == Counter(range(len(records)))
    assert taken_alone(kafka, [records[number] for number in rejected]) == []
