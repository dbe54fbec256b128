"""The outlet's positions in Kafka: one compacted partition, written in the transactions of what they count.

    key                    value
    SERVICE                {"run": "..."}         the process that produces for this service
    SERVICE TOPIC          {"0": 1712, ...}       the next offset of each queue of a topic

Why not the offsets of a consumer group: Kafka deletes those of a group without members after a week.
"""

from typing import NamedTuple

import msgspec
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from timerwheel.kafka.cluster import CALL_S, BridgeError, Cluster

PARTITION = 0


class Positions(NamedTuple):
    """What a service has stored; `run` is None before its first run."""

    run: str | None
    offsets: dict[str, dict[int, int]]


def run_record(service: str, run: str) -> tuple[bytes, bytes]:
    """Return key and value of the record that says which process produces."""
    return service.encode(), msgspec.json.encode({"run": run})


def offsets_record(service: str, topic: str, offsets: dict[int, int]) -> tuple[bytes, bytes]:
    """Return key and value of the record that says how far the queues of a topic have gone out."""
    texts = {str(queue): offset for queue, offset in offsets.items()}
    return f"{service} {topic}".encode(), msgspec.json.encode(texts)


def read(cluster: Cluster) -> Positions:
    """Read what was committed up to now; KafkaException, BridgeError.

    An open transaction of another service holds the committed end back: this waits for it, because what is
    behind that end may be committed too.
    """
    partition = TopicPartition(cluster.topics.positions, PARTITION)
    with cluster.consumer(committed=False) as consumer:
        first, end = consumer.get_watermark_offsets(partition, timeout=CALL_S)
    run: str | None = None
    offsets: dict[str, dict[int, int]] = {}
    name = cluster.service.encode()
    with cluster.consumer() as consumer:
        consumer.assign([TopicPartition(partition.topic, PARTITION, first)])
        while True:
            message = consumer.poll(CALL_S)
            if message is None:
                raise BridgeError(f"the Kafka topic {partition.topic} could not be read to its end")
            if (error := message.error()) is not None:
                if error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - so it is named
                    raise KafkaException(error)
                if (message.offset() or 0) >= end:
                    return Positions(run, offsets)
                continue
            service, _, topic = (message.key() or b"").partition(b" ")
            if service != name:
                continue
            value = msgspec.json.decode(message.value() or b"{}")
            if topic:
                offsets[topic.decode()] = {int(queue): offset for queue, offset in value.items()}
            else:
                run = value.get("run")
