"""`recall`: recalling messages one at a time, in bulk, and at the moment when they fall due.

In the races each message is recalled within five milliseconds before or after its due time. Then either the
recall is confirmed and the message never arrives, or it is refused and the message arrives once: anything
else is an error.
"""

import asyncio
import time

import numpy as np
import orjson

from bench.connection import AnsweredError, Connection, connected
from bench.cost import Cost
from bench.histograms import histogram
from bench.peers.registry import OURS
from bench.peers.timerwheel import Timerwheel
from bench.runner import Bench

NAME = "recall"
BODY = "x" * 200
ARRAY = 1_000
COUNT = 200_000
SINGLES = 20_000
CONNECTIONS = 64
TOMORROW_MS = 86_400_000
RACES = 5_000
RACES_PER_S = 1_000
RACE_WITHIN_MS = 5
RACE_LEAD_S = 3


async def measure(bench: Bench) -> None:
    """Runs all four in each round."""
    for number in range(1, bench.options.rounds + 1):
        for name in bench.present([OURS]):
            async with bench.running(name) as system:
                assert isinstance(system, Timerwheel)
                for measured in (_single, _by_id, _by_filter, _races):
                    with bench.waiting(f"{NAME}: {measured.__name__.strip('_').replace('_', ' ')}"):
                        await measured(bench, system, number)


async def _send(system: Timerwheel, topic: str, count: int) -> list[str]:
    async with connected(system.port, 1) as [connection]:
        part = [{"topic": topic, "body": BODY, "delay_ms": TOMORROW_MS}] * ARRAY
        answers = [await connection.post("/v1/messages", part) for _ in range(0, count, ARRAY)]
    return [one["id"] for answer in answers for one in answer]


async def _single(bench: Bench, system: Timerwheel, number: int) -> None:
    ids = iter(await _send(system, "single", SINGLES))
    times_us: list[int] = []
    cost = Cost(system)
    async with connected(system.port, CONNECTIONS) as workers:

        async def work(connection: Connection) -> None:
            for message_id in ids:
                began = time.perf_counter()
                await connection.call("DELETE", f"/v1/messages/{message_id}")
                times_us.append(int((time.perf_counter() - began) * 1e6))

        cost.begin()
        await asyncio.gather(*map(work, workers))
        figures = cost.figures(SINGLES)
    bench.figure((NAME, "single", system.name, number), figures, {"latency": histogram(times_us)})


async def _by_id(bench: Bench, system: Timerwheel, number: int) -> None:
    ids = await _send(system, "ids", COUNT)
    parts = iter([orjson.dumps({"ids": ids[at : at + ARRAY]}) for at in range(0, COUNT, ARRAY)])
    recalled = 0
    cost = Cost(system)
    async with connected(system.port, 4) as workers:

        async def work(connection: Connection) -> None:
            nonlocal recalled
            for part in parts:
                answer = await connection.call("POST", "/v1/messages/recall", part)
                recalled += answer.count(b'"ok":true')

        cost.begin()
        await asyncio.gather(*map(work, workers))
        figures = cost.figures(COUNT)
    fault = None if recalled == COUNT else f"{recalled:,} of {COUNT:,} were recalled"
    bench.figure((NAME, "bulk by id", system.name, number), figures, fault=fault)


async def _by_filter(bench: Bench, system: Timerwheel, number: int) -> None:
    await _send(system, "filter", COUNT)
    cost = Cost(system)
    async with connected(system.port, 1) as [connection]:
        cost.begin()
        answer = await connection.post("/v1/messages/recall", {"topic": "filter"})
        figures = cost.figures(COUNT)
    fault = None if answer["recalled"] == COUNT else f"{answer['recalled']:,} of {COUNT:,} were recalled"
    bench.figure((NAME, "bulk by filter", system.name, number), figures, fault=fault)


async def _races(bench: Bench, system: Timerwheel, number: int) -> None:
    first_ms = time.time_ns() // 1_000_000 + RACE_LEAD_S * 1000
    dues_ms = [first_ms + at * 1000 // RACES_PER_S for at in range(RACES)]
    async with connected(system.port, CONNECTIONS + 1) as [first, *workers]:
        ids: list[str] = []
        for at in range(0, RACES, ARRAY):
            part = dues_ms[at : at + ARRAY]
            messages = [{"topic": "races", "body": BODY, "deliver_at_ms": due_ms} for due_ms in part]
            ids += [one["id"] for one in await first.post("/v1/messages", messages)]
        shifts_ms = np.random.default_rng(number).uniform(-RACE_WITHIN_MS, RACE_WITHIN_MS, RACES)
        planned = iter(sorted(zip((np.array(dues_ms) + shifts_ms).tolist(), ids, strict=True)))
        recalled: set[str] = set()

        async def work(connection: Connection) -> None:
            for at_ms, message_id in planned:
                await asyncio.sleep(max(at_ms / 1000 - time.time(), 0))
                try:
                    await connection.call("DELETE", f"/v1/messages/{message_id}")
                    recalled.add(message_id)
                except AnsweredError as error:
                    if error.status not in {404, 409, 410}:
                        raise

        await asyncio.gather(*map(work, workers))
        delivered = await _read(first, RACES - len(recalled))
    wrong = len(recalled & set(delivered)) + len(set(ids) - recalled - set(delivered))
    wrong += len(delivered) - len(set(delivered))
    figures = {"recalled": len(recalled), "delivered": len(delivered), "wrong": wrong}
    fault = f"{wrong} messages were recalled and came, came twice, or neither" if wrong else None
    bench.figure((NAME, "races", system.name, number), figures, fault=fault)


async def _read(connection: Connection, expected: int) -> list[str]:
    """Ids of the topic's messages, including any within a second after the last expected one."""
    found: list[str] = []
    offset, wait_ms = 0, 10_000
    while True:
        path = f"/v1/topics/races/queues/0/messages?offset={offset}&max=1000&wait_ms={wait_ms}"
        page = orjson.loads(await connection.call("GET", path))
        found += [message["id"] for message in page["messages"]]
        offset = page["next_offset"]
        if not page["messages"]:
            return found
        wait_ms = 1_000 if len(found) >= expected else 10_000
