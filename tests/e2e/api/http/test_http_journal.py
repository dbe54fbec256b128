"""The service on a journal that goes away and comes back: refuses, waits, and goes on by itself."""

import asyncio
import contextlib
import os
import signal
import socket

import aiohttp
import pytest

from tests.harness.memory_journal import MemoryJournal
from timerwheel.api.server import EngineFailedError, serve
from timerwheel.rocketmq.front import RemotingFront
from timerwheel.settings import Serving, Settings

SIGN = {"X-Requested-With": "tests"}
SERVING = Serving(port=0, rocketmq="127.0.0.1:0")


class Running:
    """One service in this process."""

    def __init__(self, tmp_path, session, *, is_away=False):
        self.journal = MemoryJournal()
        self.journal.is_away = is_away
        self.front = RemotingFront(SERVING)
        self.url = asyncio.get_running_loop().create_future()
        self._session = session
        settings = Settings(data=tmp_path / "data", disk_reserve_bytes=0)
        leader = self.journal.leader(run_bytes_max=1 << 22)
        self.task = asyncio.create_task(
            serve(settings, SERVING, self.url.set_result, fronts=[self.front], journal=leader)
        )

    async def call(self, method, path, **options):
        async with self._session.request(method, f"{self.url.result()}{path}", **options) as response:
            return response.status, await response.json(), response.headers

    async def send(self, body):
        status, content, _ = await self.call("POST", "/v1/messages", json={"topic": "a", "body": body})
        return status, content

    async def until_ready_is(self, status):
        async with asyncio.timeout(60):
            while (found := await self.call("GET", "/readyz"))[0] != status:
                await asyncio.sleep(0.02)
        return found

    async def bodies(self):
        _, content, _ = await self.call("GET", "/v1/topics/a/queues/0/messages")
        return [one["body"] for one in content["messages"]]


@pytest.fixture
async def session():
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def running(tmp_path, session):
    found = Running(tmp_path, session)
    await asyncio.wait({found.task, found.url}, return_when=asyncio.FIRST_COMPLETED)
    yield found
    if not found.task.done():
        os.kill(os.getpid(), signal.SIGTERM)
        await found.task


async def test_a_journal_that_comes_back_is_gone_on_with(running):
    assert (await running.send("before"))[0] == 201
    port = running.front.address.port
    for _ in range(2):
        running.journal.is_away = True
        assert (await running.send("during"))[1]["code"] == "outcome_unknown"
        _, refused, headers = await running.until_ready_is(503)
        assert "the journal does not answer" in refused["detail"]
        assert headers["Retry-After"] == "1"
        assert (await running.send("during"))[1]["code"] == "not_ready"
        assert (await running.call("GET", "/healthz"))[0] == 200
        assert (await running.call("GET", "/v1/topics/a"))[0] == 503
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        running.journal.is_away = False
        await running.until_ready_is(200)
        assert (await running.send("after"))[0] == 201
        assert running.front.address.port == port
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
    async with asyncio.timeout(60):  # one that is due at once comes a moment after its answer
        while (found := [body for body in await running.bodies() if body != "during"])[2:] != ["after"]:
            assert found in (["before", "after"], ["before"])
    assert found == ["before", "after", "after"]


async def test_a_port_that_somebody_took_meanwhile_is_waited_for(running):
    port = running.front.address.port
    running.journal.is_away = True
    assert (await running.send("during"))[1]["code"] == "outcome_unknown"
    await running.until_ready_is(503)
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(OSError):
                    taken.bind(("127.0.0.1", port))
                    break
                await asyncio.sleep(0.02)
        taken.listen()
        running.journal.is_away = False
        async with asyncio.timeout(60):
            while f":{port}" not in (await running.call("GET", "/readyz"))[1]["detail"]:
                await asyncio.sleep(0.02)
    await running.until_ready_is(200)
    assert (await running.send("after"))[0] == 201


async def test_streams_and_waiting_reads_end_when_the_journal_goes(running):
    assert (await running.send("one"))[0] == 201
    base = running.url.result()
    await running.call("PUT", "/v1/topics/a/groups/g", json={"start": "head"})
    async with aiohttp.ClientSession() as session, asyncio.timeout(60):
        async with (
            session.get(f"{base}/v1/topics/a/groups/g/stream", headers=SIGN) as stream,
            session.get(f"{base}/v1/live") as live,
        ):
            print("S", stream.status, stream.headers)
            assert b"one" in await anext(part async for part in stream.content if b"data" in part)
            await anext(part async for part in live.content if b"tick" in part)
            path = "/v1/topics/a/queues/0/messages?offset=1&wait_ms=60000"
            waiting = asyncio.create_task(running.call("GET", path))
            await running.call("GET", "/healthz")  # by now the read waits
            running.journal.is_away = True
            assert (await running.send("two"))[1]["code"] == "outcome_unknown"
            for ended in (stream, live):
                assert b"not_ready" in (await ended.content.read()).rpartition(b"event: end")[2]
            assert (await waiting)[0] in (200, 503)
        running.journal.is_away = False
        await running.until_ready_is(200)
        async with session.get(f"{base}/v1/live") as live:
            await anext(part async for part in live.content if b"tick" in part)


async def test_a_signal_ends_the_wait_for_the_journal(running):
    running.journal.is_away = True
    assert (await running.send("during"))[1]["code"] == "outcome_unknown"
    await running.until_ready_is(503)
    os.kill(os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(60):
        await running.task


async def test_another_process_that_claims_the_journal_ends_this_one(running):
    running.journal.leader().claim()
    assert (await running.send("during"))[1]["code"] == "outcome_unknown"
    with pytest.raises(EngineFailedError, match="another process has claimed"):
        await running.task


async def test_a_journal_that_is_away_at_the_start_is_waited_for(tmp_path, session, caplog):
    found = Running(tmp_path, session, is_away=True)
    async with asyncio.timeout(60):
        while caplog.text.count("waiting for the journal: the journal does not answer") < 1:
            await asyncio.sleep(0.02)
    assert not found.url.done()
    found.journal.is_away = False
    await found.url
    assert (await found.send("first"))[0] == 201
    os.kill(os.getpid(), signal.SIGTERM)
    await found.task
