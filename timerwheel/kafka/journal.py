"""A topic of one partition as the journal of a log: `timerwheel.store.journal.Journal`, by epoch append.

    topic      CLUSTER-log, one partition, never compacted; a record is a run, with its label in a header
    leader     the transactional producer CLUSTER-log; a claim is `init_transactions` and a record, the fence
    durable    acks=all: on `min.insync.replicas` brokers
    readers    read_uncommitted: whether a transaction is committed or aborted means nothing

A transaction is open only so that records have the producer's epoch, and only while records come: one that
stays open for too long would fence its own producer. Once the fence is stored, the partition knows the new
epoch and refuses older ones, also where brokers have lost the end of an earlier leader's transaction. Why
this loses nothing, and what of Kafka it needs: `doc/decisions.md`. After a failed claim or append the
producer is gone: only another claim makes a new one.
"""

import logging
import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from threading import Event
from typing import Any, Final

from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from timerwheel.clock import Clock
from timerwheel.kafka import journal_topic
from timerwheel.kafka.broker_clock import BrokerClock
from timerwheel.kafka.clients import (
    CALL_S,
    CannotConnectError,
    Connection,
    check_properties,
    client_properties,
    error_text,
)
from timerwheel.kafka.cluster import fatal_of, why_not
from timerwheel.settings import JournalAddress
from timerwheel.store.errors import JournalAwayError, JournalFencedError, JournalMismatchError, LogFailedError
from timerwheel.store.journal import FENCE, Extent, Placed, Run, label, labelled

APPEND_MS_MAX: Final = 15_000
"""How long an append waits for the brokers: they replace a leader within about 10 s."""
TRANSACTION_MS_MAX: Final = 60_000
"""After this time the brokers abort a transaction that is still open, and fence its producer."""
IDLE_MS: Final = 500
"""An open transaction is ended once nothing was appended for so long."""
OPEN_MS_MAX: Final = 10_000
"""An open transaction is ended after so long also if more comes."""
CLAIM_S: Final = 20.0
"""How long a claim waits for the brokers, the end of another leader's transaction, and its own fence."""
RETRY_S: Final = 0.1
FOLLOW_S: Final = 0.05
"""How long `follow` waits for more."""
READ_RECORDS: Final = 200
RUN_OVERHEAD_BYTES: Final = 512
"""What a batch with one record takes beside the record's value, at most."""
HEADER: Final = "run"
NO_STAMP: Final = -1
"""For a record that has no time of a broker, since its topic keeps the time of the client."""
PARTITION: Final = 0
FENCED: Final = frozenset(
    {
        KafkaError._FENCED,  # noqa: SLF001 - so librdkafka's own errors are named
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.TRANSACTION_COORDINATOR_FENCED,
    }
)
"""Errors that say that another process has claimed the journal."""

logger = logging.getLogger(__name__)


class KafkaJournal:
    """See the module."""

    def __init__(
        self, address: JournalAddress, properties: Mapping[str, str], clock: Clock, *, replication: int = 0
    ) -> None:
        """Raises SettingsError if no client can be made with the properties. Waits for no broker."""
        self.topic = address.topic
        self.run_bytes_max = 0
        self._place = TopicPartition(self.topic, PARTITION)
        self._replication = replication
        self._clock = clock
        self._properties = dict(properties)
        self._servers = address.servers
        self._producer: Producer | None = None
        self._is_open = False
        self._opened_ms = self._appended_ms = 0
        self._warned: tuple[str, ...] = ()  # at the last look at the topic
        self._has_led = False  # since it last began to claim
        self._broker_clock = BrokerClock()
        check_properties(properties, self._make_dry)

    def _make_dry(self, properties: Mapping[str, str]) -> None:
        for name in ("message.timeout.ms", "delivery.timeout.ms"):
            if properties.get(name) == "0":
                raise ValueError(f"{name}=0 would let an append wait forever")
        dry = copy(self)
        dry._servers, dry._properties = "", dict(properties)  # noqa: SLF001 - of the same class
        with dry._connection():  # noqa: SLF001 - as above
            dry._consumer().close()  # noqa: SLF001 - as above
        dry._new_producer(message_bytes_max=1 << 20)  # noqa: SLF001 - as above

    def _client(self) -> dict[str, Any]:
        return client_properties(self._servers, self._properties)

    def _connection(self) -> Connection:
        return Connection(self._servers, self._properties)

    def _admin(self) -> AdminClient:
        return AdminClient(self._client())

    def _consumer(self) -> Consumer:
        return Consumer(
            self._client()
            | {
                "group.id": self.topic,  # librdkafka wants one; it is never joined
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "isolation.level": "read_uncommitted",
                "queued.max.messages.kbytes": 32_768,
            }
        )

    def _new_producer(self, message_bytes_max: int) -> Producer:
        times = {"message.timeout.ms": APPEND_MS_MAX, "transaction.timeout.ms": TRANSACTION_MS_MAX}
        return Producer(
            times
            | self._client()
            | {
                "transactional.id": self.topic,
                "linger.ms": 0,
                "message.max.bytes": message_bytes_max,
                "queue.buffering.max.kbytes": 1 << 21,
                "topic.metadata.propagation.max.ms": 5_000,
                "retry.backoff.ms": 50,
                "reconnect.backoff.max.ms": 1_000,
            }
        )

    def claim(self, *, make: bool = True) -> Extent:
        """Become the leader; makes the topic if it is missing.

        Raises JournalAwayError; JournalFencedError if another process claims the journal just then; and
        JournalMismatchError for a topic with settings that would lose records, or for a missing one that is
        not to be made.
        """
        return self._in_topic(self._lead, make=make)

    def topics(self) -> frozenset[str]:
        """Return the names of all topics that the brokers show; JournalAwayError."""
        with self._explained(), self._connection() as connection:
            return frozenset(connection.topics())

    def extent(self, *, make: bool = True) -> Extent:
        """Return what there is now; makes the topic if it is missing. Raises as `claim`."""
        return self._in_topic(self._extent, make=make)

    def _in_topic(self, call: Callable[[AdminClient], Extent], *, make: bool) -> Extent:
        """Make a call about the topic, which is made first if it is missing."""
        until_ms = self._clock.monotonic_ms() + int(CLAIM_S * 1000)
        with self._explained(), self._connection() as connection:
            admin = connection.admin
            if self.topic not in connection.topics():
                if not make:
                    raise JournalMismatchError(
                        f"there is no Kafka topic {self.topic} at {self._servers}, though the data directory "
                        "has a log. Was the topic deleted, or --journal changed? Nothing was "
                        "changed. doc/cluster.md says how a copy is put into a new topic"
                    )
                self._make(admin)
            while True:
                try:
                    return call(admin)
                except KafkaException as error:  # a broker hears late of a topic that was just made
                    unknown = error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
                    if not unknown or self._clock.monotonic_ms() >= until_ms:
                        raise
                Event().wait(RETRY_S)

    def _lead(self, admin: AdminClient) -> Extent:
        self.close()
        if self._has_led:  # each claim says what there is to warn of, but not each try
            self._warned, self._has_led = (), False
        checked = self._checked(admin)
        self.run_bytes_max = checked.message_bytes_max - RUN_OVERHEAD_BYTES
        self._producer = self._new_producer(checked.message_bytes_max)
        try:
            end = self._fence_others(self._producer)
            # Not the end that brokers tell: the fence would make up for records that they have lost.
            found = self._extent(admin)._replace(end=end)
        except BaseException:
            self.close()
            raise
        self._has_led = True
        logger.info("claimed the Kafka topic %s, which has positions %d to %d", self.topic, *found[1:])
        return found

    def _fence_others(self, producer: Producer) -> int:
        """Have the coordinator and the partition refuse the epochs of earlier leaders.

        Returns the position of the fence, behind everything that they have stored. KafkaException.
        """
        until_ms = self._clock.monotonic_ms() + int(CLAIM_S * 1000)
        self._until_done(producer.init_transactions, until_ms)
        # A marker should stand behind all records of the earlier leader by now. If brokers have lost it, its
        # transaction is still open in the partition, which would take more of it.
        producer.begin_transaction()
        [position], _ = self._store([FENCE], producer, until_ms)
        # Not left open: a start may copy and replay for longer than brokers keep a transaction.
        self._until_done(producer.commit_transaction, until_ms)
        return position

    def _checked(self, admin: AdminClient) -> journal_topic.Checked:
        checked = journal_topic.check(admin, self.topic, journal_topic.principal_of(self._properties))
        self._warn(checked.warnings)
        return checked

    def _warn(self, warnings: tuple[str, ...]) -> None:
        """Say what there is to warn of, each once until it is over."""
        for warning in warnings:
            if warning not in self._warned:
                logger.warning("%s", warning)
        self._warned = warnings

    def check(self) -> None:
        """Look at the topic's settings, as a claim does, while this process leads. Any thread may call.

        Warns of what is new, also of rights that this user lacks by now. Raises JournalMismatchError for a
        setting with which messages would be lost, and JournalAwayError if the brokers do not answer.
        """
        with self._explained(), self._admin() as admin:
            try:
                self._checked(admin)
            except JournalAwayError as error:
                self._warn((str(error),))

    def _extent(self, admin: AdminClient) -> Extent:
        found = admin.describe_topics(TopicCollection([self.topic]), request_timeout=CALL_S)
        name = f"{self.topic}/{found[self.topic].result().topic_id}"
        with self._consumer() as consumer:
            return Extent(name, *consumer.get_watermark_offsets(self._place, timeout=CALL_S))

    def _make(self, admin: AdminClient) -> None:
        brokers = len(admin.list_topics(timeout=CALL_S).brokers)
        replicas = self._replication or min(journal_topic.REPLICAS, brokers)
        topic = NewTopic(self.topic, 1, replicas, config=journal_topic.config(replicas))
        try:
            admin.create_topics([topic], request_timeout=CALL_S)[self.topic].result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise JournalMismatchError(
                    f"cannot create the Kafka topic {self.topic}, which is missing or hidden from this user: "
                    f"{error_text(error)}; create it as doc/cluster.md says"
                ) from None
        logger.info("made the Kafka topic %s with %d replicas", self.topic, replicas)

    def read(self, start: int, end: int) -> Iterator[Placed]:
        """Yield the runs at the positions [start, end) that were not deleted. Any thread may call."""
        with self._explained(), self._consumer() as consumer:
            start = max(start, consumer.get_watermark_offsets(self._place, timeout=CALL_S)[0])
            if start >= end:
                return
            consumer.assign([TopicPartition(self.topic, PARTITION, start)])
            while True:
                first = consumer.poll(CLAIM_S)
                if first is None:
                    raise JournalAwayError(f"the Kafka topic {self.topic} could not be read to its end")
                for message in (first, *consumer.consume(READ_RECORDS, 0)):
                    position = message.offset() or 0
                    if (error := message.error()) is not None:
                        if error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - so it is named
                            raise KafkaException(error)
                        if position >= end:
                            return
                    elif position >= end:
                        return
                    else:
                        yield Placed(position, _run_of(message))

    def follow(self, start: int) -> Generator[Placed | int, None, None]:
        """Yield the runs from a position on, without an end; and a position when there is none before it."""
        with self._explained(), self._consumer() as consumer:
            consumer.assign([TopicPartition(self.topic, PARTITION, start)])
            while True:
                first = consumer.poll(FOLLOW_S)
                found = [] if first is None else [first, *consumer.consume(READ_RECORDS, 0)]
                is_end = first is None
                for message in found:
                    if (error := message.error()) is None:
                        start = (message.offset() or 0) + 1
                        yield Placed(start - 1, _run_of(message))
                    elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - so it is named
                        is_end, start = True, message.offset() or start  # behind the marks of transactions
                    else:
                        raise KafkaException(error)
                if is_end:
                    yield start

    def append(self, runs: Sequence[Run]) -> list[int]:
        """Store runs in order; returns their positions once all are on `min.insync.replicas` brokers.

        Raises JournalFencedError and JournalAwayError; then the producer is gone.
        """
        with self._leading() as producer:
            self._appended_ms, sent_ms = self._clock.monotonic_ms(), self._clock.now_ms()
            if not self._is_open:
                producer.begin_transaction()
                self._is_open, self._opened_ms = True, self._appended_ms
            positions, stamps = self._store(runs, producer)
        self._compare_clocks(sent_ms, stamps)
        return positions

    def _store(
        self, runs: Sequence[Run], producer: Producer, until_ms: float = math.inf
    ) -> tuple[list[int], list[int]]:
        """Store runs in the open transaction; returns their positions, and the first one's time of a broker.

        KafkaException, also if they are not stored at `until_ms` of the monotonic clock.
        """
        positions: list[int] = []
        failed: list[KafkaError] = []
        stamps: list[int] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            position = message.offset()
            if error is None and position is None:
                error = KafkaError(KafkaError._FAIL, "brokers do not say where a record is")  # noqa: SLF001
            if error is None and position is not None:
                positions.append(position)
                if not stamps:
                    kind, stamped_ms = message.timestamp()
                    stamps.append(stamped_ms if kind == TIMESTAMP_LOG_APPEND_TIME else NO_STAMP)
            elif error is not None:
                failed.append(error)

        for run in runs:
            headers: list[tuple[str, str | bytes | None]] = [(HEADER, label(run))]
            producer.produce(
                self.topic, run.data, partition=PARTITION, on_delivery=delivered, headers=headers
            )
        while producer.flush(CALL_S):
            if self._clock.monotonic_ms() >= until_ms:
                timed_out = KafkaError._TIMED_OUT  # noqa: SLF001 - so it is named
                raise KafkaException(KafkaError(timed_out, "a record was not stored in time"))
        if failed:
            raise self._cause_of(failed, producer)
        return positions, stamps

    def _compare_clocks(self, sent_ms: int, stamps: Sequence[int]) -> None:
        """Warn if this node's clock differs from that of the broker which stored records."""
        for stamped_ms in stamps:
            if stamped_ms != NO_STAMP:
                times_ms = (sent_ms, self._clock.now_ms(), stamped_ms, self._clock.monotonic_ms())
                if (warning := self._broker_clock.compare(*times_ms)) is not None:
                    logger.warning("%s", warning)

    def _cause_of(self, failed: Sequence[KafkaError], producer: Producer) -> KafkaException:
        """Return why records were not stored: of a fenced producer, only its transaction tells."""
        try:
            producer.commit_transaction(CALL_S)
        except KafkaException as error:
            if error.args[0].code() in FENCED:
                return error
        return KafkaException(failed[0])

    def rest(self) -> None:
        """End a transaction that is idle or old. Raises as `append`."""
        now_ms = self._clock.monotonic_ms()
        if self._is_open and (
            now_ms - self._appended_ms >= IDLE_MS or now_ms - self._opened_ms >= OPEN_MS_MAX
        ):
            with self._leading() as producer:
                self._until_done(producer.commit_transaction, now_ms + APPEND_MS_MAX)
                self._is_open = False

    @contextmanager
    def _leading(self) -> Iterator[Producer]:
        """Give the producer for a block; it is gone after an exception."""
        if self._producer is None:
            raise JournalAwayError(f"the Kafka topic {self.topic} is not claimed")
        try:
            with self._explained():
                yield self._producer
        except BaseException:
            self.close()
            raise

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise what a client reports as an error of the journal."""
        try:
            yield
        except KafkaException as error:
            raise self._error_of(error) from error
        except CannotConnectError as error:
            raise JournalAwayError(str(error)) from error
        except SystemError as error:
            if (fatal := fatal_of(self._producer, error)) is None:
                raise
            raise self._error_of(fatal) from error

    def _error_of(self, error: KafkaException) -> LogFailedError:
        if error.args[0].code() in FENCED:
            return JournalFencedError(
                "another process has claimed the journal: it leads now, and this one stores nothing more"
            )
        return JournalAwayError(why_not(error, self._servers, "which keeps the log there"))

    def _until_done(self, call: Callable[[float], None], until_ms: int) -> None:
        """Call again and again while the error says that this is the way to go on; KafkaException.

        `until_ms` is of the monotonic clock: a call that fails then is the last one.
        """
        while True:
            try:
                call(CALL_S)
            except KafkaException as error:
                cause = error.args[0]
                late = self._clock.monotonic_ms() >= until_ms
                if late or cause.fatal() or cause.txn_requires_abort() or not cause.retriable():
                    raise
            else:
                return

    def trim(self, position: int) -> None:
        """Delete the records before a position. Any thread may call; JournalAwayError."""
        with self._explained(), self._admin() as admin:
            place = TopicPartition(self.topic, PARTITION, position)
            for deleted in admin.delete_records([place], request_timeout=CALL_S).values():
                deleted.result()

    def close(self) -> None:
        """Drop the producer; what the next leader claims ends its transaction."""
        if self._producer is not None:
            self._producer.purge()
            self._producer = None  # not `close`, which would wait to abort first
        self._is_open = False


def _run_of(message: Message) -> Run:
    headers: Any = message.headers() or []  # pairs, though it is declared as a dict too
    for name, value in headers:
        if name == HEADER:
            return labelled(value or b"", message.value() or b"")
    raise JournalMismatchError(
        f"the record {message.offset()} of the Kafka topic {message.topic()} is not of a log: something else "
        "writes to it"
    )
