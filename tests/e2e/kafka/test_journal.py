"""A topic of a real broker as a journal: what it stores, who may store, and which topics it refuses."""

import itertools
import logging
import time
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("confluent_kafka")

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests.harness.kafka.clients import Clients
from timerwheel.clock import SystemClock
from timerwheel.kafka.journal import KafkaJournal
from timerwheel.settings import JournalAddress
from timerwheel.store.errors import JournalAwayError, JournalFencedError, JournalMismatchError
from timerwheel.store.journal import FENCE, Extent, Run, RunKind

_numbers = itertools.count()
QUICK = {"transaction.timeout.ms": "2000", "message.timeout.ms": "1500"}


def run(base: int, data: bytes = b"x" * 10) -> Run:
    return Run(RunKind.RECORDS, base, data)


def runs_in(journal: KafkaJournal, extent: Extent) -> list[Run]:
    """What there is but the fences of claims."""
    return [run for _, run in journal.read(extent.start, extent.end) if run != FENCE]


def bases_in(journal: KafkaJournal, extent: Extent) -> list[int]:
    return [run.base for run in runs_in(journal, extent)]


@pytest.fixture
def cluster() -> str:
    """A name of its own for each test."""
    return f"shop-{next(_numbers)}-{time.time_ns()}"


@pytest.fixture
def journal(kafka: Clients, cluster: str) -> Iterator[Callable[..., KafkaJournal]]:
    made: list[KafkaJournal] = []

    def make(clock: SystemClock | None = None, **properties: str) -> KafkaJournal:
        address = JournalAddress(kafka.address, cluster)
        settings = {name.replace("_", "."): value for name, value in properties.items()}
        made.append(KafkaJournal(address, settings, clock or SystemClock()))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_what_is_appended_is_read_by_the_next_leader(journal: Callable[..., KafkaJournal]) -> None:
    first = journal()
    assert first.claim()[1:] == (0, 0)
    runs = [Run(RunKind.SEGMENT, 0, b"h" * 64), run(64), Run(RunKind.START, 74, b"m", 0, 2), run(74, b"")]
    positions = first.append(runs[:1]) + first.append(runs[1:])
    second = journal()
    extent = second.claim()
    assert runs_in(second, extent) == runs
    assert [position for position, run in second.read(0, extent.end) if run != FENCE] == positions
    assert [placed.run for placed in second.read(positions[2], positions[3])] == runs[2:3]
    assert list(second.read(extent.end, extent.end)) == []
    assert second.append([run(84)])[0] >= extent.end


def test_a_leader_that_was_replaced_is_fenced_also_if_it_was_idle(
    journal: Callable[..., KafkaJournal],
) -> None:
    busy, idle, last = journal(), journal(), journal()
    busy.claim()
    busy.append([run(0)])
    idle.claim()
    with pytest.raises(JournalFencedError, match="it leads now"):
        busy.append([run(10)])
    extent = last.claim()
    with pytest.raises(JournalFencedError, match="it leads now"):
        idle.append([run(20)])
    with pytest.raises(JournalAwayError, match="is not claimed"):
        idle.append([run(20)])
    assert bases_in(last, extent) == [0]
    assert bases_in(last, journal().claim()) == [0]


def test_an_idle_leader_is_not_fenced_by_its_own_transaction(
    kafka: Clients, cluster: str, journal: Callable[..., KafkaJournal]
) -> None:
    """`transaction.timeout.ms` passes many times, as it does in ten idle minutes."""
    leader = KafkaJournal(JournalAddress(kafka.address, cluster), QUICK, SystemClock())
    leader.claim()
    leader.append([run(0)])
    for _ in range(10):
        time.sleep(0.5)
        leader.rest()
    leader.append([run(10)])
    leader.close()
    assert bases_in(journal(), journal().claim()) == [0, 10]


def test_without_rest_the_brokers_end_a_transaction_and_its_leader(kafka: Clients, cluster: str) -> None:
    """So `rest` is needed."""
    leader = KafkaJournal(JournalAddress(kafka.address, cluster), QUICK, SystemClock())
    leader.claim()
    leader.append([run(0)])
    time.sleep(4)
    with pytest.raises((JournalFencedError, JournalAwayError)):
        leader.append([run(10)])


def test_a_trim_deletes_what_is_before(journal: Callable[..., KafkaJournal]) -> None:
    leader = journal()
    leader.claim()
    positions = leader.append([run(0), run(10), run(20)])
    leader.trim(positions[1])
    extent = leader.claim()
    assert extent.start == positions[1]
    assert bases_in(leader, extent) == [10, 20]


def test_a_run_may_be_as_large_as_it_says(journal: Callable[..., KafkaJournal]) -> None:
    leader = journal()
    leader.claim()
    assert leader.run_bytes_max > 64 << 20
    large = run(0, b"x" * (24 << 20))
    leader.append([large])
    extent = leader.claim()
    assert runs_in(leader, extent) == [large]


def test_the_topic_is_made_with_the_settings_that_a_log_needs(
    kafka: Clients, cluster: str, journal: Callable[..., KafkaJournal], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        journal().claim()
    found = kafka.configured(f"{cluster}-log")
    assert found["cleanup.policy"] == "delete"
    assert found["retention.ms"] == found["retention.bytes"] == "-1"
    assert found["unclean.leader.election.enable"] == "false"
    assert "has one replica: if that broker loses its disk, the log is lost" in caplog.text
    assert "anyone can read the Kafka topic" in caplog.text


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"cleanup_policy": "compact"}, "cleanup.policy=compact: the cleaner would drop"),
        ({"retention_ms": "86400000"}, "retention.ms=86400000: Kafka would delete"),
        ({"retention_bytes": "1000000", "retention_ms": "-1"}, "retention.bytes=1000000"),
        ({"unclean_leader_election_enable": "true", "retention_ms": "-1"}, "an election could lose"),
        ({"partitions": 2}, "has 2 partitions; a log has one"),
    ],
)
def test_a_topic_that_would_lose_messages_is_refused(
    kafka: Clients, cluster: str, journal: Callable[..., KafkaJournal], config: dict, match: str
) -> None:
    kafka.make(f"{cluster}-log", **config)
    with pytest.raises(JournalMismatchError, match=match):
        journal().claim()


def set_config(kafka: Clients, topic: str, name: str, value: str) -> None:
    """Change a setting of a topic, and wait until the broker says so."""
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    changed = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    with AdminClient({"bootstrap.servers": kafka.address}) as admin:
        admin.incremental_alter_configs([changed])[changed].result()
    until = time.monotonic() + 60
    while kafka.configured(topic)[name] != value:
        assert time.monotonic() < until


def test_a_leader_sees_that_the_settings_of_its_topic_were_changed(
    kafka: Clients, cluster: str, journal: Callable[..., KafkaJournal], caplog: pytest.LogCaptureFixture
) -> None:
    leader, topic = journal(), f"{cluster}-log"
    with caplog.at_level(logging.WARNING):
        leader.claim()
        at_claim = caplog.messages.copy()
        leader.check()
        assert caplog.messages == at_claim, "said once"
        set_config(kafka, topic, "retention.ms", "86400000")
        with pytest.raises(JournalMismatchError, match=r"retention\.ms=86400000: Kafka would delete"):
            leader.check()
        set_config(kafka, topic, "retention.ms", "-1")
        set_config(kafka, topic, "cleanup.policy", "compact")
        with pytest.raises(JournalMismatchError, match=r"cleanup\.policy=compact: the cleaner would drop"):
            leader.check()
        set_config(kafka, topic, "cleanup.policy", "delete")
        leader.check()
        assert caplog.messages == at_claim
        set_config(kafka, topic, "min.insync.replicas", "2")
        leader.check()
        assert caplog.messages[len(at_claim) :] == [
            f"the Kafka topic {topic} has min.insync.replicas=2, and 1 of replicas: nothing is stored"
        ]
        set_config(kafka, topic, "min.insync.replicas", "1")
        leader.check()
        caplog.clear()
        leader.append([run(0)])
        leader.claim()
        said = [line.message for line in caplog.records if line.name == "timerwheel.kafka.journal"]
        assert said == at_claim, "each claim says it"


def test_a_claim_that_is_tried_again_warns_once(
    journal: Callable[..., KafkaJournal], caplog: pytest.LogCaptureFixture
) -> None:
    leader = journal(transaction_timeout_ms="1000000")
    for _ in range(2):
        with pytest.raises(JournalAwayError, match=r"let them take more with transaction\.max\.timeout\.ms"):
            leader.claim()
    assert caplog.text.count("has one replica") == caplog.text.count("anyone can read") == 1


def test_records_of_something_else_are_told(
    kafka: Clients, cluster: str, journal: Callable[..., KafkaJournal]
) -> None:
    journal().claim()
    kafka.send(f"{cluster}-log", b"hello")
    kafka.flush()
    leader = journal()
    extent = leader.claim()
    with pytest.raises(JournalMismatchError, match="something else writes to it"):
        list(leader.read(extent.start, extent.end))


def test_brokers_that_are_away_are_told(cluster: str) -> None:
    leader = KafkaJournal(JournalAddress("127.0.0.1:9", cluster), {}, SystemClock())
    with pytest.raises(JournalAwayError, match=r"Kafka at .* does not answer"):
        leader.claim()


class FastClock(SystemClock):
    """The clock of a machine on which somebody set the hour by hand."""

    def now_ms(self) -> int:
        return super().now_ms() + 3_600_000


def test_a_node_whose_clock_is_not_that_of_the_brokers_says_so(
    journal: Callable[..., KafkaJournal], caplog: pytest.LogCaptureFixture
) -> None:
    fast = journal(FastClock())
    fast.claim()
    with caplog.at_level(logging.WARNING, "timerwheel.kafka.journal"):
        fast.append([run(0)])
        fast.append([run(10)])
    [told] = [line.message for line in caplog.records if "clock" in line.message]
    assert "s ahead of that of the Kafka brokers" in told
    caplog.clear()
    right = journal()
    right.claim()
    right.append([run(20)])
    assert not [line.message for line in caplog.records if "clock" in line.message]
