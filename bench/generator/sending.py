"""The sending side of a load: which message is sent when, and on which connection."""

import asyncio
import time
from array import array
from collections import deque
from typing import Any

import numpy as np

from bench.body import body
from bench.generator.plan import Delays, Load, Sent
from bench.histograms import histogram
from bench.wires import wire as wires

TICK_S = 0.001
DRAWN = 1 << 16


class Dues:
    """The due time of each message, in milliseconds since 1970."""

    def __init__(self, delays: Delays, seed: int) -> None:
        drawn = np.random.default_rng(seed).integers(delays.from_ms, delays.to_ms + 1, DRAWN)
        self._delays_ms: list[int] = drawn.tolist()
        self._at_ms = delays.at_ms
        self.last_ms = 0

    def of(self, first: int, count: int, now_ms: int) -> list[int]:
        """Due times of messages from `first` on, sent now."""
        if self._at_ms is None:
            drawn = self._delays_ms
            dues_ms = [now_ms + drawn[number % DRAWN] for number in range(first, first + count)]
        else:
            dues_ms = [self._at_ms] * count
        self.last_ms = max(self.last_ms, *dues_ms)
        return dues_ms


class Sending:
    """One load's connections, pace and measurements.

    A request is planned, then written to an idle connection, then answered. Its latency counts from the
    planned time.
    """

    def __init__(self, load: Load, seed: int) -> None:
        self.dues = Dues(load.delays, seed)
        self.answered = 0
        self.load = load
        self._planned = 0
        self._written = 0
        self._plan_ended = False
        self._waiting: deque[float] = deque()
        """Planned times of requests that wait for a free connection."""
        self._free: list[_Connection] = []
        self._latencies_us = array("q")
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> Sent:
        """Send all and wait for every response. Raises RefusedError, or OSError if a connection closes."""
        load, loop = self.load, asyncio.get_running_loop()
        connections = []
        for _ in range(load.connections):
            address = (load.sender["host"], load.sender["port"])
            connections.append((await loop.create_connection(lambda: _Connection(self), *address))[1])
        self._measured_from = time.perf_counter() + load.warm_up_s
        self._ends = self._measured_from + load.seconds if load.seconds is not None else float("inf")
        self._last_answer = self._measured_from
        pacing = loop.create_task(self._pace()) if load.per_second is not None else None
        try:
            for connection in connections:
                self.free(connection)
            await self._done
        finally:
            if pacing is not None:
                pacing.cancel()
            for connection in connections:
                connection.close()
        measured = len(self._latencies_us) * load.array
        # With a duration: the responses within it. With a count: all, until the last response.
        seconds = load.seconds if load.seconds is not None else self._last_answer - self._measured_from
        return Sent(self.answered, measured, seconds, histogram(self._latencies_us))

    def free(self, connection: "_Connection") -> None:
        """Give a connection its next request, or mark it idle."""
        planned = self._next()
        if planned is None:
            self._free.append(connection)
            if self._plan_ended and self.answered == self._planned and not self._done.done():
                self._done.set_result(None)
        else:
            connection.send(planned)

    def _next(self) -> float | None:
        if self.load.per_second is not None:
            return self._waiting.popleft() if self._waiting else None
        now = time.perf_counter()
        if self._over(now):
            self._plan_ended = True
            return None
        self._planned += self.load.array
        return now

    def _over(self, now: float) -> bool:
        count = self.load.count
        return now >= self._ends or (count is not None and self._planned >= count)

    async def _pace(self) -> None:
        assert self.load.per_second is not None
        interval_s = self.load.array / self.load.per_second
        planned = time.perf_counter()
        while not self._over(planned):
            if planned > time.perf_counter():
                await asyncio.sleep(max(planned - time.perf_counter(), TICK_S))
                continue
            self._planned += self.load.array
            self._waiting.append(planned)
            planned += interval_s
            if self._free:
                self.free(self._free.pop())
        self._plan_ended = True
        if self._free:
            self.free(self._free.pop())

    def request(self, wire: wires.SendWire) -> bytes:
        """The next messages, due from now on."""
        # Messages are numbered in the order of writing, which is also the planned order.
        first, count = self._written, self.load.array
        self._written += count
        now_ms = -(-time.time_ns() // 1_000_000)
        dues_ms = self.dues.of(first, count, now_ms)
        bodies = [body(first + at, due_ms * 1000) for at, due_ms in enumerate(dues_ms)]
        return wire.request(bodies, dues_ms, now_ms)

    def took(self, planned: float) -> None:
        """Record the response to the request of this planned time."""
        now = time.perf_counter()
        self.answered += self.load.array
        self._last_answer = now
        if self._measured_from <= now <= self._ends:
            self._latencies_us.append(int((now - planned) * 1e6))

    def fail(self, error: Exception) -> None:
        """Fail the load: a request was refused, or a connection lost."""
        if not self._done.done():
            self._done.set_exception(error)


class _Connection(asyncio.Protocol):
    def __init__(self, sending: Sending) -> None:
        self._sending = sending
        self._wire = wires.sender(sending.load.sender)
        self._planned = 0.0

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401 - a transport that writes
        self._transport = transport
        transport.write(self._wire.greeting())

    def send(self, planned: float) -> None:
        self._planned = planned
        self._transport.write(self._sending.request(self._wire))

    def data_received(self, data: bytes) -> None:
        try:
            answered = self._wire.feed(data)
        except wires.RefusedError as error:
            self._sending.fail(error)
            return
        if answered:
            self._sending.took(self._planned)
            self._sending.free(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._sending.fail(exc or ConnectionResetError("the system hung up"))

    def close(self) -> None:
        self._transport.close()
