"""Clients that are slow on purpose: each costs a connection for a while, and nobody else anything."""

import asyncio

import pytest

from tests.harness.guarded import guarded
from timerwheel.api.security.slow_clients import TimeLimits
from timerwheel.clock import SystemClock

LIMIT_S = 60  # only keeps a failure from hanging
HASTY = TimeLimits(head_ms=200)
HEAD = b"POST /v1/topics/a/messages HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture
async def service(tmp_path):
    async with guarded(tmp_path / "data") as service:
        yield service


async def connect(service):
    return await asyncio.open_connection(service.url.host, service.url.port)


async def is_served(service):
    """Whether another client is answered; what was written before has arrived by then."""
    return (await service.call("GET", "/healthz"))[0] == 200


async def ended(reader):
    """Whether the service closed the connection without a word."""
    async with asyncio.timeout(LIMIT_S):
        try:
            return await reader.read() == b""
        except ConnectionResetError:
            return True


async def test_a_connection_that_says_nothing_is_closed(tmp_path):
    async with guarded(tmp_path / "data", limits=HASTY) as service:
        reader, writer = await connect(service)
        assert await is_served(service)
        assert await ended(reader)
        writer.close()


async def test_a_head_that_comes_a_byte_at_a_time_is_not_waited_for(tmp_path):
    async with guarded(tmp_path / "data", limits=HASTY) as service:
        reader, writer = await connect(service)
        closed = asyncio.create_task(ended(reader))
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: ")
        async with asyncio.timeout(LIMIT_S):
            while not closed.done():
                writer.write(b"a")
                await SystemClock().sleep_for(20)
        assert await closed
        writer.close()


async def test_after_an_answer_the_next_head_is_not_waited_for_either(tmp_path):
    async with guarded(tmp_path / "data", limits=HASTY) as service:
        reader, writer = await connect(service)
        writer.write(b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\nGET /health")
        async with asyncio.timeout(LIMIT_S):
            assert b" 404 " in await reader.readline()
            rest = await reader.read()
        assert rest.count(b"HTTP/1.1") == 0
        writer.close()


async def test_a_body_that_stops_coming_is_not_waited_for(service):
    reader, writer = await connect(service)
    writer.write(HEAD + b"Content-Length: 100\r\n\r\n" + b"x" * 50)
    assert await is_served(service)
    service.look(19_000)
    assert await is_served(service)
    writer.write(b"x" * 40)  # a little more is not enough
    assert await is_served(service)
    service.look(1_000)
    assert await ended(reader)
    assert await is_served(service)
    writer.close()
    _, topics = await service.call("GET", "/v1/topics")
    assert [one["topic"] for one in topics["topics"] if not one["system"]] == []


async def test_a_large_body_over_a_slow_line_is_taken_however_long_it_takes(service):
    reader, writer = await connect(service)
    part = b"x" * 17_000
    writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % (10 * len(part)))
    for _ in range(10):
        service.look(20_000)
        assert await is_served(service)
        writer.write(part)
        assert await is_served(service)
    async with asyncio.timeout(LIMIT_S):
        assert b" 201 " in await reader.readline()
    writer.close()


async def test_a_client_that_waits_for_messages_is_not_slow(service):
    waiting = asyncio.create_task(
        service.call("POST", "/v1/topics/a/groups/g/receive", json={"wait_ms": 30_000, "create": True})
    )
    while not (await service.call("GET", "/v1/groups"))[1]["groups"]:
        await asyncio.sleep(0)
    service.look(100_000)
    assert (await service.call("POST", "/v1/messages", json={"topic": "a"}))[0] == 201
    async with asyncio.timeout(LIMIT_S):
        status, found = await waiting
    assert (status, len(found["messages"])) == (200, 1)
