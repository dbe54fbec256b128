"""Push with the real engine: what was sent arrives, over restarts and failures."""

import asyncio
from collections.abc import Callable

import pytest

from tests.harness.consumers import gated, spin
from tests.harness.receiver import Receiver
from timerwheel.groups.config import Exponential, GroupConfig, GroupDiffersError
from timerwheel.model.messages import Outgoing
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
        await self.world.engine.sender.send([Outgoing("orders", body, properties) for body in bodies])

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


async def test_what_is_stored_is_what_runs_though_the_caller_went_away(delivering):
    threads = gated(delivering.world)

    async def cancelled(change) -> None:
        threads.writes.clear()
        task = asyncio.create_task(change)
        await spin()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        threads.writes.set()
        await spin(100)

    control, push = delivering.world.engine.control, delivering.push
    await delivering.subscribe(id="kept")
    await cancelled(push.pause("kept"))
    assert push.get("kept").status == "paused"
    await cancelled(push.delete("kept"))
    assert not control.items("push")
    assert not push.all()
    url = delivering.receiver.url()
    await delivering.world.engine.groups.put(
        "orders", "push-new", Draft(topic="orders", url=url).subscription("new", "").group_config
    )
    await cancelled(push.create(Draft(id="new", topic="orders", url=url)))
    assert set(control.items("push")) == {view.id for view in push.all()} == {"new"}


async def test_a_group_is_not_delivered_again_when_one_of_its_subscriptions_is_deleted(delivering):
    await delivering.subscribe(id="first", group="push-second")
    await delivering.send(b"1")
    await delivering.until(lambda: delivering.push.stats("first").delivered == 1)
    await delivering.subscribe(id="second", backoff=Exponential(1_000, 2.0, 60_000))
    await delivering.push.delete("second")
    await delivering.send(b"2")
    await delivering.until(lambda: delivering.push.stats("first").delivered == 2)
    assert delivering.receiver.bodies() == [b"1", b"2"]


async def test_a_subscription_does_not_narrow_the_filter_of_a_group_that_others_use(delivering):
    engine = delivering.world.engine
    await engine.groups.put("orders", "billing", GroupConfig())
    with pytest.raises(GroupDiffersError, match=r"^tags: "):
        await delivering.push.create(
            Draft(id="s", topic="orders", url=delivering.receiver.url(), group="billing", tags="vip")
        )
    await delivering.send(b"1")
    assert [one.message.body for one in await engine.groups.receive("orders", "billing")] == [b"1"]


async def test_nothing_of_a_paused_topic_is_pushed_until_the_resume(delivering):
    await delivering.subscribe()
    engine = delivering.world.engine
    await engine.topics.pause("orders")
    await delivering.send(b"now")
    await delivering.send(b"timer", delay_ms=1_000)
    await delivering.world.advance(60_000)
    assert delivering.receiver.got == []
    await engine.topics.resume("orders")
    await delivering.until(lambda: sorted(delivering.receiver.bodies()) == [b"now", b"timer"])
