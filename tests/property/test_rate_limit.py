"""A receiver counts what arrives under a rate limit: with any delays, failures, pauses and restarts.

Its requests take up to a second to arrive, and any time to be answered. In no second does it count more than
the limit under which the last of them began.
"""

import asyncio
import random
from dataclasses import dataclass

import msgspec
import pytest

from tests.harness.clock import ManualClock
from tests.harness.groups import MemoryGroups
from timerwheel.model.messages import MessageView
from timerwheel.push.dispatcher import Dispatcher, DispatcherParts, Slots
from timerwheel.push.flight import Flight
from timerwheel.push.outcome import Outcome
from timerwheel.push.rate_limit import ARRIVAL_MS_MAX
from timerwheel.push.subscription import Subscription

TICK_MS = 100
LIMITS = (None, 0.5, 1.5, 2, 5, 20)
OUTCOMES = (
    *[Outcome("delivered", "HTTP 200", 200)] * 6,
    Outcome("failed", "HTTP 500", 500),
    Outcome("failed", "HTTP 429", 429, 1_500),
)


@dataclass
class Arrival:
    """When a request was counted, and the limit under which it began."""

    number: int
    at_ms: int
    rate: float | None


class Receiver:
    """Counts requests after any time on the way, and answers some time later."""

    def __init__(self, clock: ManualClock, rng: random.Random) -> None:
        self._clock, self._rng = clock, rng
        self._begun = 0
        self.rate: float | None = None
        self.got: list[Arrival] = []

    async def attempt(
        self, _subscription: Subscription, _message: MessageView, _at: int = 1, flight: Flight | None = None
    ) -> Outcome:
        assert flight is not None
        number, rate = self._begin()
        await self._pass(self._rng.choice((0, 0, 3_000)))  # until there is a connection
        flight.sent()
        await self._pass(self._rng.choice((0, 1, 50, 300, ARRIVAL_MS_MAX - TICK_MS)))
        self.got.append(Arrival(number, self._clock.monotonic_ms(), rate))
        if self._rng.random() < 0.1:  # it closed an idle connection, and is sent the request once more
            await flight.repeat()
            number, rate = self._begin()
            self.got.append(Arrival(number, self._clock.monotonic_ms(), rate))
        await self._pass(self._rng.choice((0, 0, 20, 400, 5_000)))
        return self._rng.choice(OUTCOMES)

    def _begin(self) -> tuple[int, float | None]:
        self._begun += 1
        return self._begun, self.rate

    async def _pass(self, duration_ms: int) -> None:
        if duration_ms:
            await self._clock.sleep_for(duration_ms)

    def check(self) -> None:
        for one in self.got:
            if one.rate is None:
                continue
            most = max(int(one.rate), 1)
            stretch_ms = 1_000 * most / one.rate
            others = [each.at_ms for each in self.got if each.number <= one.number]
            starts = [at_ms for at_ms in others if one.at_ms - stretch_ms < at_ms <= one.at_ms]
            counts = [sum(start <= at_ms < start + stretch_ms for at_ms in others) for start in starts]
            assert max(counts) <= most


class Life:
    """A subscription whose limit is changed, that is paused, and whose service is restarted."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = ManualClock()
        self.groups = MemoryGroups(self.clock)
        self.receiver = Receiver(self.clock, self.random)
        self.subscription = Subscription(
            id="s", topic="t", group="g", url="http://a/", secrets=[], concurrency=64, rate_limit=20
        )
        self.receiver.rate = self.subscription.rate_limit
        self.dispatcher = self.opened()

    def opened(self, *, restarted: bool = False) -> Dispatcher:
        parts = DispatcherParts(self.groups, self.receiver, self.clock, Slots(), self.gone)
        made = Dispatcher(self.subscription, parts, restarted=restarted)
        made.start()
        return made

    async def gone(self, _subscription: Subscription, _reason: str) -> None:
        raise AssertionError("nothing answers 410")

    async def step(self) -> None:
        match self.random.randrange(12):
            case 0:
                rate = self.random.choice(LIMITS)
                self.subscription = msgspec.structs.replace(self.subscription, rate_limit=rate)
                self.dispatcher.replace(self.subscription)
                self.receiver.rate = rate
            case 1:
                await self.dispatcher.halt()
                await self.advance(self.random.choice((1, 400)))
                self.dispatcher.start()
            case 2:
                await self.dispatcher.close(0)
                await self.advance(self.random.choice((1, 400)))
                self.dispatcher = self.opened(restarted=True)
            case _:
                self.groups.add("t", "g", *[b"x"] * self.random.choice((0, 1, 30)))
        await self.advance(self.random.choice((1, 50, 700, 3_000)))

    async def advance(self, duration_ms: int) -> None:
        for _ in range(0, duration_ms, TICK_MS):
            await self.settle(60)
            self.clock.advance(min(TICK_MS, duration_ms))
        await self.settle(300)

    async def settle(self, turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(12))
async def test_a_receiver_never_counts_more_in_a_second_than_the_limit(seed: int):
    life = Life(seed)
    for _ in range(60):
        await life.step()
    await life.dispatcher.close(0)
    assert len(life.receiver.got) > 10
    life.receiver.check()
