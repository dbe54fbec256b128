"""`fire`: how late messages are when they fall due at a steady rate.

First they are sent at that rate, in small requests every ten milliseconds, each message due a fixed whole
number of seconds later: when the last one is sent, the first falls due. So systems that know whole seconds
of delay only do the same work as the others, and sending does not compete with firing. Lateness is from the
due time until a consumer on another connection has the message.
"""

import math

from bench.generator.plan import Delays, Load, Outcome
from bench.peers.registry import OURS_ASYNC, SYSTEMS
from bench.peers.system import System
from bench.runner import Bench, Place, fault_of

NAME = "fire"
REQUESTS_PER_S = 100
CONNECTIONS = 4
LEAD_S = 2


def steady(system: System, topic: str, rate: int, seconds: float, delay_s: int | None = None) -> Load:
    """Messages due evenly at `rate` per second, sent in advance unless `delay_s` is shorter."""
    delay_ms = 1000 * (math.ceil(seconds) + LEAD_S if delay_s is None else delay_s)
    return Load(
        topic,
        system.sender(topic),
        Delays(delay_ms, delay_ms),
        connections=CONNECTIONS,
        array=max(rate // REQUESTS_PER_S, 1),
        per_second=rate,
        seconds=seconds,
        receiver=system.receiver(topic),
        early_us=0 if system.absolute_dues else 1_000,
    )


def delivered_figures(outcome: Outcome) -> dict[str, float]:
    """The rate of arrivals."""
    delivered = outcome.delivered
    assert delivered is not None
    return {
        "first_ms": delivered.first_us / 1000,
        "last_ms": delivered.last_us / 1000,
        "delivered_per_s": delivered.count * 1e6 / max(delivered.last_us, 1),
    }


async def measure(bench: Bench) -> None:
    """All rates on all systems, the systems in turn in each round."""
    names = bench.present(name for name in SYSTEMS if name != OURS_ASYNC)
    for number in range(1, bench.options.rounds + 1):
        for name in names:
            for rate in bench.options.rates:
                async with bench.running(name) as system:
                    await one(bench, system, (NAME, f"{rate:,} a second", name, number), rate)


async def one(bench: Bench, system: System, place: Place, rate: int) -> None:
    """One rate on a running system."""
    topic = f"fire-{rate}"
    await system.prepare(topic)
    load = steady(system, topic, rate, bench.options.seconds)
    done = await bench.load(place, load)
    if done is None:
        return
    [outcome] = done.loads
    assert outcome.delivered is not None
    figures = delivered_figures(outcome) | {"generator_busy_share": done.cpu_s / done.wall_s}
    bench.figure(place, figures, {"lateness": outcome.delivered.lateness}, fault_of(outcome))
