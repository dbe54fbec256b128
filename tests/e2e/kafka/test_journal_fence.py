"""The fence of a claim in a real partition: where it is, who is refused behind it, who passes over it."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka")

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.harness.kafka.broker import Brokers, missing
from tests.harness.kafka.clients import Clients
from timerwheel.clock import SystemClock
from timerwheel.kafka import journal_topic
from timerwheel.kafka.journal import HEADER, KafkaJournal
from timerwheel.settings import JournalAddress
from timerwheel.store.errors import JournalAwayError, JournalFencedError
from timerwheel.store.files import DiskFiles
from timerwheel.store.journal import FENCE, Placed, Run, RunKind, label
from timerwheel.store.journaled_log import JournaledLog

PATIENCE_S = 120.0  # only keeps a failure from hanging
INIT_S = 10.0


def run(base: int) -> Run:
    return Run(RunKind.RECORDS, base, b"x" * 10)


def journal_of(servers: str, cluster: str, **properties: str) -> KafkaJournal:
    settings = {name.replace("_", "."): value for name, value in properties.items()}
    return KafkaJournal(JournalAddress(servers, cluster), settings, SystemClock())


def copied(journal: KafkaJournal, directory: Path) -> JournaledLog:
    """A copy as a standby makes one."""
    log = JournaledLog(directory, DiskFiles(), 1 << 20, journal)
    log.attach(journal.extent())
    log.catch_up(journal.extent().end)
    return log


def test_a_claim_ends_where_its_fence_is_behind_all_that_the_earlier_leader_stored(
    kafka: Clients,
) -> None:
    cluster = f"shop-{time.time_ns()}"
    earlier, later = journal_of(kafka.address, cluster), journal_of(kafka.address, cluster)
    earlier.claim()
    positions = earlier.append([run(0), run(10)])  # its transaction stays open
    extent = later.claim()
    assert extent.end > positions[-1]
    [fence] = later.read(extent.end, extent.end + 1)
    assert fence == Placed(extent.end, FENCE)
    raw = kafka.read(f"{cluster}-log", lambda found: len(found) >= 4, committed=False)
    assert dict(raw[-1].headers)[HEADER] == label(FENCE)
    with pytest.raises(JournalFencedError, match="it leads now"):
        earlier.append([run(20)])


def test_a_claimed_topic_without_a_log_is_copied_as_an_empty_one_and_begun_by_the_next_leader(
    kafka: Clients, tmp_path: Path
) -> None:
    cluster = f"shop-{time.time_ns()}"
    for _ in range(2):
        journal_of(kafka.address, cluster).claim()  # and dies
    standby = journal_of(kafka.address, cluster)
    with contextlib.closing(copied(standby, tmp_path / "standby")) as log:
        assert log.bases == ()
    leader = JournaledLog(tmp_path / "leader", DiskFiles(), 1 << 20, journal_of(kafka.address, cluster))
    with contextlib.closing(leader):
        extent = leader.claim()
        leader.attach(extent)
        leader.catch_up(extent.end)
        leader.open(new_log_id=bytes(16), now_ms=7, keep_from=0)
        journal_of(kafka.address, cluster).claim()  # one more fence, behind the header
        with contextlib.closing(copied(standby, tmp_path / "other")) as log:
            assert log.bases == (0,)
            assert log.tail == leader.tail


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    made = Brokers(tmp_path / "brokers")
    try:
        made.start()
        Clients(made.address).wait()
        yield made
    finally:
        made.kill()


def make_topic(servers: str, topic: str, broker: int) -> None:
    """Make the topic of a journal, which has its only replica on this broker."""
    with AdminClient({"bootstrap.servers": servers}) as admin:
        wanted = NewTopic(topic, 1, replica_assignment=[[broker]], config=journal_topic.config(1))
        admin.create_topics([wanted])[topic].result()


def wait_for_leader(servers: str, topic: str, broker: int) -> None:
    """Return once this broker leads the partition of a topic; -1 for none."""
    end = time.monotonic() + PATIENCE_S
    with AdminClient({"bootstrap.servers": servers}) as admin:
        while admin.list_topics(topic, timeout=30).topics[topic].partitions[0].leader != broker:
            assert time.monotonic() < end
            time.sleep(0.1)


@pytest.mark.skipif(missing(own=True) is not None, reason=f"needs Kafka: {missing(own=True)}")
def test_a_leader_whose_transaction_lost_its_marker_is_refused_behind_the_fence(brokers: Brokers) -> None:
    """Coordinators of Kafka 4.3 and 4.4 write no marker to a partition that has no leader (KAFKA-20734)."""
    cluster = "shop"
    topic, away = f"{cluster}-log", brokers.each[2]
    rest = ",".join(broker.address for broker in brokers.each[:2])
    make_topic(brokers.address, topic, 3)
    earlier = journal_of(brokers.address, cluster, transaction_timeout_ms="600000")
    earlier.claim()
    earlier.append([Run(RunKind.SEGMENT, 0, b"h" * 64)])  # its transaction stays open

    away.kill()
    wait_for_leader(rest, topic, -1)
    with pytest.raises(JournalAwayError, match="shop-log has no leader now"):
        journal_of(rest, cluster).claim()
    # A leader that dies after its claim was heard, and before it has stored its fence. Brokers without the
    # fault do not answer: they wait for the partition.
    claimant = Producer({"bootstrap.servers": rest, "transactional.id": topic})
    with contextlib.suppress(KafkaException):
        claimant.init_transactions(INIT_S)
    away.start()
    wait_for_leader(rest, topic, 3)

    later = journal_of(brokers.address, cluster)
    extent = later.claim()
    with pytest.raises(JournalFencedError, match="it leads now"):
        earlier.append([run(64)])
    later.append([run(64)])
    found = [one for _, one in later.read(extent.start, later.extent().end) if one != FENCE]
    assert [one.base for one in found] == [0, 64]
