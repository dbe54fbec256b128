"""Transactions whose end brokers have lost: the partitions in which they hang.

A coordinator that ends a transaction has a marker written into each partition of it. Brokers of Kafka 4.3.0
to 4.4.0 leave it out where the partition has no leader just then, as while its broker starts again, for they
take it for deleted (KAFKA-20734). There the transaction *hangs*: committed readers stop at its first record,
until the producer ends another one in the partition, which ends the first in the same way, whatever became
of it elsewhere. So what the outlet does (`timerwheel.kafka.producer`):

1. It begins no transaction before committed readers have passed the last one, in each of its partitions.
2. It writes to no topic of which it has not seen all partitions since it opened.
3. What hangs in the topic of positions is aborted first. Then the committed positions say which messages
   of what hangs elsewhere had counted. These are noted there, what hangs is aborted, and they are sent again.
4. To abort it is to abort another transaction that has a record in the partition: a copy of the first one
   that hangs there, so that `read_uncommitted` readers see nothing new.

No committed reader has seen what hangs. What is behind an open transaction of another producer is not seen
here either, until that ends: the outlet waits a second for it, at most twice a minute in each partition, and
goes on.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, Final, NamedTuple

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin._listoffsets import OffsetSpec

from timerwheel.clock import Clock
from timerwheel.kafka.clients import CALL_S, error_text
from timerwheel.kafka.cluster import BridgeError, Cluster
from timerwheel.kafka.envelope import Header, UnreadableHeadersError, headers_of
from timerwheel.kafka.names import FROM, ID, TOPIC
from timerwheel.kafka.translation import Produced
from timerwheel.telemetry.throttled_log import Troubles

GRACE_MS: Final = 1_000
"""How long a partition may take to let committed readers pass what has ended, as after a change of leader."""
GRACE_MS_MAX: Final = 16_000
"""How long it may take where brokers have been slow before."""
LOOK_S: Final = 0.002
"""How long to wait between two looks at the committed end of partitions."""
REFUSED_S: Final = 0.02
"""How long to wait before the leader of a partition is asked again that did not say its end."""
ASK_S: Final = 1.0
"""How long to wait for the leader of a partition before it is asked who leads now."""
FIRSTS_MAX: Final = 100
"""How many transactions are remembered that wait behind an open one of another producer in a partition."""
_offsets: Any = OffsetSpec  # its functions have no types
_NO_RIGHT: Final = KafkaError.TOPIC_AUTHORIZATION_FAILED

logger = logging.getLogger(__name__)


class Place(NamedTuple):
    """A partition."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


Firsts = tuple[int, ...]
"""First offsets of transactions in a partition, in order."""


class Hanging(NamedTuple):
    """A partition whose committed end stays at a record of a service: its offset and a copy of it.

    `ids` are the targets and ids of all messages from there on that came from a service, this one or another.
    """

    place: Place
    offset: int
    first: Produced
    ids: frozenset[tuple[str, str]]


class Found(NamedTuple):
    """Where a transaction may hang, and the partitions that have no leader that answers."""

    hanging: list[Hanging]
    unseen: set[Place]


def unpassed(written: Mapping[Place, int], blocked: Mapping[Place, Firsts]) -> dict[Place, Firsts]:
    """Return the first offsets of all transactions that committed readers may not have passed.

    `written` are those of the last one, and `blocked` those of earlier ones, before which others held them
    back. An earlier one with a greater offset was in a topic that was deleted and made again.
    """
    found = dict(blocked)
    for place, first in written.items():
        earlier = (one for one in blocked.get(place, ()) if one < first)
        found[place] = (*earlier, first)[-FIRSTS_MAX:]
    return found


class Grace:
    """How long a transaction of this service may take to end before it is taken for one that hangs.

    It doubles each time that one did not hang after all: else a producer whose brokers are slow would open
    again and again, and never send.
    """

    def __init__(self) -> None:
        self.ms = GRACE_MS

    def over(self) -> None:
        """Note that a transaction took longer."""
        self.ms = min(2 * self.ms, GRACE_MS_MAX)

    def hung(self) -> None:
        """Note that it hung: brokers were not slow."""
        self.ms = GRACE_MS


class Ends:
    """The ends of partitions. It blocks; raises KafkaException if no broker answers. `close` it.

    `check` is called between two questions to brokers, and may raise. `troubles` are those with partitions.
    """

    def __init__(self, cluster: Cluster, clock: Clock, troubles: Troubles, check: Callable[[], None]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._troubles = troubles
        self._check = check
        self._stack = ExitStack()
        self._admin = self._stack.enter_context(cluster.admin())

    def close(self) -> None:
        """Let go of the brokers."""
        self._stack.close()

    def committed(self, places: Collection[Place]) -> dict[Place, int]:
        """Return the committed end of each partition, without those that were deleted.

        Raises BridgeError if one has no leader, or its leader does not answer.
        """
        found, silent = self._ends(places, IsolationLevel.READ_COMMITTED)
        if silent:
            raise BridgeError(f"no leader of {min(silent)} answers")
        return found

    def _ends(self, places: Collection[Place], level: IsolationLevel) -> tuple[dict[Place, int], set[Place]]:
        """Return the ends, and the places that nobody answered for. Deleted ones are in neither."""
        until_ms = self._clock.monotonic_ms() + int(CALL_S * 1000)
        found: dict[Place, int] = {}
        left = set(places)
        while left:
            found |= self._asked(left, level)
            left -= found.keys()
            if left:  # librdkafka goes on asking a leader that has gone until it learns of another
                there = self._there({place.topic for place in left})
                left &= there.keys()
                if self._clock.monotonic_ms() >= until_ms or not any(there[place] for place in left):
                    break
                self._check()
                self._admin.poll(REFUSED_S)  # a leader that refuses does so at once
        return found, left

    def _asked(self, places: Iterable[Place], level: IsolationLevel) -> dict[Place, int]:
        wanted = {TopicPartition(*place): _offsets.latest() for place in places}
        answers = self._admin.list_offsets(wanted, isolation_level=level, request_timeout=ASK_S)
        found: dict[Place, int] = {}
        for part, answer in answers.items():
            try:
                offset = answer.result().offset
            except KafkaException:
                continue
            if offset >= 0:  # else nobody has answered in time
                found[Place(part.topic, part.partition)] = offset
        return found

    def _there(self, topics: Iterable[str]) -> dict[Place, bool]:
        """Return the partitions of these topics, so far as they are there, and whether they have a leader."""
        known = self._admin.list_topics(timeout=CALL_S).topics
        return {
            Place(topic, number): partition.leader >= 0
            for topic in known.keys() & set(topics)
            for number, partition in known[topic].partitions.items()
        }

    def find(self, topics: Iterable[str]) -> Found:
        """Return where a transaction may hang in these topics: one that is of a service, and does not end.

        Whatever this service had open has ended before.
        """
        there = self._there(topics)
        led = {place for place, has_leader in there.items() if has_leader}
        ends, silent = self._ends(led, IsolationLevel.READ_UNCOMMITTED)
        held, silent_too = self._held(ends)
        found = [self._read(place, offset, ends[place]) for place, offset in sorted(held.items())]
        return Found([one for one in found if one is not None], there.keys() - led | silent | silent_too)

    def _held(self, ends: Mapping[Place, int]) -> tuple[dict[Place, int], set[Place]]:
        """Return the partitions whose committed end stays before these ends, and those that do not answer."""
        until_ms: int | None = None
        held: dict[Place, int] = dict(ends)
        while True:
            found, silent = self._ends(held, IsolationLevel.READ_COMMITTED)
            held = {place: offset for place, offset in found.items() if offset < ends[place]}
            until_ms = until_ms or self._clock.monotonic_ms() + GRACE_MS
            if not held or silent or self._clock.monotonic_ms() >= until_ms:
                return held, silent
            self._check()
            self._admin.poll(LOOK_S)

    def _read(self, place: Place, offset: int, end: int) -> Hanging | None:
        """Return what a service has from an offset on; None if the record there is not of a service."""
        first: Produced | None = None
        ids: set[tuple[str, str]] = set()
        try:
            for message in self._messages(place, offset, end):
                headers = _headers_of(message)
                if first is None:
                    if ID not in dict(headers) and not self._is_position(message):
                        return None
                    first = Produced(place.topic, message.key(), message.value(), headers)
                ids |= self._ids_of(place.topic, dict(headers))
        except KafkaException as error:
            if error.args[0].code() != _NO_RIGHT:
                raise
            if self._troubles.met(str(place)):
                logger.warning(
                    "a transaction is open in %s, and this user may not read there to see whether it is one "
                    "of this service that brokers have lost the end of: %s", place, error_text(error),
                )  # fmt: skip
        return None if first is None else Hanging(place, offset, first, frozenset(ids))

    def _messages(self, place: Place, offset: int, end: int) -> Iterator[Message]:
        """Yield the records [offset, end) of a partition, whether committed or not; BridgeError."""
        with self._cluster.consumer(committed=False) as consumer:
            consumer.assign([TopicPartition(*place, offset)])
            while offset < end:
                self._check()
                message = consumer.poll(CALL_S)
                if message is None:
                    raise BridgeError(f"{place} could not be read to its end")
                offset = message.offset() or 0  # of an end, where the next record will be
                if (error := message.error()) is None:
                    offset += 1
                    if offset <= end:
                        yield message
                elif error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - so it is named
                    raise KafkaException(error)

    def _is_position(self, message: Message) -> bool:
        service, _, _ = (message.key() or b"").partition(b" ")
        return service == self._cluster.service.encode()

    def _ids_of(self, topic: str, headers: Mapping[str, bytes | None]) -> set[tuple[str, str]]:
        """Return target and id of a message; one that its target refused is in the topic of those."""
        if (found := headers.get(ID)) is None:
            return set()
        target = topic
        if topic == self._cluster.topics.rejected and FROM not in headers:
            target = (headers.get(TOPIC) or b"").decode(errors="replace")
        return {(target, found.decode(errors="replace"))}


def _headers_of(message: Message) -> list[Header]:
    try:
        return headers_of(message)
    except UnreadableHeadersError:
        return []
