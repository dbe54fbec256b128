"""The real process and its memory: many large bodies, answers and streams that nobody reads."""

import asyncio
import contextlib
import signal
from pathlib import Path

from tests.harness.processes import serving_alone
from timerwheel.client import Client

MIB = 1 << 20
MEMORY_MAX = 512 * MIB
REST_MAX = 256 * MIB
SENDERS, SENT_BYTES = 16, 32 * MIB
READERS = 40
LARGE = "b" * MIB
PATIENCE_S = 90
PAGE = b"GET /v1/topics/t/queues/0/messages?max=16 HTTP/1.1\r\nHost: localhost\r\n\r\n"
STREAM = b"GET /v1/topics/t/groups/g%d/stream?create=true&start=head HTTP/1.1\r\n"
STREAM += b"Host: localhost\r\nX-Requested-With: t\r\n\r\n"


def memory_of(service, name):
    """Bytes that the kernel says of the process: VmHWM, the most so far, or VmRSS, as of now."""
    text = Path(f"/proc/{service.process.pid}/status").read_text()
    return int(text.partition(f"{name}:")[2].split()[0]) << 10


async def opened(service, *asked):
    host, port = service.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.transport.pause_reading()
    writer.write(b"".join(asked))
    return reader, writer


async def send_much(service):
    """The status of an answer to a large body; None if the connection was closed first."""
    head = b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n["
    reader, writer = await opened(service, head % (SENT_BYTES + 1))
    writer.transport.resume_reading()
    answer = asyncio.create_task(reader.readline())
    try:
        for _ in range(SENT_BYTES // MIB):
            writer.write(b" " * MIB)
            await writer.drain()
            if answer.done():
                break
        return int((await answer).split()[1])
    except (ConnectionError, IndexError):
        return None
    finally:
        answer.cancel()
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def rested(service):
    """Wait until the process holds little again."""
    while memory_of(service, "VmRSS") > REST_MAX:
        async with Client(service.url) as client:
            await client.wheel()


async def test_large_bodies_and_unread_answers_stay_within_512_mib_and_are_given_back(tmp_path):
    with serving_alone(tmp_path / "d") as service:
        async with asyncio.timeout(PATIENCE_S):
            statuses = await asyncio.gather(*(send_much(service) for _ in range(SENDERS)))
            assert set(statuses) <= {400, 413, 503, None}
            async with Client(service.url) as client:
                for _ in range(16):
                    await client.send("t", LARGE)
            asked = [PAGE] * READERS + [STREAM % number for number in range(READERS)]
            writers = [(await opened(service, one))[1] for one in asked]
            async with Client(service.url) as client:
                for _ in range(4):
                    assert (await client.send("other", LARGE)).id
            assert memory_of(service, "VmHWM") <= MEMORY_MAX
            for writer in writers:
                writer.transport.abort()
                with contextlib.suppress(ConnectionError):
                    await writer.wait_closed()
            await rested(service)
        assert service.end(signal.SIGTERM).code == 0
