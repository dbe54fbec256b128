"""`consume`: groups: receive and acknowledge, returned messages, streams, push, waiting workers.

Every part ends after a number of messages or seconds, and checks that each message arrived once.
"""

import asyncio
import itertools
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

import orjson

from bench.connection import Connection, connected
from bench.cost import Cost
from bench.histograms import histogram
from bench.peers.registry import OURS
from bench.peers.timerwheel import Timerwheel
from bench.runner import Bench

NAME = "consume"
BODY = "x" * 200
FILL_ARRAY = 1_000
DEADLINE_S = 120
RECEIVE_S = 4.0
RECEIVE_FILLED = 250_000
_RECEIPTS = re.compile(rb'"receipt":"([0-9a-f]{32})"')


class Found(NamedTuple):
    """The result of one case."""

    figures: dict[str, float]
    histograms: Mapping[str, str] = MappingProxyType({})


async def measure(bench: Bench) -> None:
    """Runs each part, or those in `--parts`, with a new service."""
    for number in range(1, bench.options.rounds + 1):
        for part in bench.options.parts or PARTS:
            for name in bench.present([OURS]):
                # Webhooks go to a receiver on loopback, which needs a setting of the service.
                async with bench.running(name, "--push-private-targets") as system:
                    assert isinstance(system, Timerwheel)
                    for case, measured in PARTS[part](system):
                        with bench.waiting(f"{NAME}, {case}"):
                            found = await measured
                        bench.figure((NAME, case, name, number), *found)


Cases = Iterator[tuple[str, Awaitable[Found]]]


def _receive(system: Timerwheel) -> Cases:
    for workers, count_max in itertools.product((1, 16, 64), (1, 32, 256)):
        topic = f"orders-{workers}-{count_max}"
        case = f"receive and acknowledge, {workers} connections, max {count_max}"
        yield case, receive_and_ack(system, topic, "workers", workers, count_max, RECEIVE_S)


def _return(system: Timerwheel) -> Cases:
    yield "given back and received again", give_back_and_receive(system, "returns", "workers", 20_000)


def _stream(system: Timerwheel) -> Cases:
    for readers in (1, 4):
        case = f"server-sent events, {readers} streams"
        yield case, stream(system, f"events-{readers}", "readers", readers, 60_000)


def _push(system: Timerwheel) -> Cases:
    for concurrency, count in ((1, 2_000), (16, 8_000), (64, 8_000)):
        yield f"push, concurrency {concurrency}", push(system, f"hooks-{concurrency}", concurrency, count)


def _idle(system: Timerwheel) -> Cases:
    for waiting in (8, 64):
        yield f"500 a second, {waiting} waiting workers", wait_idle(system, waiting, 500, 5)


PARTS: dict[str, Callable[[Timerwheel], Cases]] = {
    "receive": _receive,
    "return": _return,
    "stream": _stream,
    "push": _push,
    "idle": _idle,
}


async def fill_topic(system: Timerwheel, topic: str, count: int) -> None:
    """Send this many messages for immediate delivery."""
    part = orjson.dumps([{"topic": topic, "body": BODY}] * FILL_ARRAY)
    async with connected(system.port, 1) as [connection]:
        for _ in range(0, count, FILL_ARRAY):
            await connection.call("POST", "/v1/messages", part)


async def acknowledge(connection: Connection, path: str, receipts: list[bytes]) -> None:
    """Acknowledge these messages and check the result."""
    answer = await connection.call("POST", f"{path}/ack", b'{"receipts":["%b"]}' % b'","'.join(receipts))
    assert answer.count(b'"ok":true') == len(receipts), answer[:500]


async def receive_and_ack(
    system: Timerwheel, topic: str, group: str, workers: int, count_max: int, seconds: float
) -> Found:
    """Workers that receive up to `count_max` messages, acknowledge them and begin again, for some seconds.

    Times are of a receive and of an acknowledgement, each.
    """
    await fill_topic(system, topic, RECEIVE_FILLED)
    path = f"/v1/topics/{topic}/groups/{group}"
    request = orjson.dumps({"max": count_max, "invisible_ms": 60_000, "create": True})
    receives_us: list[int] = []
    acks_us: list[int] = []
    seen: set[bytes] = set()
    count = 0
    async with connected(system.port, workers) as connections:
        await connections[0].call("PUT", path, b"{}")
        cost = Cost(system)

        async def work(connection: Connection) -> None:
            nonlocal count
            while cost.took_s < seconds:
                began = time.perf_counter()
                receipts = _RECEIPTS.findall(await connection.call("POST", f"{path}/receive", request))
                received = time.perf_counter()
                assert receipts, "the topic ran out of messages"
                await acknowledge(connection, path, receipts)
                receives_us.append(int((received - began) * 1e6))
                acks_us.append(int((time.perf_counter() - received) * 1e6))
                seen.update(receipts)
                count += len(receipts)

        await asyncio.gather(*map(work, connections))
        figures = cost.figures(count)
    assert len(seen) == count, "a receipt was given out twice"
    return Found(figures, {"receive": histogram(receives_us), "ack": histogram(acks_us)})


async def give_back_and_receive(system: Timerwheel, topic: str, group: str, count: int) -> Found:
    """Nacks this many messages, which fall due together, then receives them again and acknowledges."""
    await fill_topic(system, topic, count)
    path = f"/v1/topics/{topic}/groups/{group}"
    async with connected(system.port, 4) as workers:
        first = workers[0]
        held = 0
        while held < count:
            received = await first.post(
                f"{path}/receive", {"max": 1000, "invisible_ms": 600_000, "create": True}
            )
            receipts = [message["receipt"] for message in received["messages"]]
            assert receipts, "the topic ran out of messages"
            await first.post(f"{path}/nack", {"receipts": receipts, "delay_ms": 4_000})
            held += len(receipts)
        await _until(first, path, lambda group: group["ready"] == held)
        cost = Cost(system)
        done = 0
        request = orjson.dumps({"max": 32, "invisible_ms": 60_000})

        async def work(connection: Connection) -> None:
            nonlocal done
            while done < held and cost.took_s < DEADLINE_S:
                receipts = _RECEIPTS.findall(await connection.call("POST", f"{path}/receive", request))
                if receipts:
                    done += len(receipts)
                    await acknowledge(connection, path, receipts)

        await asyncio.gather(*map(work, workers))
        return Found(cost.figures(done))


async def stream(system: Timerwheel, topic: str, group: str, readers: int, count: int) -> Found:
    """Streams this many messages over server-sent events; the service acknowledges each when sent."""
    await fill_topic(system, topic, count)
    path = f"/v1/topics/{topic}/groups/{group}"
    left = count
    over = asyncio.Event()

    async def read() -> None:
        nonlocal left
        reader, writer = await asyncio.open_connection("127.0.0.1", system.port, limit=1 << 20)
        asked = f"GET {path}/stream?ack=auto&max_in_flight=500 HTTP/1.1\r\nHost: localhost\r\n"
        asked += "X-Requested-With: bench\r\n\r\n"
        writer.write(asked.encode())
        rest = b""
        try:
            while data := await reader.read(1 << 18):
                data = rest + data
                left -= data.count(b"\nid: ")
                rest = data[-4:]
                if left <= 0:
                    over.set()
        finally:
            writer.close()

    async with connected(system.port, 1) as [connection]:
        await connection.call("PUT", path, b"{}")
    cost = Cost(system)
    reading = [asyncio.create_task(read()) for _ in range(readers)]
    try:
        async with asyncio.timeout(DEADLINE_S):
            await over.wait()
        return Found(cost.figures(count - left))
    finally:
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)


class _Receiver(asyncio.Protocol):
    """Answers every POST with 204 and counts it."""

    def __init__(self, count: Callable[[bytes], None]) -> None:
        self._count = count
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport: object = transport

    def data_received(self, data: bytes) -> None:
        """Answer each complete request."""
        self._buffer += data
        while True:
            head, blank, body = self._buffer.partition(b"\r\n\r\n")
            if not blank:
                return
            lower = head.lower()
            size = int(lower.split(b"content-length: ")[1].split(b"\r\n")[0])
            if len(body) < size:
                return
            self._buffer = body[size:]
            self._count(lower.split(b"webhook-id: ")[1].split(b"\r\n")[0])
            self._transport.write(b"HTTP/1.1 204 No Content\r\n\r\n")  # type: ignore[attr-defined]


async def push(system: Timerwheel, topic: str, concurrency: int, count: int) -> Found:
    """Pushes this many messages to a receiver in this process; the service must allow private targets."""
    await fill_topic(system, topic, count)
    ids: set[bytes] = set()
    over = asyncio.Event()
    requests = 0

    def received(message_id: bytes) -> None:
        nonlocal requests
        requests += 1
        ids.add(message_id)
        if len(ids) == count:
            over.set()

    receiver = await asyncio.get_running_loop().create_server(lambda: _Receiver(received), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{receiver.sockets[0].getsockname()[1]}/"
    async with connected(system.port, 1) as [connection]:
        cost = Cost(system)
        made = await connection.post(
            "/v1/subscriptions", {"topic": topic, "url": url, "concurrency": concurrency, "start": "head"}
        )
        try:
            async with asyncio.timeout(DEADLINE_S):
                await over.wait()
            figures = cost.figures(count)
        finally:
            await connection.call("DELETE", f"/v1/subscriptions/{made['id']}")
            receiver.close()
    return Found(figures | {"repeated": requests - count})


async def wait_idle(system: Timerwheel, waiting: int, per_second: int, seconds: int) -> Found:
    """Sends single messages to a group with this many waiting workers: the cost of waking them."""
    topic = f"idle-{time.time_ns()}"
    path = f"/v1/topics/{topic}/groups/workers"
    count = per_second * seconds
    request = orjson.dumps({"max": 1, "wait_ms": 1_000})
    message = orjson.dumps({"topic": topic, "body": BODY})
    delays_us: list[int] = []
    async with connected(system.port, waiting + 1) as [sender, *workers]:
        await sender.call("PUT", path, b"{}")
        cost = Cost(system)

        async def work(connection: Connection) -> None:
            while len(delays_us) < count and cost.took_s < DEADLINE_S:
                answer = orjson.loads(await connection.call("POST", f"{path}/receive", request))
                now_us = time.time_ns() // 1000
                for one in answer["messages"]:
                    delays_us.append(now_us - one["due_ms"] * 1000)
                    await acknowledge(connection, path, [one["receipt"].encode()])

        async def send() -> None:
            for number in range(count):
                await asyncio.sleep(max(number / per_second - cost.took_s, 0))
                await sender.call("POST", "/v1/messages", message)

        await asyncio.gather(send(), *map(work, workers))
        figures = {"service_cpu_us_per_message": cost.cpu_us(count)}
    return Found(figures, {"lateness": histogram(delays_us)})


async def _until(connection: Connection, path: str, holds: Callable[[dict[str, int]], bool]) -> None:
    """Wait until a group has the wanted state; polls twenty times a second."""
    end = time.perf_counter() + DEADLINE_S
    while time.perf_counter() < end:
        if holds(orjson.loads(await connection.call("GET", path))):
            return
        await asyncio.sleep(0.05)
    raise TimeoutError(f"{path} did not reach the wanted state")
