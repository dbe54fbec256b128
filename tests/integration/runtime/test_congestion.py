"""The per-slot limit refuses with certainty, counts exactly, and costs nothing when it is off."""

import asyncio

import pytest

from timerwheel.errors import CongestedError
from timerwheel.groups.config import GroupTerms
from timerwheel.model.messages import Outgoing, State

LIMIT = 10


@pytest.mark.parametrize("delay_ms", [1_000, 90_000_000])
async def test_limit_is_exact_under_concurrent_sends(world, delay_ms):
    engine = await world.open(slot_messages_max=LIMIT)
    answers = await asyncio.gather(
        *(world.send(delay_ms + n % 1_000) for n in range(35)), return_exceptions=True
    )
    assert sum(not isinstance(answer, Exception) for answer in answers) == LIMIT
    refused = [answer for answer in answers if isinstance(answer, Exception)]
    full_ms = (world.clock.now_ms() + delay_ms) // 1_000 * 1_000
    assert all(isinstance(error, CongestedError) and error.free_ms == full_ms + 1_000 for error in refused)
    assert (await engine.messages.wheel()).pending == LIMIT
    await world.send(delay_ms + 1_000)  # the next second has room
    await world.send(0)  # and what does not wait needs none


async def test_an_array_takes_its_places_whole_or_not_at_all(world):
    engine = await world.open(slot_messages_max=LIMIT)
    await world.send(*[5_000] * 6)
    with pytest.raises(CongestedError):
        await world.send(*[5_000] * 5)
    with pytest.raises(CongestedError):
        await world.send(9_000, *[5_000] * 5)
    assert (await engine.messages.wheel()).pending == 6
    await world.send(*[5_000] * 4)
    with pytest.raises(CongestedError):
        await world.send(5_000)


@pytest.mark.parametrize("start", ["restart", "crash", "lose_index"])
async def test_counts_are_right_after_recall_reschedule_and_a_start(world, start):
    engine = await world.open(slot_messages_max=LIMIT)
    ids = await world.send_ids(*[5_000] * LIMIT)
    far = await world.send_ids(*[90_000_000] * LIMIT)
    await engine.recalls.recall(ids[0])
    await engine.recalls.recall(far[0])
    await engine.recalls.reschedule(ids[1], {"TIMER_DELAY_MS": "9000"})
    await engine.recalls.reschedule(far[1], {"TIMER_DELAY_MS": "0"})
    await getattr(world, start)()
    for delay_ms, room in ((5_000, 2), (90_000_000, 2), (9_000, LIMIT - 1)):
        await world.send(*[delay_ms] * room)
        with pytest.raises(CongestedError):
            await world.send(delay_ms)


async def test_places_are_free_again_after_firing(world):
    await world.open(slot_messages_max=LIMIT)
    await world.send(*[1_000] * LIMIT)
    await world.advance(1_000)
    await world.send(*[1] * LIMIT)
    with pytest.raises(CongestedError):
        await world.send(2)


@pytest.mark.parametrize("delay_ms", [1_000, 90_000_000])
async def test_a_reschedule_into_a_full_slot_is_refused_and_leaves_the_message(world, delay_ms):
    engine = await world.open(slot_messages_max=LIMIT)
    [message_id] = await world.send_ids(delay_ms)
    full = await world.send_ids(*[5_000] * LIMIT)
    with pytest.raises(CongestedError):
        await engine.recalls.reschedule(message_id, {"TIMER_DELAY_MS": "5000"})
    assert len(engine.core.in_flight) == 0
    assert (await engine.messages.get(message_id)).state is State.SCHEDULED
    await world.advance(delay_ms)
    await world.advance(5_000)
    assert sorted(await world.delivered_ids()) == sorted([message_id, *full])


async def test_a_reschedule_within_its_own_full_second_is_allowed(world):
    """It takes the place that it gives up: the count does not grow."""
    engine = await world.open(slot_messages_max=LIMIT)
    ids = await world.send_ids(*[5_000] * LIMIT)
    await engine.recalls.reschedule(ids[0], {"TIMER_DELAY_MS": "5001"})
    assert (await engine.messages.wheel()).pending == LIMIT


async def test_overdue_messages_are_never_refused_by_the_limit(world):
    await world.open()
    ids = await world.send_ids(*[5_000] * 40)
    await world.engine.close()
    world.clock.advance(90_000_000)
    await world.open(slot_messages_max=LIMIT)
    assert await world.delivered_ids() == ids


async def test_limit_that_is_off_keeps_no_counts(world):
    engine = await world.open()
    await world.send(*[5_000] * 300)
    await engine.sender.send([Outgoing("orders", b"", {"TIMER_DELAY_MS": "90000000"})])
    await world.restart()
    assert not world.engine.core.slot_limit.waiting
    assert not world.engine.core.slot_limit.arriving


@pytest.mark.parametrize("start", ["restart", "crash", "lose_index"])
async def test_what_groups_hold_takes_no_places_after_a_start_either(world, start):
    engine = await world.open(slot_messages_max=5)
    await world.send(*[0] * 5)
    got = await engine.groups.receive(
        "orders", "g", count_max=5, invisible_ms=29_000, terms=GroupTerms(create=True)
    )
    due_ms = world.clock.now_ms() + 29_000 + 10_000
    engine = await getattr(world, start)()
    assert all(result.ok for result in await engine.groups.ack("orders", "g", [d.receipt for d in got]))
    await world.send(*[due_ms - world.clock.now_ms()] * 5)
