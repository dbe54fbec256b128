"""Push with the real engine: what was sent arrives, over restarts and failures."""

import asyncio
from collections.abc import Callable

import pytest

from tests.harness.receiver import Receiver
from timerwheel.groups.config import Exponential
from timerwheel.message import Outgoing
from timerwheel.push.push import Push
from timerwheel.push.subscription import Draft

SPINS_MAX = 20_000


@pytest.fixture
async def receiver():
    async with Receiver() as receiver:
        yield receiver


class Delivering:
    """The engine of a world with its push subscriptions."""

    def __init__(self, world, receiver: Receiver) -> None:
        self.world = world
        self.receiver = receiver

        self.push: Push

    async def start(self) -> None:
        self.push = Push(self.world.engine, allow_private=True)
        await self.push.start()

    async def subscribe(self, **fields: object) -> None:
        backoff = Exponential(1_000, 2.0, 60_000)
        values = {"id": "s", "topic": "orders", "url": self.receiver.url(), "backoff": backoff}
        await self.push.create(Draft(**(values | fields)))

    async def send(self, *bodies: bytes, delay_ms: int = 0) -> None:
        properties = {"TIMER_DELAY_MS": str(delay_ms)} if delay_ms else {}
        await self.world.engine.send([Outgoing("orders", body, properties) for body in bodies])

    async def until(self, true: Callable[[], bool], step_ms: int = 0) -> None:
        """Let requests and the engine go on, and the clock by `step_ms` at a time."""
        async with asyncio.timeout(60):
            while not true():
                await asyncio.sleep(0.001)
                if step_ms:
                    await self.world.advance(step_ms)


@pytest.fixture
async def delivering(world, receiver):
    await world.open()
    delivering = Delivering(world, receiver)
    await delivering.start()
    yield delivering
    receiver.release()
    await delivering.push.close()


async def test_a_delayed_message_is_pushed_when_it_is_due(delivering):
    await delivering.subscribe()
    await delivering.send(b"later", delay_ms=5_000)
    await delivering.world.advance(4_999)
    assert delivering.receiver.got == []
    await delivering.until(lambda: delivering.receiver.bodies() == [b"later"], step_ms=1)


async def test_every_message_arrives_once_from_a_receiver_that_takes_it(delivering):
    await delivering.subscribe()
    bodies = [str(number).encode() for number in range(200)]
    await delivering.send(*bodies)
    await delivering.until(lambda: delivering.push.stats("s").delivered == 200)
    assert sorted(delivering.receiver.bodies()) == sorted(bodies)


async def test_a_failed_message_comes_back_by_the_wheel(delivering):
    await delivering.subscribe()
    delivering.receiver.behave["hook"] = [500, 500, 200]
    await delivering.send(b"1")
    await delivering.until(lambda: delivering.push.stats("s").delivered == 1, step_ms=200)
    assert delivering.receiver.bodies() == [b"1"] * 3
    assert len({got.headers["webhook-id"] for got in delivering.receiver.got}) == 1


async def test_retry_after_is_kept_by_the_wheel(delivering):
    await delivering.subscribe()
    delivering.receiver.behave["hook"] = [(429, {"Retry-After": "30"}), 200]
    await delivering.send(b"1")
    await delivering.until(lambda: delivering.push.stats("s").failed == 1)
    for _ in range(29):
        await delivering.world.advance(1_000)
    assert len(delivering.receiver.got) == 1
    await delivering.until(lambda: delivering.push.stats("s").delivered == 1, step_ms=500)


async def test_what_was_not_acknowledged_before_a_crash_arrives_after_it(delivering):
    await delivering.subscribe(timeout_ms=1_000)
    delivering.receiver.behave["hook"] = "hang"
    await delivering.send(b"1")
    await delivering.receiver.arrived(1)
    await delivering.push.close(grace_ms=0)
    await delivering.world.crash()
    delivering.receiver.behave.clear()
    await delivering.start()
    assert [one.id for one in delivering.push.all()] == ["s"]
    await delivering.until(lambda: delivering.push.stats("s").delivered == 1, step_ms=1_000)
    assert delivering.receiver.bodies() == [b"1", b"1"]


async def test_a_subscription_outlives_the_index(delivering):
    await delivering.subscribe()
    await delivering.push.close()
    await delivering.world.lose_index()
    await delivering.start()
    await delivering.send(b"1")
    await delivering.until(lambda: delivering.push.stats("s").delivered == 1)
