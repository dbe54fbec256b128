"""Topics that are paused: messages come in and fall due, and no consumer is handed any until the resume."""

import asyncio

import pytest

from tests.harness.consumers import ack, bodies, put, receive, send
from timerwheel.errors import AdmissionError, TopicEndingError
from timerwheel.model.messages import Outgoing

WAYS = ["restart", "crash", "lose_index"]


async def test_messages_of_a_paused_topic_fall_due_at_their_millisecond_and_wait_for_the_resume(world):
    engine = await world.open()
    await put(world)
    await engine.topics.pause("orders")
    await world.send(2_000, 1_000, body=b"timer")
    await send(world, "now")
    due_ms = world.clock.now_ms() + 1_000
    await world.advance(999)
    assert [one.body for one in await world.delivered()] == [b"now"]
    await world.advance(1)
    assert [one.delivered_ms for one in await world.delivered()][1] == due_ms
    await world.advance(60_000)
    assert await receive(world) == []
    assert engine.groups.info("orders", "g").lag == 3
    await engine.topics.resume("orders")
    assert bodies(await receive(world)) == ["now", "timer", "timer"]


@pytest.mark.parametrize("how", WAYS)
async def test_a_pause_outlives_the_process_and_the_index_and_keeps_the_other_options(world, how):
    engine = await world.open()
    await engine.topics.change("orders", queues=3, ordered=True)
    await engine.topics.pause("orders")
    await engine.topics.change("orders", queues=4)
    await engine.topics.pause("empty")
    engine = await getattr(world, how)() or world.engine
    found = engine.queues.topic("orders")
    assert (found.paused, found.ordered, found.queue_count) == (True, True, 4)
    assert engine.queues.topic("empty").paused
    await engine.topics.resume("orders")
    await engine.topics.resume("empty")
    engine = await getattr(world, how)() or world.engine
    found = engine.queues.topic("orders")
    assert (found.paused, found.ordered, found.queue_count) == (False, True, 4)
    assert "empty" not in engine.queues.topic_names()


async def test_a_resume_wakes_every_receive_that_waits_and_a_message_does_not(world):
    engine = await world.open()
    await put(world)
    await engine.topics.pause("orders")
    waiting = [
        asyncio.create_task(engine.groups.receive("orders", "g", count_max=1, wait_ms=60_000))
        for _ in range(3)
    ]
    await send(world, "a", "b")
    await world.advance(1_000)
    assert not any(task.done() for task in waiting)
    await engine.topics.resume("orders")
    await world.advance(0)
    done = [task for task in waiting if task.done()]
    assert sorted(body for task in done for body in bodies(task.result())) == ["a", "b"]
    await world.advance(60_000)
    assert [task.result() for task in waiting if task not in done] == [[]]


async def test_a_receive_under_way_leases_nothing_once_the_pause_is_in_effect(world):
    engine = await world.open()
    await put(world)
    await send(world, *map(str, range(600)))  # leased in several steps
    receiving = asyncio.create_task(engine.groups.receive("orders", "g", count_max=600))
    while engine.groups.info("orders", "g").lag == 600:
        await asyncio.sleep(0)
    assert not receiving.done()
    await engine.topics.pause("orders")
    found = await receiving
    assert len(found) in (0, 600)
    assert engine.groups.info("orders", "g").in_flight == len(found)
    await engine.topics.resume("orders")
    assert len(found) + len(await engine.groups.receive("orders", "g", count_max=600)) == 600


async def test_a_pause_within_a_receive_gives_the_messages_back(world):
    engine = await world.open()
    await put(world)
    await send(world, *map(str, range(600)))
    stored = engine.core.state.control
    receiving = asyncio.create_task(engine.groups.receive("orders", "g", count_max=600))
    while engine.groups.info("orders", "g").lag == 600:
        await asyncio.sleep(0)
    paused = asyncio.create_task(engine.topics.pause("orders"))
    while stored.get("topic", "orders") is None and not receiving.done():
        await asyncio.sleep(0)
    await paused
    found = await receiving
    assert engine.groups.info("orders", "g").in_flight == len(found)
    await engine.topics.resume("orders")
    again = await engine.groups.receive("orders", "g", count_max=1_000)
    assert len(found) + len(again) == 600


async def test_work_that_was_handed_out_goes_on_and_a_lease_that_runs_out_costs_its_attempt_alone(world):
    engine = await world.open()
    await put(world)
    await send(world, "done", "back", "late", "lost")
    held = {bodies([one])[0]: one for one in await receive(world)}
    await engine.topics.pause("orders")
    assert await ack(world, held["done"]) == [True]
    await engine.groups.nack("orders", "g", [held["back"].receipt])
    await world.advance(3_600_000)
    assert await receive(world) == []
    # Nobody else was handed it, so the work counts however late it is.
    assert await ack(world, held["late"]) == [True]
    info = engine.groups.info("orders", "g")
    assert (info.ready, info.waiting, info.in_flight, info.dead_letters) == (2, 0, 0, 0)
    await engine.topics.resume("orders")
    assert sorted((bodies([one])[0], one.attempt) for one in await receive(world)) == [
        ("back", 2),
        ("lost", 2),
    ]


async def test_pending_messages_of_a_paused_topic_can_be_recalled_and_rescheduled(world):
    engine = await world.open()
    await engine.topics.pause("orders")
    first, second = await world.send_ids(10_000, 20_000)
    await engine.recalls.recall(first)
    await engine.recalls.reschedule(second, {"TIMER_DELAY_MS": "5000"})
    await world.advance(5_000)
    assert await world.delivered_ids() == [second]


async def test_a_redriven_dead_letter_waits_for_the_resume_of_its_topic(world):
    engine = await world.open()
    await put(world, max_attempts=1)
    await send(world, "a")
    [one] = await receive(world)
    await engine.groups.nack("orders", "g", [one.receipt])
    await engine.topics.pause("orders")
    await engine.groups.dead.redrive("g")
    await world.advance(60_000)
    assert await receive(world) == []
    await engine.topics.resume("orders")
    assert bodies(await receive(world)) == ["a"]


async def test_pausing_twice_and_resuming_what_is_not_paused_store_nothing(world):
    engine = await world.open()
    await engine.topics.resume("orders")
    tail = engine.core.log.tail
    await engine.topics.resume("never")
    assert engine.core.log.tail == tail
    await engine.topics.pause("orders")
    tail = engine.core.log.tail
    await engine.topics.pause("orders")
    assert engine.core.log.tail == tail


async def test_a_topic_of_the_service_and_one_that_is_ending_cannot_be_paused(world):
    engine = await world.open()
    for topic in ("rmq_sys_wheel_timer", "no/slash"):
        with pytest.raises(AdmissionError):
            await engine.topics.pause(topic)
    await engine.sender.send([Outgoing("orders", b"")])
    engine.topics.ending.add("orders")
    with pytest.raises(TopicEndingError):
        await engine.topics.pause("orders")


async def test_a_deleted_topic_begins_again_without_its_pause(world):
    engine = await world.open()
    await send(world, "a")
    await engine.topics.pause("orders")
    await engine.topic_deletions.delete("orders", 5_000)
    await send(world, "b")
    assert not engine.queues.topic("orders").paused


async def test_a_group_of_a_paused_topic_has_nothing_due_and_nothing_to_wait_for(world):
    engine = await world.open()
    await put(world)
    await send(world, "a")
    assert engine.groups.next_due_ms("orders", "g") == world.clock.now_ms()
    await engine.topics.pause("orders")
    assert engine.groups.next_due_ms("orders", "g") is None
    assert not await engine.groups.wait_for_messages("orders", "g", 0)
    waiting = asyncio.create_task(engine.groups.wait_for_messages("orders", "g", 60_000))
    await world.advance(1_000)
    assert not waiting.done()
    await engine.topics.resume("orders")
    assert await waiting


async def test_a_receive_that_waits_for_the_resume_gets_no_message_whose_ttl_is_over(world):
    engine = await world.open()
    await put(world)
    await engine.topics.pause("orders")
    waiting = asyncio.create_task(engine.groups.receive("orders", "g", count_max=9, wait_ms=60_000))
    await send(world, "late", TIMER_TTL_MS="10000")
    await send(world, "kept")
    await world.advance(10_000)
    await engine.topics.resume("orders")
    assert bodies(await waiting) == ["kept"]


@pytest.mark.parametrize("step_ms", [-86_400_000, 86_400_000])
async def test_a_step_of_the_clock_ends_no_pause_and_no_message_that_waits_for_the_resume(world, step_ms):
    engine = await world.open()
    await put(world)
    await engine.topics.pause("orders")
    await send(world, "a", TIMER_TTL_MS="60000")
    await world.step(step_ms)
    await send(world, "b", TIMER_TTL_MS="60000")
    await world.advance(30_000)
    assert await receive(world) == []
    assert engine.topics.paused("orders")
    await engine.topics.resume("orders")
    assert bodies(await receive(world)) == ["a", "b"]
