"""Which outlet goes on when two processes have opened one for a service: by the journal, or who came last."""

import asyncio
import contextlib
import itertools
import time
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka")

from confluent_kafka import KafkaError, KafkaException

from tests.harness.clock import ManualClock
from tests.harness.faulty import FaultyFiles
from tests.harness.kafka.clients import Clients
from tests.harness.memory_election import MemoryElection
from tests.harness.memory_journal import MemoryJournal
from timerwheel.clock import SystemClock
from timerwheel.engine import Engine, LogOptions
from timerwheel.kafka.cluster import Cluster, fatal_of
from timerwheel.kafka.front import service_name
from timerwheel.kafka.names import KafkaTopics
from timerwheel.kafka.outlet import Outlet
from timerwheel.kafka.outlets import Outlets
from timerwheel.kafka.positions import Noted, Run
from timerwheel.kafka.producer import FencedError, TransactionalProducer
from timerwheel.kafka.translation import Produced
from timerwheel.model.kafka_counts import KafkaCounts
from timerwheel.settings import Settings

NOTHING = Noted(None, {})
_numbers = itertools.count(1)


class Service:
    """A service with a target of its own, for which several processes produce."""

    def __init__(self, kafka: Clients, name: str = "") -> None:
        number = f"{next(_numbers)}-{time.time_ns() % 1_000_000_007}"
        self.kafka = kafka
        self.topics = KafkaTopics(f"timers.{number}")
        self.target = f"orders.{number}"
        self.cluster = Cluster(kafka.address, {}, self.topics, name or number)
        kafka.make(self.topics.inlet, self.target)

    def process(self, name: str, journal: str | None) -> TransactionalProducer:
        return TransactionalProducer(self.cluster, SystemClock(), Run(name, journal))

    def send(self, process: TransactionalProducer, number: int) -> None:
        """Send the message at this place of the queue."""
        record = Produced(self.target, None, str(number).encode(), ())
        assert process.send([record], {"orders": {0: number + 1}}) == []

    def came(self, count: int) -> list[bytes | None]:
        return [got.value for got in self.kafka.read_count(self.target, count)]


@pytest.fixture
def service(kafka: Clients) -> Service:
    return Service(kafka)


def test_a_leader_that_another_of_its_journal_has_fenced_goes_on_where_both_were(service: Service) -> None:
    """As after a leader was replaced while it opened, slept, and went on with that when it woke."""
    leader, woken = service.process("leader", "shop"), service.process("woken", "shop")
    leader.open(NOTHING)
    service.send(leader, 0)
    assert woken.open(NOTHING).offsets == {"orders": {0: 1}}
    service.send(woken, 1)
    with pytest.raises(KafkaException):
        service.send(leader, 1)
    assert leader.open(NOTHING).offsets == {"orders": {0: 2}}
    service.send(leader, 2)
    assert service.came(3) == [b"0", b"1", b"2"]


def test_a_fatal_error_is_found_though_confluent_kafka_has_lost_it(service: Service) -> None:
    """As `flush` did once: it "returned NULL without setting an exception"."""
    fenced, fencing = (service.cluster.producer(1 << 20, 1 << 20) for _ in range(2))
    fenced.init_transactions(20)
    fenced.begin_transaction()
    assert fatal_of(fenced, SystemError("of something else")) is None
    fencing.init_transactions(20)
    with contextlib.suppress(KafkaException, SystemError):
        for _ in range(10):
            fenced.produce(service.target, b"of an old epoch")
            fenced.flush(20)
    fatal = fatal_of(fenced, SystemError("returned NULL without setting an exception"))
    assert fatal is not None
    assert fatal.args[0].code() == KafkaError._FENCED
    assert fatal_of(fencing, SystemError("of something else")) is None
    assert fatal_of(None, SystemError("of something else")) is None


@pytest.mark.parametrize(("own", "other"), [("shop", "copy"), ("shop", None), (None, "shop"), (None, None)])
def test_a_process_that_one_on_a_copy_of_the_data_has_fenced_ends(
    service: Service, own: str | None, other: str | None
) -> None:
    first, second = service.process("first", own), service.process("second", other)
    first.open(NOTHING)
    second.open(NOTHING)
    with pytest.raises(FencedError):
        first.open(NOTHING)
    service.send(second, 0)


async def test_a_leader_that_was_replaced_does_not_fence_the_next_one(kafka: Clients, tmp_path: Path) -> None:
    journal, election = MemoryJournal(), MemoryElection()
    election.win()
    settings = Settings(data=tmp_path, disk_reserve_bytes=0)
    log = LogOptions(journal=journal.leader(), election=election)
    engine = await Engine.open(settings, ManualClock(), FaultyFiles(), threads=False, log=log)
    service = Service(kafka, service_name(engine.core.log.log_id))
    outlets = Outlets(engine, service.topics, ())
    await outlets.open()
    outlet = Outlet(engine, service.cluster, outlets, KafkaCounts(), Run("woken", journal.name))

    journal.leader().claim()
    leader = service.process("next", journal.name)
    await asyncio.to_thread(leader.open, NOTHING)
    running = asyncio.create_task(outlet.run())
    try:
        await engine.failed()
        await asyncio.to_thread(service.send, leader, 0)
    finally:
        outlet.stop()
        running.cancel()
        await outlet.close()
        await engine.close()
