"""Bounded loads on consumer groups: receive and acknowledge, streams, push, and what they do to lateness.

Every load ends after a number of messages or of seconds. Beside what was reached each tells how much CPU time
the service took for a message: that hardly depends on what else the machine does.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import numpy as np
import orjson

from bench.connection import Connection
from bench.load import BODY, Served, percentiles

FILL_ARRAY = 1_000
DEADLINE_S = 120
_RECEIPTS = re.compile(rb'"receipt":"([0-9a-f]{32})"')


class Cost:
    """Messages, wall time and the service's CPU time since `begin`."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self.begin()

    def begin(self) -> None:
        """Count from here."""
        self._began = time.perf_counter()
        self._cpu_s = self._served.cpu_s()

    @property
    def took_s(self) -> float:
        """Seconds since `begin`."""
        return time.perf_counter() - self._began

    def figures(self, count: int) -> dict[str, float]:
        """What so many messages were."""
        cpu_us = (self._served.cpu_s() - self._cpu_s) * 1e6
        return {"messages_per_s": count / self.took_s, "cpu_us_per_message": cpu_us / max(count, 1)}


@asynccontextmanager
async def connections(served: Served, count: int) -> AsyncIterator[list[Connection]]:
    """So many connections, closed in the end."""
    made = [await Connection.open(served.port) for _ in range(count)]
    try:
        yield made
    finally:
        for connection in made:
            connection.close()


async def fill_topic(served: Served, topic: str, count: int) -> None:
    """Put so many messages there, to be consumed at once."""
    part = orjson.dumps([{"topic": topic, "body": BODY}] * FILL_ARRAY)
    async with connections(served, 1) as [connection]:
        for _ in range(0, count, FILL_ARRAY):
            await connection.call("POST", "/v1/messages", part)


async def acknowledge(connection: Connection, path: str, receipts: list[bytes]) -> None:
    """Acknowledge these and see that it was taken."""
    answer = await connection.call("POST", f"{path}/ack", b'{"receipts":["%b"]}' % b'","'.join(receipts))
    assert answer.count(b'"ok":true') == len(receipts), answer[:500]


async def receive_and_ack(
    served: Served, topic: str, group: str, connected: int, count_max: int, seconds: float
) -> dict[str, float]:
    """Workers that receive up to `count_max` messages, acknowledge them and begin again, for some seconds.

    The topic must hold enough. Times are of a receive and of an acknowledgement, each.
    """
    path = f"/v1/topics/{topic}/groups/{group}"
    request = orjson.dumps({"max": count_max, "invisible_ms": 60_000})
    receives: list[float] = []
    acks: list[float] = []
    seen: set[bytes] = set()
    count = 0
    async with connections(served, connected) as workers:
        await workers[0].call("PUT", path, b"{}")
        cost = Cost(served)

        async def work(connection: Connection) -> None:
            nonlocal count
            while cost.took_s < seconds:
                began = time.perf_counter()
                receipts = _RECEIPTS.findall(await connection.call("POST", f"{path}/receive", request))
                received = time.perf_counter()
                assert receipts, "the topic ran out of messages"
                await acknowledge(connection, path, receipts)
                receives.append(received - began)
                acks.append(time.perf_counter() - received)
                seen.update(receipts)
                count += len(receipts)

        await asyncio.gather(*map(work, workers))
        figures = cost.figures(count)
    assert len(seen) == count, "a receipt was given out twice"
    for name, times in (("receive", receives), ("ack", acks)):
        p50, p99 = np.percentile(np.array(times) * 1000, (50, 99))
        figures |= {f"{name}_p50_ms": float(p50), f"{name}_p99_ms": float(p99)}
    return figures


async def give_back_and_receive(served: Served, topic: str, group: str, count: int) -> dict[str, float]:
    """So many messages are given back, fall due together, and are received again and acknowledged."""
    path = f"/v1/topics/{topic}/groups/{group}"
    async with connections(served, 4) as workers:
        first = workers[0]
        held = 0
        while held < count:
            received = await first.post(f"{path}/receive", {"max": 1000, "invisible_ms": 600_000})
            receipts = [message["receipt"] for message in received["messages"]]
            assert receipts, "the topic ran out of messages"
            await first.post(f"{path}/nack", {"receipts": receipts, "delay_ms": 4_000})
            held += len(receipts)
        await _until(first, path, lambda group: group["ready"] == held)
        cost = Cost(served)
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
        return cost.figures(done)


async def stream(served: Served, topic: str, group: str, connected: int, count: int) -> dict[str, float]:
    """So many messages over server-sent events, each acknowledged by the service once it is sent."""
    path = f"/v1/topics/{topic}/groups/{group}"
    left = count
    over = asyncio.Event()

    async def read() -> None:
        nonlocal left
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=1 << 20)
        writer.write(f"GET {path}/stream?ack=auto&max_in_flight=500 HTTP/1.1\r\nHost: bench\r\n\r\n".encode())
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

    async with connections(served, 1) as [connection]:
        await connection.call("PUT", path, b"{}")
    cost = Cost(served)
    readers = [asyncio.create_task(read()) for _ in range(connected)]
    try:
        async with asyncio.timeout(DEADLINE_S):
            await over.wait()
        return cost.figures(count - left)
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


class _Receiver(asyncio.Protocol):
    """Answers every POST with 204 and counts it."""

    def __init__(self, count: Callable[[bytes], None]) -> None:
        self._count = count
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport: object = transport

    def data_received(self, data: bytes) -> None:
        """Answer each request that is whole."""
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


async def push(served: Served, topic: str, concurrency: int, count: int) -> dict[str, float]:
    """So many messages delivered to a receiver in this process; the service must allow private targets."""
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
    async with connections(served, 1) as [connection]:
        cost = Cost(served)
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
    return figures | {"repeated": requests - count}


async def fire_to_workers(served: Served, per_second: int, seconds: int, workers: int) -> dict[str, float]:
    """Lateness of messages due evenly while workers of one group receive and acknowledge them.

    "delivered" is the time stamped at re-injection less the due time, "seen" the arrival at a worker.
    """
    topic = f"work-{time.time_ns()}"
    path = f"/v1/topics/{topic}/groups/workers"
    count = per_second * seconds
    begin_ms = time.time_ns() // 1_000_000 + 3_000 + count // 50
    dues = begin_ms + np.arange(count) * 1000 // per_second
    stamped: list[float] = []
    seen: list[float] = []
    ids: set[str] = set()
    request = orjson.dumps({"max": 100, "wait_ms": 2_000})
    async with connections(served, workers) as connected:
        for at in range(0, count, FILL_ARRAY):
            due = dues[at : at + FILL_ARRAY].tolist()
            await connected[0].post(
                "/v1/messages", [{"topic": topic, "body": BODY, "deliver_at_ms": due_ms} for due_ms in due]
            )
        cost = Cost(served)

        async def work(connection: Connection) -> None:
            while len(stamped) < count and cost.took_s < DEADLINE_S:
                answer = orjson.loads(await connection.call("POST", f"{path}/receive", request))
                now_ms = time.time_ns() / 1e6
                receipts: list[bytes] = []
                for message in answer["messages"]:
                    ids.add(message["id"])
                    stamped.append(message["lateness_ms"])
                    seen.append(now_ms - message["due_ms"])
                    receipts.append(message["receipt"].encode())
                if receipts:
                    await acknowledge(connection, path, receipts)

        await asyncio.gather(*map(work, connected))
        figures = cost.figures(len(stamped))
    assert len(ids) == len(stamped) == count, "a message came twice or not at all"
    assert min(stamped) >= 0, "a message came early"
    return {
        **percentiles("delivered", stamped),
        **percentiles("seen", seen),
        "cpu_us_per_message": figures["cpu_us_per_message"],
    }


async def wait_idle(served: Served, waiting: int, per_second: int, seconds: int) -> dict[str, float]:
    """Messages sent one by one to a group at which so many workers wait: what waking them costs."""
    topic = f"idle-{time.time_ns()}"
    path = f"/v1/topics/{topic}/groups/workers"
    count = per_second * seconds
    request = orjson.dumps({"max": 1, "wait_ms": 1_000})
    message = orjson.dumps({"topic": topic, "body": BODY})
    delays: list[float] = []
    async with connections(served, waiting + 1) as [sender, *workers]:
        await sender.call("PUT", path, b"{}")
        cost = Cost(served)

        async def work(connection: Connection) -> None:
            while len(delays) < count and cost.took_s < DEADLINE_S:
                answer = orjson.loads(await connection.call("POST", f"{path}/receive", request))
                now_ms = time.time_ns() / 1e6
                for one in answer["messages"]:
                    delays.append(now_ms - one["due_ms"])
                    await acknowledge(connection, path, [one["receipt"].encode()])

        async def send() -> None:
            for number in range(count):
                await asyncio.sleep(max(number / per_second - cost.took_s, 0))
                await sender.call("POST", "/v1/messages", message)

        await asyncio.gather(send(), *map(work, workers))
        figures = cost.figures(count)
    return {**percentiles("seen", delays), "cpu_us_per_message": figures["cpu_us_per_message"]}


async def recall(served: Served, count: int) -> dict[str, float]:
    """Messages per second recalled by id, in arrays of 1000, and as many again by topic."""
    tomorrow_ms = 86_400_000
    ids: list[str] = []
    figures: dict[str, float] = {}
    async with connections(served, 1) as [connection]:
        for topic in ("recall-ids", "recall-where"):
            part = [{"topic": topic, "body": BODY, "delay_ms": tomorrow_ms}] * FILL_ARRAY
            for _ in range(0, count, FILL_ARRAY):
                answer = await connection.post("/v1/messages", part)
                if topic == "recall-ids":
                    ids += [one["id"] for one in answer]
        cost = Cost(served)
        for at in range(0, count, FILL_ARRAY):
            answer = await connection.post("/v1/messages/recall", {"ids": ids[at : at + FILL_ARRAY]})
            assert answer["recalled"] == FILL_ARRAY, answer
        figures |= {f"ids_{name}": value for name, value in cost.figures(count).items()}
        for name, dry_run in (("dry", True), ("where", False)):
            cost.begin()
            answer = await connection.post(
                "/v1/messages/recall", {"topic": "recall-where", "dry_run": dry_run}
            )
            assert answer["matched"] == count, answer
            figures |= {f"{name}_{what}": value for what, value in cost.figures(count).items()}
    return figures


async def _until(connection: Connection, path: str, holds: Callable[[dict[str, int]], bool]) -> None:
    """Return when a group is as wanted; asks twenty times a second."""
    end = time.perf_counter() + DEADLINE_S
    while time.perf_counter() < end:
        if holds(orjson.loads(await connection.call("GET", path))):
            return
        await asyncio.sleep(0.05)
    raise TimeoutError(f"{path} did not become as wanted")
