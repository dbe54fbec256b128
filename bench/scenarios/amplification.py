"""`amplification`: bytes written to the device for each byte stored, from the send to the last firing.

Two ways, since one process cannot wait thirty days: a live service under a steady load with delays of five
seconds to two minutes; and the engine alone on a clock that runs so fast that thirty days pass in a minute or
two, where every message goes through each level of the wheel (`bench.fast_forward`). Stored bytes are those
of the messages' own records in the log; their records as re-injected, the index and its cascades are what is
written beyond.
"""

import asyncio
import json
import sys

from bench.generator.plan import Delays, Load
from bench.generator.run import LoadFailedError
from bench.peers.registry import OURS
from bench.peers.timerwheel import Timerwheel
from bench.runner import Bench, fault_of

NAME = "amplification"
PER_S = 2_000
LIVE_S = 60.0
MESSAGES = 1_000_000
DAYS = 30


async def measure(bench: Bench) -> None:
    """Both, once a round."""
    for number in range(1, bench.options.rounds + 1):
        for name in bench.present([OURS]):
            async with bench.running(name) as system:
                assert isinstance(system, Timerwheel)
                await _live(bench, system, number)
            await _fast(bench, number)


async def _live(bench: Bench, system: Timerwheel, number: int) -> None:
    load = Load(
        "live",
        system.sender("live"),
        Delays(5_000, 120_000),
        connections=4,
        array=PER_S // 100,
        per_second=PER_S,
        seconds=LIVE_S,
        receiver=system.receiver("live"),
    )
    [outcome] = (await bench.put(f"{NAME}, live", load)).loads
    log_bytes = sum(path.stat().st_blocks * 512 for path in (system.data / "log").glob("*.log"))
    # The log holds each message twice, as sent and as re-injected; the second is a little longer.
    stored = log_bytes / 2
    figures = {
        "messages": outcome.sent.count,
        "written_mib": system.usage().written_bytes / 2**20,
        "stored_mib": stored / 2**20,
        "write_amplification": system.usage().written_bytes / stored,
    }
    bench.figure((NAME, f"{PER_S:,} a second", system.name, number), figures, fault=fault_of(outcome))


async def _fast(bench: Bench, number: int) -> None:
    command = (sys.executable, "-m", "bench.fast_forward", str(bench.work / NAME), str(MESSAGES), str(DAYS))
    with bench.waiting(f"{NAME}, {DAYS} days in fast forward"):
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        said, errors = await process.communicate()
    if process.returncode:
        raise LoadFailedError(errors.decode(errors="replace")[-2000:])
    bench.figure((NAME, f"{DAYS} days in fast forward", "timerwheel engine", number), json.loads(said))
