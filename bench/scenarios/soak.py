"""`soak`: a steady load for the given time: sends, delays of a second to half a minute, consumers.

No message may be lost, duplicated or early, and memory must not grow over time.
"""

from bench.generator.plan import Delays, Load
from bench.histograms import joined
from bench.peers.registry import OURS_GROUP
from bench.runner import Bench, fault_of

NAME = "soak"
PER_S = 2_000
ARRAY = 10
TOPICS = 4


async def measure(bench: Bench) -> None:
    """Runs once, regardless of the number of rounds."""
    seconds = bench.options.soak_s
    for name in bench.present([OURS_GROUP]):
        async with bench.running(name) as system:
            first = system.usage()
            loads = [
                Load(
                    topic,
                    system.sender(topic),
                    Delays(1_000, 30_000),
                    connections=4,
                    array=ARRAY,
                    per_second=PER_S / TOPICS,
                    seconds=seconds,
                    receiver=system.receiver(topic),
                    receivers=2,
                )
                for topic in (f"soak-{at}" for at in range(TOPICS))
            ]
            done = await bench.put(f"{NAME}, {seconds:,.0f} s", *loads)
            last = system.usage()
            figures = {
                "messages_per_s": PER_S,
                "sent": sum(one.sent.count for one in done.loads),
                "service_busy_share": (last.cpu_s - first.cpu_s) / done.wall_s,
                "anonymous_mib_first": first.anonymous_bytes / 2**20,
                "anonymous_mib_last": last.anonymous_bytes / 2**20,
            }
            histograms = {"latency": joined(one.sent.latency for one in done.loads)}
            histograms["lateness"] = joined(one.delivered.lateness for one in done.loads if one.delivered)
            place = (NAME, f"{seconds:,.0f} s", name, 1)
            bench.figure(place, figures, histograms, fault_of(*done.loads))
