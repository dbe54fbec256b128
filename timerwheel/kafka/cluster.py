"""A Kafka cluster as the bridge reaches it: addresses, properties, and the bridge's own topics.

Its clients are librdkafka's, by confluent-kafka. They block: each belongs to one thread.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclOperation
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from timerwheel.errors import TimerwheelError
from timerwheel.kafka.clients import CALL_S, Connection, check_properties, client_properties, error_text
from timerwheel.kafka.names import KafkaTopics

TRANSACTION_MS: Final = 60_000
"""librdkafka's default of `transaction.timeout.ms`."""
QUEUED_RECORDS: Final = 1_000
"""How many records a consumer fetches ahead: the limit in bytes does not count keys and headers."""
FETCH_WAIT_MS: Final = 500
"""How long a broker keeps a consumer waiting that has read everything."""
REJECTED_BYTES_MAX: Final = 16 << 20
"""`max.message.bytes` of the topic of rejected records, so that it takes what other topics refuse."""
POSITIONS_CONFIG: Final = {"cleanup.policy": "compact", "segment.bytes": str(16 << 20)}
"""Settings of the topic of positions. Brokers do not compact the last segment, and each `open` reads it."""
REFUSED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,  # noqa: SLF001 - so librdkafka's own errors are named
    }
)
"""Errors that say that brokers do not let this user do what it asked for."""

logger = logging.getLogger(__name__)


class BridgeError(TimerwheelError):
    """The bridge cannot work with this cluster now; the message says what to do."""

    code = "kafka"


class StoppedError(BridgeError):
    """The service stops, and does not wait for Kafka."""

    def __init__(self) -> None:
        super().__init__("the service stops")


class Cluster:
    """Makes clients of one cluster; `service` names this service there, and is the same after each start."""

    def __init__(
        self, servers: str, properties: Mapping[str, str], topics: KafkaTopics, service: str = ""
    ) -> None:
        self.topics = topics
        self.service = service
        self._servers, self._properties = servers, properties
        self._common = client_properties(servers, properties)

    @property
    def transaction_ms(self) -> int:
        """How long brokers let a transaction of this service last."""
        text = self._common.get("transaction.timeout.ms", "")
        return int(text) if text.isdecimal() else TRANSACTION_MS

    def check(self) -> None:
        """Raise SettingsError if no client can be made with the properties. Waits for no broker."""
        check_properties(self._properties, self._make_dry)

    def _make_dry(self, properties: Mapping[str, str]) -> None:
        dry = Cluster("", properties, self.topics, self.service)
        with dry.admin():
            dry.consumer().close()
        dry.producer(batch_bytes=1 << 16, message_bytes_max=1 << 20)

    def admin(self) -> AdminClient:
        """Return a client for topics."""
        return AdminClient(self._common)

    def consumer(self, *, committed: bool = True, wait_ms: int = FETCH_WAIT_MS) -> Consumer:
        """Return a consumer that is given its partitions and offsets, and reports each partition's end.

        A broker that has no more records says so after `wait_ms`.
        """
        return Consumer(
            self._common
            | {
                "group.id": f"timerwheel-{self.service}",  # librdkafka wants one; it is never joined
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "fetch.wait.max.ms": wait_ms,
                "queued.max.messages.kbytes": 16_384,
                "queued.min.messages": QUEUED_RECORDS,
                "fetch.queue.backoff.ms": 10,  # a full queue is empty again long before the default of 1 s
                "fetch.error.backoff.ms": 100,
            }
        )

    def producer(self, batch_bytes: int, message_bytes_max: int) -> Producer:
        """Return the transactional producer of this service, of which there is one at a time."""
        return Producer(
            self._common
            | {
                "transactional.id": f"timerwheel-{self.service}",
                "partitioner": "murmur2_random",  # as Java's
                "batch.size": batch_bytes,
                "message.max.bytes": message_bytes_max,
                "queue.buffering.max.messages": 1_000_000,
                "queue.buffering.max.kbytes": 1 << 20,
                "topic.metadata.propagation.max.ms": 200,
                "retry.backoff.ms": 50,
            }
        )

    def make_topics(self) -> list[str]:
        """Make the bridge's own topics that are missing, and return these.

        BridgeError, CannotConnectError, KafkaException.
        """
        inlet, rejected, positions = self.topics.inlet, self.topics.rejected, self.topics.positions
        wanted = {
            inlet: NewTopic(inlet, -1, -1, config={"message.timestamp.type": "LogAppendTime"}),
            rejected: NewTopic(rejected, -1, -1, config={"max.message.bytes": str(REJECTED_BYTES_MAX)}),
            positions: NewTopic(positions, 1, -1, config=POSITIONS_CONFIG),
        }
        with Connection(self._servers, self._properties) as connection:
            known, admin = connection.topics(), connection.admin
            missing = [topic for name, topic in wanted.items() if name not in known]
            asked = admin.create_topics(missing, request_timeout=CALL_S) if missing else {}
            made = [name for name, answer in asked.items() if _made(name, answer)]
            if positions not in made:  # a new one is as it was asked for, and not known everywhere yet
                _check_policy(admin, positions, compacted=True)
            return made

    def check_inlet(self, admin: AdminClient) -> None:
        """Raise BridgeError if the inlet's topic would lose records of one key that nobody has taken."""
        _check_policy(admin, self.topics.inlet, compacted=False)

    def inlet_id(self, admin: AdminClient) -> tuple[str, int]:
        """Return the id of the inlet's topic and the number of its partitions; KafkaException.

        A topic that is deleted and made again has another id.
        """
        inlet = self.topics.inlet
        found = admin.describe_topics(TopicCollection([inlet]), request_timeout=CALL_S)[inlet].result()
        return str(found.topic_id), len(found.partitions)

    def closed(self, topics: Iterable[str]) -> dict[str, str]:
        """Return those of these topics to which this user may not write, with the code of a refusal.

        Nobody may write to the topics that brokers use themselves. KafkaException.
        """
        found: dict[str, str] = {}
        with self.admin() as admin:
            asked = admin.describe_topics(
                TopicCollection(sorted(topics)), include_authorized_operations=True, request_timeout=CALL_S
            )
            for name, described in asked.items():
                topic = described.result()
                operations = topic.authorized_operations
                if topic.is_internal:
                    found[name] = "system_topic"
                elif operations and AclOperation.WRITE not in operations:
                    found[name] = "forbidden_topic"
        return found


def _made(name: str, made: Any) -> bool:  # noqa: ANN401 - a future without a type
    """Whether a topic was made now; False if it was there. Raises BridgeError."""
    try:
        made.result()
    except KafkaException as error:
        if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return False
        raise BridgeError(
            f"cannot create the Kafka topic {name}, which is missing or hidden from this user: "
            f"{error_text(error)}; create it as doc/kafka.md says, and give the user its rights"
        ) from None
    logger.info("made the Kafka topic %s", name)
    return True


def _check_policy(admin: AdminClient, topic: str, *, compacted: bool) -> None:
    """Raise BridgeError if a topic would lose what it is there for, because it is compacted or is not."""
    wanted, what = ("compact", "positions") if compacted else ("delete", "records before they are taken")
    resource = ConfigResource(ResourceType.TOPIC, topic)
    try:
        config = admin.describe_configs([resource], request_timeout=CALL_S)[resource].result()
    except KafkaException as error:
        logger.warning(
            "cannot check that the Kafka topic %s has cleanup.policy=%s: %s", topic, wanted, error_text(error)
        )
        return
    policy = config["cleanup.policy"].value
    if policy != wanted:
        raise BridgeError(
            f"the Kafka topic {topic} has cleanup.policy={policy} and would lose {what}; set it to {wanted}"
        )


def fatal_of(producer: Producer | None, error: SystemError) -> KafkaException | None:
    """Return the fatal error that confluent-kafka has turned into this SystemError; None if it is another.

    The library sets a fatal error in the middle of a call and still runs callbacks. Python reports that as a
    SystemError, sometimes without its cause. But the producer keeps its fatal error, and answers each
    `begin_transaction` with it. Drop a producer without one: it may have begun a transaction here.
    """
    if isinstance(error.__cause__, KafkaException):
        return error.__cause__
    if producer is not None:
        try:
            producer.begin_transaction()
        except KafkaException as found:
            if found.args[0].fatal():
                return found
    return None


def why_not(error: KafkaException, servers: str, of: str) -> str:
    """Return why brokers did not do what they were asked; `of` says what for, in a clause."""
    cause = error.args[0] if error.args else None
    if isinstance(cause, KafkaError) and cause.code() in REFUSED:
        return (
            f"the brokers refuse the Kafka user of this service, {of}: {error_text(error)}; doc/cluster.md "
            "lists the rights that it needs"
        )
    if isinstance(cause, KafkaError) and cause.code() == KafkaError.INVALID_TIMESTAMP:
        return (
            "the brokers refuse a record for its time: the clock of this node is far from theirs. Set it "
            "right; and set message.timestamp.type=LogAppendTime for the topic: then brokers note their time"
        )
    if isinstance(cause, KafkaError) and cause.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
        return (
            "the brokers take no transaction.timeout.ms as long as that of kafka_properties: shorten it, or "
            "let them take more with transaction.max.timeout.ms"
        )
    return f"Kafka at {servers} does not answer as it should: {error_text(error)}"
