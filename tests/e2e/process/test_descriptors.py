"""The real process with few descriptors: it turns clients away, keeps its log, and goes on."""

import asyncio
import contextlib
import re
import signal
from pathlib import Path

import pytest

from tests.harness.processes import COMMAND, environment, serving_alone, timerwheel
from timerwheel.client import Client

BODY = "k" * 2_000
HOUR_MS = 3_600_000
PATIENCE_S = 60
TOO_FEW = 63
ENDPOINTS = 40
LIMITS = (64, *(pytest.param(limit, marks=pytest.mark.torture) for limit in (256, 512)), 1024)


def address_of(service):
    host, port = service.url.removeprefix("http://").split(":")
    return host, int(port)


def descriptors_of(service):
    return len(list(Path(f"/proc/{service.process.pid}/fd").iterdir()))


async def close_all(writers):
    for writer in writers:
        writer.transport.abort()
    for writer in writers:
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@contextlib.asynccontextmanager
async def crowd(service, count):
    """More connections than there is room for, most of which wait within a request."""
    writers = []
    try:
        for number in range(count):
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(*address_of(service))
                writers.append(writer)
                if number % 2:
                    writer.write(b"GET /v1/topics/t/queues/0/messages?wait_ms=60000&offset=-1 HTTP/1.1\r\n")
        yield
    finally:
        await close_all(writers)


@contextlib.asynccontextmanager
async def silent_endpoint():
    """An address where requests are taken and never answered."""
    begun, writers = asyncio.Semaphore(0), []

    def take(_, writer):
        writers.append(writer)
        begun.release()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], begun
    finally:
        server.close()
        await close_all(writers)


async def subscribe(client, port, number):
    options = {"start": "head", "concurrency": 32, "timeout_ms": 30_000}
    await client.subscriptions.add(f"pushed{number}", f"http://127.0.0.1:{port}/", **options)


@pytest.mark.parametrize("limit", LIMITS)
async def test_with_few_descriptors_a_crowd_and_hanging_pushes_the_log_goes_on(tmp_path, limit):
    flags = ("--segment-size", "16KiB", "--push-private-targets")
    async with silent_endpoint() as (port, begun), asyncio.timeout(PATIENCE_S):
        with serving_alone(tmp_path / "d", *flags, files_max=limit) as service:
            async with Client(service.url) as client:
                kept = [(await client.send("t", BODY)).id]
                for number in range(ENDPOINTS):
                    await subscribe(client, port, number)
                await client.send_many([{"topic": f"pushed{n % ENDPOINTS}", "body": "b"} for n in range(700)])
                for _ in range(min(limit // 16, ENDPOINTS)):  # so many there are, or all that it may have
                    await begun.acquire()
                async with crowd(service, limit + 50):
                    reader, writer = await asyncio.open_connection(*address_of(service))
                    assert (await reader.readline()).startswith(b"HTTP/1.1 503 ")
                    writer.close()
                    for _ in range(12):  # each is more than half a segment
                        drafts = [{"topic": "t", "body": BODY, "delay_ms": 1} for _ in range(5)]
                        kept += [sent.id for sent in await client.send_many(drafts)]
                    found = []
                    async for message in client.receive("t"):
                        found.append(message.id)
                        if len(found) == len(kept):
                            break
                    assert sorted(found) == sorted(kept)
                    assert descriptors_of(service) < limit
            assert len(list((service.data / "log").glob("*.log"))) > 5
            result = service.end(signal.SIGTERM)
            assert result.code == 0, result.err
            assert "Too many open files" not in result.err
    assert timerwheel("fsck", "--data", tmp_path / "d").code == 0


async def test_with_too_few_descriptors_the_service_does_not_start_and_says_what_to_do(tmp_path):
    process = await asyncio.create_subprocess_exec(
        *("prlimit", f"--nofile={TOO_FEW}", *COMMAND, "serve", "--port", "0"),
        *("--data", str(tmp_path / "d")),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(),
    )
    _, err = await process.communicate()
    assert process.returncode not in (0, None)
    assert re.search(r"63 files.*at least 64.*LimitNOFILE", err.decode())
    assert "Traceback" not in err.decode()
    assert not (tmp_path / "d" / "log").exists()
