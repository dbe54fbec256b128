"""What groups hold when retention drops the segments that told of it, and when it drops the messages."""

import random

import pytest

from tests.harness.consumers import ack, bodies, items, put, receive, send
from tests.harness.drive import settle
from tests.harness.group_checks import check_groups
from timerwheel.groups.config import Exponential, UnknownGroupError

RETENTION_MS = 5_000
LONG_MS = 3_600_000


async def drop_all_so_far(world) -> None:
    """Move past retention and have everything dropped that was stored until now."""
    until = world.engine.core.log.tail
    for _ in range(4):
        await world.roll()
        await world.advance(RETENTION_MS + 1)
        await world.retention_turn()
        if world.engine.core.log.bases[0] >= until:
            return
    raise AssertionError("retention keeps the segments")


async def group_with_everything(world):
    """A group whose messages are done, given back or failed in time, and settings; returns deliveries."""
    await world.open(retention_ms=RETENTION_MS)
    config = {"max_attempts": 3, "backoff": Exponential(initial_ms=LONG_MS, factor=1.0, max_ms=LONG_MS)}
    await put(world, **config)
    await put(world, group="h", tags="A || B")
    await world.engine.groups.delete("orders", "h")
    await put(world, topic="tickets", group="other", start="tail")
    await world.engine.topics.change("lanes", ordered=True)
    await put(world, topic="lanes", group="o")
    await send(world, *"abcdef")
    await send(world, "x1", topic="lanes", __SHARDINGKEY="x")
    got = await receive(world, 5, invisible_ms=1_000)
    await ack(world, got[0], got[3])  # with what is not done in between
    groups = world.engine.groups
    await groups.nack("orders", "g", [got[1].receipt], delay_ms=LONG_MS)
    [first] = await receive(world, topic="lanes", group="o")
    await groups.nack("lanes", "o", [first.receipt], delay_ms=2 * LONG_MS)
    await send(world, "x2", "x3", topic="lanes", __SHARDINGKEY="x")
    await world.advance(1_000)
    info = groups.info("orders", "g")
    assert (info.in_flight, info.waiting) == (0, 3)
    return got


def everything(world):
    groups = world.engine.core.state.groups
    return [
        world.engine.groups.all(),
        {state.name: {k: state.pack(k) for k in sorted(state.items)} for state in groups},
        {state.name: (state.passed, state.since) for state in groups},
        {state.name: {n: list(keys) for n, keys in state.lanes.items()} for state in groups},
        world.engine.control.items("group"),
        world.engine.control.items("topic"),
        world.engine.core.state.leases,
    ]


@pytest.mark.parametrize("how", ["restart", "crash", "lose_index"])
@pytest.mark.parametrize("turns", [1, 3])
async def test_groups_outlive_the_segments_that_hold_their_records(world, how, turns):
    await group_with_everything(world)
    for _ in range(turns):
        await drop_all_so_far(world)
    before = everything(world)
    assert before[-1] == 4
    await getattr(world, how)()
    assert everything(world) == before
    check_groups(world.engine)
    with pytest.raises(UnknownGroupError):
        world.engine.groups.info("orders", "h")


@pytest.mark.parametrize("seed", range(5))
async def test_groups_outlive_a_crash_that_loses_the_index_after_retention(world, seed):
    await group_with_everything(world)
    await drop_all_so_far(world)
    await send(world, "late")
    before = everything(world)
    got = await receive(world, 1)
    await world.engine.abandon()
    world.files = world.files.after_crash(random.Random(seed))
    await world.lose_index()
    assert everything(world) == before
    assert await ack(world, *got) == [True]
    check_groups(world.engine)


@pytest.mark.parametrize("how", [None, "restart", "lose_index"])
async def test_of_retries_whose_timers_were_moved_those_not_given_back_may_be_acknowledged_late(world, how):
    got = await group_with_everything(world)
    await drop_all_so_far(world)
    if how is not None:
        await getattr(world, how)()
    assert await ack(world, got[1], got[2]) == [False, True]
    for call in (world.engine.groups.extend, world.engine.groups.nack):
        [result] = await call("orders", "g", [got[4].receipt], 7_000)
        assert (result.ok, result.code) == (False, "receipt_ended")
    assert await ack(world, got[4]) == [True]
    check_groups(world.engine)
    await world.advance(10 * LONG_MS)
    check_groups(world.engine)
    assert bodies(await receive(world)) == []
    await settle(world.engine)
    assert not items(world)


async def test_a_message_that_was_removed_while_it_was_leased_may_be_acknowledged_or_returned(world):
    await world.open(retention_ms=RETENTION_MS)
    await put(world, invisible_ms=LONG_MS)
    await send(world, *"abc")
    got = await receive(world)
    await drop_all_so_far(world)
    groups = world.engine.groups
    assert await ack(world, got[0]) == [True]
    [extended] = await groups.extend("orders", "g", [got[1].receipt], 7_000)
    [given_back] = await groups.nack("orders", "g", [got[2].receipt], delay_ms=9_000)
    assert [extended.ok, given_back.ok] == [True, True]
    await world.advance(10 * LONG_MS)
    assert await receive(world) == []
    await settle(world.engine)
    assert not items(world)
    info = groups.info("orders", "g")
    assert (info.lag, info.in_flight, info.waiting, info.ready) == (0, 0, 0, 0)
    check_groups(world.engine)


async def test_a_receipt_that_was_given_back_stays_ended_when_its_timer_is_moved(world):
    got = await group_with_everything(world)
    await drop_all_so_far(world)
    await world.lose_index()
    await world.advance(LONG_MS)
    assert world.engine.groups.info("orders", "g").ready >= 1
    assert await ack(world, got[1]) == [False]


async def test_messages_that_retention_removes_are_not_in_the_way(world):
    await world.open(retention_ms=RETENTION_MS)
    await put(world, invisible_ms=LONG_MS)
    await send(world, *"abcdef")
    held = await receive(world, 3)
    await drop_all_so_far(world)
    assert world.engine.groups.info("orders", "g").lag == 0
    await send(world, "new")
    assert world.engine.groups.info("orders", "g").lag == 1
    assert bodies(await receive(world)) == ["new"]
    await world.engine.groups.nack("orders", "g", [held[0].receipt], delay_ms=1_000)
    await world.advance(2 * LONG_MS)
    await world.lose_index()
    check_groups(world.engine)
    assert bodies(await receive(world)) in (["new"], [])
    await settle(world.engine)
    assert {item.queue_offset for item in items(world).values()} <= {6}
    check_groups(world.engine)


async def test_a_lane_goes_on_when_its_first_message_was_removed(world):
    await world.open(retention_ms=RETENTION_MS)
    await world.engine.topics.change("orders", ordered=True)
    await put(world, invisible_ms=60_000)
    await send(world, "x1", "x2", __SHARDINGKEY="x")
    await receive(world)
    await drop_all_so_far(world)
    await send(world, "x3", __SHARDINGKEY="x")
    assert bodies(await receive(world)) == []
    await world.advance(120_000)
    assert world.engine.groups.info("orders", "g").ready == 1
    found = []
    for _ in range(4):
        got = await receive(world)
        found += bodies(got)
        await ack(world, *got)
        await settle(world.engine)  # ends of removed messages are stored
    assert found == ["x3"]
    check_groups(world.engine)


async def test_a_message_whose_last_attempt_failed_and_that_was_removed_is_no_dead_letter(world):
    await world.open(retention_ms=RETENTION_MS)
    await put(world, max_attempts=1, invisible_ms=LONG_MS)
    await send(world, "a")
    await receive(world)
    await drop_all_so_far(world)
    await world.advance(2 * LONG_MS)
    assert not items(world)
    assert (await world.engine.groups.dead.page("g")).letters == []
    assert world.engine.groups.info("orders", "g").dead_letters == 0
    check_groups(world.engine)


@pytest.mark.parametrize("how", ["restart", "lose_index"])
async def test_dead_letters_that_were_dealt_with_stay_so_after_retention(world, how):
    await world.open(retention_ms=10 * LONG_MS)
    await put(world, max_attempts=1)
    await send(world, *"abcd")
    await receive(world)
    await world.advance(5_000)
    await world.engine.groups.dead.drop("g", [0, 2])
    await world.roll()
    await world.advance(9 * LONG_MS)
    await send(world, "e")
    await receive(world)
    await world.advance(5_000)
    await world.engine.groups.dead.drop("g", [4])
    for _ in range(2):
        await world.roll()
    await world.advance(LONG_MS + 10_000)
    await world.retention_turn()
    before = await world.engine.groups.dead.page("g"), world.engine.groups.info("orders", "g")
    await getattr(world, how)()
    assert (await world.engine.groups.dead.page("g"), world.engine.groups.info("orders", "g")) == before
    assert world.engine.core.log.bases[0] > 0
    assert 4 not in {letter.offset for letter in before[0].letters}
    assert await world.engine.groups.dead.drop("g") == before[1].dead_letters
    assert world.engine.groups.info("orders", "g").dead_letters == 0


@pytest.mark.parametrize("how", ["restart", "lose_index"])
async def test_dead_letters_that_retention_removed_leave_nothing_behind(world, how):
    await world.open(retention_ms=RETENTION_MS)
    await put(world, max_attempts=1, invisible_ms=100)
    for turn in range(4):
        await send(world, *"abc")
        await receive(world)
        await world.advance(2_000)
        await world.engine.groups.dead.drop("g", [3 * turn + 1, 3 * turn + 2])
        await drop_all_so_far(world)
    topic_id = world.engine.core.state.topics["%DLQ%g"].id
    assert not world.engine.core.state.groups.dead[topic_id].removed
    await getattr(world, how)()
    assert world.engine.groups.info("orders", "g").dead_letters == 0
    assert (await world.engine.groups.dead.page("g")).letters == []
