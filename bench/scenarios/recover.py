"""`recover`: time to recover after SIGKILL, after losing the index, and with Spark.

The service is killed with messages pending, one of which falls due while it is down. Measured are the times
from the start of the new process until it accepts sends, and until that message is delivered.
"""

import asyncio
import shutil
import signal
import time

import orjson

from bench.connection import Connection
from bench.peers.registry import OURS
from bench.peers.timerwheel import Timerwheel
from bench.runner import Bench
from bench.scenarios.backlog import fill

NAME = "recover"
DOWN_MS = 2_000
WAIT_MS = 30_000
SETTLE_S = 2


async def measure(bench: Bench) -> None:
    """Each backlog in each round."""
    for number in range(1, bench.options.rounds + 1):
        for pending in bench.options.pending:
            for name in bench.present([OURS]):
                async with bench.running(name) as system:
                    assert isinstance(system, Timerwheel)
                    await fill(bench, system, pending)
                    await asyncio.sleep(SETTLE_S)
                    await _killed(bench, system, number, pending)
                    await _index_lost(bench, system, number, pending)
                    await _through_spark(bench, system, number, pending)


async def _killed(bench: Bench, system: Timerwheel, number: int, pending: int) -> None:
    due_ms = time.time_ns() // 1_000_000 + DOWN_MS
    connection = await Connection.open(system.port)
    await connection.post("/v1/messages", {"topic": "first", "body": "due", "deliver_at_ms": due_ms})
    connection.close()
    system.stop(signal.SIGKILL)
    await asyncio.sleep(DOWN_MS / 1000 + 0.1)
    began = time.perf_counter()
    ready_s = await system.start()
    connection = await Connection.open(system.port)
    path = f"/v1/topics/first/queues/0/messages?offset=0&wait_ms={WAIT_MS}"
    page = orjson.loads(await connection.call("GET", path))
    first_due_s = time.perf_counter() - began
    connection.close()
    came = len(page["messages"])
    place = (NAME, f"SIGKILL with {pending:,} pending", system.name, number)
    fault = None if came == 1 else f"the message that was due came {came} times"
    bench.figure(place, {"ready_s": ready_s, "first_due_s": first_due_s}, fault=fault)


async def _index_lost(bench: Bench, system: Timerwheel, number: int, pending: int) -> None:
    system.stop(signal.SIGKILL)
    shutil.rmtree(system.data / "index")
    with bench.waiting(f"{NAME}, index lost, {pending:,} pending"):
        ready_s = await system.start()
    place = (NAME, f"index lost, {pending:,} pending", system.name, number)
    bench.figure(place, {"ready_s": ready_s}, fault=await _wrong_count(system, pending))


async def _through_spark(bench: Bench, system: Timerwheel, number: int, pending: int) -> None:
    system.stop()
    case = f"Spark rebuild, {pending:,} pending"
    words = ("-m", "timerwheel.cli.main", "rebuild", "--data", str(system.data), "--json")
    began = time.perf_counter()
    said = await bench.output(f"{NAME}, {case}", *words)
    seconds = time.perf_counter() - began
    stages = {f"{name}_s": value for name, value in said["seconds"].items()}
    figures = {"seconds": seconds, **stages, "ready_s": await system.start()}
    bench.figure((NAME, case, system.name, number), figures, fault=await _wrong_count(system, pending))


async def _wrong_count(system: Timerwheel, pending: int) -> str | None:
    """A fault if the number of pending messages is not the number sent."""
    connection = await Connection.open(system.port)
    try:
        found = orjson.loads(await connection.call("GET", "/v1/wheel"))["pending"]
    finally:
        connection.close()
    return None if found == pending else f"{found:,} messages are pending, not {pending:,}"
