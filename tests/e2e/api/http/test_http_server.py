"""The service as a whole: start, stop by signal, a port in use, an engine that dies."""

import asyncio
import json
import os
import signal
import socket

import aiohttp
import pytest

from timerwheel.api.server import EngineFailedError, serve
from timerwheel.engine import Engine
from timerwheel.listening import ListenError
from timerwheel.settings import Serving, Settings
from timerwheel.store.errors import LockedError
from timerwheel.store.files import DiskFile, DiskFiles


@pytest.fixture
def settings(tmp_path):
    return Settings(data=tmp_path / "data", disk_reserve_bytes=0)


@pytest.fixture
async def session():
    async with aiohttp.ClientSession() as session:
        yield session


async def _start(settings, **options):
    url = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve(settings, Serving(port=0), url.set_result, **options))
    await asyncio.wait({task, url}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        await task
    return task, await url


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_stops_in_order_and_nothing_acknowledged_is_lost(settings, session, number):
    task, url = await _start(settings)
    message = {"topic": "a", "body": "kept", "deliver_at_ms": 1_900_000_000_000}
    async with session.post(f"{url}/v1/messages", json=message) as response:
        message_id = (await response.json())["id"]
    os.kill(os.getpid(), number)
    await task
    task, url = await _start(settings)
    async with session.get(f"{url}/v1/messages/{message_id}") as response:
        assert (await response.json())["body"] == "kept"
    os.kill(os.getpid(), number)
    await task


async def test_a_stop_ends_waiting_reads_with_an_answer(settings, session):
    task, url = await _start(settings)
    async with session.post(f"{url}/v1/messages", json={"topic": "a", "delay_ms": 3_600_000}) as response:
        assert response.status == 201
    path = "/v1/topics/a/queues/0/messages?wait_ms=60000"
    waiting = asyncio.create_task(session.get(f"{url}{path}"))
    async with session.get(f"{url}/healthz") as response:  # by now the read waits
        assert response.status == 200
    os.kill(os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(15), await waiting as response:
        assert (await response.json())["messages"] == []
    await task


async def test_an_expectation_that_is_no_text_is_refused_for_a_path_of_no_call_and_leaves_no_traceback(
    settings, caplog
):
    task, url = await _start(settings)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
    writer.write(b"GET /v1/none HTTP/1.1\r\nHost: localhost\r\nExpect: \xb4\r\n\r\n")
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    os.kill(os.getpid(), signal.SIGTERM)
    await task
    assert " 417 " in head.splitlines()[0]
    assert "X-Request-Id: " in head
    assert json.loads(body)["code"] == "expectation_failed"
    assert not [record for record in caplog.records if record.exc_info]


async def test_what_is_not_http_is_refused_and_logged_in_one_line(settings, caplog):
    task, url = await _start(settings)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
    writer.write(b"GET / HTTP/1.1\r\nHost: \x00\r\n\r\n")
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    os.kill(os.getpid(), signal.SIGTERM)
    await task
    assert " 400 " in head.splitlines()[0]
    headers = dict(line.split(": ", 1) for line in head.splitlines()[1:])
    assert headers["Content-Type"] == "application/problem+json"
    assert json.loads(body)["code"] == "malformed_request"
    [record] = [record for record in caplog.records if record.name == "timerwheel.api.http"]
    assert record.levelname == "WARNING"
    assert record.exc_info is None
    assert "\n" not in record.getMessage()
    assert record.getMessage().startswith("not HTTP from 127.0.0.1: ")
    assert record.request == headers["X-Request-Id"]


async def test_a_port_in_use_is_named_in_one_line_and_the_data_is_not_touched(settings):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=rf"127\.0\.0\.1:{port}: .* use") as caught:
            await serve(settings, Serving(port=port))
    assert "\n" not in str(caught.value)
    assert not settings.data.exists()


async def test_a_data_directory_in_use_stops_the_start(settings):
    engine = await Engine.open(settings)
    with pytest.raises(LockedError):
        await serve(settings, Serving(port=0))
    await engine.close()


class BrokenDisk(DiskFiles):
    """A disk whose syncs fail once `broken` is set."""

    broken = False

    def open(self, path, *, create=False, direct=False):  # noqa: ARG002 - to be broken, buffered will do
        disk = self

        class File(DiskFile):
            def sync(self):
                if disk.broken:
                    raise OSError(5, "Input/output error")
                super().sync()

        fd = os.open(path, os.O_RDWR | (os.O_CREAT | os.O_EXCL if create else 0), 0o640)
        return File(fd)


async def test_an_engine_that_dies_ends_the_service_with_an_error(settings, session, caplog):
    disk = BrokenDisk()
    task, url = await _start(settings, files=disk)
    disk.broken = True
    async with session.post(f"{url}/v1/messages", json={"topic": "a"}) as response:
        problem = await response.json()
        assert (response.status, problem["code"]) == (500, "outcome_unknown")
    with pytest.raises(EngineFailedError, match="failed"):
        await task
    assert "engine failed" in caplog.text
