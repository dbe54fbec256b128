"""The consuming side of a load: which messages arrive, when, and whether they match the sends."""

import asyncio
import time
from array import array
from functools import partial

import numpy as np

from bench.body import HEAD_BYTES, read_heads
from bench.generator.plan import Delivered, Load
from bench.generator.reading import Reading
from bench.histograms import histogram
from bench.wires import wire as wires

LOOK_S = 0.05


class Receiving:
    """The consumers of one load. They only store data during the load; it is evaluated afterwards."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.received = 0
        self._heads: list[bytes] = []
        self._counts = array("q")
        self._arrivals_us = array("q")
        self._failed: Exception | None = None
        self._connections: list[Reading] = []
        self._last_arrival = time.perf_counter()

    async def begin(self) -> None:
        """Connect the consumers and start them."""
        loop = asyncio.get_running_loop()
        assert self.load.receiver is not None
        address = (self.load.receiver["host"], self.load.receiver["port"])
        for _ in range(self.load.receivers):
            wire = wires.receiver(self.load.receiver)
            _, connection = await loop.create_connection(
                partial(Reading, wire, self.took, self.fail), *address
            )
            self._connections.append(connection)

    async def wait_for(self, count: int, last_due_ms: int) -> None:
        """Wait for this many messages, and a little longer for duplicates."""
        while self.received < count and self._patient(last_due_ms):
            await asyncio.sleep(LOOK_S)
        await asyncio.sleep(self.load.settle_s)
        self.close()
        if self._failed is not None:
            raise self._failed

    def _patient(self, last_due_ms: int) -> bool:
        if self._failed is not None:
            return False
        past_due_s = time.time() - last_due_ms / 1000
        return min(past_due_s, time.perf_counter() - self._last_arrival) < self.load.patience_s

    def took(self, bodies: list[bytes]) -> None:
        """Store arrived messages."""
        self._heads += [one[:HEAD_BYTES] for one in bodies]
        self._counts.append(len(bodies))
        self._arrivals_us.append(time.time_ns() // 1000)
        self.received += len(bodies)
        self._last_arrival = time.perf_counter()

    def fail(self, error: Exception) -> None:
        """Fail the load with the error of a consumer."""
        self._failed = self._failed or error

    def close(self) -> None:
        """Close the connections; later errors on them do not count."""
        for connection in self._connections:
            connection.close()

    def judged(self, count: int) -> Delivered:
        """Evaluate the arrivals of this many messages. Slow: call it after all loads have ended."""
        numbers, dues_us = read_heads(self._heads)
        arrivals_us = np.repeat(np.array(self._arrivals_us), np.array(self._counts))
        times = np.bincount(numbers[(numbers >= 0) & (numbers < count)], minlength=count)
        late_us = arrivals_us - dues_us
        since_us = arrivals_us - dues_us.min(initial=np.iinfo(np.int64).max)
        return Delivered(
            count=len(numbers),
            lost=int((times == 0).sum()),
            duplicates=len(numbers) - int((times > 0).sum()),
            early=int((late_us < -self.load.early_us).sum()),
            earliest_us=int(late_us.min(initial=np.iinfo(np.int64).max)),
            first_us=int(since_us.min(initial=np.iinfo(np.int64).max)),
            last_us=int(since_us.max(initial=0)),
            lateness=histogram(late_us.tolist()),
        )
