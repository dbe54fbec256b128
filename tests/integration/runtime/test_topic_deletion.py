"""Deleting a topic: all of it goes, nothing of it comes out later, and the name begins again behind it."""

import asyncio

import pytest

from tests.harness.cold import make_cold
from tests.harness.drive import settle
from timerwheel.errors import (
    AdmissionError,
    AlreadyDeliveredError,
    DeletedMessageError,
    RefusedError,
    TopicEndingError,
    UnknownTopicError,
)
from timerwheel.groups.config import GroupConfig, GroupNotFoundError, GroupTerms
from timerwheel.model.messages import Outgoing, State
from timerwheel.push.push import Push
from timerwheel.push.subscription import Draft
from timerwheel.runtime.recall_filter import RecallFilter
from timerwheel.schedules.recurrence import Recurrence
from timerwheel.schedules.spec import ScheduleSpec

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
SPEC = ScheduleSpec(topic="orders", recurrence=Recurrence(every_ms=HOUR_MS), body=b"run")


async def delete(world, topic="orders"):
    """Delete a topic to the end."""
    await world.engine.topic_deletions.delete(topic)
    await settle(world.engine)
    assert not world.engine.topics.ending


async def fill(world):
    """A topic with everything that a topic can have; returns the ids of its messages."""
    engine = world.engine
    await engine.topics.change("orders", queues=2)
    ids = await world.send_ids(0, 0, 1_500, HOUR_MS, 40 * DAY_MS)
    ids.append((await engine.transactions.begin(Outgoing("orders", b"half", after_ms=5))).id)
    await engine.groups.put("orders", "workers", GroupConfig())
    await engine.groups.put("orders", "readers", GroupConfig(kind="offsets"))
    [one] = await engine.groups.receive("orders", "workers")
    await engine.groups.nack("orders", "workers", [one.receipt], delay_ms=HOUR_MS)
    await engine.schedules.put("hourly", SPEC)
    return ids


def damage(world, message_id):
    """Flip a bit of the body of a message's first record, on the disk."""
    make_cold(world.engine)
    log, offset = world.engine.core.log, int(message_id[:16], 16)
    base = log.base_of(offset)
    node = world.files.names_now[str(log.path(base))]
    node.data[offset - base + 90] ^= 0x10
    node.durable = bytes(node.data)


def left_of(world, topic="orders"):
    """What there is of a topic."""
    engine = world.engine
    return (
        topic in engine.queues.topic_names(),
        engine.core.state.topic(topic).pending,
        engine.groups.all(topic),
        [name for name in engine.schedules.names() if engine.schedules.topic_of(name) == topic],
        engine.transactions.page().transactions,
    )


@pytest.mark.parametrize("start", [None, "restart", "crash", "lose_index"])
async def test_all_of_a_topic_goes_and_others_stay(world, start):
    await world.open()
    [other] = await world.send_ids(HOUR_MS, topic="tickets")
    ids = await fill(world)
    await delete(world)
    if start is not None:
        await getattr(world, start)()
    assert left_of(world) == (False, 0, [], [], [])
    for message_id in ids:
        with pytest.raises(DeletedMessageError, match="deleted with its topic 'orders'"):
            await world.engine.messages.get(message_id)
    with pytest.raises(UnknownTopicError, match="was deleted at"):
        world.engine.queues.topic("orders")
    await world.advance(41 * DAY_MS)
    assert await world.delivered() == []
    assert await world.delivered_ids("tickets") == [other]
    assert world.engine.core.state.leases == 0


async def test_a_plan_says_what_would_go_and_changes_nothing(world):
    engine = await world.open()
    await fill(world)
    planned = engine.topic_deletions.plan("orders")
    assert (planned.state, planned.pending, planned.visible) == ("planned", 5, 2)
    assert [(one.group, one.left) for one in planned.groups] == [("readers", 2), ("workers", 2)]
    assert (planned.schedules, planned.subscriptions) == (["hourly"], [])
    assert not engine.topics.ending
    deletion = await engine.topic_deletions.delete("orders")
    assert (deletion.pending, deletion.groups) == (planned.pending, planned.groups)


@pytest.mark.parametrize("start", [None, "restart", "crash", "lose_index"])
async def test_a_topic_begins_again_behind_its_old_offsets_with_default_options(world, start):
    await world.open()
    old = await fill(world)
    await delete(world)
    new = await world.send_ids(0, 1_500)
    if start is not None:
        await getattr(world, start)()
    engine = world.engine
    info = engine.queues.topic("orders")
    assert (info.visible, info.pending, info.queue_count, info.ending) == (1, 1, 1, False)
    assert info.queues[0].min_offset + 1 == info.queues[0].max_offset
    await world.advance(2_000)
    assert await world.delivered_ids() == new
    with pytest.raises(AlreadyDeliveredError):
        await engine.recalls.recall(new[0])
    with pytest.raises(DeletedMessageError):
        await engine.recalls.recall(old[3])
    [first, _] = await engine.groups.receive("orders", "workers", count_max=9, terms=GroupTerms(create=True))
    assert first.message.id == new[0]


async def test_nothing_is_added_to_a_topic_that_is_being_deleted(world):
    engine = await world.open()
    [pending] = await world.send_ids(HOUR_MS)
    half = await engine.transactions.begin(Outgoing("orders", b"half"))
    key = Outgoing("orders", b"x", {}, "key-1")
    engine.topics.ending.add("orders")
    for messages in (
        [Outgoing("orders", b"x")],
        [key],
        [Outgoing("tickets", b"x"), Outgoing("orders", b"x")],
    ):
        with pytest.raises(RefusedError) as refused:
            await engine.sender.send(messages)
        assert [(one.index, one.code) for one in refused.value.faults] == [
            (len(messages) - 1, "topic_ending")
        ]
    with pytest.raises(RefusedError):
        await engine.transactions.begin(Outgoing("orders", b"half"))
    with pytest.raises(RefusedError):
        await engine.schedules.put("s", SPEC)
    refusals = (
        engine.transactions.commit(half.id),
        engine.recalls.reschedule(pending, {"TIMER_DELAY_MS": "0"}),
        engine.groups.put("orders", "workers", GroupConfig()),
        engine.groups.receive("orders", "workers", terms=GroupTerms(create=True)),
        engine.topics.change("orders", queues=3),
        Push(engine).create(Draft(topic="orders", url="https://example.org/")),
    )
    for refusal in refusals:
        with pytest.raises(TopicEndingError):
            await refusal
    with pytest.raises(GroupNotFoundError):
        await engine.groups.receive("orders", "workers")
    assert (await engine.recalls.recall(pending)).state is State.RECALLED
    assert "tickets" not in engine.queues.topic_names()


async def test_a_keyed_send_that_waited_for_its_key_is_refused(world):
    engine = await world.open()
    await world.send(0)
    message = Outgoing("orders", b"x", {}, "key-1")
    async with engine.keys.taken([message]):
        sending = asyncio.create_task(engine.sender.send([message]))
        await asyncio.sleep(0)
        await engine.topic_deletions.delete("orders")
    with pytest.raises(RefusedError, match="is being deleted"):
        await sending
    await settle(engine)
    assert left_of(world)[:2] == (False, 0)


async def test_queues_are_empty_for_readers_as_soon_as_the_deletion_begins(world):
    engine = await world.open()
    await world.send(0, 0)
    waiting = asyncio.create_task(engine.queues.read_queue("orders", 0, 2, 10, 60_000))
    await settle(engine)
    engine.topics.ending.add("orders")
    page = await engine.queues.read_queue("orders", 0, 0, 10)
    assert (page.messages, page.min_offset, page.max_offset) == ([], 2, 2)
    assert engine.queues.bounds_of("orders") == [(2, 2)]
    info = engine.queues.topic("orders")
    assert (info.visible, info.ending) == (0, True)
    engine.topics.ending.discard("orders")
    await delete(world)
    await world.advance(60_000)
    assert (await waiting).messages == []


async def test_a_message_that_fires_during_the_deletion_is_not_delivered(world):
    engine = await world.open()
    await world.send(*[500 + number for number in range(30)], HOUR_MS)
    deleting = asyncio.create_task(engine.topic_deletions.delete("orders"))
    world.clock.advance(515)
    await deleting
    assert (await engine.queues.read_queue("orders", 0, 0, 100)).messages == []
    await settle(engine)
    await world.advance(2 * HOUR_MS)
    assert left_of(world)[:2] == (False, 0)
    assert await world.delivered() == []


async def test_keys_of_a_deleted_topic_are_free(world):
    engine = await world.open()
    message = Outgoing("orders", b"x", {"TIMER_DELAY_MS": "9000"}, "key-1")
    [before] = await engine.sender.send([message])
    await delete(world)
    [after] = await engine.sender.send([message])
    assert (after.id != before.id, after.duplicate) == (True, False)
    [again] = await engine.sender.send([message])
    assert (again.id, again.duplicate) == (after.id, True)


async def test_subscriptions_of_a_deleted_topic_go_with_their_groups(world):
    engine = await world.open()
    await world.send(0)
    push = Push(engine)
    await push.start()
    await push.create(Draft(topic="orders", url="https://example.org/", id="one"))
    await push.create(Draft(topic="tickets", url="https://example.org/", id="two"))
    assert engine.topic_deletions.plan("orders").subscriptions == ["one"]
    await delete(world)
    assert [one.id for one in push.all()] == ["two"]
    assert [state.topic for state in engine.core.state.groups] == ["tickets"]
    await push.close()


async def test_a_timer_that_cannot_be_read_goes_too(world):
    engine = await world.open()
    await world.send(300, HOUR_MS)
    [damaged] = await world.send_ids(1_000)
    damage(world, damaged)
    await world.advance(2_000)
    assert engine.firing.quarantined
    await delete(world)
    assert not engine.firing.quarantined
    assert left_of(world)[:2] == (False, 0)


async def test_ids_in_a_bulk_recall_say_that_they_were_deleted(world):
    engine = await world.open()
    ids = await world.send_ids(0, HOUR_MS)
    await delete(world)
    results = await engine.bulk_recalls.recall_many(ids)
    assert [one.code for one in results] == ["message_deleted", "message_deleted"]
    assert (await engine.bulk_recalls.recall_where(RecallFilter(topic="orders"))).matched == 0


async def test_a_deletion_waits_for_space_on_the_disk(world):
    engine = await world.open()
    await world.send(HOUR_MS)
    space_bytes = world.files.space_bytes
    assert (await engine.topic_deletions.delete("orders")).state == "ending"
    world.files.space_bytes = 0
    await settle(engine)
    world.files.space_bytes = space_bytes
    await settle(engine)
    assert engine.topics.ending == {"orders"}
    await world.advance(1_000)
    assert left_of(world)[:2] == (False, 0)


async def test_a_topic_that_does_not_exist_or_is_the_services_own_is_not_deleted(world):
    engine = await world.open()
    await world.send(0)
    with pytest.raises(UnknownTopicError):
        await engine.topic_deletions.delete("tickets")
    with pytest.raises(AdmissionError) as refused:
        await engine.topic_deletions.delete("SCHEDULE_TOPIC_XXXX")
    assert refused.value.code == "system_topic"
    await engine.groups.put("orders", "workers", GroupConfig())
    with pytest.raises(UnknownTopicError):
        await engine.topic_deletions.delete("orders/workers")


async def test_a_group_keeps_its_dead_letters_until_their_topic_is_deleted(world):
    engine = await world.open()
    await world.send(0, 0)
    await engine.groups.put("orders", "workers", GroupConfig(max_attempts=1))
    got = await engine.groups.receive("orders", "workers", count_max=2)
    await engine.groups.nack("orders", "workers", [one.receipt for one in got])
    await settle(engine)
    await delete(world)
    assert len((await engine.groups.dead.page("workers")).letters) == 2
    await delete(world, "%DLQ%workers")
    assert (await engine.groups.dead.page("workers")).letters == []
    assert "%DLQ%workers" not in engine.queues.topic_names()


async def test_a_topic_stays_deleted_when_retention_has_removed_its_messages(world):
    await world.open(retention_ms=HOUR_MS)
    await world.send(0, 0)
    await delete(world)
    await world.roll()
    await world.send(0, 0)
    await world.advance(2 * HOUR_MS)
    assert world.engine.core.log.start > 0
    kept = await world.delivered_ids()
    await world.lose_index()
    assert await world.delivered_ids() == kept
    assert world.engine.queues.topic("orders").queues[0].max_offset == 4
    await delete(world)
    begin = world.engine.core.log.tail
    await world.roll()
    await world.advance(2 * HOUR_MS)
    assert world.engine.core.log.start > begin
    await world.lose_index()
    assert "orders" not in world.engine.queues.topic_names()
    await world.send(0)
    assert world.engine.queues.topic("orders").queues[0].min_offset == 4


async def test_a_topic_stays_deleted_when_retention_has_removed_a_part_of_its_messages(world):
    engine = await world.open(retention_ms=HOUR_MS)
    await world.send(0, 0, 0)
    await world.roll()
    await world.advance(HOUR_MS // 2)
    await world.send(0, 0, 0)
    await delete(world)
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


async def test_a_deleted_topic_makes_room_for_another(world):
    engine = await world.open(topics_max=1)
    await world.send(0)
    with pytest.raises(RefusedError):
        await world.send(0, topic="tickets")
    await delete(world)
    assert engine.core.state.client_topics == 0
    await world.send(0, topic="tickets")
