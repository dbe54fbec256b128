"""`schedule`: messages per second that each system accepts, and the latency of requests.

Closed loop over a fixed number of connections: each sends its next request when it has its answer. All
messages are due in one to thirty days (or what the system allows at most), so nothing fires. This service is
also sent arrays of 10,000, and the same as Arrow streams.
"""

import msgspec

from bench.cost import Cost
from bench.generator.plan import Delays, Load
from bench.peers.registry import OURS, OURS_ASYNC, OURS_GROUP, SYSTEMS
from bench.peers.system import System
from bench.runner import DAY_MS, Bench, sent_figures

NAME = "schedule"
CASES = ((1, 1), (16, 1), (64, 1), (256, 1), (16, 10), (16, 100), (4, 1000))
BULK = (4, 10_000)  # of this service only, in JSON and in Arrow


def case_name(connections: int, array: int, *, arrow: bool = False) -> str:
    """The name of a case in tables."""
    form = " in Arrow" if arrow else ""
    return f"{connections} connection{'s' if connections > 1 else ''}, {array:,} a request{form}"


def far(system: System) -> Delays:
    """Due times after the end of the benchmark, as far as the system allows."""
    return Delays(min(DAY_MS, system.max_delay_ms // 2), min(30 * DAY_MS, system.max_delay_ms))


async def measure(bench: Bench) -> None:
    """All cases on all systems, the systems in turn in each round."""
    names = bench.present(name for name in SYSTEMS if name != OURS_GROUP)
    for number in range(1, bench.options.rounds + 1):
        for name in names:
            async with bench.running(name) as system:
                for connections, array in CASES:
                    await _one(bench, system, number, connections, array)
                if name in {OURS, OURS_ASYNC}:
                    await _one(bench, system, number, *BULK)
                    await _one(bench, system, number, *BULK, arrow=True)


async def _one(
    bench: Bench, system: System, number: int, connections: int, array: int, *, arrow: bool = False
) -> None:
    topic = f"schedule-{connections}-{array}{'-arrow' if arrow else ''}"
    await system.prepare(topic)
    load = Load(
        topic,
        system.sender(topic) | ({"arrow": True} if arrow else {}),
        far(system),
        connections=connections,
        array=array,
        seconds=bench.options.seconds,
        warm_up_s=bench.options.warm_up_s,
    )
    case = case_name(connections, array, arrow=arrow)
    if arrow:  # the first such request imports pyarrow, which would count as its cost
        one = msgspec.structs.replace(load, connections=1, seconds=None, count=array, warm_up_s=0.0)
        await bench.put(f"{NAME}, {case}, {system.name}, the first", one)
    cost, place = Cost(system), (NAME, case, system.name, number)
    done = await bench.load(place, load)
    if done is not None:
        latency = {"latency": done.loads[0].sent.latency}
        bench.figure(place, sent_figures(done, cost), latency)
