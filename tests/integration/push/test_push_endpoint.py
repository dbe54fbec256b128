"""One attempt against a real receiver."""

import asyncio
import datetime as dt
import inspect
import socket
import threading

import aiohttp
import pytest
from aiohttp.abc import AbstractResolver
from standardwebhooks import Webhook

from tests.harness.clock import ManualClock
from tests.harness.receiver import Receiver
from timerwheel.model.messages import MessageView, State
from timerwheel.push.addresses import is_public
from timerwheel.push.endpoint import Caller
from timerwheel.push.outcome import Outcome
from timerwheel.push.resolver import PooledResolver
from timerwheel.push.signing import new_secret
from timerwheel.push.subscription import Subscription

SECRET = new_secret(b"s" * 32)


class Answers(AbstractResolver):
    """A name server that gives its answers in turn, the last one for ever."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = list(addresses)
        self.asked = 0

    async def resolve(self, host: str, port: int = 0, family: int = 0) -> list:  # noqa: ARG002
        self.asked += 1
        address = self.addresses.pop(0) if len(self.addresses) > 1 else self.addresses[0]
        return [
            {
                "hostname": host,
                "host": address,
                "port": port,
                "family": socket.AF_INET,
                "proto": 0,
                "flags": 0,
            }
        ]

    async def close(self) -> None:
        pass


def message(body: bytes = b'{"a":1}', **properties: str) -> MessageView:
    return MessageView("m1", "orders", 0, State.DELIVERED, 0, 0, 0, properties, body, 0)


def to(url: str, **fields: object) -> Subscription:
    return Subscription(**({"id": "s", "topic": "orders", "url": url, "secrets": [SECRET]} | fields))


@pytest.fixture
async def receiver():
    async with Receiver() as receiver:
        yield receiver


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
async def caller(clock):
    caller = Caller(clock, allow_private=True)
    yield caller
    await caller.close()


async def hung(receiver: Receiver, clock: ManualClock, caller: Caller, told: str) -> Outcome:
    """An attempt to a receiver that keeps it waiting, and what comes of it when its time is over."""
    receiver.behave["hook"] = told
    attempt = asyncio.ensure_future(caller.attempt(to(receiver.url(), timeout_ms=5_000), message()))
    await receiver.arrived(1)
    clock.advance(4_999)
    for _ in range(50):
        await asyncio.sleep(0)
    assert not attempt.done()
    clock.advance(1)
    return await attempt


async def test_an_attempt_arrives_whole_and_signed(receiver, clock, caller):
    clock.wall_ms = 10**15  # of no matter to us, and far from any real time
    subscription = to(receiver.url(), headers={"X-Key": "v"}, cloudevents=True)
    outcome = await caller.attempt(subscription, message())
    assert outcome == Outcome("delivered", "HTTP 200", 200, answer="answer")
    (got,) = receiver.got
    assert got.body == b'{"a":1}'
    assert got.headers["Content-Length"] == "7"
    assert got.headers["Content-Type"] == "application/json"
    assert got.headers["X-Key"] == "v"
    assert got.headers["ce-id"] == got.headers["webhook-id"] == "m1"
    assert got.headers["webhook-timestamp"] == str(10**12)


async def test_what_arrives_verifies_with_the_reference_library(receiver, clock, caller):
    clock.wall_ms = int(dt.datetime.now(dt.UTC).timestamp() * 1000)
    old = new_secret(b"o" * 32)
    await caller.attempt(to(receiver.url(), secrets=[SECRET, old]), message())
    (got,) = receiver.got
    for secret in (SECRET, old):
        assert Webhook(secret).verify(got.body, dict(got.headers)) == {"a": 1}


async def test_an_empty_body_arrives_empty(receiver, caller):
    assert (await caller.attempt(to(receiver.url()), message(b""))).kind == "delivered"
    (got,) = receiver.got
    assert (got.body, got.headers["Content-Length"]) == (b"", "0")


async def test_a_body_of_megabytes_arrives_whole(receiver, caller):
    body = bytes(range(256)) * (1 << 14)
    assert (await caller.attempt(to(receiver.url()), message(body))).kind == "delivered"
    assert receiver.bodies() == [body]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(receiver, caller, status):
    receiver.behave["hook"] = (status, {"Location": receiver.url("elsewhere")})
    outcome = await caller.attempt(to(receiver.url()), message())
    assert (outcome.kind, outcome.status) == ("failed", status)
    assert [got.path for got in receiver.got] == ["hook"]


@pytest.mark.parametrize(
    ("status", "kind"), [(201, "delivered"), (500, "failed"), (410, "gone"), (404, "failed")]
)
async def test_the_answer_tells_the_outcome(receiver, caller, status, kind):
    receiver.behave["hook"] = status
    outcome = await caller.attempt(to(receiver.url()), message())
    assert (outcome.kind, outcome.status) == (kind, status)


@pytest.mark.parametrize("wish", ["30", "Fri, 15 Jan 2027 08:00:30 GMT"])
async def test_both_forms_of_retry_after_are_read_from_an_answer(receiver, caller, wish):
    receiver.behave["hook"] = (429, {"Retry-After": wish})
    outcome = await caller.attempt(to(receiver.url()), message())
    assert (outcome.kind, outcome.retry_after_ms) == ("failed", 30_000)


@pytest.mark.parametrize("told", ["hang", "trickle"])
async def test_an_answer_that_does_not_end_in_time_is_cut_off(receiver, clock, caller, told):
    outcome = await hung(receiver, clock, caller, told)
    assert outcome == Outcome("failed", "no complete response within 5000 ms", latency_ms=5_000)


async def test_an_answer_without_end_is_read_no_further_than_the_limit(receiver, caller):
    receiver.behave["hook"] = "flood"
    first = await caller.attempt(to(receiver.url()), message())
    again = await caller.attempt(to(receiver.url()), message())
    assert (first.kind, again.kind) == ("delivered", "delivered")
    assert len(receiver.connections) == 2  # the first was hung up on


async def test_a_few_informational_answers_before_the_answer_are_fine(caller, receiver):
    receiver.behave["hook"] = "interim"
    assert (await caller.attempt(to(receiver.url()), message())).status == 200


async def test_informational_answers_without_an_end_fail_at_once(caller, receiver):
    receiver.behave["hook"] = "chatter"
    outcome = await caller.attempt(to(receiver.url()), message())  # the clock stands still
    assert (outcome.kind, outcome.status) == ("failed", None)
    assert "informational answers" in outcome.reason


@pytest.mark.parametrize("told", ["reset", "garbage"])
async def test_a_broken_answer_is_a_failure_with_a_reason(receiver, caller, told):
    receiver.behave["hook"] = told
    outcome = await caller.attempt(to(receiver.url()), message())
    assert (outcome.kind, outcome.status) == ("failed", None)
    assert outcome.reason
    assert "\n" not in outcome.reason
    assert len(receiver.got) == 1


async def test_a_port_where_nobody_listens_is_a_failure(caller):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        outcome = await caller.attempt(to(f"http://127.0.0.1:{unused.getsockname()[1]}/"), message())
    assert outcome.kind == "failed"
    assert "no connection" in outcome.reason


async def test_an_idle_connection_that_the_receiver_drops_costs_no_attempt(receiver, caller):
    receiver.behave["hook"] = "hang_up"
    assert (await caller.attempt(to(receiver.url()), message())).kind == "delivered"
    # This one goes out on the connection of the first if that is still open; either way it is delivered.
    receiver.behave["hook"] = 200
    assert (await caller.attempt(to(receiver.url()), message())).kind == "delivered"


async def test_a_reused_connection_that_breaks_is_replaced_once(receiver, caller):
    assert (await caller.attempt(to(receiver.url()), message())).kind == "delivered"
    receiver.behave["hook"] = ["reset", 200]
    assert (await caller.attempt(to(receiver.url()), message())).kind == "delivered"
    receiver.behave["hook"] = "reset"
    assert (await caller.attempt(to(receiver.url()), message())).kind == "failed"
    assert len(receiver.got) == 5


@pytest.mark.parametrize(
    "stray", [b"HTTP/1.1 408 Late\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.1 408 La", b"late"]
)
@pytest.mark.parametrize("status", [200, 204])
async def test_what_comes_behind_an_answer_is_not_the_answer_to_the_next_request(
    receiver, caller, status, stray
):
    receiver.behave["hook"] = status
    first = await caller.attempt(to(receiver.url()), message())
    assert first.status == status
    (transport,) = receiver.connections
    transport.write(stray)
    for _ in range(20):  # until it has come
        await asyncio.sleep(0)
    receiver.behave["hook"] = 201
    assert (await caller.attempt(to(receiver.url()), message())).status == 201
    assert len(receiver.got) == 2


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
@pytest.mark.parametrize(
    ("head", "body"),
    [
        (b"Content-Length: 6\r\n", b"answer"),
        (b"Content-Length: 6\r\n", b""),  # it comes later
        (b"Transfer-Encoding: chunked\r\n", b"6\r\nanswer\r\n0\r\n\r\n"),
    ],
)
async def test_a_body_where_none_may_be_spoils_no_answer(receiver, caller, status, head, body):
    receiver.behave["hook"] = b"HTTP/1.1 " + status + b"\r\n" + head + b"\r\n" + body
    first = await caller.attempt(to(receiver.url()), message())
    second = await caller.attempt(to(receiver.url()), message())
    assert first.status == second.status == int(status[:3])
    assert len(receiver.connections) == len(receiver.got) == 2


async def test_a_body_that_turns_out_to_be_garbage_fails_at_once(receiver, caller):
    receiver.behave["hook"] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nno number\r\nx\r\n"
    outcome = await caller.attempt(to(receiver.url()), message())  # the clock stands still
    assert (outcome.kind, outcome.status) == ("failed", None)
    assert outcome.reason.startswith("not a complete HTTP response: Invalid character in chunk size")


async def test_cookies_of_one_answer_are_not_sent_with_the_next_request(receiver, caller):
    receiver.behave["hook"] = (200, {"Set-Cookie": "a=b; Path=/"})
    for _ in range(2):
        await caller.attempt(to(receiver.url()), message())
    assert "Cookie" not in receiver.got[1].headers


async def test_proxies_of_the_environment_are_not_used(receiver, caller, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9/")
    assert (await caller.attempt(to(receiver.url()), message())).kind == "delivered"


async def test_a_name_that_resolves_to_a_private_address_the_second_time_is_refused_at_connect(
    receiver, clock
):
    names = Answers("93.184.216.34", "127.0.0.1")
    first = await names.resolve("rebind.example")
    assert is_public(first[0]["host"])  # whoever checks the name beforehand is content with it
    caller = Caller(clock, allow_private=False, resolver=names)
    outcome = await caller.attempt(to(f"http://rebind.example:{receiver.port}/hook"), message())
    await caller.close()
    assert names.asked == 2
    assert outcome.kind == "failed"
    assert "not a public address" in outcome.reason
    assert "127.0.0.1" not in outcome.reason
    assert receiver.got == []
    assert receiver.connections == set()


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "localhost", "0x7f.1", "127.1"])
async def test_a_private_target_is_refused_at_connect_however_it_got_there(receiver, clock, host):
    caller = Caller(clock, allow_private=False)
    outcome = await caller.attempt(to(f"http://{host}:{receiver.port}/hook"), message())
    await caller.close()
    assert outcome.kind == "failed"
    assert receiver.got == []


async def test_a_name_with_a_public_and_a_private_address_never_leads_to_the_private_one(receiver, clock):
    class Both(Answers):
        async def resolve(self, host: str, port: int = 0, family: int = 0) -> list:  # noqa: ARG002
            return [*await super().resolve(host, port), *await super().resolve(host, port)]

    caller = Caller(clock, allow_private=False, resolver=Both("10.0.0.1", "127.0.0.1"))
    outcome = await caller.attempt(to(f"http://both.example:{receiver.port}/"), message())
    await caller.close()
    assert outcome.kind == "failed"
    assert receiver.got == []


async def test_an_attempt_that_is_cancelled_hangs_up(receiver, caller):
    receiver.behave["hook"] = "hang"
    attempt = asyncio.ensure_future(caller.attempt(to(receiver.url()), message()))
    await receiver.arrived(1)
    (connection,) = receiver.connections
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    while not connection.is_closing():
        await asyncio.sleep(0)


async def test_a_name_server_that_hangs_does_not_hold_up_other_names(receiver, clock):
    answer = threading.Event()
    asked = []

    def look_up(host: str, port: int, **_: object) -> list:
        asked.append(host)
        if host.startswith("slow"):
            answer.wait(60)
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    resolver = PooledResolver(clock, look_up)
    caller = Caller(clock, allow_private=True, resolver=resolver)
    slow = [
        asyncio.ensure_future(caller.attempt(to(f"http://slow{number % 20}.example/"), message()))
        for number in range(60)
    ]
    while len(asked) < 20:
        await asyncio.sleep(0)
    outcome = await caller.attempt(to(f"http://quick.example:{receiver.port}/hook"), message())
    assert outcome.kind == "delivered"
    assert sorted(asked[:20]) == sorted(f"slow{number}.example" for number in range(20))
    answer.set()
    for failure in await asyncio.gather(*slow):
        assert (failure.kind, "has no address" in failure.reason) == ("failed", True)
    # Known to be slow by now: they no longer take the threads of the others.
    answer.clear()
    slow = [
        asyncio.ensure_future(caller.attempt(to(f"http://slow{number}.example/"), message()))
        for number in range(20)
    ]
    while len(asked) < 21 + 16:
        await asyncio.sleep(0)
    fresh = f"http://fresh.example:{receiver.port}/hook"
    assert (await caller.attempt(to(fresh), message())).kind == "delivered"
    answer.set()
    await asyncio.gather(*slow)
    await caller.close()


def test_the_version_of_aiohttp_lets_sockets_be_made_by_us():
    assert "socket_factory" in inspect.signature(aiohttp.TCPConnector.__init__).parameters
