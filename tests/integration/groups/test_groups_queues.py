"""Consumer groups on topics with several queues, on large groups, and when the clock is stepped."""

import random

import pytest

from tests.harness.group_checks import check_groups
from tests.integration.groups.test_groups import ack, bodies, items, put, receive, send
from timerwheel.groups.config import IllegalGroupError


async def send_many(world, count: int) -> list[str]:
    names = [f"m{number:04}" for number in range(count)]
    for at in range(0, count, 50):
        await send(world, *names[at : at + 50])
    return names


@pytest.mark.parametrize("how", ["restart", "crash", "lose_index"])
async def test_every_message_of_every_queue_comes_once(world, how):
    await world.open(queues_per_topic=3)
    await put(world)
    names = await send_many(world, 60)
    got = [await receive(world, 7) for _ in range(4)]
    before = world.engine.groups.info("orders", "g")
    await getattr(world, how)()
    assert world.engine.groups.info("orders", "g") == before
    got += [await receive(world, 7) for _ in range(8)]
    assert sorted(body for part in got for body in bodies(part)) == names
    info = world.engine.groups.info("orders", "g")
    assert [(queue.cursor, queue.lag) for queue in info.queues] == [(20, 0)] * 3
    check_groups(world.engine)


async def test_rewinding_one_queue_leaves_the_cursors_of_the_others(world):
    await world.open(queues_per_topic=3)
    await put(world)
    await send_many(world, 9)
    await ack(world, *await receive(world))
    await world.engine.groups.rewind("orders", "g", offsets={1: 2})
    assert [q.cursor for q in world.engine.groups.info("orders", "g").queues] == [3, 2, 3]
    assert len(await receive(world)) == 1
    with pytest.raises(IllegalGroupError):
        await world.engine.groups.rewind("orders", "g", offsets={3: 0})


@pytest.mark.parametrize("how", ["restart", "lose_index"])
async def test_a_key_keeps_its_order_when_the_topic_gets_more_queues(world, how):
    await world.open()
    await world.engine.groups.set_ordered("orders", ordered=True)
    await put(world)
    await world.restart(queues_per_topic=3)
    for number in range(6):
        for key in "abc":
            await send(world, f"{key}{number}", __SHARDINGKEY=key)
    await world.restart(queues_per_topic=5)
    for number in range(6, 9):
        for key in "abc":
            await send(world, f"{key}{number}", __SHARDINGKEY=key)
    held = await receive(world)
    assert len({body[0] for body in bodies(held)}) == len(held) == 3
    state = world.engine.core.state.groups.by_name["orders/g"]
    lanes = {lane: list(keys) for lane, keys in state.lanes.items()}
    await getattr(world, how)()
    state = world.engine.core.state.groups.by_name["orders/g"]
    assert {lane: list(keys) for lane, keys in state.lanes.items()} == lanes
    check_groups(world.engine)
    assert await receive(world) == []
    count = 0
    while held:
        count += len(held)
        await ack(world, *held)
        held = await receive(world)
        assert len({body[0] for body in bodies(held)}) == len(held)
    assert count == 27


async def test_a_group_that_holds_far_more_than_a_segment_is_rewound_and_deleted_whole(world):
    await world.open()
    await put(world)
    names = await send_many(world, 600)
    assert bodies(await receive(world, 1_000)) == names
    await world.engine.groups.rewind("orders", "g", to="head")
    assert world.engine.core.state.leases == 0
    assert bodies(await receive(world, 1_000)) == names
    await world.engine.indexer.tick()
    await world.crash(random.Random(1))
    assert len(items(world)) == 600
    await world.engine.groups.delete("orders", "g")
    assert world.engine.core.state.leases == 0
    await world.lose_index()
    assert world.engine.core.state.leases == 0
    await world.advance(100_000)
    assert world.engine.core.state.leases == 0


@pytest.mark.parametrize("by_ms", [-3_600_000, -1_500, 1_500, 3_600_000])
async def test_a_clock_that_is_stepped_loses_no_lease_and_gives_no_message_to_two(world, by_ms):
    await world.open()
    await put(world)
    await send(world, *"abc")
    got = await receive(world, 2)
    await world.step(by_ms)
    check_groups(world.engine)
    assert bodies(await receive(world)) == (["a", "b", "c"] if by_ms > 6_000 else ["c"])
    assert await ack(world, *got) == [by_ms < 6_000] * 2
    await world.advance(2 * 3_600_000)
    again = await receive(world)
    assert sorted(bodies(again)) == (["a", "b", "c"] if by_ms > 6_000 else ["c"])
    assert await ack(world, *again) == [True] * len(again)
    await world.crash()
    await world.advance(10 * 3_600_000)
    assert await receive(world) == []
    assert not items(world)


async def test_a_thousand_receipts_are_settled_at_once_and_one_more_is_refused(world):
    await world.open()
    await put(world)
    await send_many(world, 1_000)
    got = await receive(world, 1_000)
    assert len(got) == 1_000
    with pytest.raises(IllegalGroupError):
        await world.engine.groups.ack("orders", "g", [d.receipt for d in got] + [got[0].receipt])
    assert await ack(world, *got[:500]) == [True] * 500
    assert await ack(world, *got) == [True] * 1_000
    assert not items(world)
    check_groups(world.engine)
