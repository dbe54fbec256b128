"""Consumer groups on topics with several queues, on large groups, and when the clock is stepped."""

import random

import pytest

from tests.harness.consumers import ack, bodies, items, put, receive, send, send_many
from tests.harness.group_checks import check_groups
from timerwheel.groups.config import IllegalGroupError
from timerwheel.model.messages import Outgoing


async def send_to_queues(world, count):
    """Send this many messages to each of two queues, whose bodies are queue and number."""
    places = [(queue, number) for queue in (0, 1) for number in range(count)]
    await world.engine.sender.send(
        [Outgoing("orders", f"{queue}:{number}".encode(), queue=queue) for queue, number in places]
    )


async def test_every_message_of_every_queue_comes_once_also_over_a_planned_restart(world):
    await world.open(queues_per_topic=3)
    await put(world)
    names = await send_many(world, 60)
    got = [await receive(world, 7) for _ in range(4)]
    before = world.engine.groups.info("orders", "g")
    await world.restart()
    assert world.engine.groups.info("orders", "g") == before
    got += [await receive(world, 7) for _ in range(8)]
    assert sorted(body for part in got for body in bodies(part)) == names
    info = world.engine.groups.info("orders", "g")
    assert [(queue.cursor, queue.lag) for queue in info.queues] == [(20, 0)] * 3
    check_groups(world.engine)


@pytest.mark.parametrize("how", ["crash", "lose_index"])
async def test_after_a_crash_every_message_of_every_queue_comes_once_that_was_not_acknowledged(world, how):
    await world.open(queues_per_topic=3)
    await put(world)
    names = await send_many(world, 60)
    got = [await receive(world, 7) for _ in range(4)]
    done = [got[0][1], got[1][0], *got[2]]
    await ack(world, *done)
    await getattr(world, how)()
    left = sorted(set(names) - set(bodies(done)))
    assert world.engine.groups.info("orders", "g").lag == len(left)
    again = [await receive(world, 7) for _ in range(9)]
    assert sorted(body for part in again for body in bodies(part)) == left
    assert {delivery.attempt for part in again for delivery in part} == {1}
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


@pytest.mark.parametrize("how", [None, "restart", "crash", "lose_index"])
async def test_rewinding_one_queue_loses_and_repeats_nothing_of_the_others(world, how):
    await world.open(queues_per_topic=2)
    await put(world)
    await send_to_queues(world, 4)
    got = {delivery.message.body.decode(): delivery for delivery in await receive(world)}
    groups = world.engine.groups
    await groups.nack("orders", "g", [got["1:0"].receipt])
    await groups.give_up("orders", "g", [got["1:2"].receipt], "poison")
    assert await groups.dead.redrive("g") == (1, 0)
    await ack(world, *[got[name] for name in got if name not in {"1:0", "1:1", "1:2"}])
    await groups.rewind("orders", "g", offsets={0: 3})
    assert [q.lag for q in groups.info("orders", "g").queues] == [1, 2]
    if how is not None:
        await getattr(world, how)()
    await world.advance(120_000)
    assert sorted(bodies(await receive(world))) == ["0:3", "1:0", "1:1", "1:2"]
    check_groups(world.engine)


async def test_rewinding_all_queues_forgets_the_redriven_ones_too(world):
    await world.open(queues_per_topic=2)
    await put(world)
    await send_to_queues(world, 1)
    got = await receive(world)
    await world.engine.groups.give_up("orders", "g", [delivery.receipt for delivery in got], "poison")
    assert await world.engine.groups.dead.redrive("g") == (2, 0)
    await world.engine.groups.rewind("orders", "g", offsets={0: 0, 1: 1})
    await world.advance(1_000)
    assert bodies(await receive(world)) == ["0:0"]


@pytest.mark.parametrize("how", ["restart", "lose_index"])
async def test_a_key_keeps_its_order_when_the_topic_gets_more_queues(world, how):
    await world.open()
    await world.engine.topics.change("orders", ordered=True)
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
    first = bodies(held)
    assert len({body[0] for body in first}) == len(held) == 3
    await getattr(world, how)()
    check_groups(world.engine)
    if how == "lose_index":  # what was in flight comes again
        held = await receive(world)
        assert sorted(bodies(held)) == sorted(first)
    assert await receive(world) == []
    got = []
    while held:
        got += bodies(held)
        await ack(world, *held)
        held = await receive(world)
        assert len({body[0] for body in bodies(held)}) == len(held)
    assert len(got) == len(set(got)) == 27
    for key in "abc":  # in the order of each of its two queues
        numbers = [int(body[1:]) for body in got if body[0] == key]
        assert [n for n in numbers if n < 6] == list(range(6))
        assert [n for n in numbers if n >= 6] == list(range(6, 9))


async def test_a_group_that_holds_far_more_than_a_segment_is_rewound_and_deleted_whole(world):
    await world.open()
    await put(world)
    names = await send_many(world, 600)

    async def give_all_back():
        got = await receive(world, 1_000)
        assert bodies(got) == names
        await world.engine.groups.nack("orders", "g", [d.receipt for d in got], delay_ms=50_000)
        assert world.engine.core.state.leases == len(items(world)) == 600

    await give_all_back()
    await world.engine.groups.rewind("orders", "g", to="head")
    assert world.engine.core.state.leases == 0
    await give_all_back()
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
async def test_a_clock_that_is_stepped_ends_no_lease_and_prolongs_none(world, by_ms):
    await world.open()
    await put(world)
    await send(world, *"abc")
    got = await receive(world, 2)
    await world.advance(1_000)
    await world.step(by_ms)
    check_groups(world.engine)
    assert bodies(await receive(world)) == ["c"]
    await world.advance(3_999)
    assert world.engine.groups.info("orders", "g").in_flight == 3
    await world.advance(1)
    info = world.engine.groups.info("orders", "g")
    assert (info.in_flight, info.waiting) == (1, 2)
    assert await ack(world, *got) == [True, True]
    await world.advance(2 * 3_600_000)
    again = await receive(world)
    assert bodies(again) == ["c"]
    assert await ack(world, *again) == [True]
    await world.crash()
    await world.advance(10 * 3_600_000)
    assert await receive(world) == []
    assert not items(world)


@pytest.mark.parametrize("how", [None, "restart"])
async def test_a_retry_is_due_by_the_wall_clock(world, how):
    await world.open()
    await put(world)
    await send(world, "a")
    [got] = await receive(world)
    await world.engine.groups.nack("orders", "g", [got.receipt], delay_ms=3_600_000)
    if how is not None:
        await getattr(world, how)()
    await world.step(3_599_999)
    assert await receive(world) == []
    await world.step(1)
    assert [d.attempt for d in await receive(world)] == [2]


async def test_a_thousand_receipts_in_a_call_are_accepted_and_one_more_is_refused(world):
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
