"""Brokers that lose how a transaction ended (KAFKA-20734): each message comes once all the same.

The second broker of two is killed while a transaction with records there is open, and starts again after it
ended. That it hangs then is a claim of the tests too: a Kafka that is mended makes them fail, and useless.
"""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("confluent_kafka")

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.harness.kafka.bridged import Bridged, names, send
from tests.harness.kafka.broker import Broker, missing
from tests.harness.kafka.clients import CALL_S, PATIENCE_S, Clients
from timerwheel.clock import SystemClock
from timerwheel.engine import Engine
from timerwheel.kafka import journal_topic, positions
from timerwheel.kafka.cluster import BridgeError, Cluster
from timerwheel.kafka.hanging import Place
from timerwheel.kafka.journal import KafkaJournal
from timerwheel.kafka.positions import Noted
from timerwheel.kafka.producer import Opened, TransactionalProducer, UnsettledError
from timerwheel.kafka.translation import Produced, produced_of
from timerwheel.runtime.message_views import id_of
from timerwheel.settings import JournalAddress
from timerwheel.store.errors import JournalAwayError, JournalFencedError
from timerwheel.store.journal import FENCE, Run, RunKind
from timerwheel.store.record import decode, unpack_header

pytestmark = pytest.mark.skipif(missing(own=True) is not None, reason=f"needs Kafka: {missing(own=True)}")

FENCED_SOON = "broker.session.timeout.ms=1000\nbroker.heartbeat.interval.ms=200\n"
KEPT, KILLED = 1, 2
BEFORE, HUNG, AFTER = 3, 40, 5


class Case(NamedTuple):
    """Which broker has the positions, and how the transaction ended."""

    positions: int
    committed: bool

    def __str__(self) -> str:
        return f"positions on {self.positions}, {'committed' if self.committed else 'aborted'}"


BLIND = Case(KEPT, committed=True)
CASES = [Case(broker, committed) for broker in (KEPT, KILLED) for committed in (True, False)]


class Prepared:
    """A service that sent BEFORE messages, and whose next HUNG are in a transaction of its producer."""

    def __init__(self, kafka: Clients, home: Path, case: Case) -> None:
        self.bridged = Bridged(kafka, home)
        self.case = case
        # One partition of the target is where nothing is lost, unless the positions are lost too.
        self.parts = [KILLED, KEPT] if case.positions == KEPT else [KILLED, KILLED]
        topics = self.bridged.topics
        place(kafka, topics.inlet, [KEPT])
        place(kafka, topics.positions, [case.positions], {"cleanup.policy": "compact"})
        place(kafka, self.bridged.target, self.parts)
        self.producer: Producer | None = None
        self.cluster: Cluster

    async def begin(self) -> None:
        """Send what comes before, and begin the transaction, as an outlet does that is killed in it."""
        target = self.bridged.target
        async with self.bridged.engine() as engine:
            async with self.bridged.outlet(engine, target):
                await send(engine, target, names("before", BEFORE))
                await self.bridged.came(target, BEFORE)
            await send(engine, target, names("hung", HUNG))
            self.cluster = self.bridged.cluster(engine)
            self.producer = self.cluster.producer(65_536, 1 << 20)
            records = await self.records(engine)
            reached = positions.offsets_record(self.cluster.service, target, {0: BEFORE + HUNG})
            await asyncio.to_thread(self.produce, records, reached)

    async def records(self, engine: Engine) -> list[Produced]:
        page = await engine.queues.records(self.bridged.target, 0, BEFORE, HUNG)
        found = []
        for data, root in zip(page.records, page.positions["root"].tolist(), strict=True):
            assert isinstance(data, bytes)
            found.append(produced_of(data, unpack_header(data), id_of(engine.core.ids, decode(data), root)))
        assert len(found) == HUNG
        return found

    def produce(self, records: list[Produced], reached: tuple[bytes, bytes]) -> None:
        assert self.producer is not None
        self.producer.init_transactions(CALL_S)
        self.producer.begin_transaction()
        for number, record in enumerate(records):
            self.producer.produce(
                record.topic, record.value, record.key, number % len(self.parts), headers=record.headers
            )
        key, value = reached
        self.producer.produce(self.bridged.topics.positions, value, key, positions.PARTITION)
        assert self.producer.flush(CALL_S) == 0

    def end(self) -> None:
        assert self.producer is not None
        if self.case.committed:
            self.producer.commit_transaction(CALL_S)
        else:
            self.producer.abort_transaction(CALL_S)
        self.producer = None

    @property
    def hangs(self) -> bool:
        """Whether readers are held back before the messages of the transaction."""
        part = TopicPartition(self.bridged.target, self.parts.index(KILLED))
        ends = []
        for committed in (True, False):
            consumer = self.cluster.consumer(committed=committed)
            ends.append(consumer.get_watermark_offsets(part, timeout=CALL_S)[1])
            consumer.close()
        return ends[0] < ends[1]


def place(kafka: Clients, topic: str, brokers: list[int], config: dict[str, str] | None = None) -> None:
    """Make a topic with a partition on each of these brokers."""
    replicas = [[broker] for broker in brokers]
    with AdminClient({"bootstrap.servers": kafka.address}) as admin:
        made = NewTopic(topic, len(brokers), replica_assignment=replicas, config=config or {})
        admin.create_topics([made])[topic].result()


def wait_for_leader(kafka: Clients, topic: str, *, there: bool) -> None:
    """Return when the first partition of a topic has a leader, or has none."""
    until = time.monotonic() + PATIENCE_S
    with AdminClient({"bootstrap.servers": kafka.address}) as admin:
        while (admin.list_topics(topic, timeout=CALL_S).topics[topic].partitions[0].leader >= 0) != there:
            assert time.monotonic() < until, f"leader of {topic}: not {there}"
            time.sleep(0.05)


def one_more(target: str) -> tuple[list[Produced], dict[str, dict[int, int]]]:
    """A message to send, and the positions behind it."""
    return [Produced(target, None, b"more", [])], {target: {0: BEFORE + HUNG + 1}}


class Log:
    """A log in Kafka on the second broker, and a leader of it whose transaction is open."""

    def __init__(self, kafka: Clients) -> None:
        self.address = kafka.address
        self.leader = self.journal(transaction_timeout_ms="600000")
        place(kafka, self.leader.topic, [KILLED], journal_topic.config(1))
        self.leader.claim()
        self.leader.append([Run(RunKind.SEGMENT, 0, b"h" * 64)])

    def journal(self, **properties: str) -> KafkaJournal:
        settings = {name.replace("_", "."): value for name, value in properties.items()}
        return KafkaJournal(JournalAddress(self.address, "shop"), settings, SystemClock())

    def end(self) -> None:
        """Do as a claimant that dies before it has stored its fence."""
        with pytest.raises(JournalAwayError, match="shop-log has no leader now"):
            self.journal().claim()
        claimant = Producer({"bootstrap.servers": self.address, "transactional.id": self.leader.topic})
        claimant.init_transactions(CALL_S)


class Lost(NamedTuple):
    """What the tests get.

    Services whose last transaction hangs, a producer of one that opened while nobody could see it, and a log.
    """

    cases: dict[Case, Prepared]
    crashing: Prepared
    early: TransactionalProducer
    log: Log


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lost]:
    home = Path(tmp_path_factory.mktemp("hanging"))
    first = Broker(home / "first", more=FENCED_SOON)
    second = Broker(home / "second", KILLED, first.controllers, more=FENCED_SOON)
    try:
        first.start()
        kafka = Clients(first.address)
        kafka.wait()
        kafka.make("first")
        kafka.transaction([("first", b"", [])], commit=True)  # so the topic of transactions is on this broker
        second.start()
        cases = {case: Prepared(kafka, home / str(number), case) for number, case in enumerate(CASES)}
        crashing = Prepared(kafka, home / "crashing", BLIND)
        everybody = [*cases.values(), crashing]
        for one in everybody:
            asyncio.run(one.begin())
        log = Log(kafka)
        second.kill()
        wait_for_leader(kafka, cases[CASES[0]].bridged.target, there=False)
        for one in everybody:
            one.end()
        log.end()
        blind = cases[BLIND]
        early = TransactionalProducer(blind.cluster, SystemClock(), positions.Run("early"))
        opened = early.open(Noted(None, {}), [blind.bridged.target])
        assert opened == ({blind.bridged.target: {0: BEFORE + HUNG}}, {}, [])
        with pytest.raises(BridgeError, match="has no leader"):
            early.send(*one_more(blind.bridged.target))
        second.start()
        for one in everybody:
            wait_for_leader(kafka, one.bridged.target, there=True)
        yield Lost(cases, crashing, early, log)
    finally:
        second.kill()
        first.kill()


def test_a_producer_that_could_not_see_a_partition_looks_before_it_sends_there(lost: Lost) -> None:
    target = lost.cases[BLIND].bridged.target
    with pytest.raises(UnsettledError, match=target):
        lost.early.send(*one_more(target))
    lost.early.close()


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_each_message_comes_once_though_brokers_have_lost_how_its_transaction_ended(
    lost: Lost, case: Case
) -> None:
    bridged = lost.cases[case].bridged
    target, wanted = bridged.target, [*names("before", BEFORE), *names("hung", HUNG), *names("after", AFTER)]
    assert await asyncio.to_thread(lambda: lost.cases[case].hangs)
    async with bridged.engine() as engine, bridged.outlet(engine, target):
        assert sorted(await bridged.came(target, BEFORE + HUNG)) == sorted(wanted[: BEFORE + HUNG])
        await send(engine, target, names("after", AFTER))
        assert sorted(await bridged.came(target, len(wanted))) == sorted(wanted)
    async with bridged.engine() as engine, bridged.outlet(engine, target):
        await send(engine, target, ["last"])
        assert sorted(await bridged.came(target, len(wanted) + 1)) == sorted([*wanted, "last"])


async def test_a_crash_at_each_step_of_sending_again_leaves_each_message_once(lost: Lost) -> None:
    one = lost.crashing
    target, whole = one.bridged.target, {one.bridged.target: {0: BEFORE + HUNG}}
    again = {target: {0: [BEFORE + number for number in range(0, HUNG, 2)]}}  # those on the second broker

    def opened(run: str) -> tuple[TransactionalProducer, Opened]:
        producer = TransactionalProducer(one.cluster, SystemClock(), positions.Run(run, "shop"))
        return producer, producer.open(Noted(None, {}), [target])

    def crash() -> None:
        producer, found = opened("notes")
        assert (found.again, [place for place, *_ in found.hanging]) == ({}, [Place(target, 0)])
        assert producer.repeat([], whole, again) == set()
        producer.close()
        producer, found = opened("aborts")
        assert (found.again, [place for place, *_ in found.hanging]) == (again, [Place(target, 0)])
        assert producer.repeat(found.hanging, whole, again) == {Place(target, 0)}
        producer.close()
        producer, found = opened("dies before it sends")
        assert found == (whole, again, [])
        producer.close()

    await asyncio.to_thread(crash)
    wanted = sorted([*names("before", BEFORE), *names("hung", HUNG)])
    for _ in range(2):
        async with one.bridged.engine() as engine, one.bridged.outlet(engine, target):
            assert sorted(await one.bridged.came(target, len(wanted))) == wanted
            await send(engine, target, ["after"])
            wanted = sorted([*wanted, "after"])
            assert sorted(await one.bridged.came(target, len(wanted))) == wanted


def test_a_leader_of_a_log_whose_transaction_lost_its_end_is_refused_behind_the_fence(lost: Lost) -> None:
    wait_for_leader(lost.cases[BLIND].bridged.kafka, lost.log.leader.topic, there=True)
    later = lost.log.journal()
    extent = later.claim()
    records = Run(RunKind.RECORDS, 64, b"x" * 10)
    with pytest.raises(JournalFencedError, match="it leads now"):
        lost.log.leader.append([records])
    later.append([records])
    found = [one for _, one in later.read(extent.start, later.extent().end) if one != FENCE]
    assert [one.base for one in found] == [0, 64]


async def test_an_open_transaction_of_somebody_who_copies_messages_is_not_taken_for_one_that_hangs(
    kafka: Clients, tmp_path: Path
) -> None:
    bridged = Bridged(kafka, tmp_path)
    target, other = bridged.target, bridged.later
    kafka.make(bridged.topics.inlet, target, other)
    async with bridged.engine() as engine, bridged.outlet(engine, target, other):
        await send(engine, target, ["first"])
        await bridged.came(target, 1)
    first = (await asyncio.to_thread(kafka.read_count, target, 1))[0]
    somebody = Producer({"bootstrap.servers": kafka.address, "transactional.id": bridged.target})
    await asyncio.to_thread(somebody.init_transactions, CALL_S)
    somebody.begin_transaction()
    somebody.produce(other, first.value, headers=first.headers)
    somebody.produce(other, b"headers of nobody", headers=[("TIMER_ID", b"0" * 24)])
    assert await asyncio.to_thread(somebody.flush, CALL_S) == 0
    async with bridged.engine() as engine, bridged.outlet(engine, target, other):
        await send(engine, target, ["second"])
        assert await bridged.came(target, 2) == ["first", "second"]
        await send(engine, other, ["mine"])
        while kafka.ends(other)[0] < 3:
            await asyncio.sleep(0.05)
        await asyncio.to_thread(somebody.commit_transaction, CALL_S)
        assert await bridged.came(other, 3) == ["first", "headers of nobody", "mine"]
        assert await bridged.came(target, 2) == ["first", "second"]
