"""Brokers with TLS, SASL and an authorizer: the service with just the rights that doc/cluster.md names."""

import asyncio
import contextlib
import logging
import re
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka")

from tests.e2e.kafka.test_journal_serve import call, delivered, is_ready, send, until
from tests.harness.certificates import Authority
from tests.harness.kafka.bridged import Bridged
from tests.harness.kafka.broker import Broker, missing
from tests.harness.kafka.clients import Clients
from tests.harness.kafka.rights import Right, User
from tests.harness.ports import reserved_port
from tests.harness.processes import ROOT, RunningService, serving
from tests.torture.process import Service
from timerwheel.clock import SystemClock
from timerwheel.kafka import inlet as inlets
from timerwheel.kafka.clients import CannotConnectError
from timerwheel.kafka.cluster import BridgeError, Cluster
from timerwheel.kafka.consumer import InletConsumer
from timerwheel.kafka.election import KafkaElection
from timerwheel.kafka.journal import KafkaJournal
from timerwheel.kafka.names import KafkaTopics
from timerwheel.model.kafka_counts import BridgeState, Lag
from timerwheel.settings import JournalAddress
from timerwheel.store.errors import JournalAwayError, JournalMismatchError
from timerwheel.store.journal import Run, RunKind

pytestmark = pytest.mark.skipif(missing(own=True) is not None, reason=f"needs Kafka: {missing(own=True)}")

PATIENCE_S = 60


def documented(page: str) -> list[Right]:
    """The table of a page."""
    text = (ROOT / "doc" / page).read_text().partition("# Rights\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (topic|group|transactional id|cluster) \| (.*?) \| (.*?) \|", text, re.MULTILINE)
    found = []
    for kind, where, operations in rows:
        name = re.sub(r"prefix |`", "", where).strip()
        found += [Right(kind, name, one, where.startswith("prefix")) for one in operations.split(", ")]
    return found


RIGHTS, OF_BRIDGE = documented("cluster.md"), documented("kafka.md")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(Path(tmp_path_factory.mktemp("authority")))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Broker]:
    certificate = authority.issue("broker").both
    broker = Broker(Path(tmp_path_factory.mktemp("guarded")), certificate=certificate)
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()


@pytest.fixture
def user(guarded: Broker, authority: Authority) -> User:
    return User(guarded, f"timerwheel-{time.time_ns()}", "secret", authority.certificate)


class Own:
    """The rights of a cluster of one's own, and what needs them."""

    def __init__(self, broker: Broker, user: User) -> None:
        self.cluster = f"shop-{time.time_ns()}"
        self.address = JournalAddress(broker.address, self.cluster)
        self.rights = [right._replace(name=right.name.replace("shop", self.cluster)) for right in RIGHTS]
        self.user = user

    def without(self, *taken: str) -> None:
        """Take away those that are named so."""
        kept = [right for right in self.rights if str(right).replace(self.cluster, "shop") not in taken]
        assert len(kept) == len(self.rights) - len(taken)
        self.user.may(kept)

    def journal(self) -> KafkaJournal:
        return KafkaJournal(self.address, self.user.properties, SystemClock())


@pytest.fixture
def own(guarded: Broker, user: User) -> Own:
    return Own(guarded, user)


def test_the_rights_are_documented() -> None:
    assert len(RIGHTS) == 10
    assert Right("group", "shop-log", "Read", is_prefix=True) in RIGHTS


def has_copied(leader: RunningService) -> bool:
    """Whether a standby has everything."""
    nodes = call(leader, "/v1/cluster")["nodes"]
    return [node["behind"] for node in nodes] == [0, 0]


def test_the_service_works_with_just_these_rights(own: Own, tmp_path: Path) -> None:
    own.user.may(own.rights)
    flags = (
        *("--journal", f"kafka://{own.address.servers}/{own.cluster}"),
        *("--kafka-properties", own.user.write_properties(tmp_path / "kafka.properties")),
    )
    with serving(tmp_path / "data", *flags) as service:
        until(lambda: is_ready(service))
        send(service, "one", "two")
        assert sorted(delivered(service, 2)) == ["one", "two"]
        with Service(tmp_path / "standby", reserved_port(), tmp_path / "stderr", forked=True) as standby:
            standby.start(*flags)
            until(lambda: has_copied(service))
            said = standby.errors()
        said += service.end(signal.SIGTERM).err
    assert "claimed the Kafka topic" in said
    assert "can read the Kafka topic" not in said
    assert "cannot check" not in said


LACKS = "lacks rights to the topic"
REFUSED = "brokers refuse the Kafka user of this service"


def claim(journal: KafkaJournal) -> None:
    journal.claim()
    journal.append([Run(RunKind.RECORDS, 0, b"x")])


@pytest.mark.parametrize(
    ("taken", "match"),
    [
        ("Read topic shop-log", f"{LACKS} shop-.*: Read;"),
        ("Write topic shop-log", f"{LACKS} shop-.*: Write;"),
        ("Delete topic shop-log", f"{LACKS} shop-.*: Delete;"),
        ("DescribeConfigs topic shop-log", f"{LACKS} shop-.*: DescribeConfigs;"),
        ("Write transactional id shop-log", f"{REFUSED}, which keeps the log there: .*ransactional ?[iI]d"),
    ],
)
def test_a_leader_that_lacks_a_right_says_which(own: Own, taken: str, match: str) -> None:
    own.user.may(own.rights)
    own.journal().claim()
    own.without(taken)
    with pytest.raises(JournalAwayError, match=match) as caught:
        claim(own.journal())
    assert "doc/cluster.md lists" in str(caught.value)
    own.user.may(own.rights)
    claim(own.journal())


def test_a_topic_that_cannot_be_made_or_seen_is_told(own: Own) -> None:
    own.without("Create topic shop-log")
    with pytest.raises(
        JournalMismatchError, match=r"missing or hidden from this user: .*uthorization failed; create it as"
    ):
        own.journal().claim()


@pytest.mark.filterwarnings("ignore:list_groups")
def test_a_node_that_may_not_join_the_group_says_so_and_goes_on_once_it_may(own: Own) -> None:
    own.user.may(own.rights)
    own.journal().claim()
    own.without("Read group shop-leader")

    async def run() -> None:
        election = KafkaElection(own.address, own.user.properties, SystemClock(), "http://node")
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(JournalAwayError, match=f"{REFUSED}, which joins the group .*-leader"):
                await election.won()
            own.user.may(own.rights)
            while True:
                with contextlib.suppress(JournalAwayError):
                    await election.won()
                    break
            while election.leads_until_ms < SystemClock().uptime_ms():
                await asyncio.sleep(0.05)
        await election.leave()

    asyncio.run(run())


def test_without_the_rights_of_the_cluster_it_works_and_warns(
    own: Own, caplog: pytest.LogCaptureFixture
) -> None:
    own.without("Describe cluster kafka-cluster", "DescribeConfigs cluster kafka-cluster")
    claim(own.journal())
    assert "cannot check that the brokers have transaction.partition.verification.enable=true" in caplog.text
    assert "unless it lacks the right to see who can" in caplog.text


NOT_LET_IN = "brokers refused this service's connection"


def test_why_no_broker_can_be_talked_to_is_told_by_the_journal_and_the_bridge(own: Own) -> None:
    """All at once: each waits for five seconds."""
    right, address = own.user.properties, own.address.servers
    without_authority = {name: value for name, value in right.items() if name != "ssl.ca.location"}
    with socket.create_server(("127.0.0.1", 0)) as silent:
        cases = [
            (address, right | {"sasl.password": "wrong"}, f"{NOT_LET_IN}: .*[Aa]uthentication"),
            (address, without_authority, f"{NOT_LET_IN}: .*certificate"),
            (address, {}, "are these addresses of Kafka brokers .* is security.protocol"),
            (f"127.0.0.1:{silent.getsockname()[1]}", {}, "are these addresses of Kafka brokers"),
            ("127.0.0.1:9", {}, "127.0.0.1:9 failed: Connection refused$"),
        ]
        with ThreadPoolExecutor(2 * len(cases)) as pool:
            calls = []
            for servers, properties, _ in cases:
                journal = KafkaJournal(JournalAddress(servers, own.cluster), properties, SystemClock())
                cluster = Cluster(servers, properties, KafkaTopics("timers"))
                calls.append((pool.submit(journal.claim), pool.submit(cluster.make_topics)))
            for (by_journal, by_bridge), (*_, match) in zip(calls, cases, strict=True):
                with pytest.raises(JournalAwayError, match=match):
                    by_journal.result()
                with pytest.raises(CannotConnectError, match=match):
                    by_bridge.result()


def test_a_topic_of_the_bridge_that_may_not_be_seen_is_told(own: Own) -> None:
    cluster = Cluster(own.address.servers, own.user.properties, KafkaTopics("timers"))
    with pytest.raises(BridgeError, match=r"cannot create .* which is missing or hidden from this user"):
        cluster.make_topics()


def test_a_topic_that_others_may_read_is_told(
    guarded: Broker, own: Own, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    own.user.may(own.rights)
    own.journal().claim()
    assert "can read the Kafka topic" not in caplog.text
    everybody = Everybody(guarded, authority)
    everybody.may([Right("topic", f"{own.cluster}-log", "Read")])
    own.journal().claim()
    assert f"anyone can read the Kafka topic {own.cluster}-log" in caplog.text


class Everybody(User):
    """All users."""

    def __init__(self, broker: Broker, authority: Authority) -> None:
        super().__init__(broker, "someone", "secret", authority.certificate)
        self.name = "*"


def test_another_user_who_may_read_the_topic_is_named(
    guarded: Broker, own: Own, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    own.user.may(own.rights)
    own.journal().claim()
    other: Sequence[Right] = [Right("topic", f"{own.cluster}-log", "Read")]
    User(guarded, "curious", "secret", authority.certificate).may(other)
    own.journal().claim()
    assert "User:curious can read the Kafka topic" in caplog.text
    caplog.clear()  # a service that gives no name of a user has rights of its own all the same
    KafkaJournal(JournalAddress(guarded.internal, own.cluster), {}, SystemClock()).claim()
    assert f"User:curious, User:{own.user.name} can read the Kafka topic" in caplog.text


async def test_an_inlet_that_may_not_be_read_is_named_and_does_not_count_as_working(
    guarded: Broker,
    user: User,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(inlets, "RETRY_MS", 50)
    caplog.set_level(logging.INFO)
    clients = Clients(guarded.internal)
    bridged = Bridged(clients, tmp_path)
    bridged.address = guarded.address
    inlet = bridged.topics.inlet
    rights = [
        Right("topic", inlet, "Create", is_prefix=True),
        Right("topic", inlet, "Describe"),
        Right("topic", bridged.topics.positions, "DescribeConfigs"),
        Right("group", "timerwheel-", "Read", is_prefix=True),
    ]
    user.may(rights)
    clients.make(inlet)
    clients.send(inlet, b"waits", [("TIMER_TOPIC", b"t"), ("TIMER_DELAY_SEC", b"3600")])
    clients.flush()
    opened: list[int] = []
    really_open = InletConsumer.open

    def counted(consumer: InletConsumer, stored: Mapping[str, int]) -> int:
        opened.append(really_open(consumer, stored))
        return opened[-1]

    monkeypatch.setattr(InletConsumer, "open", counted)
    async with bridged.engine() as engine, bridged.inlet(engine, user.properties):
        while len(opened) < 4:
            await asyncio.sleep(0.01)
        assert "works again" not in caplog.text
        assert f"refuse the Kafka user of this service, which reads the topic {inlet}: " in caplog.text
        assert bridged.counts.inlet_state != BridgeState.WORKING
        assert bridged.counts.inlet == {0: Lag(0, 1)}
        user.may([*rights, Right("topic", inlet, "Read")])
        while bridged.counts.inlet_state != BridgeState.WORKING:
            await asyncio.sleep(0.01)
        assert "the Kafka inlet works again" in caplog.text


def test_the_bridge_works_with_just_the_rights_of_its_page(
    guarded: Broker, user: User, tmp_path: Path
) -> None:
    number = time.time_ns()
    inlet, target = f"timers{number}", f"orders{number}"
    named = {"timers": inlet, "each target": target}
    user.may(
        [
            right._replace(name=named.get(right.name, right.name.replace("timers.", f"{inlet}.")))
            for right in OF_BRIDGE
        ]
    )
    clients = Clients(guarded.internal)
    clients.make(target)
    flags = (
        *("--kafka", guarded.address, "--kafka-inlet", inlet),
        *("--kafka-properties", user.write_properties(tmp_path / "kafka.properties")),
    )
    with serving(tmp_path / "data", *flags) as service:
        until(lambda: f"{inlet}.positions" in clients.topics())
        headers = [("TIMER_TOPIC", target.encode()), ("TIMER_DELAY_MS", b"50")]
        clients.send(inlet, b"due", headers)
        clients.send(inlet, b"nowhere", [("TIMER_TOPIC", f"{target}-unknown".encode())])
        clients.flush()
        assert [one.value for one in clients.read_count(target, 1)] == [b"due"]
        assert [one.value for one in clients.read_count(f"{inlet}.rejected", 1)] == [b"nowhere"]
        said = service.end(signal.SIGTERM).err
    assert "cannot check" not in said
