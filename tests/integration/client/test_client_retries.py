"""Repeated sends: which, how often, under which key, and where to."""

import asyncio

import pytest

from tests.harness.scripted_http import CLOSE, HANG, Reply, problem, scripted
from timerwheel.client import (
    Client,
    ClientError,
    ConflictError,
    NotFoundError,
    OutcomeUnknownError,
    UnreachableError,
)

STORED = {"id": "1", "topic": "t", "due_ms": 1, "state": "scheduled"}
GOOD = Reply(200, STORED)
MANY = Reply(200, [STORED, STORED])
NOT_READY = problem(503, "not_ready", 1)


class QuickClock:
    """Time that passes as soon as somebody waits for it; notes each wait."""

    def __init__(self) -> None:
        self.now = 0
        self.waits: list[int] = []

    def now_ms(self) -> int:
        return self.now

    def monotonic_ms(self) -> int:
        return self.now

    def uptime_ms(self) -> int:
        return self.now

    async def sleep_for(self, duration_ms: int) -> None:
        self.waits.append(duration_ms)
        self.now += duration_ms
        await asyncio.sleep(0)

    async def wait_for(self, arrived: asyncio.Future[None], duration_ms: int) -> None:
        if not arrived.done():
            await self.sleep_for(duration_ms)


@pytest.fixture
def clock():
    return QuickClock()


async def test_a_send_without_an_answer_is_repeated_under_the_same_key(clock):
    async with scripted(CLOSE, CLOSE, GOOD) as service, Client(service.url, clock=clock) as client:
        assert (await client.send("t", "x")).id == "1"
    keys = {request.content["dedup_key"] for request in service.requests}
    assert len(service.requests) == 3
    assert len(keys) == 1
    assert keys.pop().startswith("auto:")


async def test_each_send_has_a_key_of_its_own(clock):
    async with scripted(MANY) as service, Client(service.url, clock=clock) as client:
        await client.send_many([{"topic": "t", "body": "1"}, {"topic": "t", "body": "2"}])
        await client.send_many([{"topic": "t", "body": "1"}, {"topic": "t", "body": "2"}])
    assert len({draft["dedup_key"] for request in service.requests for draft in request.content}) == 4


async def test_a_send_that_took_too_long_is_repeated(clock):
    async with scripted(HANG, GOOD) as service, Client(service.url, timeout_ms=50, clock=clock) as client:
        assert (await client.send("t", "x")).id == "1"


@pytest.mark.parametrize(
    "own",
    [
        {"dedup_key": "mine"},
        {"properties": {"DEDUP_KEY": "mine"}},
        {"on_duplicate": "replace"},
        {"dedup_key": "mine", "on_duplicate": "replace"},
        {"after_recall": "0" * 24},
    ],
)
async def test_a_send_with_a_key_of_its_own_is_not_repeated_without_an_answer(clock, own):
    async with scripted(CLOSE, GOOD) as service, Client(service.url, clock=clock) as client:
        with pytest.raises(UnreachableError):
            await client.send("t", "x", **own)
        assert len(service.requests) == 1
    async with scripted(CLOSE, MANY) as service, Client(service.url, clock=clock) as client:
        with pytest.raises(UnreachableError):
            await client.send_many([{"topic": "t"}, {"topic": "t", **own}])
        assert "dedup_key" not in service.requests[0].content[0]


@pytest.mark.parametrize("chosen", [{"on_duplicate": "replace"}, {"after_recall": "0" * 24}])
async def test_no_key_is_made_for_what_says_something_of_its_key(clock, chosen):
    async with scripted(GOOD) as service, Client(service.url, clock=clock) as client:
        await client.send("t", "x", **chosen)
    assert "dedup_key" not in service.requests[0].content


async def test_turned_off_nothing_is_repeated_and_there_is_no_key(clock):
    async with scripted(CLOSE, NOT_READY, GOOD) as service:
        async with Client(service.url, clock=clock, retry_ms=0) as client:
            for _ in range(2):
                with pytest.raises(ClientError):
                    await client.send("t", "x")
            await client.send("t", "x")
        assert [request.content for request in service.requests] == [{"topic": "t", "body": "x"}] * 3


async def test_what_was_refused_for_now_is_repeated_even_with_a_key_of_its_own(clock):
    replies = (NOT_READY, problem(429, "rate_limited", 3), problem(503, "overloaded", 1), GOOD)
    async with scripted(*replies) as service, Client(service.url, clock=clock) as client:
        await client.send("t", "x", dedup_key="mine")
    assert [request.content["dedup_key"] for request in service.requests] == ["mine"] * 4
    assert clock.waits == [1000, 3000, 1000]  # as the service said


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (problem(400, "illegal_topic"), ClientError),
        (problem(409, "key_recalled"), ConflictError),
        (problem(429, "slot_congested"), ClientError),
        (problem(500, "outcome_unknown"), OutcomeUnknownError),
        (problem(500, "internal"), ClientError),
        (problem(503, "not_ready", 60), ClientError),  # beyond the time for repeats
    ],
)
async def test_any_other_answer_is_final(clock, reply, kind):
    async with scripted(reply) as service, Client(service.url, clock=clock) as client:
        with pytest.raises(kind):
            await client.send("t", "x")
        assert len(service.requests) == 1
    assert clock.waits == []


async def test_a_proxy_without_an_answer_is_no_answer(clock):
    async with (
        scripted(Reply(502, "bad gateway"), GOOD) as service,
        Client(service.url, clock=clock) as client,
    ):
        await client.send("t", "x")
    async with (
        scripted(Reply(502, "bad gateway"), GOOD) as service,
        Client(service.url, clock=clock) as client,
    ):
        with pytest.raises(ClientError):
            await client.send("t", "x", dedup_key="mine")


async def test_pauses_grow_differ_and_end_with_the_time_for_repeats(clock):
    async with Client("http://127.0.0.1:1", clock=clock, retry_ms=10_000) as client:
        with pytest.raises(UnreachableError):
            await client.send("t", "x", dedup_key="mine")  # it never arrived, whatever its key
    assert clock.waits[0] <= 100 < clock.waits[2] <= 400
    assert 1000 <= clock.waits[-1] <= 2000
    assert 7_000 < clock.now <= 10_000
    assert len({wait % 97 for wait in clock.waits}) > 2


async def test_other_calls_are_not_repeated(clock):
    async with scripted(CLOSE) as service, Client(service.url, clock=clock) as client:
        for call in (
            client.topics(),
            client.recall("x"),
            client.begin("t", "x"),
            client.group("t", "g").ack([]),
        ):
            with pytest.raises(UnreachableError):
                await call
    assert clock.waits == []


async def test_every_call_follows_a_standby_to_its_leader_and_stays_there(clock):
    async with scripted(GOOD) as leader, scripted(GOOD) as standby:
        standby.replies = [problem(503, "not_ready", 1, role="standby", leader=leader.url)]
        async with Client(standby.url, token="secret", clock=clock) as client:
            await client.send("t", "x")
            leader.replies = [Reply(200, {"topics": []})]
            await client.topics()
    assert len(standby.requests) == 1
    assert [request.path for request in leader.requests] == ["/v1/messages", "/v1/topics"]
    assert leader.requests[0].headers["authorization"] == "bearer secret"
    assert clock.waits == []


async def test_a_leader_that_died_is_looked_for_at_the_first_address_again(clock):
    async with (
        scripted(GOOD) as second,
        scripted(Reply(200, {"topics": []})) as first,
        scripted(GOOD) as standby,
    ):
        standby.replies = [
            problem(503, "not_ready", 1, leader=first.url),
            problem(503, "not_ready", 1),  # nobody leads
            problem(503, "not_ready", 1, leader=second.url),
        ]
        async with Client(standby.url, clock=clock) as client:
            await client.topics()
            first.replies = [CLOSE]
            await client.send("t", "x")
    assert [len(service.requests) for service in (first, standby, second)] == [2, 3, 1]
    assert first.requests[1].content["dedup_key"] == second.requests[0].content["dedup_key"]


async def _arrow(client):
    await client.group("t", "g").receive_arrow(create=False)


async def _stream(client):
    async for _ in client.group("t", "g").stream(create=False):
        pass


@pytest.mark.parametrize("call", [_arrow, _stream], ids=["arrow", "stream"])
async def test_tables_and_streams_follow_the_leader_and_leave_one_that_died(clock, call):
    unknown = problem(404, "unknown_topic")
    async with scripted(unknown) as second, scripted(unknown) as first, scripted(unknown) as standby:
        standby.replies = [problem(503, "not_ready", 1, leader=one.url) for one in (first, second)]
        async with Client(standby.url, clock=clock) as client:
            with pytest.raises(NotFoundError):
                await call(client)
            first.replies = [CLOSE]
            with pytest.raises(UnreachableError):
                await call(client)
            with pytest.raises(NotFoundError):
                await call(client)
    assert [len(service.requests) for service in (standby, second)] == [2, 1]
    assert len(first.requests) >= 2  # a GET on a connection from before is made again when that was closed


@pytest.mark.parametrize("call", [_arrow, _stream], ids=["arrow", "stream"])
async def test_tables_and_streams_say_when_to_come_back(clock, call):
    async with (
        scripted(problem(429, "rate_limited", 7)) as service,
        Client(service.url, clock=clock) as client,
    ):
        with pytest.raises(ClientError) as caught:
            await call(client)
    assert caught.value.retry_after_ms == 7_000


@pytest.mark.parametrize("fields", [{"body": "\udcff"}, {"body": "", "tags": "\udcff"}])
async def test_what_no_service_could_take_is_not_called_unreachable(clock, fields):
    async with scripted(GOOD) as service, Client(service.url, clock=clock) as client:
        with pytest.raises(UnicodeEncodeError):
            await client.send("t", **fields)
        with pytest.raises(UnicodeEncodeError):
            await client.purge_topic("\udcff")
    assert (service.requests, clock.waits) == ([], [])


@pytest.mark.parametrize("leader", ["not a url", "ftp://x", ""])
async def test_a_leader_that_is_no_address_is_not_followed(clock, leader):
    replies = problem(503, "not_ready", 1, leader=leader), GOOD
    async with scripted(*replies) as service, Client(service.url, clock=clock) as client:
        await client.send("t", "x")
    assert len(service.requests) == 2


def test_a_negative_time_is_refused():
    with pytest.raises(ValueError, match="retry_ms = -1"):
        Client(retry_ms=-1)
