"""What a service says on connections on which it reads no request: no call is left without an answer."""

import asyncio
from contextlib import asynccontextmanager

import aiohttp
import orjson
import pytest

from tests.harness.apps import app_of
from tests.harness.clock import ManualClock
from tests.harness.faulty import FaultyFiles
from tests.harness.raw_http import MESSAGE, Client
from tests.harness.served import CONNECTIONS, Served
from timerwheel.api.connection import FAREWELL, Farewell
from timerwheel.engine import Engine
from timerwheel.settings import Serving, Settings

SENDERS = 30
PATH = "/v1/messages"


@asynccontextmanager
async def serving(data, *, fast=True, says=True, connections=CONNECTIONS):
    data.mkdir()
    engine = await Engine.open(Settings(data=data, disk_reserve_bytes=0), ManualClock(), FaultyFiles())
    app = app_of(engine, Serving(fast_path=fast))
    app[FAREWELL] = Farewell.of(after_answers=says)
    server = Served(app, connections)
    await server.start_server()
    try:
        yield server, engine
    finally:
        await server.close()
        await engine.close()


def post(*headers: bytes) -> bytes:
    lines = [b"POST /v1/messages HTTP/1.1", b"Host: localhost", b"Content-Type: application/json", *headers]
    return b"\r\n".join([*lines, b"Content-Length: %d" % len(MESSAGE), b"", MESSAGE])


@asynccontextmanager
async def used(server):
    """A connection that has been used, as those of a pool."""
    client = Client(*await asyncio.open_connection("127.0.0.1", server.port))
    try:
        client.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200" in (await client.answer()).status
        yield client
    finally:
        client.writer.close()


def is_farewell(answer) -> bool:
    return is_refusal(answer, "not_ready")


def is_refusal(answer, code) -> bool:
    has_code = b" 503 " in answer.status and orjson.loads(answer.content)["code"] == code
    return has_code and answer.headers["retry-after"] == "1" and answer.headers["connection"] == "close"


@pytest.mark.parametrize("fast", [True, False])
async def test_a_request_that_meets_the_stop_is_refused_and_not_left_without_an_answer(tmp_path, fast):
    async with serving(tmp_path / "data", fast=fast) as (server, engine), used(server) as client:
        client.write(post())
        await server.close()  # without a turn in which the request would be read
        answer = await client.answer()
        assert is_farewell(answer)
        assert answer.headers["connection"] == "close"
        assert await client.reader.read() == b""
        assert (await engine.messages.pending()).messages == []


async def test_a_pool_of_connections_takes_it_for_the_end_of_those_that_it_does_not_use(tmp_path):
    async with serving(tmp_path / "data") as (server, _), aiohttp.ClientSession() as session:
        url = server.make_url("/healthz")
        async with session.get(url) as answer:
            await answer.read()
        await server.close()
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(url)


async def test_a_pool_has_the_answer_that_came_with_it_and_uses_the_connection_no_more():
    answer = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}"

    async def serve(reader, writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer + Farewell.of(after_answers=True).response)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    async with server, aiohttp.ClientSession() as session:
        for _ in range(3):
            async with session.post(url) as found:
                assert (found.status, await found.text()) == (201, "{}")


@pytest.mark.parametrize("fast", [True, False])
async def test_a_client_that_sends_all_the_time_knows_of_each_message_whether_it_was_stored(tmp_path, fast):
    stored = 0
    unknown: list[Exception] = []

    async def send(session, url) -> None:
        nonlocal stored
        while True:
            try:
                async with session.post(
                    url, data=MESSAGE, headers={"Content-Type": "application/json"}
                ) as answer:
                    body = await answer.json(content_type=None)
            except aiohttp.ClientConnectorError:
                return
            except aiohttp.ClientError as error:
                unknown.append(error)
                return
            if answer.status == 503:
                assert body["code"] == "not_ready"
                return
            assert answer.status == 201
            stored += 1

    async with serving(tmp_path / "data", fast=fast) as (server, engine):
        url = server.make_url(PATH)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            senders = [asyncio.create_task(send(session, url)) for _ in range(SENDERS)]
            while stored < 5 * SENDERS:
                await asyncio.sleep(0)
            await server.close()
            await asyncio.gather(*senders)
        assert unknown == []
        assert len((await engine.messages.pending(limit=1000)).messages) == stored


@pytest.mark.parametrize("fast", [True, False])
async def test_a_request_whose_body_is_under_way_at_the_stop_is_read_to_its_end_and_answered(tmp_path, fast):
    async with (
        serving(tmp_path / "data", fast=fast) as (server, engine),
        used(server) as client,
        used(server) as other,
    ):
        request = post(b"Expect: 100-continue")
        client.write(request[:-10])
        assert b" 100 " in (await client.answer()).status
        stopping = asyncio.create_task(server.close())
        assert await other.reader.readuntil(b"\r\n\r\n")
        assert not stopping.done()
        client.write(request[-10:])
        answer = await client.answer()
        await stopping
        assert b" 201 " in answer.status
        assert answer.headers["connection"] == "close"
        assert await client.reader.read() == b""
        assert len((await engine.messages.pending()).messages) == 1


async def test_without_a_node_in_front_connections_that_were_used_just_end(tmp_path):
    async with serving(tmp_path / "data", says=False) as (server, _), used(server) as client:
        await server.close()
        assert await client.reader.read() == b""


async def test_without_a_node_in_front_a_connection_without_a_request_so_far_has_one_under_way(tmp_path):
    async with serving(tmp_path / "data", says=False) as (server, _):
        client = Client(*await asyncio.open_connection("127.0.0.1", server.port))
        async with used(server):  # so the one before it is accepted too
            client.write(post())
            await server.close()
        assert is_farewell(await client.answer())
        assert await client.reader.read() == b""
        client.writer.close()


@pytest.mark.parametrize("says", [True, False])
@pytest.mark.parametrize("fast", [True, False])
async def test_the_last_answer_of_a_connection_says_that_it_is_and_nothing_follows(tmp_path, fast, says):
    async with (
        serving(tmp_path / "data", fast=fast, says=says) as (server, engine),
        used(server) as client,
    ):
        client.write(post())
        while not engine.core.commit.queued and not len(engine.core.in_flight):
            await asyncio.sleep(0)
        await server.close()
        answer = await client.answer()
        assert b" 201 " in answer.status
        assert answer.headers["connection"] == "close"
        assert await client.reader.read() == b""


async def test_a_connection_beyond_the_limit_is_told_so_and_others_go_on(tmp_path):
    async with serving(tmp_path / "data", connections=1) as (server, _), used(server) as client:
        other = Client(*await asyncio.open_connection("127.0.0.1", server.port))
        other.write(post())
        assert is_refusal(await other.answer(), "overloaded")
        assert await other.reader.read() == b""
        other.writer.close()
        client.write(post())
        assert b" 201 " in (await client.answer()).status
