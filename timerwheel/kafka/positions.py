"""The outlet's positions in Kafka: one compacted partition, written in the transactions of what they count.

    key                    value
    SERVICE                {"run": "...",         the process that produces for this service
                            "journal": "..."}     and the journal that it leads, if its log is in one
    SERVICE TOPIC          {"0": 1712, ...        the next offset of each queue of a topic
                            "again": {"0": [9]}}  and earlier ones that are to be sent again

The log has a copy of them that is some seconds old, and the name of the topic. So positions that are lost
with the topic are found again but for these seconds; and another inlet, with another topic beside it, goes on
from those of the earlier one.

Why not the offsets of a consumer group: Kafka deletes those of a group without members after a week.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from timerwheel.kafka.clients import CALL_S
from timerwheel.kafka.cluster import BridgeError, Cluster

PARTITION = 0
_AGAIN = "again"
END_WAIT_MS = 20
"""How long a broker may take to say that there are no more: while positions are read, nothing goes out."""


T = TypeVar("T")


class Run(NamedTuple):
    """A process that produces, and the journal that it leads; None if its log is in none."""

    name: str
    journal: str | None = None


Repeats = dict[str, dict[int, list[int]]]
"""Queue offsets by topic and queue."""


class Positions(NamedTuple):
    """What a service has stored; `run` is None before its first run.

    `again` are messages before `offsets` that are to be sent again: brokers have lost that they count.
    `others` are other services that have stored something there, with the time of the last record.
    """

    run: Run | None
    offsets: dict[str, dict[int, int]]
    again: Repeats
    others: Mapping[str, int] = {}

    @property
    def whole(self) -> dict[str, dict[int, int]]:
        """The offsets up to which each message is in Kafka."""
        return {
            topic: {
                queue: min([offset, *self.again.get(topic, {}).get(queue, ())])
                for queue, offset in offsets.items()
            }
            for topic, offsets in self.offsets.items()
        }


class Noted(NamedTuple):
    """What the service's log knows: the topic of the positions, and offsets up to which all was sent."""

    topic: str | None
    sent: Mapping[str, Mapping[int, int]]


def latest(
    one: Mapping[str, Mapping[int, int]], other: Mapping[str, Mapping[int, int]]
) -> dict[str, dict[int, int]]:
    """Return the later one of each offset: what one of two has counted as sent was sent."""
    found = {topic: dict(offsets) for topic, offsets in one.items()}
    for topic, offsets in other.items():
        known = found.setdefault(topic, {})
        for queue, offset in offsets.items():
            known[queue] = max(offset, known.get(queue, 0))
    return found


def joined(each: Iterable[Repeats], offsets: Mapping[str, Mapping[int, int]]) -> Repeats:
    """Return all of these together; what is behind these offsets is sent anyway."""
    found: dict[str, dict[int, set[int]]] = {}
    for repeats in each:
        for topic, queues in repeats.items():
            for queue, places in queues.items():
                end = offsets.get(topic, {}).get(queue, 0)
                earlier = {place for place in places if place < end}
                if earlier:
                    found.setdefault(topic, {}).setdefault(queue, set()).update(earlier)
    return {
        topic: {queue: sorted(places) for queue, places in queues.items()} for topic, queues in found.items()
    }


def run_record(service: str, run: Run) -> tuple[bytes, bytes]:
    """Return key and value of the record that says which process produces."""
    journal = {} if run.journal is None else {"journal": run.journal}
    return service.encode(), msgspec.json.encode({"run": run.name, **journal})


def offsets_record(
    service: str, topic: str, offsets: Mapping[int, int], again: Mapping[int, list[int]] | None = None
) -> tuple[bytes, bytes]:
    """Return key and value of the record that says how far the queues of a topic have gone out."""
    texts: dict[str, object] = {str(queue): offset for queue, offset in offsets.items()}
    if again:
        texts[_AGAIN] = {str(queue): repeats for queue, repeats in again.items()}
    return f"{service} {topic}".encode(), msgspec.json.encode(texts)


def read(
    cluster: Cluster, topic: str = "", until: int | None = None, check: Callable[[], None] = lambda: None
) -> Positions:
    """Read what was committed up to now, by default in the topic of the bridge; KafkaException, BridgeError.

    An open transaction of another service holds the committed end back: this waits for it, because what is
    behind that end may be committed too. With `until` it reads up to that offset only. `check` is called
    between two records, and may raise.
    """
    partition = TopicPartition(topic or cluster.topics.positions, PARTITION)
    with cluster.consumer(committed=False) as consumer:
        first, end = consumer.get_watermark_offsets(partition, timeout=CALL_S)
    end = end if until is None else until
    newest: dict[str, Any] = {}
    others: dict[str, int] = {}
    name = cluster.service.encode()
    with cluster.consumer(wait_ms=END_WAIT_MS) as consumer:
        consumer.assign([TopicPartition(partition.topic, PARTITION, first)])
        while True:
            check()
            message = consumer.poll(CALL_S)
            if message is None:
                raise BridgeError(f"the Kafka topic {partition.topic} could not be read to its end")
            if (error := message.error()) is not None:
                if error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - so it is named
                    raise KafkaException(error)
                if (message.offset() or 0) >= end:
                    return positions_of(newest)._replace(others=others)
                continue
            service, _, topic_key = (message.key() or b"").partition(b" ")
            if service == name:
                newest[topic_key.decode()] = msgspec.json.decode(message.value() or b"{}")
            else:
                others[service.decode(errors="replace")] = message.timestamp()[1]


def positions_of(newest: dict[str, Any]) -> Positions:
    """Return what the newest record of each topic says, and that of the run, which has no topic."""
    run = newest.pop("", {})
    again = {topic: _by_queue(value.pop(_AGAIN)) for topic, value in newest.items() if _AGAIN in value}
    offsets = {topic: _by_queue(value) for topic, value in newest.items()}
    return Positions(Run(run["run"], run.get("journal")) if "run" in run else None, offsets, again)


def _by_queue(value: dict[str, T]) -> dict[int, T]:
    return {int(queue): found for queue, found in value.items()}
