"""What befalls a machine befalls the real process: it stays alive, says the truth, and loses nothing."""

import asyncio
import contextlib
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.processes import (
    COMMAND,
    RunningService,
    environment,
    serving,
    serving_alone,
    serving_in_trouble,
    timerwheel,
)
from timerwheel.client import Client, ClientError
from timerwheel.clock import SystemClock
from timerwheel.store.index import LOCK_BYTES

SOON_MS = 700
HOUR_MS = 3_600_000
SLOW_CLIENTS = 1_000
PATIENCE_S = 60
BODY = "k" * 2_000


@contextlib.contextmanager
def limited(service: RunningService, what: int, soft: int) -> Iterator[None]:
    """Lower a limit of the service's process for a while."""
    pid = service.process.pid
    before = resource.prlimit(pid, what)
    resource.prlimit(pid, what, (soft, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, what, before)


def address_of(service: RunningService) -> tuple[str, int]:
    host, port = service.url.removeprefix("http://").split(":")
    return host, int(port)


async def status_of(service: RunningService, path: str) -> int:
    """The status of a GET over a connection of its own."""
    host, port = address_of(service)
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    status = int((await reader.readline()).split()[1])
    writer.close()
    return status


async def send(client: Client, count: int, delay_ms: int = SOON_MS) -> list[str]:
    drafts = [{"topic": "t", "body": BODY, "delay_ms": delay_ms} for _ in range(count)]
    return [sent.id for sent in await client.send_many(drafts)]


async def delivered(client: Client, count: int) -> list[str]:
    """The ids of the topic's messages once there are so many, and that no more come."""
    found: list[str] = []
    async with asyncio.timeout(PATIENCE_S):
        async for message in client.receive("t"):
            found.append(message.id)
            if len(found) == count:
                break
    return found + [message.id async for message in client.receive("t", offset=count, follow=False)]


async def until(due_ms: int) -> None:
    await SystemClock().wait_until(due_ms, asyncio.Event())


def ends_soundly(service: RunningService) -> None:
    """It stops in order, and its books are right."""
    assert service.end(signal.SIGTERM).code == 0
    assert timerwheel("fsck", "--data", service.data).code == 0


async def test_while_the_disk_takes_no_more_sends_are_refused_and_what_is_due_comes_later(tmp_path):
    with serving(tmp_path / "d") as service:
        async with Client(service.url) as client:
            kept = await send(client, 20)
            [segment] = (service.data / "log").glob("*.log")
            with limited(service, resource.RLIMIT_FSIZE, segment.stat().st_size + 100):
                with pytest.raises(ClientError) as refused:
                    await client.send("t", BODY)
                assert refused.value.code == "no_space"
                await until((await client.get(kept[-1])).due_ms + 100)
                assert (await client.get(kept[0])).state == "scheduled"
                assert [await status_of(service, path) for path in ("/healthz", "/readyz")] == [200, 200]
            assert await delivered(client, len(kept)) == kept
        ends_soundly(service)


async def test_a_start_without_room_for_its_index_says_what_to_do_and_harms_nothing(tmp_path):
    data = tmp_path / "d"
    with serving(data) as service:
        async with Client(service.url) as client:
            kept = await send(client, 20)
        service.process.kill()
        service.process.wait()
    shutil.rmtree(data / "index")
    log = {path.name: path.read_bytes() for path in (data / "log").iterdir()}
    # Files that may grow to what LMDB's lock takes stand for a disk that is full but for that.
    serve = [*COMMAND, "serve", "--port", "0", "--data", str(data)]
    refused = subprocess.run(
        ["prlimit", f"--fsize={LOCK_BYTES}", *serve],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
        timeout=PATIENCE_S,
    )
    assert (refused.returncode, refused.stdout) == (1, "")
    _, told = refused.stderr.splitlines()  # the first says that the index is made anew
    assert told.startswith("timerwheel: no room to start: ")
    assert f"The disk of {data} has " in told
    assert {path.name: path.read_bytes() for path in (data / "log").iterdir()} == log
    with serving(data) as service:
        async with Client(service.url) as client:
            assert await delivered(client, len(kept)) == kept
        ends_soundly(service)


async def test_below_the_disk_reserve_readiness_for_senders_says_so(tmp_path):
    with serving(tmp_path / "d", "--disk-reserve", "1000TiB") as service:
        asked = ("/healthz", "/readyz", "/readyz?for=send", "/readyz?for=glory")
        assert [await status_of(service, path) for path in asked] == [200, 200, 507, 400]


async def test_without_free_files_those_who_are_connected_are_served_and_the_others_come_later(tmp_path):
    with serving(tmp_path / "d") as service:
        async with Client(service.url) as client:
            kept = await send(client, 20)
            used = max(int(file.name) for file in Path(f"/proc/{service.process.pid}/fd").iterdir())
            with limited(service, resource.RLIMIT_NOFILE, used + 1):
                crowd = [await asyncio.open_connection(*address_of(service)) for _ in range(30)]
                kept += await send(client, 20)
                assert await delivered(client, len(kept)) == kept
                for _, writer in crowd:
                    writer.close()
            assert await status_of(service, "/readyz") == 200
        ends_soundly(service)


async def test_a_process_that_was_stopped_delivers_what_fell_due_in_between_once(tmp_path):
    with serving(tmp_path / "d") as service:
        async with Client(service.url) as client:
            kept = await send(client, 20)
            due_ms = (await client.get(kept[-1])).due_ms
            os.kill(service.process.pid, signal.SIGSTOP)
            await until(due_ms + 300)
            os.kill(service.process.pid, signal.SIGCONT)
            assert await delivered(client, len(kept)) == kept
        ends_soundly(service)


async def test_while_the_disk_hangs_nothing_is_acknowledged_and_all_else_is_answered(tmp_path):
    with serving_in_trouble(tmp_path / "d") as service:
        async with Client(service.url) as client:
            kept = await send(client, 20, HOUR_MS)
            (tmp_path / "hold").touch()
            sent = asyncio.create_task(send(client, 20))
            asked = ("/healthz", "/readyz", "/v1/wheel", "/v1/messages?limit=100")
            assert [await status_of(service, path) for path in asked] == [200] * len(asked)
            assert (await client.get(kept[0])).state == "scheduled"
            assert not sent.done()
            (tmp_path / "hold").unlink()
            late = await sent
            assert await delivered(client, len(late)) == late
        ends_soundly(service)


async def test_after_a_step_of_the_clock_what_is_due_by_it_comes_once_and_the_rest_waits(tmp_path):
    def step(to_ms: int) -> None:
        (tmp_path / "step").write_text(str(to_ms))
        os.kill(service.process.pid, signal.SIGUSR1)
        while (tmp_path / "step").exists():
            os.sched_yield()

    with serving_in_trouble(tmp_path / "d") as service:
        async with Client(service.url) as client:
            in_time = await send(client, 20, HOUR_MS // 2)
            step(HOUR_MS)
            assert await delivered(client, 20) == in_time
            ahead = await send(client, 20, HOUR_MS)
            step(0)
            after_back = await send(client, 20)
            assert await delivered(client, 40) == in_time + after_back
            assert {(await client.get(one)).state for one in ahead} == {"scheduled"}
            step(3 * HOUR_MS)
            assert await delivered(client, 60) == in_time + after_back + ahead
        ends_soundly(service)


async def test_a_thousand_slow_clients_hold_nobody_up(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = SLOW_CLIENTS + 200
    assert hard == resource.RLIM_INFINITY or hard >= needed, f"ulimit -Hn is {hard}; {needed} are needed"
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    beginnings = (
        b"POST /v1/messages HT",
        b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{",
        b"GET /v1/topics/t/queues/0/messages?wait_ms=60000&offset=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"",
    )
    try:
        with serving(tmp_path / "d") as service:
            async with Client(service.url) as client:
                await client.send("t", BODY)
                crowd = []
                for number in range(SLOW_CLIENTS):
                    _, writer = await asyncio.open_connection(*address_of(service))
                    writer.write(beginnings[number % len(beginnings)])
                    crowd.append(writer)
                kept = await send(client, 20)
                assert (await delivered(client, 21))[1:] == kept
                assert await status_of(service, "/readyz") == 200
                for writer in crowd:
                    writer.transport.abort()
            ends_soundly(service)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_connections_beyond_the_limit_are_turned_away_and_the_log_gets_its_files(tmp_path):
    # As many files as an operator who knows nothing of limits might leave: half of them for connections.
    with serving_alone(tmp_path / "d", "--segment-size", "16KiB", files_max=128) as service:
        async with Client(service.url) as client:
            kept = await send(client, 5)
            crowd = [await asyncio.open_connection(*address_of(service)) for _ in range(200)]
            for _ in range(10):  # each is more than half a segment
                kept += await send(client, 5)
            assert await delivered(client, len(kept)) == kept
            for _, writer in crowd:
                writer.close()
        assert len(list((service.data / "log").glob("*.log"))) > 5
        ends_soundly(service)
