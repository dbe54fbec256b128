"""The purge of a topic: what was sent before is gone, for groups and readers, and all else stays."""

import asyncio

import pytest

from tests.harness.consumers import ack, bodies, put, receive, send
from tests.harness.drive import read_all, settle
from tests.harness.group_checks import check_groups
from timerwheel.errors import AdmissionError, TopicEndingError, UnknownMessageError, UnknownTopicError
from timerwheel.groups.config import GroupConfig
from timerwheel.model.messages import Outgoing, PurgedGroup, State
from timerwheel.schedules.recurrence import Recurrence
from timerwheel.schedules.spec import ScheduleSpec

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
SPEC = ScheduleSpec(topic="orders", recurrence=Recurrence(every_ms=HOUR_MS), body=b"run")
WAYS = ["restart", "crash", "lose_index"]


async def purge(world, topic="orders", *, scheduled=True, delivered=True, dry_run=False):
    found = await world.engine.topic_purges.purge(
        topic, scheduled=scheduled, delivered=delivered, dry_run=dry_run
    )
    await settle(world.engine)
    check_groups(world.engine)
    return found


async def fill(world):
    """Messages in every state: a done one, leased, waiting, ready, fresh ones, near and far timers."""
    await put(world)
    await send(world, "done", "leased", "waiting", "ready", "fresh")
    done, _, waiting, ready = await receive(world, 4, invisible_ms=HOUR_MS)
    await ack(world, done)
    await world.engine.groups.nack("orders", "g", [ready.receipt], 1_000)
    await world.advance(1_000)
    await world.engine.groups.nack("orders", "g", [waiting.receipt], HOUR_MS)
    return await world.send_ids(5_000, HOUR_MS, 40 * DAY_MS)


async def test_a_purge_recalls_what_is_scheduled_and_takes_what_groups_are_not_done_with(world):
    await world.open()
    ids = await fill(world)
    planned = await purge(world, dry_run=True)
    assert (planned.scheduled, planned.delivered, planned.dry_run) == (3, 5, True)
    assert planned.groups == [PurgedGroup("g", 4)]
    done = await purge(world)
    assert (done.scheduled, done.delivered, done.missed) == (3, 5, 0)
    assert done.groups == planned.groups
    info = world.engine.groups.info("orders", "g")
    assert (info.lag, info.in_flight, info.waiting, info.ready, info.parked) == (0, 0, 0, 0, 0)
    assert world.engine.core.state.leases == 0
    assert world.engine.queues.topic("orders").visible == world.engine.queues.topic("orders").pending == 0
    for message_id in ids:
        assert (await world.engine.messages.get(message_id)).state is State.RECALLED
    await world.advance(50 * DAY_MS)
    assert await receive(world) == []
    assert await receive(world, group="later") == []
    await send(world, "after")
    assert bodies(await receive(world)) == ["after"]
    assert bodies(await receive(world, group="later")) == ["after"]
    assert (await world.delivered())[0].queue_offset == 5


@pytest.mark.parametrize("how", WAYS)
async def test_what_was_purged_stays_purged_over_restarts_and_without_the_index(world, how):
    await world.open()
    await fill(world)
    await purge(world)
    await send(world, "after")
    engine = await getattr(world, how)() or world.engine
    check_groups(engine)
    assert [one.body for one in await world.delivered()] == [b"after"]
    assert bodies(await receive(world, group="other")) == ["after"]
    assert bodies(await receive(world)) == ["after"]
    assert engine.queues.topic("orders").queues[0].min_offset == 5


async def test_either_kind_can_be_purged_alone(world):
    await world.open()
    await fill(world)
    done = await purge(world, delivered=False)
    assert (done.scheduled, done.delivered, done.groups) == (3, 0, [])
    assert world.engine.groups.info("orders", "g").lag == 1
    [timer] = await world.send_ids(HOUR_MS)
    done = await purge(world, scheduled=False)
    assert (done.scheduled, done.delivered) == (0, 5)
    assert await world.pending_ids() == [timer]
    await world.advance(HOUR_MS)
    assert len(await receive(world)) == 1


@pytest.mark.parametrize("committed", [False, True])
async def test_a_delivered_message_that_was_purged_is_unknown(world, committed):
    await world.open()
    ids = await world.send_ids(0, 1_000)
    await world.advance(2_000)
    await world.engine.topic_purges.purge("orders", scheduled=True, delivered=True)
    if committed:
        await world.restart()
    for message_id in ids:
        with pytest.raises(UnknownMessageError):
            await world.engine.messages.get(message_id)


async def test_receipts_of_purged_messages_have_ended(world):
    await world.open()
    await put(world)
    await send(world, "a", "b")
    first, second = await receive(world)
    await ack(world, first)
    await purge(world)
    assert await ack(world, first, second) == [True, False]
    results = await world.engine.groups.extend("orders", "g", [second.receipt], 60_000)
    assert [one.code for one in results] == ["receipt_ended"]


async def test_options_groups_schedules_transactions_and_other_topics_stay(world):
    engine = await world.open()
    await engine.topics.change("orders", queues=3, ordered=True)
    await engine.groups.put("orders", "g", GroupConfig(max_attempts=7))
    await engine.groups.put("orders", "readers", GroupConfig(kind="offsets"))
    await engine.schedules.put("hourly", SPEC)
    await world.send(0, HOUR_MS, topic="tickets")
    half = (await engine.transactions.begin(Outgoing("orders", b"half"))).id
    await world.send(0, 0, 0, HOUR_MS)
    engine.groups.offsets.commit("orders", "readers", {0: 1})
    done = await purge(world)
    assert {one.group: one.dropped for one in done.groups} == {"g": 3, "readers": 2}
    found = engine.queues.topic("orders")
    assert (found.ordered, found.queue_count) == (True, 3)
    assert engine.groups.info("orders", "g").config["max_attempts"] == 7
    assert engine.groups.info("orders", "readers").lag == 0
    assert [one.name for one in await engine.schedules.all()] == ["hourly"]
    assert engine.queues.topic("tickets").pending == engine.queues.topic("tickets").visible == 1
    await engine.transactions.commit(half)
    await world.advance(0)
    came = [m.body for queue in range(3) for m in await read_all(engine, "orders", queue=queue)]
    assert came == [b"half"]


async def test_a_parked_message_of_a_lane_goes_with_the_first_and_the_lane_goes_on(world):
    engine = await world.open()
    await engine.topics.change("orders", ordered=True)
    await put(world)
    await send(world, "1", "2", "3", __SHARDINGKEY="k")
    assert bodies(await receive(world)) == ["1"]
    assert engine.groups.info("orders", "g").parked == 2
    await purge(world)
    assert engine.groups.info("orders", "g").parked == 0
    await send(world, "4", __SHARDINGKEY="k")
    assert bodies(await receive(world)) == ["4"]


async def test_sends_during_a_purge_are_not_lost_and_what_falls_due_meanwhile_goes(world):
    engine = await world.open()
    await put(world)
    await world.send(*[5_000] * 2_500, *[HOUR_MS] * 500)
    await send(world, "before")
    purging = asyncio.create_task(engine.topic_purges.purge("orders", scheduled=True, delivered=True))
    sent = []
    while not purging.done():
        await asyncio.sleep(0)
        if len(sent) < 20:
            sent.append(f"new-{len(sent)}")
            await send(world, sent[-1])
            world.clock.advance(500)
    done = await purging
    await settle(engine)
    await world.advance(2 * HOUR_MS)
    got = []
    while found := await receive(world, 1_000, invisible_ms=HOUR_MS * 9):
        got += bodies(found)
    assert sorted(one for one in got if one != "x") == sorted(sent)
    assert got.count("x") == done.missed
    assert done.scheduled + done.delivered + done.missed == 3_001


async def test_a_purge_may_be_repeated_and_stores_nothing_when_there_is_nothing(world):
    engine = await world.open()
    await fill(world)
    await purge(world)
    tail = engine.core.log.tail
    done = await purge(world)
    assert (done.scheduled, done.delivered, done.groups) == (0, 0, [PurgedGroup("g", 0)])
    assert engine.core.log.tail == tail


async def test_a_redriven_dead_letter_of_the_topic_ends_and_dead_letters_stay(world):
    engine = await world.open()
    await put(world, max_attempts=1)
    await send(world, "a", "b")
    for one in await receive(world):
        await engine.groups.nack("orders", "g", [one.receipt])
    await engine.groups.dead.redrive("g", [0])
    await settle(engine)
    assert engine.groups.info("orders", "g").ready == 1
    await purge(world)
    info = engine.groups.info("orders", "g")
    assert (info.ready, info.dead_letters) == (0, 1)


async def test_dead_letters_are_purged_as_messages_of_their_own_topic(world):
    engine = await world.open()
    await put(world, max_attempts=1)
    await send(world, "a")
    [one] = await receive(world)
    await engine.groups.nack("orders", "g", [one.receipt])
    await purge(world, "%DLQ%g")
    assert engine.groups.info("orders", "g").dead_letters == 0
    assert (await engine.groups.dead.page("g")).letters == []


async def test_a_purge_outlives_retention_of_a_part_and_a_lost_index(world):
    engine = await world.open(retention_ms=HOUR_MS)
    await world.send(0, 0, 0)
    await world.roll()
    await world.advance(HOUR_MS // 2)
    await world.send(0, 0, 0)
    await purge(world)
    [kept] = await world.send_ids(0)
    await world.roll()
    await world.advance(HOUR_MS // 2 + 60_000)
    await world.retention_turn()
    assert engine.core.log.start > 0
    for how in (world.lose_index, world.restart):
        engine = await how()
        assert await world.delivered_ids() == [kept]
        [queue] = engine.queues.topic("orders").queues
        assert (queue.min_offset, queue.max_offset) == (6, 7)


async def test_a_deleted_topic_forgets_its_purge(world):
    engine = await world.open()
    await world.send(0, 0)
    await purge(world)
    await engine.topic_deletions.delete("orders", 5_000)
    await settle(engine)
    assert engine.control.items("topic_purge") == {}
    await world.send(0)
    assert [one.queue_offset for one in await world.delivered()] == [2]


async def test_what_cannot_be_purged_is_refused(world):
    engine = await world.open()
    with pytest.raises(UnknownTopicError):
        await purge(world, "none")
    with pytest.raises(AdmissionError, match="belongs to the service"):
        await purge(world, "rmq_sys_wheel_timer")
    await world.send(0)
    engine.topics.ending.add("orders")
    with pytest.raises(TopicEndingError):
        await purge(world)
