"""`schedule`: messages per second that each system accepts, and the latency of requests.

Closed loop over a fixed number of connections: each sends its next request when it has its answer. All
messages are due in one to thirty days (or what the system allows at most), so nothing fires.
"""

from bench.cost import Cost
from bench.generator.plan import Delays, Load
from bench.generator.run import LoadFailedError
from bench.peers.registry import OURS_GROUP, SYSTEMS
from bench.peers.system import System
from bench.runner import DAY_MS, Bench, sent_figures

NAME = "schedule"
CASES = ((1, 1), (16, 1), (64, 1), (256, 1), (16, 10), (16, 100), (4, 1000))


def case_name(connections: int, array: int) -> str:
    """The name of a case in tables."""
    return f"{connections} connection{'s' if connections > 1 else ''}, {array:,} a request"


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


async def _one(bench: Bench, system: System, number: int, connections: int, array: int) -> None:
    topic = f"schedule-{connections}-{array}"
    await system.prepare(topic)
    load = Load(
        topic,
        system.sender(topic),
        far(system),
        connections=connections,
        array=array,
        seconds=bench.options.seconds,
        warm_up_s=bench.options.warm_up_s,
    )
    case = case_name(connections, array)
    cost = Cost(system)
    try:
        done = await bench.put(f"{NAME}, {case}, {system.name}", load)
    except LoadFailedError as error:
        bench.figure((NAME, case, system.name, number), {}, fault=str(error))
        return
    latency = {"latency": done.loads[0].sent.latency}
    bench.figure((NAME, case, system.name, number), sent_figures(done, cost), latency)
