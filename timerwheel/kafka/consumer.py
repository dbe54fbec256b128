"""The inlet's view of its Kafka topic: committed records, from positions that the log has.

1. It joins no group and commits no offset: where it goes on is what `open` is given.
2. What an aborted transaction wrote is not seen.
3. The id of the topic is asked for after records were fetched. If it is still the one of the positions, so
   are the records: brokers serve a topic that was made again under its name from the old offsets on.

It blocks: one thread of its own.
"""

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Final, NamedTuple

from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from timerwheel.clock import Clock
from timerwheel.kafka.clients import CALL_S
from timerwheel.kafka.cluster import BridgeError, Cluster, StoppedError
from timerwheel.kafka.envelope import UnreadableHeadersError, headers_of
from timerwheel.kafka.translation import Taken
from timerwheel.model.kafka_counts import Lag

TAKE_RECORDS_MAX: Final = 5_000
TAKE_BYTES_MAX: Final = 16 << 20
"""Bytes of records after which no more are taken at once."""
PART_RECORDS: Final = 100
"""How many records to take between two looks at their bytes."""
TAKE_S: Final = 0.2
"""How long to wait for a record; the stop of the service waits so long."""
GATHER_MS: Final = 10
"""How long to wait for more records after the first: each batch costs a commit of the log."""
LOOK_MS: Final = 5_000
"""How often to look for new partitions while no record comes."""

logger = logging.getLogger(__name__)


class Batch(NamedTuple):
    """Records in the order of each partition, and where the partitions are.

    `is_whole` says that each partition has been read from since `open`, if only that there is nothing.
    """

    records: list[Taken]
    lags: dict[int, Lag]
    is_whole: bool


class InletConsumer:
    """See the module. `stop` may be called by any thread."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._consumer: Consumer | None = None
        self._admin: AdminClient | None = None
        self._stack = ExitStack()
        self._next: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._unread: set[int] = set()
        self._look_ms = 0
        self._stopped = False
        self.topic_id = ""

    def open(self, stored: Mapping[str, int]) -> int:
        """Begin at the stored positions, by `position_key`; at the first record of a partition without one.

        Returns how many offsets behind these positions Kafka has deleted. Raises KafkaException and
        BridgeError; call it again, except after StoppedError.
        """
        self.close()
        made = self._cluster.make_topics()
        self._admin = self._stack.enter_context(self._cluster.admin())
        if self._cluster.topics.inlet not in made:
            self._cluster.check_inlet(self._admin)
        self.topic_id, count = self._cluster.inlet_id(self._admin)
        self._consumer = self._cluster.consumer()
        self._next, self._unread = {}, set()
        return self._assign(self._consumer, count, stored)

    def position_key(self, partition: int) -> str:
        """Return the name of a partition's position, which is another after the topic was made again."""
        return f"{self.topic_id}/{partition}"

    def _assign(self, consumer: Consumer, count: int, stored: Mapping[str, int]) -> int:
        topic, deleted = self._cluster.topics.inlet, 0
        for partition in range(count):
            if partition in self._next:
                continue
            if self._stopped:  # a broker may be slow, and partitions many
                raise StoppedError
            first, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=CALL_S)
            position = stored.get(self.position_key(partition), first)
            if position < first:
                logger.error(
                    "Kafka deleted %s/%d from offset %d to %d before it was taken: records there are lost",
                    topic, partition, position, first - 1,
                )  # fmt: skip
                deleted += first - position
                position = first
            self._next[partition], self._ends[partition] = position, end
            self._unread.add(partition)
        consumer.assign([TopicPartition(topic, *item) for item in self._next.items()])
        self._look_ms = self._clock.monotonic_ms() + LOOK_MS
        return deleted

    def take(self) -> Batch:
        """Return the next records; none after TAKE_S without any.

        Raises KafkaException; BridgeError if the topic was made again. Then `open` it again.
        """
        assert self._consumer is not None
        records = self._records(self._consumer)
        if records or self._clock.monotonic_ms() >= self._look_ms:
            self._check_topic(self._consumer)
        return Batch(records, self.lags(), not self._unread)

    def lags(self) -> dict[int, Lag]:
        """Return where the partitions are: what is before is taken, or nothing that counts."""
        return {partition: self._lag(partition) for partition in self._next}

    def _records(self, consumer: Consumer) -> list[Taken]:
        first = consumer.poll(TAKE_S)
        part, asked = [] if first is None else [first], 1
        until_ms = self._clock.monotonic_ms() + GATHER_MS
        records: list[Taken] = []
        size_bytes, largest_bytes = 0, 1
        while part:
            for message in part:
                if (error := message.error()) is not None:
                    self._note(message, error)
                else:
                    records.append(taken := self._taken(message))
                    taken_bytes = taken.size_bytes
                    size_bytes += taken_bytes
                    largest_bytes = max(largest_bytes, taken_bytes)
            fit = max((TAKE_BYTES_MAX - size_bytes) // largest_bytes, 1)
            room = min(TAKE_RECORDS_MAX - len(records), PART_RECORDS, fit)
            if len(part) < asked or not room or size_bytes >= TAKE_BYTES_MAX:
                break
            left_ms = max(until_ms - self._clock.monotonic_ms(), 0)
            part, asked = consumer.consume(room, left_ms / 1000), room
        return records

    def _check_topic(self, consumer: Consumer) -> None:
        assert self._admin is not None
        topic_id, count = self._cluster.inlet_id(self._admin)
        if topic_id != self.topic_id:
            raise BridgeError(f"the Kafka topic {self._cluster.topics.inlet} was deleted and created again")
        if count > len(self._next):
            logger.info("%s has %d partitions now", self._cluster.topics.inlet, count)
            self._assign(consumer, count, {})
        self._look_ms = self._clock.monotonic_ms() + LOOK_MS

    def _note(self, message: Message, error: KafkaError) -> None:
        if error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - so it is named
            raise KafkaException(error)
        partition, offset = message.partition() or 0, message.offset() or 0
        self._ends[partition] = self._next[partition] = offset  # behind markers and what was aborted
        self._unread.discard(partition)

    def _taken(self, message: Message) -> Taken:
        kind, time_ms = message.timestamp()
        partition, offset = message.partition() or 0, message.offset() or 0
        self._next[partition] = offset + 1
        self._unread.discard(partition)
        try:
            headers = headers_of(message)
        except UnreadableHeadersError:
            headers = None
        return Taken(
            message.topic() or "",
            partition,
            offset,
            message.key(),
            message.value(),
            headers,
            time_ms if kind == TIMESTAMP_LOG_APPEND_TIME else None,
        )

    def _lag(self, partition: int) -> Lag:
        assert self._consumer is not None
        place = TopicPartition(self._cluster.topics.inlet, partition)
        known = self._consumer.get_watermark_offsets(place, cached=True)
        end = max(self._ends[partition], known[1])
        return Lag(self._next[partition], max(end - self._next[partition], 0))

    def stop(self) -> None:
        """Let `open` and `take` ask for no further partition."""
        self._stopped = True

    def close(self) -> None:
        """Leave Kafka."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
        self._stack.close()
