"""When a send takes long between admission and the log: its times, and its place among others."""

import asyncio

import pytest

from tests.harness.columns import send_in_columns
from tests.harness.drive import read_all
from timerwheel.model.messages import Outgoing, State

WAIT_MS = 5_000


async def one_by_one(engine, messages):
    return await engine.sender.send(messages)


WAYS = [one_by_one, send_in_columns]


async def sent_behind_its_key(world, way, *messages):
    """Send messages that wait for the first one's key; their receipts, and that of a send in between."""
    engine = world.engine
    async with engine.keys.taken(messages[:1]):
        sending = asyncio.create_task(way(engine, list(messages)))
        await world.advance(WAIT_MS)
        [between] = await engine.sender.send([Outgoing("orders", b"between")])
        assert not sending.done()
    return await sending, between


async def header_of(world, receipt):
    return (await world.engine.messages.current(receipt.id)).record.header


@pytest.mark.parametrize("way", WAYS)
async def test_a_send_that_waited_for_its_key_is_stored_at_the_time_of_its_storing(world, way):
    engine = await world.open()
    began_ms = world.clock.now_ms()
    [fresh], between = await sent_behind_its_key(world, way, Outgoing("orders", b"x", dedup_key="k"))
    header, before = await header_of(world, fresh), await header_of(world, between)
    assert header.store_ms == header.enqueue_ms == header.due_ms == began_ms + WAIT_MS
    assert fresh.due_ms == header.due_ms
    assert before.store_ms <= header.store_ms
    world.clock.advance(1)
    assert await engine.queues.first_from("orders", 0, began_ms + 1) == 0


@pytest.mark.parametrize("way", WAYS)
async def test_its_due_time_counts_from_admission_and_that_of_a_level_from_the_storing(world, way):
    engine = await world.open()
    began_ms = world.clock.now_ms()
    receipts, _ = await sent_behind_its_key(
        world,
        way,
        Outgoing("orders", b"later", {"TIMER_DELAY_MS": "9000"}, dedup_key="k"),
        Outgoing("orders", b"due by then", {"TIMER_DELAY_MS": "3000"}),
        Outgoing("orders", b"due now", {"TIMER_DELAY_MS": str(WAIT_MS)}),
        Outgoing("orders", b"level", {"DELAY": "2"}),
        Outgoing("orders", b"none"),
    )
    assert [receipt.due_ms - began_ms for receipt in receipts] == [
        9_000,
        3_000,
        WAIT_MS,
        WAIT_MS + 5_000,
        WAIT_MS,
    ]
    states = [State.SCHEDULED, State.DELIVERED, State.DELIVERED, State.SCHEDULED, State.DELIVERED]
    assert [receipt.state for receipt in receipts] == states
    headers = [await header_of(world, one) for one in receipts]
    assert {header.store_ms for header in headers} == {began_ms + WAIT_MS}
    # Delays count from the enqueue time, whatever the store time is.
    assert headers[0].due_ms - headers[0].enqueue_ms == 9_000
    assert headers[3].due_ms - headers[3].enqueue_ms == 5_000
    await world.advance(10_000)
    bodies = [view.body for view in await read_all(engine, "orders")]
    assert bodies == [b"between", b"due by then", b"due now", b"none", b"later", b"level"]


@pytest.mark.parametrize("way", WAYS)
async def test_what_came_due_while_it_waited_does_not_overtake_a_timer_of_its_topic(world, way):
    engine = await world.open()
    message = Outgoing("orders", b"slow", {"TIMER_DELAY_MS": "3000"}, dedup_key="k")
    async with engine.keys.taken([message]):
        sending = asyncio.create_task(way(engine, [message]))
        await world.advance(WAIT_MS - 1)
        await engine.sender.send([Outgoing("orders", b"timer", {"TIMER_DELAY_MS": "1"})])
        await world.advance(0)
        world.clock.wall_ms, world.clock.mono_ms = world.clock.wall_ms + 1, world.clock.mono_ms + 1
        # The timer is due, and nobody has looked at the clock since.
    [slow] = await sending
    await world.advance(0)
    assert [view.body for view in await read_all(engine, "orders")] == [b"timer", b"slow"]
    assert (slow.state, slow.due_ms) == (State.SCHEDULED, world.clock.now_ms())


@pytest.mark.parametrize("way", WAYS)
async def test_levels_fire_in_the_order_stored_whatever_a_send_waited_for(world, way):
    engine = await world.open()
    message = Outgoing("orders", b"slow", {"DELAY": "4"}, dedup_key="k")
    async with engine.keys.taken([message]):
        sending = asyncio.create_task(way(engine, [message]))
        await world.advance(WAIT_MS)
        await engine.sender.send([Outgoing("orders", b"quick", {"DELAY": "4"})])
    await sending
    await world.advance(30_000)
    assert [view.body for view in await read_all(engine, "orders")] == [b"quick", b"slow"]
