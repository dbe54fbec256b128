"""Transactions over gRPC: begun, ended, and checked over the stream of a producer; on a clock by hand."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="needs the extra grpc")

from tests.harness.clock import ManualClock
from tests.harness.drive import settle
from tests.harness.grpc_calls import GrpcCaller, grpc_served, message
from timerwheel import tokens
from timerwheel.engine import Engine
from timerwheel.model.messages import Outgoing
from timerwheel.rocketmq.grpc import producers
from timerwheel.rocketmq.grpc.call import SLOW_READER_MS
from timerwheel.rocketmq.grpc.codes import ClientType, Code, MessageType, TransactionResolution
from timerwheel.rocketmq.grpc.schema import message_class
from timerwheel.settings import Settings
from timerwheel.tokens import Scope, Token

NOW_MS = 1_800_000_000_000
TIMEOUT_MS, INTERVAL_MS = 6_000, 30_000
COMMIT, ROLLBACK = TransactionResolution.COMMIT, TransactionResolution.ROLLBACK


class Front:
    def __init__(self, engine: Engine, clock: ManualClock, caller: GrpcCaller) -> None:
        self.engine, self.clock, self.caller = engine, clock, caller

    async def advance(self, duration_ms: int) -> None:
        self.clock.advance(duration_ms)
        await settle(self.engine)

    async def begin(self, topic: str = "orders", message_id: str = "0102FC00", **more: object) -> str:
        half = message(topic, message_id=message_id, message_type=MessageType.TRANSACTION, **more)
        answer = await self.caller.send(half)
        assert answer.status.code == Code.OK, answer.status.message
        (entry,) = answer.entries
        assert (entry.message_id, entry.recall_handle) == (message_id, "")
        return entry.transaction_id

    async def end(self, transaction_id: str, resolution: int, topic: str = "orders") -> Code:
        given = {"topic": topic, "transaction_id": transaction_id, "resolution": resolution}
        answer = await self.caller.call("EndTransaction", **given)
        assert answer.status.message
        return Code(answer.status.code)

    def checks(self) -> list[int]:
        return [one.checks for one in self.engine.transactions.page().transactions]


@asynccontextmanager
async def served(data: Path, **settings: object) -> AsyncIterator[Front]:
    clock = ManualClock(NOW_MS)
    engine = await Engine.open(Settings(data=data, disk_reserve_bytes=0, **settings), clock, threads=False)
    async with grpc_served(engine) as caller:
        yield Front(engine, clock, caller)
    await engine.close()


@pytest.fixture
async def front(tmp_path: Path) -> AsyncIterator[Front]:
    async with served(tmp_path) as front:
        yield front


async def producer(front: Front, client_id: str, *topics: str, namespace: str = "") -> object:
    """The Telemetry stream of a producer of these topics, once it has its settings."""
    command = message_class("TelemetryCommand")()
    command.settings.client_type = ClientType.PRODUCER
    command.settings.publishing.SetInParent()
    for topic in topics:
        command.settings.publishing.topics.add(name=topic, resource_namespace=namespace)
    front.caller.client_id = client_id
    stream = front.caller.telemetry()
    await stream.write(command)
    assert (await stream.read()).status.code == Code.OK
    return stream


async def checked(stream: object) -> object:
    command = await stream.read()
    assert command.WhichOneof("command") == "recover_orphaned_transaction_command"
    return command.recover_orphaned_transaction_command


async def test_a_half_message_comes_once_it_is_committed_and_says_that_it_was_transactional(front):
    half = await front.begin(tag="paid", user={"a": "b"})
    await front.advance(1_000)
    assert (await front.caller.receive())[0] is Code.MESSAGE_NOT_FOUND
    assert await front.end(half, COMMIT) is Code.OK
    _, (found,) = await front.caller.receive()
    system = found.system_properties
    assert (found.body, system.message_id, system.tag) == (b"hello", "0102FC00", "paid")
    assert (system.message_type, dict(found.user_properties)) == (MessageType.TRANSACTION, {"a": "b"})


async def test_an_end_may_be_repeated_and_the_first_one_counts(front):
    committed, dropped = await front.begin(message_id="a"), await front.begin(message_id="b")
    for _ in range(2):
        assert await front.end(committed, COMMIT) is Code.OK
        assert await front.end(dropped, ROLLBACK) is Code.OK
    assert await front.end(committed, ROLLBACK) is Code.BAD_REQUEST
    assert await front.end(dropped, COMMIT) is Code.BAD_REQUEST
    _, (found,) = await front.caller.receive()
    assert found.system_properties.message_id == "a"


async def test_of_ends_that_race_one_wins(front):
    half = await front.begin()
    codes = await asyncio.gather(*[front.end(half, how) for how in (COMMIT, ROLLBACK) * 3])
    assert sorted(codes) == [Code.OK] * 3 + [Code.BAD_REQUEST] * 3
    assert front.engine.transactions.page().transactions == []


async def test_an_end_names_an_open_transaction_of_its_topic_and_how_it_ends(front):
    half = await front.begin()
    sent = await front.engine.sender.send([Outgoing("orders", b"x", after_ms=60_000)])
    for unknown in ("", "no id", "0" * 24, "0" * 23 + "1", "f" * 24, "ü" * 1_000):
        assert await front.end(unknown, COMMIT) is Code.INVALID_TRANSACTION_ID
    assert await front.end(half, COMMIT, "bills") is Code.INVALID_TRANSACTION_ID
    assert await front.end(sent[0].id, ROLLBACK) is Code.INVALID_TRANSACTION_ID
    for resolution in (0, 7):
        assert await front.end(half, resolution) is Code.BAD_REQUEST
    assert [one.id for one in front.engine.transactions.page().transactions] == [half]


async def test_a_repeated_half_message_begins_one_transaction(front):
    first, second = await asyncio.gather(front.begin(), front.begin())
    assert first == second == await front.begin()
    assert await front.end(first, ROLLBACK) is Code.OK
    assert await front.begin() == first  # a repeat that was late on its way
    assert front.engine.transactions.page().transactions == []


async def test_a_half_message_that_is_refused_leaves_nothing_and_may_be_sent_again(front):
    answer = await front.caller.send(message("a topic", message_type=MessageType.TRANSACTION))
    assert answer.status.code == Code.ILLEGAL_TOPIC
    large = {"a": "v" * 60_000}
    refused = message(message_type=MessageType.TRANSACTION, user=large)
    for _ in range(2):
        assert (await front.caller.send(refused)).status.code == Code.MESSAGE_PROPERTIES_TOO_LARGE
    assert await front.begin()


async def test_producers_of_the_topic_are_asked_in_turn_until_one_answers(front):
    first = await producer(front, "first", "orders", "bills")
    second = await producer(front, "second", "orders")
    await producer(front, "other", "bills")
    front.caller.client_id = "second"
    half = await front.begin(tag="paid", keys=["k"], user={"a": "b"})
    await front.advance(TIMEOUT_MS)
    check = await checked(first)
    system = check.message.system_properties
    assert (check.transaction_id, check.message.topic.name, check.message.body) == (half, "orders", b"hello")
    assert (system.message_id, system.message_type, system.tag) == (
        "0102FC00",
        MessageType.TRANSACTION,
        "paid",
    )
    assert (list(system.keys), dict(check.message.user_properties)) == (["k"], {"a": "b"})
    for stream in (second, first):
        await front.advance(INTERVAL_MS)
        assert (await checked(stream)).transaction_id == half
    assert front.checks() == [3]
    assert await front.end(half, COMMIT) is Code.OK
    await front.advance(10 * INTERVAL_MS)
    assert front.checks() == []


async def test_a_producer_that_names_no_topics_is_asked_about_what_it_has_sent(front):
    stream = await producer(front, "shop")
    half = await front.begin()
    await front.advance(TIMEOUT_MS)
    assert (await checked(stream)).transaction_id == half


async def test_a_check_keeps_the_namespace_of_its_producer(front):
    stream = await producer(front, "shop", "orders", namespace="eu")
    half = message(message_type=MessageType.TRANSACTION)
    half.topic.resource_namespace = "eu"
    await front.caller.send(half)
    await front.advance(TIMEOUT_MS)
    topic = (await checked(stream)).message.topic
    assert (topic.resource_namespace, topic.name) == ("eu", "orders")


async def test_checks_count_only_while_a_producer_is_there(tmp_path):
    async with served(tmp_path, transaction_checks_max=1) as front:
        gone = await producer(front, "gone", "orders")
        half = await front.begin()
        await gone.done_writing()
        assert not await gone.read()
        for _ in range(5):
            await front.advance(INTERVAL_MS)
        assert front.checks() == [0]
        back = await producer(front, "back", "orders")
        await front.advance(INTERVAL_MS)
        assert (await checked(back)).transaction_id == half
        await front.advance(INTERVAL_MS)
        assert front.checks() == []
        assert await front.end(half, ROLLBACK) is Code.OK  # it was rolled back already
        assert await front.end(half, COMMIT) is Code.BAD_REQUEST


async def test_what_was_begun_over_another_protocol_is_not_asked_here_and_its_checks_count(front):
    stream = await producer(front, "shop", "orders")
    await front.engine.transactions.begin(Outgoing("orders", b"over HTTP", {"UNIQ_KEY": "k"}))
    remote = Outgoing("orders", b"over remoting", {"PGROUP": "p"}, envelope="1 127.0.0.1 1")
    await front.engine.transactions.begin(remote)
    await front.advance(TIMEOUT_MS)
    assert front.checks() == [1, 1]
    half = await front.begin()
    await front.advance(TIMEOUT_MS)
    assert (await checked(stream)).transaction_id == half


async def test_a_check_goes_to_no_producer_whose_token_may_not_send_to_the_topic(tmp_path):
    secrets: dict[str, str] = {}
    for name, scope, topic in (
        ("seller", Scope.SEND, "orders"),
        ("clerk", Scope.SEND, "bills"),
        ("reader", Scope.RECEIVE, "orders"),
    ):
        secret = secrets[name] = tokens.new_secret()
        sha256 = tokens.hash_of(secret)
        fields = {"starts": secret[:9], "sha256": sha256, "made_ms": NOW_MS}
        tokens.create(tmp_path, Token(name=name, scopes=(scope,), topics=(topic,), **fields))
    async with AsyncExitStack() as stack:
        front = await stack.enter_async_context(served(tmp_path))
        streams = {}
        for name, secret in secrets.items():
            front.caller.access_key = secret
            streams[name] = await producer(front, name, "orders")
        front.caller.access_key = secrets["seller"]
        half = await front.begin()
        for _ in range(3):
            await front.advance(INTERVAL_MS)
            assert (await checked(streams["seller"])).transaction_id == half


async def test_of_more_topics_than_it_may_have_a_producer_forgets_the_first(front, monkeypatch):
    monkeypatch.setattr(producers, "TOPICS_MAX", 2)
    stream = await producer(front, "shop", "orders", "bills", "jobs")
    front.caller.client_id = "another"
    await front.begin("orders")
    half = await front.begin("bills")
    await front.advance(TIMEOUT_MS)
    assert (await checked(stream)).transaction_id == half
    assert sorted(front.checks()) == [0, 1]


async def test_checks_that_nobody_reads_hold_only_so_much_and_hold_up_no_other_producer(tmp_path):
    body, count = bytes(500_000), 8
    settings = {"in_progress_bytes_max": 4_000_000, "transaction_checks_max": 1_000_000}
    async with served(tmp_path, **settings) as front:
        unread = await producer(front, "hangs", "orders")
        for number in range(count):
            await front.begin(message_id=str(number), body=body)
        await front.advance(TIMEOUT_MS)
        assert 0 < sum(front.checks()) < count
        reader = await producer(front, "reads", "orders")
        reading = asyncio.create_task(checked(reader))
        while not reading.done():
            await front.advance(SLOW_READER_MS)
        assert (await reading).message.body == body
        unread.cancel()
