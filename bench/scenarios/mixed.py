"""`mixed`: everything at once: sends, firing, recalls, and one topic that bursts beside the others.

It measures the lateness on the other topics, and checks that nothing is lost or wrong.
"""

import asyncio
import time

from bench.connection import Connection
from bench.generator.plan import Delays, Load
from bench.histograms import histogram, joined
from bench.peers.registry import OURS, OURS_GROUP
from bench.peers.timerwheel import Timerwheel
from bench.runner import Bench, fault_of
from bench.scenarios.fire import steady

NAME = "mixed"
BURST = 100_000
LEAD_S = 10.0
SECONDS = 20.0
STEADY_PER_S = 500
SENDS_PER_S = 500
RECALLS_PER_S = 200


async def measure(bench: Bench) -> None:
    """Once a round, read from the queues and by groups."""
    for number in range(1, bench.options.rounds + 1):
        for name in bench.present([OURS, OURS_GROUP]):
            async with bench.running(name) as system:
                assert isinstance(system, Timerwheel)
                await _one(bench, system, number)


async def _one(bench: Bench, system: Timerwheel, number: int) -> None:
    burst = Load(
        "burst",
        system.sender("burst"),
        Delays(at_ms=int((time.time() + LEAD_S) * 1000)),
        connections=2,
        array=1_000,
        count=BURST,
        receiver=system.receiver("burst"),
    )
    others = [steady(system, f"steady-{at}", STEADY_PER_S, SECONDS, delay_s=2) for at in range(2)]
    sends = Load(
        "sends",
        system.sender("sends"),
        Delays(86_400_000, 30 * 86_400_000),
        connections=16,
        per_second=SENDS_PER_S,
        seconds=SECONDS,
    )
    recalling = asyncio.create_task(_recall(system))
    done = await bench.put(f"{NAME}, {system.name}", burst, *others, sends)
    recalls_us = await recalling
    burst_done, *others_done, sends_done = done.loads
    histograms = {
        "latency": sends_done.sent.latency,
        "recall_latency": histogram(recalls_us),
        "lateness": joined(one.delivered.lateness for one in others_done if one.delivered),
    }
    assert burst_done.delivered is not None
    figures = {
        "sends_per_s": sends_done.sent.measured / sends_done.sent.seconds,
        "recalls": len(recalls_us),
        "burst_last_ms": burst_done.delivered.last_us / 1000,
    }
    place = (NAME, "steady topics while another bursts", system.name, number)
    bench.figure(place, figures, histograms, fault_of(*done.loads))


async def _recall(system: Timerwheel) -> list[int]:
    """Send and recall at an even pace; microseconds of each recall."""
    connection = await Connection.open(system.port)
    message = {"topic": "recalled", "body": "x" * 200, "delay_ms": 3_600_000}
    times_us: list[int] = []
    began = time.perf_counter()
    while (elapsed := time.perf_counter() - began) < SECONDS:
        sent = await connection.post("/v1/messages", message)
        asked = time.perf_counter()
        await connection.call("DELETE", f"/v1/messages/{sent['id']}")
        times_us.append(int((time.perf_counter() - asked) * 1e6))
        await asyncio.sleep(max(len(times_us) / RECALLS_PER_S - elapsed, 0))
    connection.close()
    return times_us
