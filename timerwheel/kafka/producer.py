"""The outlet's transactions: records of due messages together with the positions that they reach.

1. A transaction holds messages and the positions behind them, or nothing of it counts. So a `read_committed`
   reader gets each message once, whatever is killed when.
2. `open` fences every earlier producer of this service, then reads the positions: they are final by then.
3. A producer that was fenced opens again if no other process has opened since: then its transaction took
   too long, and nobody else produces. It also does if the other one led the same journal: only one leads at a
   time, and the caller of `open` makes sure before that it is this one.
4. What a topic refuses goes to the topic of rejected records, in the transaction that would have had it.
5. A transaction has ended when committed readers have passed what it wrote. If they do not, brokers have
   lost its end (`timerwheel.kafka.hanging`), and `open` comes next.

It blocks: one thread of its own.
"""

import itertools
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from timerwheel.clock import Clock
from timerwheel.kafka import positions
from timerwheel.kafka.batches import BATCH_BYTES, Batches
from timerwheel.kafka.clients import CALL_S, error_text
from timerwheel.kafka.cluster import BridgeError, Cluster, StoppedError, fatal_of
from timerwheel.kafka.hanging import GRACE_MS, LOOK_S, Ends, Firsts, Grace, Hanging, Place, unpassed
from timerwheel.kafka.names import is_kafka_topic, kafka_topic_of
from timerwheel.kafka.positions import Noted, Positions, Repeats, Run
from timerwheel.kafka.translation import Produced, Refusal, rejected
from timerwheel.telemetry.throttled_log import Troubles

PROTOCOL_BYTES_MAX: Final = 1_000_000
FIND_MS_MAX: Final = 300
"""How long to look for a topic that is not known; the other messages wait so long."""
MISSING_MS: Final = 5_000
"""How long a topic that was not found counts as missing, and the size that one refused as too large."""
FORBIDDEN_MS: Final = 30_000
"""How long a topic that refused to be written to counts as closed."""
GONE_S: Final = 0.3
"""How long records may take before it is checked whether their topics are still there."""
AGAIN_MAX: Final = 3
"""How often to try again after refusals without knowing of another one."""
OTHERS_MS: Final = 30_000
"""How long transactions of others in a partition are not waited for, after they were."""
TRIES_MAX: Final = 3
"""How often to abort what hangs: brokers may lose the end of that too."""
TROUBLES_MAX: Final = 100
"""For how many partitions at once the log says only once a minute that nothing can be done there."""
_LOOK_S: Final = 0.02

logger = logging.getLogger(__name__)

_TOO_LARGE: Final = KafkaError.MSG_SIZE_TOO_LARGE
_INVALID: Final = KafkaError.INVALID_RECORD
_INNOCENT: Final = KafkaError._INVALID_DIFFERENT_RECORD  # noqa: SLF001 - so librdkafka's own errors are named
REFUSALS: Final = {
    _TOO_LARGE: "body_too_large",
    KafkaError.RECORD_LIST_TOO_LARGE: "body_too_large",
    KafkaError.UNKNOWN_TOPIC_OR_PART: "unknown_topic",
    KafkaError._UNKNOWN_TOPIC: "unknown_topic",  # noqa: SLF001 - so librdkafka's own errors are named
    KafkaError._UNKNOWN_PARTITION: "unknown_topic",  # noqa: SLF001 - as above
    KafkaError.TOPIC_EXCEPTION: "illegal_topic",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "forbidden_topic",
    KafkaError.POLICY_VIOLATION: "refused",
    KafkaError.INVALID_MSG: "refused",
    KafkaError.INVALID_RECORD: "refused",  # the topic is compacted and the key is NULL, say
}
"""Errors that concern one record or topic, by the code of the refusal. All others concern the producer."""

OF_A_TOPIC: Final = frozenset({"unknown_topic", "illegal_topic", "forbidden_topic"})
"""Refusals of everything that goes to a topic."""


class UnsettledError(BridgeError):
    """Whether a transaction has ended in all of its partitions is not known: `open` finds out."""


class FencedError(BridgeError):
    """Another process produces for this service now: it has a copy of its data."""


class Opened(NamedTuple):
    """From where the queues go on, what is to be sent again, and where a transaction hangs."""

    offsets: dict[str, dict[int, int]]
    again: Repeats
    hanging: list[Hanging]


class _Failed(NamedTuple):
    """A record that was refused, by its place; and the partition that refused it, if one did."""

    place: int
    error: KafkaError
    by: Place | None = None


class _Mates(NamedTuple):
    """Records of a batch that was refused: either one of them is at fault, or all are.

    librdkafka tells which ones are only if these are several, and not all. `is_second` says that one was
    found to be at fault: another one is sent alone then, and what becomes of it goes for all.
    """

    places: list[int]
    is_second: bool = False


class _Barred(NamedTuple):
    """Why a topic takes nothing, and until when this is believed."""

    why: Refusal
    until_ms: int


class _GoneError(Exception):
    """A topic that was known is not there any more."""


class _TransactionRefusedError(Exception):
    """A topic refused the whole transaction, without saying which."""

    def __init__(self, reason: KafkaException) -> None:
        super().__init__(str(reason))
        self.reason = reason


class Attempt:
    """Records to commit, and by their places: which are refused, and which are sent another way.

    Those that are `bare` go to the topic of rejected records without key and value. Those that are `alone`
    are in batches of their own, to see which record of a batch is at fault. `has_changed` says that records
    are in other batches since one was refused.
    """

    def __init__(self, records: Sequence[Produced]) -> None:
        self.records = records
        self.refused: dict[int, Refusal] = {}
        self.bare: set[int] = set()
        self.alone: dict[int, _Mates] = {}
        self.explained: set[Place] = set()  # partitions of which it is known which records they refuse
        self.has_changed = False
        self.again = 0
        self.has_failed = False  # of this try: a record was not delivered, and those behind it never are

    def splits(self, place: int) -> bool:
        """Whether what was produced has to be delivered before the record at this place is."""
        return place in self.alone or place - 1 in self.alone

    def suspect(self, failed: Sequence[_Failed]) -> set[int]:
        """Have records sent alone of which it is not known which ones are at fault; returns them."""
        found: dict[Place, list[int]] = {}
        for place, error, by in failed:
            is_new = place not in self.refused and place not in self.alone
            if is_new and by is not None and by not in self.explained and error.code() == _INVALID:
                found.setdefault(by, []).append(place)
        batches = [_Mates(places) for places in found.values() if len(places) > 1]
        for mates in batches:
            self.alone |= dict.fromkeys(mates.places, mates)
        self.has_changed = self.has_changed or bool(batches)
        return {place for mates in batches for place in mates.places}

    def at_fault(self, place: int) -> Sequence[int]:
        """Return which records are to be refused because the one at this place is."""
        mates = self.alone.get(place)
        if mates is None:
            return [place]
        if mates.is_second:
            return mates.places
        rest = [one for one in mates.places if one != place]
        for one in mates.places:
            self.alone.pop(one, None)
        self.alone[rest[0]] = _Mates(rest, is_second=True)
        return [place]

    def has_others(self, place: int) -> bool:
        """Whether more than the record at this place goes to its topic."""
        topic = self.records[place].topic
        return any(
            record.topic == topic and other not in self.refused and other != place
            for other, record in enumerate(self.records)
        )


def _note_failure(failed: list[str], error: KafkaError | None, message: Message) -> None:
    if error is not None:
        failed.append(f"{message.topic()}: {error.str()}")


class TransactionalProducer:
    """See the module. `stop` may be called by any thread."""

    def __init__(self, cluster: Cluster, clock: Clock, run: Run) -> None:
        self._cluster = cluster
        self._clock = clock
        self._run = run
        self._producer: Producer | None = None
        self._batches = Batches(clock)
        self._has_run = False
        self._stopped = False
        self._known: set[str] = set()
        self._barred: dict[str, _Barred] = {}
        self._refused_bytes: dict[str, tuple[int, int]] = {}
        self._noted = Noted(None, {})
        self._ends: Ends | None = None
        self._written: dict[Place, int] = {}  # the first offsets of the transaction that is open, or was last
        self._blocked: dict[Place, Firsts] = {}  # first offsets behind open transactions of others
        self._waited: dict[Place, int] = {}  # until when open transactions of others are not waited for
        self._grace = Grace()
        self._targets: set[str] = set()
        self._seen: set[str] = set()  # topics that were looked at since `open`, all partitions of them
        self._found: set[tuple[Place, int]] = set()  # what the last `open` said may hang
        self._tries: Counter[tuple[Place, int]] = Counter()  # how often what hangs was aborted
        self._troubles = Troubles(clock, TROUBLES_MAX)

    def open(self, noted: Noted, topics: Iterable[str] = ()) -> Opened:
        """Fence other producers of this service; returns the next offset of each queue by topic.

        `noted` is what the log knows of them, for the case that Kafka has lost them, or has them elsewhere.
        `topics` are those of the service that go out. With a journal, this process was confirmed as its
        leader just before. `repeat` follows if anything is to be sent again, or hangs and is of this service.

        Raises KafkaException and BridgeError, FencedError among them; call it again except after that.
        """
        with self._fatal_as_raised():
            self.close()
            self._cluster.make_topics()
            self._noted = noted
            own = {self._cluster.topics.positions, self._cluster.topics.rejected}
            self._targets |= own.union(map(kafka_topic_of, topics))
            self._ends = Ends(self._cluster, self._clock, self._troubles, self._check_stopped)
            if self._has_run:
                self._check_others(self._last_run(self._ends))
            self._check_stopped()  # a leader that was replaced must not fence the next one
            self._producer = self._cluster.producer(BATCH_BYTES, PROTOCOL_BYTES_MAX + (512 << 20))
            self._until_done(self._producer.init_transactions)
            self._end_positions(self._ends)
            found = positions.read(self._cluster, check=self._check_stopped)
            if not self._has_run:
                self._warn_of(found.others)
            offsets, again = self._with_noted(found)
            self._begin()
            self._position(*positions.run_record(self._cluster.service, self._run))
            for topic, reached in offsets.items():
                if reached != found.offsets.get(topic):
                    self._position(*self._record_of(topic, reached, again))
            self._commit()
            self._has_run = True
            self._known.clear()
            hanging = self._look(self._targets, self._ends)
            self._found = {(one.place, one.offset) for one in hanging}
            return Opened(offsets, again, hanging)

    def _warn_of(self, others: Mapping[str, int]) -> None:
        """Say that another service takes the same inlet, or did: nothing in Kafka says that it has ended."""
        if others:
            last = datetime.fromtimestamp(max(others.values()) / 1000, UTC)
            logger.warning(
                "another service, with data of its own, has taken from the Kafka topic %s, at %s or later; "
                "while two do, each schedules every record: give each a topic of its own",
                self._cluster.topics.inlet, last.isoformat(timespec="seconds"),
            )  # fmt: skip

    def _last_run(self, ends: Ends) -> Run | None:
        """Return the process that opened last, as far as committed readers see.

        What hangs there is of this process: another one that opened would have ended it.
        """
        own = ends.find([self._cluster.topics.positions]).hanging
        until = min((one.offset for one in own), default=None)
        return positions.read(self._cluster, until=until, check=self._check_stopped).run

    def _end_positions(self, ends: Ends) -> None:
        """Abort what hangs in the topics of positions, so that these say what counts."""
        names = {self._cluster.topics.positions, self._noted.topic or self._cluster.topics.positions}
        self._abort_hanging([one for one in ends.find(names).hanging if not self._is_stuck(one)])

    def _is_stuck(self, one: Hanging) -> bool:
        """Whether this process has tried in vain to end what hangs there: its producer has been forgotten."""
        if self._tries[one.place, one.offset] < TRIES_MAX:
            return False
        if self._troubles.met(str(one.place)):
            logger.error(
                "a transaction hangs in %s, and cannot be ended from here: committed readers stop at offset "
                "%d; `kafka-transactions.sh find-hanging` shows it, and `abort` ends it",
                one.place, one.offset,
            )  # fmt: skip
        return True

    def _look(self, topics: Collection[str], ends: Ends) -> list[Hanging]:
        """Return what may hang in these topics, and note those that were seen whole."""
        found = ends.find(topics)
        self._seen |= set(topics) - {place.topic for place in found.unseen}
        return [one for one in found.hanging if not self._is_stuck(one)]

    def _look_first(self, topics: set[str]) -> None:
        """See topics whole before a record goes there; UnsettledError, and BridgeError if that cannot be."""
        if not (new := topics - self._seen):
            return
        assert self._ends is not None
        self._targets |= new
        if hanging := self._look(new, self._ends):
            raise UnsettledError(f"a transaction may hang in {hanging[0].place}")
        if unseen := new - self._seen:
            raise BridgeError(
                f"a partition of {min(unseen)} has no leader that answers: whether an earlier transaction "
                "has ended there is not known"
            )

    def repeat(
        self, hanging: Sequence[Hanging], offsets: Mapping[str, dict[int, int]], again: Repeats
    ) -> set[Place]:
        """Store which messages are to be sent again, of those up to these offsets; then end what hangs.

        Returns where it did hang; in other places it had ended after all. Raises as `send`.
        """
        with self._fatal_as_raised():
            if again:
                self._begin()
                for topic in again:
                    self._position(*self._record_of(topic, offsets[topic], again))
                self._commit()
            return self._abort_hanging(hanging)

    def _record_of(self, topic: str, offsets: Mapping[int, int], again: Repeats) -> tuple[bytes, bytes]:
        return positions.offsets_record(self._cluster.service, topic, offsets, again.get(topic))

    def _abort_hanging(self, hanging: Sequence[Hanging]) -> set[Place]:
        """Abort a transaction with a record in each of these partitions, which ends what hangs there too.

        Returns where something did hang: that is looked at once the copies are on all replicas in sync.
        """
        if not hanging:
            return set()
        assert self._producer is not None
        assert self._ends is not None
        self._begin()
        failed: list[str] = []
        for place, _, first, _ in hanging:
            self._producer.produce(
                place.topic,
                first.value,
                first.key,
                place.partition,
                headers=[*first.headers],
                on_delivery=partial(_note_failure, failed),
            )
        while self._producer.flush(CALL_S) and not failed:
            self._check_stopped()
        if failed:
            raise BridgeError(f"what hangs cannot be ended: Kafka refused a record for {failed[0]}")
        ends = self._ends.committed([one.place for one in hanging])
        held = {one.place: (one.offset,) for one in hanging if ends.get(one.place) == one.offset}
        self._tries.update((one.place, one.offset) for one in hanging if one.place in held)
        self._until_done(self._producer.abort_transaction)
        if held:
            self._grace.hung()
        if left := self._wait_past(held, held):
            self._grace.over()
            raise UnsettledError(f"a transaction does not end in {min(left)}")
        return set(held)

    def _begin(self) -> None:
        assert self._producer is not None
        self._written.clear()
        self._producer.begin_transaction()

    def _commit(self) -> None:
        assert self._producer is not None
        self._until_done(self._producer.commit_transaction)
        self._settle()

    def _settle(self) -> None:
        """Return once committed readers have passed what the last transaction wrote; UnsettledError.

        They stop at its first record until it has ended there. At an earlier one others hold them back, and
        are waited for once in a while.
        """
        firsts = unpassed(self._written, self._blocked)
        now_ms = self._clock.monotonic_ms()
        unwaited = {place for place in self._written if self._waited.get(place, now_ms) <= now_ms}
        try:
            left = self._wait_past(firsts, unwaited - self._blocked.keys())
        except KafkaException as error:
            raise UnsettledError(
                f"whether a transaction has ended is not known: {error_text(error)}"
            ) from error
        except BridgeError as error:
            raise UnsettledError(f"whether a transaction has ended is not known: {error}") from error
        self._blocked = {place: firsts[place] for place in left}
        for place, end in left.items():
            if end in firsts[place]:
                self._grace.over()
                raise UnsettledError(f"a transaction does not end in {place}")

    def _wait_past(self, firsts: Mapping[Place, Firsts], patient: Collection[Place]) -> dict[Place, int]:
        """Return the partitions whose committed end does not pass these offsets in time, with that end.

        It waits while the end is at one of the offsets, and less long in `patient` places while it is before
        them, where others hold it back.
        """
        assert self._ends is not None
        assert self._producer is not None
        began_ms: int | None = None
        left: dict[Place, int] = dict.fromkeys(firsts, 0)
        while True:
            ends = self._ends.committed(left.keys())
            left = {place: end for place, end in ends.items() if end <= firsts[place][-1]}
            now_ms = self._clock.monotonic_ms()
            began_ms = now_ms if began_ms is None else began_ms
            behind = {place for place, end in left.items() if end not in firsts[place]}
            others = behind.intersection(patient)
            self._waited |= dict.fromkeys(others, now_ms + OTHERS_MS)
            is_own_late = len(left) > len(behind) and now_ms < began_ms + self._grace.ms
            if not is_own_late and not (others and now_ms < began_ms + GRACE_MS):
                return left
            self._check_stopped()
            self._producer.poll(LOOK_S)

    def _wrote(self, error: KafkaError | None, message: Message) -> None:
        """Note where a record of the open transaction is, or that this is not known."""
        topic, offset = message.topic() or "", message.offset()
        if error is None and offset is not None:
            place = topic, message.partition() or 0
            if place not in self._written:
                self._written[Place(*place)] = offset
        elif error is None or error.code() not in REFUSALS:
            self._seen.discard(topic)

    def _check_others(self, last: Run | None) -> None:
        """Raise FencedError if the process that opened last may go on: one of the two has to end."""
        if (
            last is None
            or last == self._run
            or (last.journal is not None and last.journal == self._run.journal)
        ):
            return
        raise FencedError(
            "another process produces to Kafka for this service: it runs on a copy of this data; "
            "stop one of them"
        )

    def _with_noted(self, found: Positions) -> tuple[dict[str, dict[int, int]], Repeats]:
        """Return the positions, from an earlier topic too, and at least those that the log has."""
        here, earlier = self._cluster.topics.positions, self._noted.topic
        offsets, again, run = found.offsets, found.again, found.run
        if earlier not in {None, here} and earlier in self._there():
            before = positions.read(self._cluster, earlier, check=self._check_stopped)
            offsets, run = positions.latest(offsets, before.offsets), before.run or run
            again = before.again | again
        if earlier is not None and run is None:
            logger.error(
                "the Kafka topic %s has no positions of this service, as after it was deleted; messages "
                "go on from where the log has noted them: those of the last seconds may come twice", earlier,
            )  # fmt: skip
        return positions.latest(offsets, self._noted.sent), again

    def _there(self) -> Collection[str]:
        """Return the topics that there are."""
        assert self._producer is not None
        found: dict[str, object] = self._producer.list_topics(timeout=CALL_S).topics
        return found.keys()

    def send(self, records: Sequence[Produced], reached: Mapping[str, dict[int, int]]) -> list[Refusal]:
        """Commit these records and the positions that they reach; returns what was refused.

        After an exception, UnsettledError among them, `open` tells whether they were committed.
        """
        with self._fatal_as_raised():
            attempt = Attempt(records)
            while True:
                self._find({record.topic for record in records} - self._known)
                self._refuse_known(attempt)
                self._look_first(self._goals(attempt))
                try:
                    failed = self._try(attempt, reached)
                except _TransactionRefusedError as error:
                    left = [place for place in range(len(records)) if place not in attempt.refused]
                    if len({records[place].topic for place in left}) > 1:
                        return self._send_by_topic(records, reached)
                    if not left:
                        raise error.reason from error
                    failed = [_Failed(place, error.reason.args[0]) for place in left]
                if failed is None:
                    return list(attempt.refused.values())
                if failed:
                    attempt.again = 0
                self._refuse_all(attempt, failed)

    def _send_by_topic(
        self, records: Sequence[Produced], reached: Mapping[str, dict[int, int]]
    ) -> list[Refusal]:
        """Commit the records of each topic in a transaction of their own."""
        names = {kafka_topic_of(topic): topic for topic in reached}
        assert all(record.topic in names for record in records)
        refused: list[Refusal] = []
        for name, topic in names.items():
            part = [record for record in records if record.topic == name]
            refused += self.send(part, {topic: reached[topic]})
        return refused

    def _refuse_known(self, attempt: Attempt) -> None:
        """Refuse what needs no attempt: records to topics that are missing, or that refused a smaller one."""
        now_ms = self._clock.monotonic_ms()
        for place, record in enumerate(attempt.records):
            if place in attempt.refused:
                continue
            if record.topic not in self._known:
                attempt.refused[place] = self._why_not(record.topic)
                continue
            limit_bytes, until_ms = self._refused_bytes.get(record.topic, (0, 0))
            if now_ms < until_ms and record.size_bytes > limit_bytes:
                detail = f"{record.size_bytes} bytes; the Kafka topic {record.topic} refused {limit_bytes}"
                attempt.refused[place] = Refusal("body_too_large", detail)

    def _why_not(self, topic: str) -> Refusal:
        if not is_kafka_topic(topic):
            return Refusal("illegal_topic", f"{topic!r} is not the name of a Kafka topic")
        if topic in self._barred:
            return self._barred[topic].why
        return Refusal("system_topic", f"the Kafka topic {topic} belongs to the service")

    def _find(self, wanted: set[str]) -> None:
        """Learn which of these topics exist, and give those that do not a moment to be made."""
        now_ms = self._clock.monotonic_ms()
        wanted = {name for name in wanted if self._may_exist(name, now_ms)}
        if not wanted:
            return
        assert self._producer is not None
        self._known |= wanted & set(self._there())
        missing = sorted(wanted - self._known)
        until_ms = now_ms + FIND_MS_MAX
        for name in itertools.cycle(missing):
            # By name: so a cluster that makes topics when they are asked for makes them.
            found = self._producer.list_topics(name, timeout=CALL_S).topics.get(name)
            if found is not None and found.error is None and found.partitions:
                self._known.add(name)
            if self._known.issuperset(missing) or self._clock.monotonic_ms() >= until_ms:
                break
            self._producer.poll(_LOOK_S)
        for name in wanted - self._known:
            self._bar(name, Refusal("unknown_topic", f"there is no Kafka topic {name}"))
        if found_now := wanted & self._known:
            for name, code in self._cluster.closed(found_now).items():
                self._bar(name, Refusal(code, f"this service may not write to the Kafka topic {name}"))

    def _bar(self, topic: str, why: Refusal) -> None:
        """Refuse everything for a topic for a while, so that not every transaction meets it again."""
        self._known.discard(topic)
        barred_ms = MISSING_MS if why.code == "unknown_topic" else FORBIDDEN_MS
        self._barred[topic] = _Barred(why, self._clock.monotonic_ms() + barred_ms)

    def _may_exist(self, name: str, now_ms: int) -> bool:
        topics = self._cluster.topics
        is_legal = is_kafka_topic(name) and (name == topics.rejected or not topics.is_own(name))
        return is_legal and (name not in self._barred or self._barred[name].until_ms <= now_ms)

    def _refuse_all(self, attempt: Attempt, failed: Sequence[_Failed]) -> None:
        """Note that records were refused, or that they are to be tried another way."""
        topics = {attempt.records[place].topic for place, *_ in failed}
        rooms = {topic: self._batches.room(topic) for topic in topics}
        before = set(attempt.refused)
        suspects = attempt.suspect(failed)
        for place, error, _ in failed:
            record = attempt.records[place]
            room = rooms[record.topic]
            if place in before:
                if place in attempt.bare:
                    raise KafkaException(error)
                attempt.bare.add(place)
            elif error.code() == _TOO_LARGE and record.size_bytes < room and attempt.has_others(place):
                self._batches.narrow(record.topic, room // 2)  # it may be the batch that was too large
                attempt.has_changed = True
            elif place not in suspects:
                for one in attempt.at_fault(place):
                    self._refuse(attempt, one, error)

    def _refuse(self, attempt: Attempt, place: int, error: KafkaError) -> None:
        record = attempt.records[place]
        code = REFUSALS[error.code()]
        attempt.refused[place] = Refusal(code, f"Kafka refused it for {record.topic}: {error.str()}")
        if code == "body_too_large":
            until_ms = self._clock.monotonic_ms() + MISSING_MS
            self._refused_bytes[record.topic] = (record.size_bytes, until_ms)
        elif code in OF_A_TOPIC:
            self._bar(record.topic, attempt.refused[place])

    def _try(self, attempt: Attempt, reached: Mapping[str, dict[int, int]]) -> list[_Failed] | None:
        """Try to commit. Unless it returns None, nothing is committed, because these records were refused.

        The list is empty if it is worth another try.
        """
        assert self._producer is not None
        failed: list[_Failed] = []
        cause: KafkaException | None = None
        is_gone = False
        self._begin()
        self._batches.clear()
        attempt.explained.clear()
        attempt.has_failed = False
        try:
            for place in range(len(attempt.records)):
                if failed or attempt.has_failed:
                    break
                self._produce(attempt, place, failed)
            for topic, offsets in reached.items():
                self._position(*positions.offsets_record(self._cluster.service, topic, offsets))
            if not failed:
                self._deliver(attempt, failed)
            if not failed:
                self._until_done(self._producer.commit_transaction)
        except _GoneError:
            is_gone = True  # and barred: the next try refuses what was for it
        except KafkaException as error:
            cause = self._cause_of(error)
            self._check_blame(cause)
        else:
            if not failed:
                self._settle()  # no error of this says that anything was refused
                return None
        self._abort(may_be_unknown=is_gone or (cause is not None and cause.args[0].code() in REFUSALS))
        return self._left_after(attempt, failed, cause)

    def _left_after(
        self, attempt: Attempt, failed: list[_Failed], cause: KafkaException | None
    ) -> list[_Failed]:
        """Return what `_try` does after a transaction was aborted for this cause, or raise it."""
        if failed or cause is None:
            return failed
        if cause.args[0].code() in REFUSALS:
            raise _TransactionRefusedError(cause)
        # librdkafka numbers records on after a refused one, which the broker takes for a gap, once.
        attempt.again += 1
        if not (attempt.has_changed or attempt.refused) or attempt.again > AGAIN_MAX:
            raise cause
        return []

    def _goals(self, attempt: Attempt) -> set[str]:
        """Return the topics that records of an attempt go to, and that of the positions."""
        own = {self._cluster.topics.positions}
        if attempt.refused:
            own.add(self._cluster.topics.rejected)
        goes = (one.topic for place, one in enumerate(attempt.records) if place not in attempt.refused)
        return own.union(goes)

    def _deliver(self, attempt: Attempt, failed: Sequence[_Failed]) -> None:
        """Wait until the records are delivered, or one is not. _GoneError for a topic that was deleted.

        Those behind one that failed are not delivered: librdkafka tries until the transaction times out.
        librdkafka waits for a topic that it knows, and that is not there, until the transaction times out.
        """
        assert self._producer is not None
        while self._producer.flush(GONE_S):
            if failed or attempt.has_failed:
                return
            self._check_stopped()
            self._check_own()
            places = range(len(attempt.records))
            sent = {attempt.records[place].topic for place in places if place not in attempt.refused}
            if gone := sent.difference(self._there()):
                for name in gone:
                    self._bar(name, Refusal("unknown_topic", f"there is no Kafka topic {name}"))
                raise _GoneError

    def _cause_of(self, error: KafkaException) -> KafkaException:
        """Return why the transaction has failed: once it has, librdkafka takes no record, and no more.

        Only the end of the transaction says why. UnsettledError if it ends, though a record is missing.
        """
        if error.args[0].code() != KafkaError._STATE:  # noqa: SLF001 - so it is named
            return error
        assert self._producer is not None
        try:
            self._until_done(self._producer.commit_transaction)
        except KafkaException as cause:
            return cause
        raise UnsettledError(f"Kafka took no record, and ended the transaction: {error_text(error)}")

    def _check_blame(self, cause: KafkaException) -> None:
        """Raise what no record is to blame for."""
        if cause.args[0].fatal():
            raise cause
        if cause.args[0].code() in REFUSALS:
            self._check_own()  # before `open` makes it again

    def _check_own(self) -> None:
        """Raise BridgeError if a topic of the service itself takes nothing: no record is to blame then."""
        own = {self._cluster.topics.positions, self._cluster.topics.rejected}
        for name in own.difference(self._there()):
            raise BridgeError(f"the Kafka topic {name} was deleted")
        for name in self._cluster.closed(own):
            raise BridgeError(f"this service may not write to the Kafka topic {name}")

    def _abort(self, *, may_be_unknown: bool) -> None:
        """Abort, and have all errors of records reported.

        If no partition could join, Kafka knows of no transaction, and librdkafka gives up.
        """
        assert self._producer is not None
        try:
            self._until_done(self._producer.abort_transaction)
            self._producer.poll(0)
            self._settle()
        except KafkaException:
            if not may_be_unknown:
                raise
            known = self._found  # and found to be of others: else this process had ended it
            opened = self.open(self._noted)
            if opened.again or self._found - known:
                raise UnsettledError("a transaction has not ended everywhere") from None

    def _delivered(
        self,
        attempt: Attempt,
        failed: list[_Failed],
        place: int,
        error: KafkaError | None,
        message: Message,
    ) -> None:
        """Note what became of a record of an attempt."""
        if error is not None:
            by = Place(message.topic() or "", message.partition() or 0)
            if error.code() in REFUSALS:
                failed.append(_Failed(place, error, by))
            else:
                attempt.has_failed = True
                if error.code() == _INNOCENT:
                    attempt.explained.add(by)
        self._wrote(error, message)

    def _produce(self, attempt: Attempt, place: int, failed: list[_Failed]) -> None:
        assert self._producer is not None
        record = attempt.records[place]
        if (refusal := attempt.refused.get(place)) is not None:
            whole = place not in attempt.bare
            record = rejected(record, refusal, self._cluster.topics, whole=whole)
        delivered = partial(self._delivered, attempt, failed, place)
        if self._batches.begins_with(record) or attempt.splits(place):
            self._deliver(attempt, failed)
            if failed or attempt.has_failed:
                return
        try:
            self._producer.produce(
                record.topic, record.value, record.key, on_delivery=delivered, headers=[*record.headers]
            )
        except KafkaException as error:
            if error.args[0].code() not in REFUSALS:
                raise
            failed.append(_Failed(place, error.args[0]))

    def _position(self, key: bytes, value: bytes) -> None:
        assert self._producer is not None
        self._producer.produce(
            self._cluster.topics.positions,
            value,
            key,
            partition=positions.PARTITION,
            on_delivery=self._wrote,
        )

    def _until_done(self, call: Any) -> None:  # noqa: ANN401 - a method without a signature
        """Call with a time-out again and again while the error says that this is the way to go on."""
        while True:
            try:
                call(1.0)
            except KafkaException as error:
                cause = error.args[0]
                if cause.fatal() or cause.txn_requires_abort() or not cause.retriable():
                    raise
                self._check_stopped()
            else:
                return

    @contextmanager
    def _fatal_as_raised(self) -> Iterator[None]:
        """Raise a fatal error of the producer as the KafkaException that it is."""
        try:
            yield
        except SystemError as error:
            if (fatal := fatal_of(self._producer, error)) is None:
                raise
            raise fatal from None

    def _check_stopped(self) -> None:
        if self._stopped:
            raise StoppedError

    def stop(self) -> None:
        """Let a call that waits for Kafka give up."""
        self._stopped = True

    def close(self) -> None:
        """Drop the producer; an open transaction is aborted by whatever opens next, or by its time-out."""
        if self._producer is not None:
            self._producer.purge()
            self._producer = None  # not `close`, which would wait to abort first
        if self._ends is not None:
            self._ends.close()
            self._ends = None
        self._seen.clear()
        self._blocked.clear()
        self._waited.clear()
