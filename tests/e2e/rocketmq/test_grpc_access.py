"""Tokens and TLS over gRPC, and how the front starts: what it needs, and where it may listen."""

import asyncio
import signal
import socket
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="needs the extra grpc")

from grpc import RpcError, StatusCode, aio, ssl_channel_credentials

from tests.harness.certificates import Authority
from tests.harness.clock import ManualClock
from tests.harness.drive import settle
from tests.harness.grpc_calls import CLIENT_ID, TIMEOUT_S, GrpcCaller, grpc_served, message
from tests.harness.processes import serving_alone, timerwheel
from timerwheel import tokens
from timerwheel.engine import Engine
from timerwheel.errors import SettingsError
from timerwheel.model.messages import Outgoing
from timerwheel.rocketmq.grpc import clients, service
from timerwheel.rocketmq.grpc.clients import RENEW_EACH_MS
from timerwheel.rocketmq.grpc.codes import ClientType, Code, TransactionResolution
from timerwheel.rocketmq.grpc.front import GrpcFront
from timerwheel.rocketmq.grpc.schema import message_class
from timerwheel.rocketmq.stored_message import Host
from timerwheel.settings import Serving, Settings
from timerwheel.state.groups import group_topic
from timerwheel.tokens import Scope, Token

NOW_MS = 1_800_000_000_000


@pytest.fixture
async def stack(tmp_path):  # the engine closes before its directory is removed
    assert tmp_path
    async with AsyncExitStack() as stack:
        yield stack


async def open_engine(stack: AsyncExitStack, data: Path) -> Engine:
    engine = await Engine.open(Settings(data=data, disk_reserve_bytes=0), ManualClock(NOW_MS), threads=False)
    stack.push_async_callback(engine.close)
    return engine


def make_token(data: Path, name: str, *scopes: Scope, topics: str = "orders", **more: object) -> str:
    secret = tokens.new_secret()
    token = Token(
        name=name,
        starts=secret[:9],
        sha256=tokens.hash_of(secret),
        scopes=scopes,
        topics=(topics,),
        made_ms=NOW_MS,
        **more,
    )
    tokens.create(data, token)
    return secret


@pytest.mark.parametrize("name", ["SendMessage", "ReceiveMessage", "Heartbeat"])
async def test_nothing_of_a_request_without_a_token_is_read(stack, tmp_path, name):
    make_token(tmp_path / "data", "someone", Scope.SEND)
    caller = await stack.enter_async_context(grpc_served(await open_engine(stack, tmp_path / "data")))
    caller.access_key = "unknown"
    assert (await caller.answer_without_request(name)).status.code == Code.UNAUTHORIZED


async def outcomes(caller: GrpcCaller, topic: str) -> dict[str, Code]:
    """The code of each call on a topic."""
    place = {"topic": topic, "group": "closers"}
    handles = {"receipt_handle": "forged"}
    answers = {
        "QueryRoute": await caller.call("QueryRoute", topic=topic),
        "Heartbeat": await caller.call("Heartbeat"),
        "NotifyClientTermination": await caller.call("NotifyClientTermination"),
        "SendMessage": await caller.send(message(topic)),
        "RecallMessage": await caller.call("RecallMessage", topic=topic, recall_handle="forged"),
        "EndTransaction": await caller.call(
            "EndTransaction", topic=topic, transaction_id="forged", resolution=TransactionResolution.COMMIT
        ),
        "QueryAssignment": await caller.call("QueryAssignment", **place),
        "AckMessage": await caller.call("AckMessage", **place),
        "ChangeInvisibleDuration": await caller.call("ChangeInvisibleDuration", **place, **handles),
        "ForwardMessageToDeadLetterQueue": await caller.call(
            "ForwardMessageToDeadLetterQueue", **place, **handles
        ),
    }
    codes = {name: Code(answer.status.code) for name, answer in answers.items()}
    codes["ReceiveMessage"], _ = await caller.receive(topic, "closers")
    return codes


SENDS = {"SendMessage", "EndTransaction", "RecallMessage"}
RECEIVES = {
    *("QueryAssignment", "AckMessage", "ChangeInvisibleDuration", "ForwardMessageToDeadLetterQueue"),
    "ReceiveMessage",
}
REST = {"QueryRoute", "Heartbeat", "NotifyClientTermination"}


def forbidden(codes: dict[str, Code]) -> set[str]:
    return {name for name, code in codes.items() if code is Code.FORBIDDEN}


async def test_the_access_key_is_a_token_with_its_scopes_and_topics(stack, tmp_path):
    sender = make_token(tmp_path, "sender", Scope.SEND)
    receiver = make_token(tmp_path, "receiver", Scope.RECEIVE)
    expired = make_token(tmp_path, "expired", Scope.SEND, expires_ms=NOW_MS)
    caller = await stack.enter_async_context(grpc_served(await open_engine(stack, tmp_path)))
    for key in ("", "tw_unknown", expired):
        caller.access_key = key
        codes = await outcomes(caller, "orders")
        assert set(codes.values()) == {Code.UNAUTHORIZED}
        assert codes.keys() == SENDS | RECEIVES | REST
    caller.access_key = sender
    assert forbidden(await outcomes(caller, "orders")) == RECEIVES
    assert forbidden(await outcomes(caller, "bills")) == SENDS | RECEIVES
    caller.access_key = receiver
    assert forbidden(await outcomes(caller, "orders")) == SENDS
    assert forbidden(await outcomes(caller, "bills")) == SENDS | RECEIVES


async def test_a_client_of_another_token_is_another_client_whatever_id_it_gives_itself(stack, tmp_path):
    owner = make_token(tmp_path, "owner", Scope.SEND, Scope.RECEIVE)
    stranger = make_token(tmp_path, "stranger", Scope.SEND, topics="bills")
    engine = await open_engine(stack, tmp_path)
    caller = await stack.enter_async_context(grpc_served(engine))
    caller.access_key = owner
    await caller.send(message())
    _, (held,) = await caller.receive("orders", "closers", auto_renew=True, invisible_ms=None)
    caller.access_key = stranger
    assert (await caller.call("NotifyClientTermination")).status.code == Code.OK
    engine.clock.advance(2_000)
    await settle(engine)
    caller.access_key = owner
    assert (await caller.receive("orders", "closers")) == (Code.MESSAGE_NOT_FOUND, [])
    assert (await caller.ack(held)).status.code == Code.OK


async def test_the_clients_of_one_token_displace_no_others(stack, tmp_path, monkeypatch):
    monkeypatch.setattr(clients, "CLIENTS_MAX", 2)
    owner, stranger = (make_token(tmp_path, name, Scope.SEND, Scope.RECEIVE) for name in ("owner", "other"))
    engine = await open_engine(stack, tmp_path)
    caller = await stack.enter_async_context(grpc_served(engine))
    caller.access_key = owner
    await caller.send(message())
    await caller.receive("orders", "closers", auto_renew=True, invisible_ms=None)
    caller.access_key = stranger
    for number in range(4):
        caller.client_id = str(number)
        await caller.call("Heartbeat")
    caller.access_key, caller.client_id = owner, CLIENT_ID
    for _ in range(4):
        await caller.call("Heartbeat")
        engine.clock.advance(RENEW_EACH_MS)
        await settle(engine)
    assert (await caller.receive("orders", "closers")) == (Code.MESSAGE_NOT_FOUND, [])


async def test_a_telemetry_stream_without_a_token_is_ended_at_once(stack, tmp_path, monkeypatch):
    monkeypatch.setattr(service, "STREAMS_MAX", 1)
    sender = make_token(tmp_path, "sender", Scope.SEND)
    caller = await stack.enter_async_context(grpc_served(await open_engine(stack, tmp_path)))
    with pytest.raises(RpcError) as refused:
        await asyncio.wait_for(caller.telemetry().read(), TIMEOUT_S / 6)
    assert refused.value.code() is StatusCode.UNAVAILABLE
    assert "UNAUTHORIZED" in refused.value.details()
    caller.access_key = sender
    stream = caller.telemetry()
    command = message_class("TelemetryCommand")()
    command.settings.client_type = ClientType.PRODUCER
    await stream.write(command)
    assert (await stream.read()).status.code == Code.OK
    stream.cancel()


async def test_a_receive_whose_token_ends_while_it_waits_gets_nothing(stack, tmp_path):
    receiver = make_token(tmp_path, "receiver", Scope.RECEIVE, expires_ms=NOW_MS + 1_000)
    engine = await open_engine(stack, tmp_path)
    caller = await stack.enter_async_context(grpc_served(engine))
    caller.access_key = receiver
    assert (await caller.receive())[0] is Code.MESSAGE_NOT_FOUND  # which makes the group
    waiting = asyncio.create_task(caller.receive(wait_ms=20_000))
    while not engine.groups.runtimes[group_topic("orders", "closers")].waiting:
        await asyncio.sleep(0)
    engine.clock.advance(1_000)
    await engine.sender.send([Outgoing("orders", b"x")])
    assert await waiting == (Code.UNAUTHORIZED, [])
    assert engine.groups.info("orders", "closers").in_flight == 0


async def test_the_rate_of_a_token_counts_each_message(stack, tmp_path):
    key = make_token(tmp_path, "slow", Scope.SEND, rate_per_s=2.0)
    engine = await open_engine(stack, tmp_path)
    caller = await stack.enter_async_context(grpc_served(engine))
    caller.access_key = key
    many = [message(message_id=str(number)) for number in range(4)]
    assert (await caller.send(*many)).status.code == Code.OK
    refused = await caller.send(message(message_id="next"))
    assert (refused.status.code, "rate limit" in refused.status.message) == (Code.TOO_MANY_REQUESTS, True)
    engine.clock.advance(1_500)
    assert (await caller.send(message(message_id="next"))).status.code == Code.OK


async def test_the_recall_handle_of_another_topic_opens_nothing(stack, tmp_path):
    everything = make_token(tmp_path, "all", Scope.SEND, topics="*")
    sender = make_token(tmp_path, "sender", Scope.SEND)
    caller = await stack.enter_async_context(grpc_served(await open_engine(stack, tmp_path)))
    caller.access_key = everything
    sent = (await caller.send(message("bills", delivery_ms=NOW_MS + 1_000))).entries[0]
    caller.access_key = sender
    for topic, code in (("bills", Code.FORBIDDEN), ("orders", Code.BAD_REQUEST)):
        answer = await caller.call("RecallMessage", topic=topic, recall_handle=sent.recall_handle)
        assert answer.status.code == code


async def test_with_a_certificate_of_the_service_it_is_tls_for_all(stack, tmp_path):
    authority = Authority(tmp_path)
    issued = authority.issue("localhost")
    options = Serving(tls_certificate=issued.certificate, tls_key=issued.key)
    engine = await open_engine(stack, tmp_path / "data")
    caller = await stack.enter_async_context(grpc_served(engine, options, authority.certificate))
    assert (await caller.send(message())).status.code == Code.OK
    other = tmp_path / "other"
    other.mkdir()
    renewed_by = Authority(other)
    renewed = renewed_by.issue("localhost")
    issued.certificate.write_bytes(renewed.certificate.read_bytes())
    issued.key.write_bytes(renewed.key.read_bytes())
    roots = ssl_channel_credentials(renewed_by.certificate.read_bytes())
    async with aio.secure_channel(f"127.0.0.1:{caller.front.address.port}", roots) as channel:
        answer = await GrpcCaller(caller.front, channel).send(message(message_id="next"))
        assert answer.status.code == Code.OK
    async with aio.insecure_channel(f"127.0.0.1:{caller.front.address.port}") as channel:
        with pytest.raises(RpcError):
            await GrpcCaller(caller.front, channel).send(message())


def test_a_service_that_nobody_asks_for_grpc_needs_no_grpc(tmp_path):
    with serving_alone(tmp_path, without="grpc") as service:
        assert service.end(signal.SIGTERM).code == 0


def test_without_the_extra_a_start_that_asks_for_grpc_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(SettingsError, match=r"pip install 'timerwheel\[grpc\]'"):
        GrpcFront(Host("127.0.0.1", 0), Serving(), 0)


def test_an_address_that_cannot_be_used_is_refused_with_a_reason(tmp_path):
    done = timerwheel("serve", "--data", tmp_path, "--port", 0, "--rocketmq-grpc", "nowhere")
    assert (done.code, "rocketmq_grpc = 'nowhere'" in done.err) == (2, True)
    done = timerwheel("serve", "--data", tmp_path, "--port", 0, "--rocketmq-grpc", "0.0.0.0:8081")
    assert done.code != 0
    assert "rocketmq_grpc = '0.0.0.0:8081'" in done.err
    assert "tokens create" in done.err
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = timerwheel("serve", "--data", tmp_path, "--port", 0, "--rocketmq-grpc", address)
    assert done.code != 0
    assert f"cannot listen on {address}" in done.err
