"""Clients of the tests: a producer, and a reader of what a `read_committed` consumer gets."""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic

CALL_S = 30.0
PATIENCE_S = 300.0  # only keeps a failure from hanging

Headers = Sequence[tuple[str, bytes | None]]


class Got(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    partition: int
    read_ms: int
    stored_ms: int

    def header(self, name: str) -> str:
        """The text of a header, the last of its name."""
        return {name: (value or b"").decode(errors="replace") for name, value in self.headers}[name]


class Clients:
    """Everything that tests do with one broker."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._producer = Producer({"bootstrap.servers": address, "linger.ms": 1})

    def wait(self) -> None:
        """Return when the broker answers."""
        AdminClient({"bootstrap.servers": self.address, "log_level": 0}).list_topics(timeout=PATIENCE_S)

    def make(self, *topics: str, partitions: int = 1, **config: str) -> None:
        """Make topics."""
        admin = AdminClient({"bootstrap.servers": self.address})
        settings = {name.replace("_", "."): value for name, value in config.items()}
        wanted = [NewTopic(topic, partitions, 1, config=settings) for topic in topics]
        for made in admin.create_topics(wanted).values():
            made.result()

    def forbid(self, topic: str) -> None:
        """Let nobody write to a topic, which all may still see."""
        literal = ResourcePatternType.LITERAL
        everybody = ("User:ANONYMOUS", "*")
        rules = [
            AclBinding(ResourceType.TOPIC, topic, literal, *everybody, operation, permission)
            for operation, permission in (
                (AclOperation.ALL, AclPermissionType.ALLOW),
                (AclOperation.WRITE, AclPermissionType.DENY),
            )
        ]
        admin = AdminClient({"bootstrap.servers": self.address})
        for made in admin.create_acls(rules).values():
            made.result()

    def send(self, topic: str, value: bytes | None, headers: Headers = (), key: bytes | None = None) -> None:
        """Produce one record; `flush` follows."""
        while True:
            try:
                self._producer.produce(topic, value, key, headers=list(headers))
            except BufferError:
                self._producer.poll(0.1)
            else:
                return

    def flush(self) -> None:
        """Return when what was sent is stored."""
        assert self._producer.flush(PATIENCE_S) == 0

    def transaction(self, records: Iterable[tuple[str, bytes, Headers]], *, commit: bool) -> None:
        """Produce records in a transaction of one's own."""
        producer = Producer({"bootstrap.servers": self.address, "transactional.id": f"test-{time.time_ns()}"})
        producer.init_transactions(CALL_S)
        producer.begin_transaction()
        for topic, value, headers in records:
            producer.produce(topic, value, headers=list(headers))
        producer.flush(CALL_S)
        if commit:
            producer.commit_transaction(CALL_S)
        else:
            producer.abort_transaction(CALL_S)

    def read(self, topic: str, enough: Callable[[list[Got]], bool], *, committed: bool = True) -> list[Got]:
        """Read a topic from its begin until it is enough, and then what is there besides."""
        level = "read_committed" if committed else "read_uncommitted"
        consumer = Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": "tests",
                "enable.auto.commit": False,
                "isolation.level": level,
                "enable.partition.eof": True,
            }
        )
        until = time.monotonic() + PATIENCE_S
        while not (partitions := consumer.list_topics(topic, timeout=CALL_S).topics[topic].partitions):
            assert time.monotonic() < until, f"there is no topic {topic}"  # the service makes some of them
            time.sleep(0.05)
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        found: list[Got] = []
        at_end: set[int] = set()
        while not (enough(found) and len(at_end) == len(partitions)):
            assert time.monotonic() < until, f"{topic} has only {len(found)} records"
            message = consumer.poll(0.2)
            if message is None:
                continue
            if message.error() is not None:
                if message.error().code() == KafkaError._PARTITION_EOF:
                    at_end.add(message.partition())
                continue
            at_end.discard(message.partition())
            read_ms = time.time_ns() // 1_000_000
            headers = [*(message.headers() or [])]
            times_ms = (read_ms, message.timestamp()[1])
            found.append(Got(message.key(), message.value(), headers, message.partition(), *times_ms))
        consumer.close()
        return found

    def configured(self, topic: str) -> dict[str, str]:
        """The settings of a topic. One that was just made is not known to the broker for a moment."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        until = time.monotonic() + PATIENCE_S
        with AdminClient({"bootstrap.servers": self.address}) as admin:
            while True:
                try:
                    found = admin.describe_configs([resource])[resource].result()
                except KafkaException as error:
                    if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART or time.monotonic() > until:
                        raise
                    time.sleep(0.05)
                else:
                    return {name: entry.value for name, entry in found.items()}

    def topics(self) -> frozenset[str]:
        """The names of all topics."""
        with AdminClient({"bootstrap.servers": self.address}) as admin:
            return frozenset(admin.list_topics(timeout=CALL_S).topics)

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        with AdminClient({"bootstrap.servers": self.address}) as admin:
            admin.delete_topics([topic])[topic].result()
        until = time.monotonic() + PATIENCE_S
        while topic in self.topics():
            assert time.monotonic() < until, f"{topic} is still there"

    def delete_records(self, topic: str) -> None:
        """Delete what a topic has, as retention does."""
        places = [TopicPartition(topic, number, end) for number, end in self.ends(topic).items()]
        with AdminClient({"bootstrap.servers": self.address}) as admin:
            for deleted in admin.delete_records(places).values():
                deleted.result()

    def ends(self, topic: str) -> dict[int, int]:
        """The offset behind the last record of each partition."""
        settings = {"group.id": "tests", "isolation.level": "read_uncommitted"}
        consumer = Consumer({"bootstrap.servers": self.address, **settings})
        try:
            partitions = consumer.list_topics(topic, timeout=CALL_S).topics[topic].partitions
            return {
                number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=CALL_S)[1]
                for number in partitions
            }
        finally:
            consumer.close()

    def read_count(self, topic: str, count: int) -> list[Got]:
        """Read a topic until it has so many records."""
        return self.read(topic, lambda found: len(found) >= count)
