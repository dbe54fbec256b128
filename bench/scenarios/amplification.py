"""`amplification`: bytes written to the device for each byte stored, from the send to the last firing.

Measured in two ways, since a run cannot take thirty days: a live system under a steady load with delays of
five to twenty-five seconds; and the engine alone on a fast clock, thirty days after a load was sent, so that
every message passes through each level of the wheel (`bench.fast_forward`). Stored bytes are those of the
messages' own records in the log, without the zeros that fill a sector; re-injected records, padding, the
index and its cascades come on top. Other systems store in other ways, so for all of them the bytes written
per message are reported.
"""

import asyncio

from bench.fast_forward import stored_bytes
from bench.generator.plan import Delays, Load
from bench.peers.registry import OURS, OURS_ASYNC
from bench.peers.system import System
from bench.peers.timerwheel import Timerwheel
from bench.runner import Bench, fault_of

NAME = "amplification"
RATES = (1_000, 2_000, 5_000, 10_000)
PEER_RATES = (1_000, 5_000)
PEERS = (OURS_ASYNC, "beanstalkd -f 0", "Redis AOF always")
GATHER_RATE = 1_000
GATHER = "5ms"
LIVE_S = 20.0
MESSAGES = 500_000
DAYS = 30


async def measure(bench: Bench) -> None:
    """Measures both, once per round."""
    for number in range(1, bench.options.rounds + 1):
        for name in bench.present((OURS, *PEERS)):
            for rate in RATES if name == OURS else PEER_RATES:
                async with bench.running(name) as system:
                    await _live(bench, system, rate, number)
        if bench.present([OURS]):
            async with bench.running(OURS, "--gather", GATHER) as system:
                await _live(bench, system, GATHER_RATE, number, f", gathered for {GATHER}")
            await _fast(bench, number)


async def _live(bench: Bench, system: System, rate: int, number: int, how: str = "") -> None:
    place = (NAME, f"{rate:,} a second{how}", system.name, number)
    await system.prepare("live")
    load = Load(
        "live",
        system.sender("live"),
        Delays(5_000, 25_000),
        connections=4,
        array=rate // 100,
        per_second=rate,
        seconds=LIVE_S,
        receiver=system.receiver("live"),
        early_us=0 if system.absolute_dues else 1_000,
    )
    done = await bench.load(place, load)
    if done is None:
        return
    [outcome] = done.loads
    written = system.usage().written_bytes
    figures = {
        "messages": outcome.sent.count,
        "written_mib": written / 2**20,
        "written_bytes_per_message": written / outcome.sent.count,
    }
    if isinstance(system, Timerwheel):
        stored = await asyncio.to_thread(stored_bytes, system.data)
        figures |= {"stored_mib": stored / 2**20, "write_amplification": written / stored}
    bench.figure(place, figures, fault=fault_of(outcome))


async def _fast(bench: Bench, number: int) -> None:
    case = f"{DAYS} days in fast forward"
    words = ("-m", "bench.fast_forward", str(bench.work / NAME), str(MESSAGES), str(DAYS))
    figures = await bench.output(f"{NAME}, {case}", *words)
    bench.figure((NAME, case, "timerwheel engine", number), figures)
