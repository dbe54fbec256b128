"""Transactions of the outlet whose end brokers have lost: where they hang, and what is in them.

A coordinator that ends a transaction has a marker written into each partition of it. Brokers of Kafka 4.3.0
to 4.4.0 leave it out where the partition has no leader just then, as while its broker starts again, for they
take it for deleted (KAFKA-20734). There the transaction *hangs*: committed readers stop at its first record,
until the producer ends another one in the partition, which ends the first in the same way, whatever became
of it elsewhere.

    it hangs in               how it had ended                 what the outlet does
    positions and targets     nobody can see                   aborts it; its messages go out again
    targets only              as the committed positions say   has the positions say which messages are to be
                                                               sent again, if any; aborts it; sends them

To abort is to abort another one that has a record in each partition: a copy of the first that hangs there, so
that `read_uncommitted` readers see nothing new.

1. At most one transaction of the outlet hangs: none begins before committed readers have passed the last.
2. What hangs was seen by no committed reader.

Not seen is one behind an open transaction of another producer, which holds committed readers back as well.
"""

import logging
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack
from typing import Any, Final, NamedTuple

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin._listoffsets import OffsetSpec

from timerwheel.clock import Clock
from timerwheel.kafka.cluster import CALL_S, Cluster, said
from timerwheel.kafka.envelope import UnreadableHeadersError, headers_of
from timerwheel.kafka.names import ID
from timerwheel.kafka.translation import Produced

GRACE_MS: Final = 1_000
"""How long a partition may take to let committed readers pass what has ended, as after a change of leader."""
LOOK_S: Final = 0.002
"""How long to wait between two looks at the committed end of partitions."""
READ_RECORDS_MAX: Final = 100_000
"""How far to read in a partition in which a transaction hangs; others' records follow it."""
_offsets: Any = OffsetSpec  # its functions have no types
_GONE: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED})

logger = logging.getLogger(__name__)


class Place(NamedTuple):
    """A partition."""

    topic: str
    partition: int

    def at(self, offset: int) -> TopicPartition:
        """Return an offset in it."""
        return TopicPartition(self.topic, self.partition, offset)


class Hanging(NamedTuple):
    """A partition that a transaction holds back: from which offset on, and its records there, in order."""

    place: Place
    offset: int
    records: list[Produced]

    @property
    def ids(self) -> set[str]:
        """The ids of the messages in it."""
        return {(value or b"").decode() for one in self.records for name, value in one.headers if name == ID}


class Found(NamedTuple):
    """What a look found, and the partitions that have no leader, so that nobody can look."""

    hanging: list[Hanging]
    unseen: set[Place]


class Ends:
    """The ends of partitions. It blocks; raises KafkaException. `close` it."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._stack = ExitStack()
        self._admin = self._stack.enter_context(cluster.admin())

    def close(self) -> None:
        """Let go of the brokers."""
        self._stack.close()

    def committed(self, places: Collection[Place]) -> dict[Place, int]:
        """Return up to where committed readers get; without partitions that were deleted."""
        return self._ends(places, IsolationLevel.READ_COMMITTED)

    def _ends(self, places: Collection[Place], level: IsolationLevel) -> dict[Place, int]:
        if not places:
            return {}
        wanted = {TopicPartition(*place): _offsets.latest() for place in places}
        answers = self._admin.list_offsets(wanted, isolation_level=level, request_timeout=CALL_S)
        found: dict[Place, int] = {}
        for answered, answer in answers.items():
            try:
                found[Place(answered.topic, answered.partition)] = answer.result().offset
            except KafkaException as error:
                if error.args[0].code() not in _GONE:
                    raise
        return found

    def find(self, topics: Iterable[str]) -> Found:
        """Return where a transaction of a service hangs in these topics, so far as they are there.

        Whatever this service had open has ended before.
        """
        known = self._admin.list_topics(timeout=CALL_S).topics
        led: set[Place] = set()
        unseen: set[Place] = set()
        for topic in known.keys() & set(topics):
            for number, partition in known[topic].partitions.items():
                (led if partition.leader >= 0 else unseen).add(Place(topic, number))
        ends = self._ends(led, IsolationLevel.READ_UNCOMMITTED)
        held = self._held(ends)
        found = [self._read(place, offset, ends[place]) for place, offset in sorted(held.items())]
        return Found([one for one in found if one is not None], unseen)

    def _held(self, ends: Mapping[Place, int]) -> dict[Place, int]:
        """Return where committed readers do not get to these ends."""
        until_ms = self._clock.monotonic_ms() + GRACE_MS
        held = self.committed(ends)
        while held := {place: offset for place, offset in held.items() if offset < ends[place]}:
            if self._clock.monotonic_ms() >= until_ms:
                break
            self._admin.poll(LOOK_S)
            held = self.committed(held)
        return held

    def _read(self, place: Place, offset: int, end: int) -> Hanging | None:
        """Return what a service has from an offset on, if the record there is one of a service."""
        records: list[Produced] = []
        try:
            for message in self._messages(place, offset, end):
                if (record := self._of_service(message)) is not None:
                    records.append(record)
                elif message.offset() == offset:
                    return None
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise
            logger.warning(
                "a transaction is open in %s/%d, and this user may not read there, so whether it is one of "
                "this service that brokers have lost is unknown: %s", *place, said(error),
            )  # fmt: skip
        return Hanging(place, offset, records) if records else None

    def _messages(self, place: Place, offset: int, end: int) -> Iterable[Message]:
        """Yield the records [offset, end) of a partition, whether committed or not."""
        end = min(end, offset + READ_RECORDS_MAX)
        with self._cluster.consumer(committed=False) as consumer:
            consumer.assign([place.at(offset)])
            while (message := consumer.poll(CALL_S)) is not None:
                if (error := message.error()) is None:
                    if (message.offset() or 0) < end:
                        yield message
                elif error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - so it is named
                    raise KafkaException(error)
                if (message.offset() or 0) >= end - 1:
                    return

    def _of_service(self, message: Message) -> Produced | None:
        """Return a record that this service has produced, or another one of its kind."""
        try:
            headers = headers_of(message)
        except UnreadableHeadersError:
            return None
        key = message.key()
        is_position = message.topic() == self._cluster.topics.positions and (key or b"").startswith(
            self._cluster.service.encode()
        )
        if not is_position and ID not in dict(headers):
            return None
        return Produced(message.topic() or "", key, message.value(), headers)
