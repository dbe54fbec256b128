"""The rules of a delayed message, as a client of the real engine sees them."""

import asyncio

import pytest

from tests.harness.drive import settle
from timerwheel.errors import RefusedError, SettingsError, UnknownQueueError
from timerwheel.model.admission import SYSTEM_TOPIC_LEVELS, SYSTEM_TOPIC_TIMER
from timerwheel.model.messages import Outgoing, State


async def send_one(engine, properties, topic="orders", body=b"x"):
    return (await engine.sender.send([Outgoing(topic, body, properties)]))[0]


@pytest.mark.parametrize(
    ("properties", "delay_ms"),
    [
        ({"TIMER_DELAY_SEC": "7"}, 7_000),
        ({"TIMER_DELAY_MS": "1234"}, 1_234),
        ({"TIMER_DELIVER_MS": "1800000004321"}, 4_321),
        ({"__STARTDELIVERTIME": "1800000004321"}, 4_321),
        ({"DELAY": "2"}, 5_000),
        ({"DELAY": "99"}, 7_200_000),
        ({"DELAY": "1", "TIMER_DELAY_MS": "9000"}, 1_000),
        ({"DELAY": "0", "TIMER_DELAY_MS": "9000"}, 9_000),
        ({"TIMER_DELAY_SEC": "2", "TIMER_DELAY_MS": "9000", "TIMER_DELIVER_MS": "1"}, 2_000),
    ],
)
async def test_each_delay_property_delivers_at_its_millisecond_and_not_before(world, properties, delay_ms):
    engine = await world.open()
    sent_ms = world.clock.now_ms()
    receipt = await send_one(engine, properties)
    assert (receipt.due_ms, receipt.state) == (sent_ms + delay_ms, State.SCHEDULED)
    await world.advance(delay_ms - 1)
    assert await world.delivered_ids() == []
    await world.advance(1)
    [message] = await world.delivered()
    assert (message.id, message.delivered_ms, message.lateness_ms) == (receipt.id, receipt.due_ms, 0)


@pytest.mark.parametrize(
    "properties",
    [{}, {"TIMER_DELAY_MS": "0"}, {"TIMER_DELAY_SEC": "-5"}, {"TIMER_DELIVER_MS": "1"}, {"DELAY": "0"}],
)
async def test_a_time_that_has_come_is_an_ordinary_message_delivered_at_once(world, properties):
    engine = await world.open()
    receipt = await send_one(engine, properties)
    assert receipt.state is State.DELIVERED
    [message] = await world.delivered()
    assert message.id == receipt.id
    assert message.properties == {}
    assert (await engine.messages.wheel()).pending == 0


async def test_waiting_message_shows_where_it_goes_and_when(world):
    engine = await world.open()
    now_ms = world.clock.now_ms()
    receipt = await send_one(engine, {"TIMER_DELAY_MS": "5000", "TAGS": "red", "KEYS": "k1"})
    waiting = await engine.messages.get(receipt.id)
    assert waiting.state is State.SCHEDULED
    assert waiting.properties == {
        "TAGS": "red",
        "KEYS": "k1",
        "REAL_TOPIC": "orders",
        "REAL_QID": "0",
        "TIMER_OUT_MS": str(now_ms + 5_000),
        "TIMER_ENQUEUE_MS": str(now_ms),
        "TIMER_ROLL_TIMES": "0",
    }


async def test_delivered_message_carries_its_own_properties_and_no_delay(world):
    engine = await world.open()
    now_ms = world.clock.now_ms()
    receipt = await send_one(engine, {"DELAY": "1", "TIMER_DELAY_MS": "5", "TAGS": "red"}, body=b"\x00\xff")
    await world.advance(1_000)
    [message] = await world.delivered()
    assert message.body == b"\x00\xff"
    assert message.properties == {
        "TAGS": "red",
        "TIMER_ENQUEUE_MS": str(now_ms),
        "TIMER_DEQUEUE_MS": str(now_ms + 1_000),
        "TIMER_ROLL_TIMES": "0",
    }
    assert await engine.messages.get(receipt.id) == message


@pytest.mark.parametrize(
    "name",
    ["REAL_TOPIC", "REAL_QID", "TIMER_OUT_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES"],
)
async def test_properties_of_the_service_are_refused_from_a_client(engine, name):
    with pytest.raises(RefusedError) as caught:
        await send_one(engine, {name: "1"})
    assert [fault.code for fault in caught.value.faults] == ["reserved_property"]


async def test_an_array_with_bad_items_names_each_and_stores_nothing(world):
    engine = await world.open()
    tail = engine.core.log.tail
    with pytest.raises(RefusedError) as caught:
        await engine.sender.send(
            [
                Outgoing("orders", b"fine", {"TIMER_DELAY_MS": "5"}),
                Outgoing("orders", b"bad", {"TIMER_DELAY_MS": "soon"}),
                Outgoing("no topic", b"bad"),
                Outgoing("orders", b"fine"),
                Outgoing("orders", b"bad", {"TIMER_DELAY_SEC": str(2**63 - 1)}),
            ]
        )
    assert [(fault.index, fault.code) for fault in caught.value.faults] == [
        (1, "illegal_delay"),
        (2, "illegal_topic"),
        (4, "delay_too_long"),
    ]
    assert engine.core.log.tail == tail
    assert [topic.topic for topic in engine.queues.topics() if not topic.system] == []


async def test_faults_of_a_large_array_carry_their_place_in_it(world):
    engine = await world.open()
    messages = [Outgoing("orders", b"", {"TIMER_DELAY_MS": "5"})] * 1_200
    messages[503] = messages[1_199] = Outgoing("orders", b"", {"TIMER_DELAY_MS": "x"})
    with pytest.raises(RefusedError) as caught:
        await engine.sender.send(messages)
    assert [fault.index for fault in caught.value.faults] == [503, 1_199]


async def test_max_delay_itself_is_allowed_and_one_more_is_not(world):
    engine = await world.open(max_delay_ms=50_000)
    assert (await send_one(engine, {"TIMER_DELAY_MS": "50000"})).state is State.SCHEDULED
    with pytest.raises(RefusedError) as caught:
        await send_one(engine, {"TIMER_DELAY_MS": "50001"})
    assert caught.value.faults[0].code == "delay_too_long"
    await world.advance(50_000)
    assert len(await world.delivered_ids()) == 1


async def test_within_a_level_messages_are_delivered_in_the_order_stored(world):
    engine = await world.open()
    ids = [(await send_one(engine, {"DELAY": "3"}, body=b"%d" % n)).id for n in range(30)]
    await world.advance(3)
    ids += [(await send_one(engine, {"DELAY": "3"})).id for _ in range(5)]
    await world.advance(10_000)
    assert await world.delivered_ids() == ids


async def test_levels_tell_pending_count_and_next_due(world):
    engine = await world.open()
    now_ms = world.clock.now_ms()
    first = await send_one(engine, {"DELAY": "5"})
    await world.advance(100)
    await send_one(engine, {"DELAY": "5"})
    await send_one(engine, {"DELAY": "18"})
    levels = {level.level: level for level in await engine.messages.levels()}
    assert len(levels) == 18
    assert (levels[5].text, levels[5].delay_ms, levels[5].pending) == ("1m", 60_000, 2)
    assert levels[5].next_due_ms == now_ms + 60_000
    assert (levels[18].pending, levels[18].next_due_ms) == (1, now_ms + 100 + 7_200_000)
    assert (levels[1].pending, levels[1].next_due_ms) == (0, None)
    await engine.recalls.recall(first.id)
    engine = await world.restart()
    levels = {level.level: level for level in await engine.messages.levels()}
    assert (levels[5].pending, levels[5].next_due_ms) == (1, now_ms + 100 + 60_000)
    await world.advance(7_300_000)
    assert {level.pending for level in await engine.messages.levels()} == {0}


async def test_operators_own_table_holds_and_a_bad_entry_stops_the_start_by_name(world):
    engine = await world.open(levels="2s 1d")
    assert (await send_one(engine, {"DELAY": "9"})).due_ms == world.clock.now_ms() + 86_400_000
    await engine.close()
    with pytest.raises(SettingsError, match="7x"):
        await world.open(levels="2s 7x")
    await world.open(levels="2s 1d")
    await world.advance(86_400_000)
    assert len(await world.delivered_ids()) == 1


async def test_level_message_due_too_late_after_a_step_back_is_delivered_now(world):
    engine = await world.open()
    ids = [(await send_one(engine, {"DELAY": "4"})).id for _ in range(20)]
    timed = await send_one(engine, {"TIMER_DELAY_MS": "30000"})
    await world.step(-3_600_000)
    assert await world.delivered_ids() == ids
    assert (await engine.messages.get(timed.id)).state is State.SCHEDULED
    await world.advance(3_700_000)
    assert await world.delivered_ids() == [*ids, timed.id]


async def test_level_message_due_too_late_after_a_restart_behind_is_delivered_now(world):
    engine = await world.open()
    receipt = await send_one(engine, {"DELAY": "4"})
    await engine.close()
    world.clock.step(-60_000)
    await world.open()
    [message] = await world.delivered()
    assert (message.id, message.level) == (receipt.id, 4)
    assert message.delivered_ms >= message.due_ms


async def test_start_does_not_hang_on_many_level_messages_that_are_due_too_late(world):
    """More than the batches that may be in flight at once, before anything stores them."""
    engine = await world.open()
    ids = [(await send_one(engine, {"DELAY": "4"})).id for _ in range(40)]
    await engine.close()
    world.clock.step(-60_000)
    opening = asyncio.ensure_future(world.open())
    done, _ = await asyncio.wait([opening], timeout=60)
    if not done:
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
    assert done, "the start waits for ever"
    assert await world.delivered_ids() == ids


async def test_shortened_table_delivers_now_what_it_makes_too_late(world):
    engine = await world.open(levels="1s 1h 2h")
    second = await send_one(engine, {"DELAY": "2"})
    third = await send_one(engine, {"DELAY": "3"})
    kept = await send_one(engine, {"DELAY": "1"})
    engine = await world.restart(levels="1s 1m")
    assert await world.delivered_ids() == [second.id, third.id]
    assert (await engine.messages.get(kept.id)).state is State.SCHEDULED
    assert (await engine.messages.get(third.id)).state is State.DELIVERED
    await world.lose_index()
    await world.advance(8_000_000)
    assert await world.delivered_ids() == [second.id, third.id, kept.id]


async def test_level_order_holds_over_a_step_back_of_less_than_a_second(world):
    """A level message found due later than now + its level's delay is delivered now: also after 400 ms."""
    engine = await world.open()
    first = await send_one(engine, {"DELAY": "1"})
    await world.step(-400)
    second = await send_one(engine, {"DELAY": "1"})
    await world.advance(5_000)
    assert await world.delivered_ids() == [first.id, second.id]


async def test_message_recalled_while_the_guard_works_is_not_delivered(world):
    """The guard fires in batches; what was recalled meanwhile must not be in a later one."""
    engine = await world.open()
    ids = [(await send_one(engine, {"DELAY": "4"})).id for _ in range(60)]
    world.clock.step(-3_600_000)
    guard = world.engine.watch_once()
    recalled = []

    async def recall_last():
        for message_id in reversed(ids[30:]):
            try:
                await engine.recalls.recall(message_id)
                recalled.append(message_id)
            except Exception:  # noqa: BLE001 - too late is a true answer here
                return

    await asyncio.gather(guard, recall_last())
    await world.advance(4_000_000)
    delivered = await world.delivered_ids()
    assert not set(delivered) & set(recalled)
    assert sorted([*delivered, *recalled]) == sorted(ids)


async def test_same_due_time_is_delivered_in_the_order_stored_across_arrays_and_restarts(world):
    engine = await world.open()
    due_ms = world.clock.now_ms() + 90_000
    ids = []
    for turn in range(6):
        receipts = await engine.sender.send(
            [Outgoing("orders", b"x", {"TIMER_DELIVER_MS": str(due_ms)}) for _ in range(9)]
        )
        ids += [receipt.id for receipt in receipts]
        await world.advance(10_000)
        engine = await (world.restart() if turn % 2 else world.lose_index())
    await world.advance(60_000)
    assert await world.delivered_ids() == ids


SPINS = 40  # of the event loop, from the moment that a timer is due until it has surely been delivered


async def _spin(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("keys", [False, True], ids=["plain", "under a key"])
async def test_a_message_without_delay_goes_out_behind_timers_of_its_millisecond(world, keys):
    engine = await world.open(fire_records_max=7)
    expected = []
    for spins in range(SPINS):
        topic = f"t{spins}"
        timers = await world.send_ids(*[1_000] * 9, topic=topic)
        await _spin(SPINS)
        world.clock.advance(1_000)
        await _spin(spins)  # firing has gone so far
        message = Outgoing(topic, b"now", dedup_key=f"k{spins}" if keys else None)
        sending = [asyncio.create_task(engine.sender.send([message])) for _ in range(1 if keys else 3)]
        fresh = [receipt.id for one in await asyncio.gather(*sending) for receipt in one]
        expected.append((topic, [*timers, *fresh]))
        await settle(engine)
    for topic, ids in expected:
        assert await world.delivered_ids(topic) == ids


async def test_a_message_without_delay_goes_out_behind_timers_that_came_due_while_they_were_stored(world):
    engine = await world.open()
    for spins in range(SPINS):
        topic = f"t{spins}"
        first = asyncio.create_task(engine.sender.send([Outgoing(topic, b"x", {"TIMER_DELAY_MS": "1"})]))
        await asyncio.sleep(0)  # it is on its way into the log
        world.clock.advance(1)
        await _spin(spins)
        now = await engine.sender.send([Outgoing(topic, b"now"), Outgoing(topic, b"now")])
        await settle(engine)
        ids = [receipt.id for receipt in (*await first, *now)]
        assert await world.delivered_ids(topic) == ids


async def test_a_message_rescheduled_to_now_keeps_its_place_among_those_of_that_millisecond(world):
    engine = await world.open()
    for spins in range(SPINS):
        topic = f"t{spins}"
        timers = await world.send_ids(*[1_000] * 3, 60_000, *[1_000] * 3, topic=topic)
        await _spin(SPINS)
        world.clock.advance(1_000)
        moving = asyncio.create_task(engine.recalls.reschedule(timers[3], {"TIMER_DELAY_MS": "0"}))
        await _spin(spins)
        await moving
        await settle(engine)
        delivered = await world.delivered_ids(topic)
        assert [one for one in delivered if one != timers[3]] == timers[:3] + timers[4:]
        assert delivered.index(timers[3]) >= 3, "it overtook timers that were accepted before it"


async def test_a_message_without_delay_waits_behind_no_other_topic_and_no_other_millisecond(world):
    engine = await world.open()
    await world.send(1_000, 2_000, topic="other")
    await world.send(999, 1_001, topic="orders")
    await _spin(SPINS)
    world.clock.advance(1_000)
    receipt = (await engine.sender.send([Outgoing("orders", b"now")]))[0]
    assert receipt.state is State.DELIVERED


async def test_messages_without_delay_of_one_millisecond_are_not_stored_twice_over(world):
    """One that went out behind a timer must not make all that follow it do so, too."""
    engine = await world.open()
    await world.send(1_000)
    await _spin(SPINS)
    world.clock.advance(1_000)
    first = (await engine.sender.send([Outgoing("orders", b"now")]))[0]
    assert first.state is State.SCHEDULED
    await settle(engine)
    second = (await engine.sender.send([Outgoing("orders", b"now")]))[0]
    assert second.state is State.DELIVERED
    world.clock.advance(1)
    assert (await engine.sender.send([Outgoing("orders", b"now")]))[0].state is State.DELIVERED


@pytest.mark.parametrize("topic", [SYSTEM_TOPIC_TIMER, SYSTEM_TOPIC_LEVELS])
async def test_system_topics_can_be_inspected_and_not_written(world, topic):
    engine = await world.open()
    timed = await send_one(engine, {"TIMER_DELAY_MS": "5000"})
    levelled = await send_one(engine, {"DELAY": "3"})
    expected = {SYSTEM_TOPIC_TIMER: timed.id, SYSTEM_TOPIC_LEVELS: levelled.id}[topic]
    info = engine.queues.topic(topic)
    assert (info.system, info.pending, info.queues) == (True, 1, [])
    assert [message.id for message in (await engine.messages.pending(topic)).messages] == [expected]
    with pytest.raises(RefusedError) as caught:
        await send_one(engine, {}, topic=topic)
    assert caught.value.faults[0].code == "system_topic"
    with pytest.raises(UnknownQueueError):
        await engine.queues.read_queue(topic, 0, 0, 10)


async def test_sharding_key_keeps_its_queue_and_order_over_several_queues(world):
    engine = await world.open(queues_per_topic=4)
    sent = {}
    for n in range(60):
        key = f"k{n % 6}"
        receipt = await send_one(engine, {"__SHARDINGKEY": key, "TIMER_DELAY_MS": "1000"})
        sent.setdefault(key, []).append(receipt.id)
    await world.advance(1_000)
    engine = await world.lose_index()
    seen, queue_of = {}, {}
    for queue in range(4):
        for message in (await engine.queues.read_queue("orders", queue, 0, 1000)).messages:
            key = message.properties["__SHARDINGKEY"]
            assert queue_of.setdefault(key, queue) == queue
            seen.setdefault(key, []).append(message.id)
    assert seen == sent


async def test_messages_without_a_key_use_every_queue(world):
    engine = await world.open(queues_per_topic=3)
    await engine.sender.send([Outgoing("orders", b"x")] * 9)
    assert [q.max_offset - q.min_offset for q in engine.queues.topic("orders").queues] == [3, 3, 3]


async def test_topics_max_refuses_the_topic_that_is_one_too_many(world):
    engine = await world.open(topics_max=2)
    await engine.sender.send([Outgoing("a", b""), Outgoing("b", b"")])
    with pytest.raises(RefusedError) as caught:
        await engine.sender.send([Outgoing("a", b""), Outgoing("c", b"")])
    assert [(fault.index, fault.code) for fault in caught.value.faults] == [(1, "too_many_topics")]
    assert len((await engine.queues.read_queue("a", 0, 0, 10)).messages) == 1
