"""The load generator as a process, on servers that lose, repeat, hurry and stall: each must show."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import orjson
import pytest

from bench.generator.plan import Delays, Done, Job, Load
from bench.generator.run import LoadFailedError, run
from bench.histograms import percentiles_ms

COUNT = 60
Deliver = Callable[[list[dict]], list[dict]]


class Service:
    """Enough of the service's HTTP for the generator; `deliver` says what becomes of what was sent."""

    def __init__(self, deliver: Deliver, *, stall_s: float = 0.0, status: int = 201) -> None:
        self._deliver = deliver
        self._stall_s = stall_s
        self._status = status
        self._stored: list[dict] = []
        self._stored_all = asyncio.Event()
        self.requests = 0
        self.reached = asyncio.Event()

    @asynccontextmanager
    async def served(self) -> AsyncIterator[dict]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            yield {"wire": "timerwheel", "host": "127.0.0.1", "port": port, "topic": "t"}

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                body = await reader.readexactly(size)
                answer = self._read(head) if head.startswith(b"GET") else self._send(body)
                status, content = await answer
                writer.write(
                    b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(content), content)
                )
        except (asyncio.IncompleteReadError, ConnectionResetError):
            pass
        finally:
            writer.close()

    async def _send(self, body: bytes) -> tuple[int, bytes]:
        content = orjson.loads(body)
        self._stored += content if isinstance(content, list) else [content]
        self.requests += 1
        self.reached.set()
        if self.requests == 1:
            await asyncio.sleep(self._stall_s)
        if len(self._stored) >= COUNT:
            self._stored_all.set()
        return self._status, b"{}"

    async def _read(self, head: bytes) -> tuple[int, bytes]:
        offset = int(head.split(b"offset=")[1].split(b" ")[0])
        await self._stored_all.wait()
        found = self._deliver(self._stored)[offset:]
        if not found:
            await asyncio.sleep(0.2)
        else:
            due_s = max(message["deliver_at_ms"] for message in found) / 1000
            await asyncio.sleep(max(due_s - time.time(), 0))
        return 200, orjson.dumps({"messages": found, "next_offset": offset + len(found)})


def load(spec: dict, **changes: object) -> Load:
    values: dict = {
        "name": "it",
        "sender": spec,
        "receiver": spec,
        "delays": Delays(100, 100),
        "connections": 2,
        "array": 10,
        "count": COUNT,
        "patience_s": 0.5,
        "settle_s": 0.3,
    }
    return Load(**(values | changes))


async def carried_out(deliver: Deliver, **changes: object) -> Done:
    async with Service(deliver).served() as spec:
        return await run(Job([load(spec, **changes)]))


async def test_all_delivered_once_and_in_time_is_no_fault() -> None:
    done = await carried_out(lambda stored: stored)
    [outcome] = done.loads
    assert outcome.sent.count == outcome.sent.measured == COUNT
    assert outcome.delivered is not None
    assert outcome.delivered.faults is None
    assert outcome.delivered.count == COUNT
    assert outcome.delivered.earliest_us >= 0
    assert 0 < done.cpu_s <= done.wall_s + 1


@pytest.mark.parametrize(
    ("deliver", "said"),
    [
        (lambda stored: stored[:-3], "3 lost"),
        (lambda stored: [*stored, *stored[:2]], "2 twice"),
        (lambda stored: [*stored[1:], stored[5]], "1 lost, 1 twice"),
    ],
    ids=["lost", "twice", "both"],
)
async def test_what_is_lost_or_comes_twice_is_reported(deliver: Deliver, said: str) -> None:
    [outcome] = (await carried_out(deliver)).loads
    assert outcome.delivered is not None
    assert outcome.delivered.faults == said


async def test_what_comes_early_is_reported() -> None:
    def hasty(stored: list[dict]) -> list[dict]:
        return [message | {"deliver_at_ms": 0} for message in stored]

    [outcome] = (await carried_out(hasty, delays=Delays(60_000, 60_000))).loads
    assert outcome.delivered is not None
    assert (outcome.delivered.faults or "").startswith(f"{COUNT} early (earliest -")
    assert outcome.delivered.earliest_us < 0


async def test_rounding_that_a_load_allows_is_not_early() -> None:
    def hasty(stored: list[dict]) -> list[dict]:
        return [message | {"deliver_at_ms": 0} for message in stored]

    [outcome] = (await carried_out(hasty, delays=Delays(5_000, 5_000), early_us=6_000_000)).loads
    assert outcome.delivered is not None
    assert outcome.delivered.faults is None


async def test_a_stall_shows_in_each_request_that_was_planned_during_it() -> None:
    """Open loop: one connection that stalls for half a second delays all that were due to be sent then."""
    service = Service(lambda stored: stored, stall_s=0.5)
    async with service.served() as spec:
        one = load(spec, receiver=None, connections=1, array=1, per_second=100.0, count=50)
        [outcome] = (await run(Job([one]))).loads
    found = percentiles_ms(outcome.sent.latency)
    assert outcome.sent.measured == 50
    assert found["max"] >= 490
    assert found["p50"] >= 200, "requests planned during the stall must be measured from their plan"


async def test_a_closed_loop_sends_no_more_than_its_connections_can() -> None:
    service = Service(lambda stored: stored, stall_s=0.3)
    async with service.served() as spec:
        one = load(spec, receiver=None, connections=1, array=1, count=None, seconds=0.2)
        [outcome] = (await run(Job([one]))).loads
    assert service.requests == outcome.sent.count == 1
    assert outcome.sent.measured == 0, "what is answered after the time is not counted"


async def test_a_refusal_ends_the_load_with_the_answer() -> None:
    async with Service(lambda stored: stored, status=503).served() as spec:
        with pytest.raises(LoadFailedError, match=r"HTTP/1\.1 503"):
            await run(Job([load(spec)]))


async def test_nobody_there_ends_the_load_with_one_line() -> None:
    spec = {"wire": "timerwheel", "host": "127.0.0.1", "port": 1, "topic": "t"}
    with pytest.raises(LoadFailedError, match=r"\AConnectionRefusedError: .*\Z"):
        await run(Job([load(spec)]))


async def test_a_cancelled_run_leaves_no_process() -> None:
    gone: Awaitable[Done]
    service = Service(lambda stored: stored, stall_s=30)
    async with service.served() as spec:
        gone = asyncio.ensure_future(run(Job([load(spec)])))
        await service.reached.wait()
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
    found = await asyncio.create_subprocess_exec(
        "pgrep", "-P", str(os.getpid()), "-f", "bench.generator", stdout=asyncio.subprocess.PIPE
    )
    said, _ = await found.communicate()
    assert said == b""
