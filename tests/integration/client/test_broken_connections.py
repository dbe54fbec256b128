"""A request that changes something is made once, whatever becomes of the connection on which it goes.

The connection was kept from a call before, the request arrives, and the connection breaks before the answer:
it may have been carried out. Nobody may then say that it was not, or make it again unasked.
"""

import asyncio
import sys

import aiohttp
import pytest
from multidict import CIMultiDict

from tests.harness.scripted_http import CLOSE, DIE, Reply, scripted
from timerwheel.client import Client, ConflictError, UnreachableError
from timerwheel.clock import SystemClock
from timerwheel.errors import OutcomeUnknownError
from timerwheel.push.endpoint import Call as PushCall
from timerwheel.push.endpoint import Caller
from timerwheel.settings import Serving
from timerwheel.shards.connection_pool import ConnectionPool
from timerwheel.shards.forwarder import Call, Forwarder
from timerwheel.shards.leaders import Leaders, Place

MESSAGE = {"topic": "t", "queue": 0, "due_ms": 1, "enqueue_ms": 1, "properties": {}}
HERE = Reply(200, {"id": "1", "state": "recalled", **MESSAGE})
RECALLED = Reply(409, {"type": "x", "title": "x", "status": 409, "code": "already_recalled", "detail": "x"})
CHANGING = ["DELETE", "PUT", "PATCH", "POST"]
READING = ["GET", "OPTIONS"]


async def test_a_recall_that_was_on_its_way_when_the_service_was_killed_may_have_happened():
    async with scripted(HERE, DIE) as service, Client(service.url) as client:
        await client.recall("1")
        with pytest.raises(UnreachableError) as raised:
            await client.recall("2")
    assert raised.value.connected
    assert [request.path for request in service.requests] == ["/v1/messages/1", "/v1/messages/2"]


async def test_a_recall_is_not_answered_for_another_one_that_nobody_asked_for():
    async with scripted(HERE, CLOSE, RECALLED) as service, Client(service.url) as client:
        await client.recall("1")
        with pytest.raises(UnreachableError):
            await client.recall("2")
        with pytest.raises(ConflictError):  # which the caller asks for
            await client.recall("2")
    assert len(service.requests) == 3


@pytest.mark.parametrize("method", CHANGING)
async def test_a_node_does_not_know_what_became_of_a_call_whose_shard_was_killed(method):
    async with scripted(HERE, DIE) as service, ConnectionPool(Serving(), [service.url]) as pool:
        leaders = Leaders([Place(0, service.url, service.url)], pool, SystemClock())
        leaders.places[0].leads(service.url)
        forwarder = Forwarder(leaders, pool)
        assert (await forwarder.ask(0, _call("GET"))).status == 200
        with pytest.raises(OutcomeUnknownError):
            await forwarder.ask(0, _call(method))
    assert [request.method for request in service.requests] == ["GET", method]


@pytest.fixture
def taken(monkeypatch):
    """The connections that were taken; the second one is closing by then, and its pool has not seen it."""
    connect, found = aiohttp.TCPConnector.connect, []

    async def closing(self, *args, **more):
        connection = await connect(self, *args, **more)
        if len(found) == 1:
            if sys.version_info >= (3, 12):  # aiohttp begins to write at once
                connection.transport.close()
            else:  # in the next turn of the loop
                asyncio.get_running_loop().call_soon(connection.transport.close)
        found.append(connection)
        return connection

    monkeypatch.setattr(aiohttp.TCPConnector, "connect", closing)
    return found


@pytest.mark.parametrize("body", [b"{}", b"[%b]" % (b" " * 200_000)])
@pytest.mark.parametrize("method", CHANGING)
async def test_a_node_makes_a_call_again_of_which_nothing_was_sent(taken, method, body):
    async with scripted(HERE, HERE) as service, ConnectionPool(Serving(), [service.url]) as pool:
        leaders = Leaders([Place(0, service.url, service.url)], pool, SystemClock())
        leaders.places[0].leads(service.url)
        forwarder = Forwarder(leaders, pool)
        for _ in range(2):
            assert (await forwarder.ask(0, _call(method, body))).status == 200
    assert len(taken) == 3
    assert [request.method for request in service.requests] == [method, method]


@pytest.mark.usefixtures("taken")
async def test_a_send_of_which_nothing_was_sent_is_known_not_to_be_stored():
    receipt = Reply(201, {"id": "1", "topic": "t", "due_ms": 1, "state": "scheduled"})
    async with scripted(receipt, receipt) as service, Client(service.url, retry_ms=0) as client:
        await client.send("t", "x")
        with pytest.raises(UnreachableError, match="cannot reach") as raised:
            await client.send("t", "x")
        assert not raised.value.connected
        await client.send("t", "x")
    assert len(service.requests) == 2


@pytest.mark.parametrize("method", READING)
async def test_what_only_reads_is_made_again_on_a_new_connection(method):
    async with scripted(HERE, CLOSE, HERE) as service, ConnectionPool(Serving(), [service.url]) as pool:
        for _ in range(2):
            async with await pool.request(
                method, service.url + "/x", timeout=aiohttp.ClientTimeout(total=30)
            ) as response:
                assert response.status == 200
    assert len(service.requests) == 3


@pytest.mark.parametrize("method", [*CHANGING, *READING])
async def test_a_call_of_a_receiver_is_made_once_more_at_most(method):
    """A receiver may close an idle connection just as it is taken: a call is repeated for that."""
    clock = SystemClock()
    caller = Caller(clock, allow_private=True)
    try:
        async with scripted(HERE, CLOSE) as service:
            call = PushCall(
                name="task",
                url=service.url + "/x",
                headers=lambda _: {"Content-Type": "application/json"},
                body=b"{}",
                timeout_ms=30_000,
                method=method,
            )
            assert (await caller.call(call)).outcome.kind == "delivered"
            reply = await caller.call(call)
        assert reply.outcome.kind == "failed"
        assert "closed the connection without a response" in reply.outcome.reason
        assert len(service.requests) == 3
    finally:
        await caller.close()


def _call(method: str, body: bytes | None = None) -> Call:
    return Call(method, "/v1/messages/1", CIMultiDict(), body, may_repeat=method == "GET")
