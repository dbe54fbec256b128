"""`backlog`: the cost of many pending messages: speed, lateness, memory, disk, bytes written.

The service is filled with messages due in an hour to thirty days; then single sends over 64 connections,
5,000 due each second read by one consumer, and the same read by a group of workers that acknowledge them.
Bytes written are those of `/proc/PID/io`: bytes that the process had the kernel write to the device, page by
page, so a page that is changed twice before it is written counts once.
"""

from pathlib import Path

import msgspec

from bench.cost import Cost
from bench.generator.plan import Delays, Load
from bench.peers.registry import OURS, OURS_KAFKA
from bench.peers.timerwheel import Timerwheel
from bench.runner import DAY_MS, Bench, fault_of, sent_figures
from bench.scenarios.fire import steady

NAME = "backlog"
ARRAY = 1_000
HOUR_MS = 3_600_000
FIRED_PER_S = 5_000
SECONDS = 10.0
WORKERS = 8


async def measure(bench: Bench) -> None:
    """Each backlog in each round; the service starts empty each time."""
    for number in range(1, bench.options.rounds + 1):
        for pending in bench.options.pending:
            for name in bench.present([OURS, OURS_KAFKA]):
                async with bench.running(name) as system:
                    assert isinstance(system, Timerwheel)
                    await _one(bench, system, number, pending)


async def fill(bench: Bench, system: Timerwheel, pending: int) -> float:
    """Messages per second while sending this many in arrays of a thousand."""
    if not pending:
        return 0.0
    delays = Delays(HOUR_MS, 30 * DAY_MS)
    load = Load("fill", system.sender("fill"), delays, connections=4, array=ARRAY, count=pending)
    sent = (await bench.put(f"filling with {pending:,}", load)).loads[0].sent
    return sent.count / sent.seconds


async def _one(bench: Bench, system: Timerwheel, number: int, pending: int) -> None:
    filled_per_s = await fill(bench, system, pending)
    figures = {"fill_per_s": filled_per_s} | disk_figures(system, pending) if pending else {}
    delays = Delays(DAY_MS, 30 * DAY_MS)
    sends = Load("sends", system.sender("sends"), delays, connections=64, seconds=bench.options.seconds)
    cost = Cost(system)
    done = await bench.put(f"{NAME}, {pending:,} pending, sends", sends)
    figures["schedule_per_s"] = sent_figures(done, cost)["messages_per_s"]
    latency = done.loads[0].sent.latency
    [outcome] = (
        await bench.put(f"{NAME}, {pending:,} pending, due", steady(system, "due", FIRED_PER_S, SECONDS))
    ).loads
    assert outcome.delivered is not None
    usage = system.usage()
    figures |= {
        "anonymous_mib": usage.anonymous_bytes / 2**20,
        "resident_mib": usage.resident_bytes / 2**20,
    }
    histograms = {"latency": latency, "lateness": outcome.delivered.lateness}
    place = (NAME, f"{pending:,} pending", system.name, number)
    bench.figure(place, figures, histograms, fault_of(outcome))
    await _workers(bench, system, number, pending)


async def _workers(bench: Bench, system: Timerwheel, number: int, pending: int) -> None:
    case = f"{pending:,} pending, read by {WORKERS} workers"
    load = msgspec.structs.replace(
        steady(system, "work", FIRED_PER_S, SECONDS), receiver=system.member("work"), receivers=WORKERS
    )
    cost = Cost(system)
    [outcome] = (await bench.put(f"{NAME}, {case}", load)).loads
    assert outcome.delivered is not None
    figures = {"service_cpu_us_per_message": cost.cpu_us(outcome.delivered.count)}
    place = (NAME, case, system.name, number)
    bench.figure(place, figures, {"lateness": outcome.delivered.lateness}, fault_of(outcome))


def disk_figures(system: Timerwheel, messages: int) -> dict[str, float]:
    """Disk space and device writes per message."""
    log, index = (_allocated(system.data / part) for part in ("log", "index"))
    return {
        "log_bytes_per_message": log / messages,
        "index_bytes_per_message": index / messages,
        "disk_bytes_per_message": (log + index) / messages,
        "write_amplification": system.usage().written_bytes / max(log, 1),
    }


def _allocated(directory: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in directory.iterdir())
