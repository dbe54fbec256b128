"""What a target refuses of a transaction, and that it is no more than that."""

import pytest

pytest.importorskip("confluent_kafka")

from collections.abc import Collection

from tests.e2e.kafka.test_outlet_fences import NOTHING, Service
from tests.harness.kafka.clients import Clients
from timerwheel.kafka.translation import Produced

COUNT = 300


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
