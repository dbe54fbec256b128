"""Push with the real engine: what was sent arrives, over restarts and failures."""

import asyncio

import pytest

from tests.harness.consumers import gated
from tests.harness.gated_threads import spin
from timerwheel.groups.config import Exponential, GroupConfig, GroupDiffersError
from timerwheel.model.messages import Outgoing
from timerwheel.push.subscription import Draft

S_MAX = 20_000


async def test_a_delayed_message_is_pushed_when_it_is_due(site):
    await site.subscribe()
    await site.send(b"later", delay_ms=5_000)
    await site.world.advance(4_999)
    assert site.receiver.got == []
    await site.until(lambda: site.receiver.bodies() == [b"later"], step_ms=1)


async def test_every_message_arrives_once_from_a_receiver_that_takes_it(site):
    await site.subscribe()
    bodies = [str(number).encode() for number in range(200)]
    await site.send(*bodies)
    await site.until(lambda: site.push.stats("s").delivered == 200)
    assert sorted(site.receiver.bodies()) == sorted(bodies)


async def test_a_failed_message_comes_back_by_the_wheel(site):
    await site.subscribe()
    site.receiver.behave["hook"] = [500, 500, 200]
    await site.send(b"1")
    await site.until(lambda: site.push.stats("s").delivered == 1, step_ms=200)
    assert site.receiver.bodies() == [b"1"] * 3
    assert len({got.headers["webhook-id"] for got in site.receiver.got}) == 1


async def test_retry_after_is_kept_by_the_wheel(site):
    await site.subscribe()
    site.receiver.behave["hook"] = [(429, {"Retry-After": "30"}), 200]
    await site.send(b"1")
    await site.until(lambda: site.push.stats("s").failed == 1)
    for _ in range(29):
        await site.world.advance(1_000)
    assert len(site.receiver.got) == 1
    await site.until(lambda: site.push.stats("s").delivered == 1, step_ms=500)


async def test_what_was_not_acknowledged_before_a_crash_arrives_after_it(site):
    await site.subscribe(timeout_ms=1_000)
    site.receiver.behave["hook"] = "hang"
    await site.send(b"1")
    await site.receiver.arrived(1)
    await site.push.close(grace_ms=0)
    await site.world.crash()
    site.receiver.behave.clear()
    await site.start()
    assert [one.id for one in site.push.all()] == ["s"]
    await site.until(lambda: site.push.stats("s").delivered == 1, step_ms=1_000)
    assert site.receiver.bodies() == [b"1", b"1"]


async def test_a_subscription_outlives_the_index(site):
    await site.subscribe()
    await site.push.close()
    await site.world.lose_index()
    await site.start()
    await site.send(b"1")
    await site.until(lambda: site.push.stats("s").delivered == 1)


async def test_what_is_stored_is_what_runs_though_the_caller_went_away(site):
    threads = gated(site.world)

    async def cancelled(change) -> None:
        threads.writes.clear()
        task = asyncio.create_task(change)
        await spin()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        threads.writes.set()
        await spin(100)

    control, push = site.world.engine.control, site.push
    await site.subscribe(id="kept")
    await cancelled(push.pause("kept"))
    assert push.get("kept").status == "paused"
    await cancelled(push.delete("kept"))
    assert not control.items("push")
    assert not push.all()
    url = site.receiver.url()
    await site.world.engine.groups.put(
        "orders", "push-new", Draft(topic="orders", url=url).subscription("new", "").group_config
    )
    await cancelled(push.create(Draft(id="new", topic="orders", url=url)))
    assert set(control.items("push")) == {view.id for view in push.all()} == {"new"}


async def test_a_group_is_not_delivered_again_when_one_of_its_subscriptions_is_deleted(site):
    await site.subscribe(id="first", group="push-second")
    await site.send(b"1")
    await site.until(lambda: site.push.stats("first").delivered == 1)
    await site.subscribe(id="second", backoff=Exponential(1_000, 2.0, 60_000))
    await site.push.delete("second")
    await site.send(b"2")
    await site.until(lambda: site.push.stats("first").delivered == 2)
    assert site.receiver.bodies() == [b"1", b"2"]


async def test_a_subscription_does_not_narrow_the_filter_of_a_group_that_others_use(site):
    engine = site.world.engine
    await engine.groups.put("orders", "billing", GroupConfig())
    with pytest.raises(GroupDiffersError, match=r"^tags: "):
        await site.push.create(
            Draft(id="s", topic="orders", url=site.receiver.url(), group="billing", tags="vip")
        )
    await site.send(b"1")
    assert [one.message.body for one in await engine.groups.receive("orders", "billing")] == [b"1"]


async def test_nothing_of_a_paused_topic_is_pushed_until_the_resume(site):
    await site.subscribe()
    engine = site.world.engine
    await engine.topics.pause("orders")
    await site.send(b"now")
    await site.send(b"timer", delay_ms=1_000)
    await site.world.advance(60_000)
    assert site.receiver.got == []
    await engine.topics.resume("orders")
    await site.until(lambda: sorted(site.receiver.bodies()) == [b"now", b"timer"])


async def test_a_message_whose_ttl_is_over_is_not_pushed(site):
    await site.subscribe()
    await site.push.pause("s")
    await site.world.engine.sender.send(
        [Outgoing("orders", b"late", {"TIMER_TTL_MS": "10000"}), Outgoing("orders", b"kept", {})]
    )
    await site.world.advance(10_000)
    await site.push.resume("s")
    await site.until(lambda: site.push.stats("s").delivered == 1)
    assert site.receiver.bodies() == [b"kept"]
