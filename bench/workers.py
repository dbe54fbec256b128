"""Workers in a closed loop: each receives messages, acknowledges them and begins again.

They run in the process of the benchmark. A worker only counts and keeps the heads of bodies; whether a
message came twice is found when all is over.
"""

import asyncio
import gc
import time
from array import array
from typing import NamedTuple

import numpy as np

from bench.body import HEAD_BYTES, read_heads
from bench.cost import Cost
from bench.generator.reading import Reading
from bench.histograms import histogram
from bench.peers.system import System
from bench.wires import wire as wires
from bench.wires.wire import Spec


class Worked(NamedTuple):
    """What the workers did in the measured time."""

    figures: dict[str, float]
    cycle: str
    """HDR histogram of microseconds, encoded: from one acknowledgement of a worker to its next."""
    fault: str | None


async def work(
    system: System, spec: Spec, *, workers: int, stored: int, warm_up_s: float, seconds: float
) -> Worked:
    """Work on `stored` messages, numbered from zero, for some seconds after a warm-up.

    Ends early when the messages run short, so that no worker waits for one. Raises RefusedError, or OSError
    if a connection closes.
    """
    crew = _Crew(spec, limit=stored - workers * spec["count_max"])
    address = (spec["host"], spec["port"])
    # There is no cyclic garbage here, and a collection would show up as a slow cycle of the system.
    gc.disable()
    try:
        for _ in range(workers):
            await asyncio.get_running_loop().create_connection(crew.worker, *address)
        await crew.run(warm_up_s)
        crew.begin_measuring()
        cost = Cost(system)
        busy_s = time.process_time()
        await crew.run(seconds)
        figures = cost.figures(crew.measured)
        figures["generator_busy_share"] = (time.process_time() - busy_s) / cost.took_s
    finally:
        gc.enable()
        await crew.close()
    return Worked(figures, histogram(crew.cycles_us), crew.fault(stored))


class _Crew:
    def __init__(self, spec: Spec, limit: int) -> None:
        self._spec = spec
        self.cycles_us = array("q")
        self.measured = 0
        self._heads: list[bytes] = []
        self._limit = limit
        self._workers: list[Reading] = []
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def worker(self) -> Reading:
        """A worker that begins its first cycle now."""
        began = time.perf_counter()

        def took(bodies: list[bytes]) -> None:
            nonlocal began
            now = time.perf_counter()
            self._finished(bodies, began, now)
            began = now

        worker = Reading(wires.worker(self._spec), took, self._fail)
        self._workers.append(worker)
        return worker

    async def run(self, seconds: float) -> None:
        """Let them work for so long, or until the messages run short."""
        done, _ = await asyncio.wait([self._over], timeout=seconds)
        if done:
            self._over.result()

    def begin_measuring(self) -> None:
        del self.cycles_us[:]
        self.measured = 0

    def _finished(self, bodies: list[bytes], began: float, now: float) -> None:
        if self._over.done():
            return
        self.cycles_us.append(int((now - began) * 1e6))
        self.measured += len(bodies)
        self._heads += [body[:HEAD_BYTES] for body in bodies]
        if len(self._heads) >= self._limit:
            self._over.set_result(None)

    def _fail(self, error: Exception) -> None:
        if not self._over.done():
            self._over.set_exception(error)

    async def close(self) -> None:
        for worker in self._workers:
            worker.close()
        await asyncio.gather(*(worker.gone for worker in self._workers))

    def fault(self, stored: int) -> str | None:
        """Messages that came twice or were never sent, and a time without any."""
        if not self.measured:
            return "nothing was acknowledged in the measured time"
        numbers, _ = read_heads(self._heads)
        known = numbers[(numbers >= 0) & (numbers < stored)]
        found = {
            "twice": len(known) - len(np.unique(known)),
            "never sent": len(numbers) - len(known),
        }
        return ", ".join(f"{count:,} {name}" for name, count in found.items() if count) or None
