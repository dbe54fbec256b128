"""Bounded loads against a served process on loopback, and what they measure.

Every load is limited in count or time and stops by itself. Lateness is what the service stamps
(`delivered_ms - due_ms`) and what a consumer sees (arrival at a long poll less the due time).
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import aiohttp
import numpy as np
import orjson

BODY = "x" * 200


class Served:
    """A service process of this project on a free loopback port."""

    def __init__(self, data: Path, *flags: str) -> None:
        self.data = data
        self.flags = flags
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    async def start(self) -> float:
        """Start it; seconds from the start of the process to ready."""
        began = time.perf_counter()
        command = [sys.executable, "-m", "timerwheel.cli.main", "serve", "--port", str(self.port)]
        self.process = subprocess.Popen(
            [*command, "--data", str(self.data), *self.flags],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        async with aiohttp.ClientSession() as session:
            while time.perf_counter() - began < 600:
                try:
                    async with session.get(f"{self.url}/readyz") as answer:
                        if answer.status == 200:
                            return time.perf_counter() - began
                except aiohttp.ClientError:
                    pass
                if self.process.poll() is not None:
                    raise RuntimeError(f"the service ended with {self.process.returncode}")
                await asyncio.sleep(0.01)
        raise TimeoutError("not ready after 600 s")

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End the process by its id and wait for it."""
        if self.process is not None:
            os.kill(self.process.pid, how)
            self.process.wait()

    def memory(self) -> dict[str, int]:
        """Bytes: VmHWM is the peak, RssAnon what is not file pages."""
        assert self.process is not None
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        wanted = ("VmHWM", "VmRSS", "RssAnon")
        return {
            name: int(rest.split()[0]) * 1024
            for name, _, rest in (line.partition(":") for line in lines)
            if name in wanted
        }

    def cpu_s(self) -> float:
        """CPU time of all its threads so far, to 10 ms."""
        assert self.process is not None
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def disk_bytes(self) -> dict[str, int]:
        """Bytes on disk of log and index."""
        return {
            part: sum(f.stat().st_blocks * 512 for f in (self.data / part).iterdir())
            for part in ("log", "index")
        }


class Posting(asyncio.Protocol):
    """One connection that posts the same bytes again as soon as it is answered."""

    done = 0
    times: ClassVar[list[float]] = []
    stop = False

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first request."""
        self.transport: Any = transport
        self._send()

    def _send(self) -> None:
        self.began = time.perf_counter()
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        """Read an answer, and send again once it is whole."""
        self.buffer += data
        head, blank, body = self.buffer.partition(b"\r\n\r\n")
        if not blank:
            return
        size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        if len(body) < size:
            return
        if not head.startswith(b"HTTP/1.1 201"):
            raise RuntimeError(head.decode())
        self.buffer = b""
        Posting.done += 1
        Posting.times.append(time.perf_counter() - self.began)
        if Posting.stop:
            self.transport.close()
        else:
            self._send()


def post(payload: object) -> bytes:
    """A whole HTTP request."""
    body = orjson.dumps(payload)
    head = "POST /v1/messages HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def schedule(served: Served, connections: int, array: int, seconds: float) -> dict[str, float]:
    """Messages per second due in one to thirty days, closed loop over so many connections."""
    Posting.done, Posting.times, Posting.stop = 0, [], False
    loop = asyncio.get_running_loop()
    rng = np.random.default_rng(7)
    for _ in range(connections):
        delays = rng.integers(86_400_000, 30 * 86_400_000, array).tolist()
        messages = [{"topic": "bench", "body": BODY, "delay_ms": d} for d in delays]
        request = post(messages[0] if array == 1 else messages)
        await loop.create_connection(lambda request=request: Posting(request), "127.0.0.1", served.port)
    await asyncio.sleep(0.5)
    first, began = Posting.done, time.perf_counter()
    Posting.times.clear()
    await asyncio.sleep(seconds)
    count, took = Posting.done - first, time.perf_counter() - began
    times = np.array(Posting.times) * 1000
    Posting.stop = True
    await asyncio.sleep(0.3)
    p50, p99 = np.percentile(times, (50, 99))
    return {"messages_per_s": count * array / took, "p50_ms": float(p50), "p99_ms": float(p99)}


async def fill(served: Served, count: int, report: Callable[[str], None]) -> float:
    """Schedule `count` messages over thirty days in arrays of 1000; seconds taken."""
    rng = np.random.default_rng(11)
    began = time.perf_counter()
    left, done = count, 0
    async with aiohttp.ClientSession() as session:

        async def worker() -> None:
            nonlocal left, done
            while left > 0:
                left -= 1000
                delays = rng.integers(3_600_000, 30 * 86_400_000, 1000).tolist()
                body = orjson.dumps([{"topic": "bench", "body": BODY, "delay_ms": d} for d in delays])
                headers = {"Content-Type": "application/json"}
                async with session.post(f"{served.url}/v1/messages", data=body, headers=headers) as answer:
                    assert answer.status == 201, await answer.text()
                    await answer.read()
                done += 1000
                if done % 1_000_000 == 0:
                    report(f"{done:,} of {count:,}")

        await asyncio.gather(*(worker() for _ in range(4)))
    return time.perf_counter() - began


async def fire(served: Served, per_second: int, seconds: int) -> dict[str, float]:
    """Lateness of messages due evenly over a stretch of seconds that begins a little ahead."""
    topic = f"fire-{time.time_ns()}"
    count = per_second * seconds
    begin_ms = time.time_ns() // 1_000_000 + 3_000 + count // 50
    dues = begin_ms + (np.arange(count) * 1000 // per_second)
    async with aiohttp.ClientSession() as session:
        for at in range(0, count, 1000):
            messages = [{"topic": topic, "body": BODY, "deliver_at_ms": int(d)} for d in dues[at : at + 1000]]
            async with session.post(f"{served.url}/v1/messages", json=messages) as answer:
                assert answer.status == 201, await answer.text()
        stamped, seen, ids = await consume(session, served, topic, count)
    assert len(set(ids)) == count, "a message came twice or not at all"
    assert min(stamped) >= 0, "a message came early"
    return {
        **percentiles("delivered", stamped),
        **percentiles("seen", seen),
        "span_ms": float(max(stamped)),
    }


async def burst(served: Served, count: int, *, reading: bool) -> dict[str, float]:
    """So many due in one millisecond: how long until the last one is re-injected.

    With `reading`, a consumer fetches them meanwhile, which is work for the same process; without, it begins
    when the topic's count says that all are there.
    """
    topic = f"burst-{time.time_ns()}"
    due_ms = time.time_ns() // 1_000_000 + 3_000 + count // 40
    async with aiohttp.ClientSession() as session:
        for at in range(0, count, 5000):
            messages = [{"topic": topic, "body": BODY, "deliver_at_ms": due_ms}] * min(5000, count - at)
            async with session.post(f"{served.url}/v1/messages", json=messages) as answer:
                assert answer.status == 201, await answer.text()
        if not reading:
            await visible(session, served, topic, count)
        stamped, _, ids = await consume(session, served, topic, count)
    assert len(set(ids)) == count, "a message came twice or not at all"
    assert min(stamped) >= 0, "a message came early"
    return {"first_ms": float(min(stamped)), **percentiles("delivered", stamped), "last_ms": max(stamped)}


async def visible(session: aiohttp.ClientSession, served: Served, topic: str, count: int) -> None:
    """Return when a topic has so many delivered messages; asks twenty times a second."""
    deadline = time.perf_counter() + 300
    while time.perf_counter() < deadline:
        async with session.get(f"{served.url}/v1/topics/{topic}") as answer:
            if orjson.loads(await answer.read())["visible"] >= count:
                return
        await asyncio.sleep(0.05)
    raise TimeoutError(f"{count} did not become visible")


async def consume(
    session: aiohttp.ClientSession, served: Served, topic: str, count: int
) -> tuple[list[float], list[float], list[str]]:
    """Read a topic to its end; lateness as stamped and as seen, and the ids."""
    stamped: list[float] = []
    seen: list[float] = []
    ids: list[str] = []
    path = f"{served.url}/v1/topics/{topic}/queues/0/messages"
    deadline = time.perf_counter() + 300
    while len(ids) < count:
        if time.perf_counter() > deadline:
            raise TimeoutError(f"{len(ids)} of {count} came")
        async with session.get(f"{path}?offset={len(ids)}&max=1000&wait_ms=5000") as answer:
            page = orjson.loads(await answer.read())
        now_ms = time.time_ns() / 1e6
        for message in page["messages"]:
            ids.append(message["id"])
            stamped.append(message["lateness_ms"])
            seen.append(now_ms - message["due_ms"])
    return stamped, seen, ids


def percentiles(name: str, values: list[float]) -> dict[str, float]:
    """p50, p99 and p99.9 in milliseconds."""
    found = np.percentile(np.array(values), (50, 99, 99.9))
    return {
        f"{name}_{label}_ms": float(value)
        for label, value in zip(("p50", "p99", "p99.9"), found, strict=True)
    }
