"""`burst`: many messages due in the same millisecond, while another topic goes on at a steady rate.

Only for systems that take a due time; of whole seconds of delay no such burst can be made. Beside the burst's
own lateness it tells that of the other topic, whose messages fall due from half a second before the burst on.
"""

import time

import msgspec

from bench.generator.plan import Delays, Load
from bench.generator.run import LoadFailedError
from bench.peers.registry import OURS_ASYNC, OURS_GROUP, SYSTEMS
from bench.peers.system import System
from bench.runner import Bench, fault_of
from bench.scenarios.fire import delivered_figures, steady

NAME = "burst"
SENT_PER_S = 20_000
"""A cautious guess at how fast the burst can be sent, so that all is there before it is due."""
FIRED_PER_S = 100_000
OTHER_PER_S = 200
ARRAY = 1_000
LEAD_S = 4
PATIENCE_S = 120


async def measure(bench: Bench) -> None:
    """All counts on all systems, the systems in turn in each round."""
    names = bench.present(
        name for name in SYSTEMS if name not in {OURS_ASYNC, OURS_GROUP} and "beanstalkd" not in name
    )
    for number in range(1, bench.options.rounds + 1):
        for name in names:
            for count in bench.options.counts:
                async with bench.running(name) as system:
                    await _one(bench, system, number, count)


def loads(system: System, count: int) -> tuple[Load, Load]:
    """The burst, and the other topic beside it."""
    lead_s = LEAD_S + count / SENT_PER_S
    burst = Load(
        "burst",
        system.sender("burst"),
        Delays(at_ms=int((time.time() + lead_s) * 1000)),
        connections=4,
        array=ARRAY,
        count=count,
        receiver=system.receiver("burst"),
        patience_s=PATIENCE_S,
    )
    other = steady(system, "other", OTHER_PER_S, 2 + count / FIRED_PER_S, delay_s=1)
    return burst, msgspec.structs.replace(other, start_s=lead_s - 1.5)


async def _one(bench: Bench, system: System, number: int, count: int) -> None:
    for topic in ("burst", "other"):
        await system.prepare(topic)
    place = (NAME, f"{count:,} in one millisecond", system.name, number)
    try:
        done = await bench.put(f"{NAME}, {place[1]}, {system.name}", *loads(system, count))
    except LoadFailedError as error:
        bench.figure(place, {}, fault=str(error))
        return
    burst, other = done.loads
    assert burst.delivered is not None
    assert other.delivered is not None
    histograms = {"lateness": burst.delivered.lateness, "other_lateness": other.delivered.lateness}
    bench.figure(place, delivered_figures(burst), histograms, fault_of(burst, other))
