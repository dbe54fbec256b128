"""`consume`: workers that receive and acknowledge, with peers; what comes back, streams, push, idle workers.

Every part ends after a number of messages or seconds, and checks that each message arrived once.

Receiving and acknowledging is measured in two forms. "In two steps" a worker waits for the answer to its
acknowledgement before it asks for more; "in one step" it writes both together: our receive with `ack`, delete
and reserve, XACK and XREADGROUP, ACK and POP. beanstalkd takes one at a time, RocketMQ 32 at most.
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
from bench.generator.plan import Delays, Load
from bench.generator.run import LoadFailedError
from bench.histograms import histogram
from bench.peers.registry import OURS
from bench.peers.system import System
from bench.peers.timerwheel import Timerwheel
from bench.runner import Bench
from bench.wires.wire import RefusedError
from bench.workers import work

NAME = "consume"
BODY = "x" * 200
FILL_ARRAY = 1_000
DEADLINE_S = 120
PEERS = ("beanstalkd -f 0", "Redis AOF always", "RocketMQ 5 sync")
RECEIVE = ((1, 1), (16, 1), (64, 1), (4, 32), (4, 256))
"""Workers, and how many messages each takes at once."""
FILL_CONNECTIONS = 4
FILL_REQUEST = 100
SINGLES_PER_S_MAX = 20_000
ARRAYS_PER_S_MAX = 80_000
"""Messages are stored for this rate. A system that works faster ends early."""
WARM_UP = 0
"""The number of the round that is not measured, of a system that needs load to reach full speed."""
WARM_UP_WORKERS = 16
WARM_UP_COUNT = 50_000
RECEIVE_PART = "receive"
_RECEIPTS = re.compile(rb'"receipt":"([0-9a-f]+)"')


class Found(NamedTuple):
    """The result of one case."""

    figures: dict[str, float]
    histograms: Mapping[str, str] = MappingProxyType({})


Cases = Iterator[tuple[str, Awaitable[Found]]]
"""The cases of one part, on our service alone."""


async def measure(bench: Bench) -> None:
    """Runs each part, or those in `--parts`."""
    for number in range(1, bench.options.rounds + 1):
        for part in bench.options.parts or PARTS:
            if part == RECEIVE_PART:
                await _receive_all(bench, number)
            else:
                await _ours(bench, OUR_PARTS[part], number)


async def _receive_all(bench: Bench, number: int) -> None:
    """All cases on all systems, the systems in turn."""
    for name in bench.present([OURS, *PEERS]):
        async with bench.running(name) as system:
            if system.warm_up_s:
                await _receive(bench, system, WARM_UP_WORKERS, 1, ack_with_next=True, number=WARM_UP)
            for (workers, count_max), ack_with_next in itertools.product(RECEIVE, (False, True)):
                if count_max <= system.work_max:
                    await _receive(
                        bench, system, workers, count_max, ack_with_next=ack_with_next, number=number
                    )


async def _ours(bench: Bench, cases: Callable[[Timerwheel], Cases], number: int) -> None:
    """One part with a new service."""
    for name in bench.present([OURS]):
        # Webhooks go to a receiver on loopback, which needs a setting of the service.
        async with bench.running(name, "--push-private-targets") as system:
            assert isinstance(system, Timerwheel)
            for case, measured in cases(system):
                with bench.waiting(f"{NAME}, {case}"):
                    found = await measured
                bench.figure((NAME, case, name, number), *found)


def case_name(workers: int, count_max: int, *, ack_with_next: bool) -> str:
    """The name of a case of receiving and acknowledging."""
    connections = f"{workers} connection{'s' if workers > 1 else ''}"
    taken = "one at a time" if count_max == 1 else f"arrays of {count_max}"
    return f"{connections}, {taken}, in {'one step' if ack_with_next else 'two steps'}"


async def _receive(
    bench: Bench, system: System, workers: int, count_max: int, *, ack_with_next: bool, number: int
) -> None:
    """Stores messages, then measures workers on them. Round WARM_UP leaves no result unless it fails."""
    case = case_name(workers, count_max, ack_with_next=ack_with_next)
    place = (NAME, case, system.name, number)
    topic = f"work-{workers}-{count_max}-{'one' if ack_with_next else 'two'}-{number}"
    warm_up_s = bench.options.warm_up_s
    seconds = bench.options.seconds if number != WARM_UP else system.warm_up_s
    per_s = SINGLES_PER_S_MAX if count_max == 1 else ARRAYS_PER_S_MAX
    wanted = int((warm_up_s + seconds) * per_s) if number != WARM_UP else WARM_UP_COUNT
    try:
        await system.prepare_work(topic)
        stored = await _store(bench, system, topic, case, wanted, seconds=2 * (warm_up_s + seconds))
        with bench.waiting(f"{NAME}, {case}, {system.name}"):
            worked = await work(
                system,
                system.worker(topic, count_max, ack_with_next=ack_with_next),
                workers=workers,
                stored=stored,
                warm_up_s=warm_up_s,
                seconds=seconds,
            )
    except (LoadFailedError, RefusedError, OSError) as error:
        bench.figure(place, {}, fault=str(error))
        return
    if number != WARM_UP:
        bench.figure(place, worked.figures, {"cycle": worked.cycle}, worked.fault)


async def _store(bench: Bench, system: System, topic: str, case: str, count: int, seconds: float) -> int:
    """Sends this many messages, or as many as the system takes in some seconds; returns their number."""
    load = Load(
        topic,
        system.work_sender(topic),
        Delays(),
        connections=FILL_CONNECTIONS,
        array=FILL_REQUEST,
        count=count,
        seconds=seconds,
    )
    done = await bench.put(f"{NAME}, {case}, {system.name}: storing", load)
    return done.loads[0].sent.count


def _return(system: Timerwheel) -> Cases:
    yield "given back and received again", give_back_and_receive(system, "returns", "workers", 20_000)


def _stream(system: Timerwheel) -> Cases:
    for readers in (1, 4):
        case = f"server-sent events, {readers} streams"
        yield case, stream(system, f"events-{readers}", "readers", readers, 60_000)


def _push(system: Timerwheel) -> Cases:
    for concurrency, count in ((1, 2_000), (16, 8_000), (64, 24_000)):
        yield f"push, concurrency {concurrency}", push(system, f"hooks-{concurrency}", concurrency, count)


def _idle(system: Timerwheel) -> Cases:
    for waiting in (8, 64):
        yield f"500 a second, {waiting} waiting workers", wait_idle(system, waiting, 500, 5)


OUR_PARTS: dict[str, Callable[[Timerwheel], Cases]] = {
    "return": _return,
    "stream": _stream,
    "push": _push,
    "idle": _idle,
}
PARTS = (RECEIVE_PART, *OUR_PARTS)


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
