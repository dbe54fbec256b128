"""A write waits some turns of the loop for company, with `gather_ms` also for a time: fewer syncs."""

import asyncio

import msgspec
import pytest

from tests.harness.world import SPINS_TO_SLEEP
from timerwheel.model.messages import Alike
from timerwheel.runtime import group_commit
from timerwheel.runtime.group_commit import GATHER_TURNS, GATHER_TURNS_MS
from timerwheel.settings import take_over

GATHER_MS = 5


async def opened(world):
    """With the setting changed while it runs: what an opening writes waits for no clock then."""
    engine = await world.open()
    wanted = msgspec.structs.replace(engine.settings, gather_ms=GATHER_MS)
    assert take_over(engine.settings, wanted).applied == ["gather_ms"]


def syncs(world):
    return sum(step.startswith("sync ") and step.endswith(".log") for step in world.files.trace)


async def begin(world, *delays_ms, body=b"x"):
    """A send that is on its way."""
    sending = asyncio.create_task(world.send_ids(*delays_ms, body=body))
    for _ in range(SPINS_TO_SLEEP):
        await asyncio.sleep(0)
    return sending


async def pass_ms(world, duration_ms):
    """Let time pass in small steps, without waiting for anything to end."""
    for _ in range(duration_ms):
        world.clock.advance(1)
        for _ in range(SPINS_TO_SLEEP):
            await asyncio.sleep(0)


async def test_sends_within_the_time_share_a_sync_and_are_answered_after_it(world):
    await opened(world)
    before = syncs(world)
    sends = [await begin(world, 1_000)]
    world.clock.advance(GATHER_MS - 1)
    sends.append(await begin(world, 1_000))
    assert syncs(world) == before
    assert not any(sending.done() for sending in sends)
    world.clock.advance(1)
    sent = [one for sending in sends for one in await sending]
    assert syncs(world) == before + 1
    assert await world.pending_ids() == sent


async def test_what_fills_pages_by_itself_does_not_wait(world):
    await opened(world)
    [sent] = await world.send_ids(1_000, body=bytes(40_000))
    assert await world.pending_ids() == [sent]


async def test_without_the_setting_nothing_waits(world):
    await world.open()
    [sent] = await world.send_ids(1_000)
    assert await world.pending_ids() == [sent]


async def test_what_is_due_is_delivered_once_and_late_by_the_time(world):
    await opened(world)
    sending = await begin(world, 50)
    await pass_ms(world, GATHER_MS)
    [sent] = await sending
    await pass_ms(world, 50 - GATHER_MS)
    assert await world.delivered_ids() == []
    await pass_ms(world, GATHER_MS)
    assert await world.delivered_ids() == [sent]


async def test_an_engine_that_closes_does_not_gather(world):
    await opened(world)
    sending = await begin(world, 1_000)
    await world.engine.close()
    [sent] = await sending
    await world.open(gather_ms=0)
    assert await world.pending_ids() == [sent]


async def syncs_of_callers(world, *, turn_ms):
    """How many syncs serve callers of which each comes a turn of the loop after the one before."""
    before, sends = syncs(world), []
    for _ in range(GATHER_TURNS):
        sends.append(asyncio.create_task(world.send_ids(1_000)))
        await asyncio.sleep(0)
        world.clock.mono_ms += turn_ms
    await asyncio.gather(*sends)
    return syncs(world) - before


async def test_callers_who_come_some_turns_later_share_a_sync(world):
    await world.open()
    assert await syncs_of_callers(world, turn_ms=0) == 1


async def test_a_loop_with_long_turns_makes_nobody_wait_for_them(world):
    await world.open()
    assert await syncs_of_callers(world, turn_ms=GATHER_TURNS_MS) > 1


def begin_batch(world, *bodies):
    """A batch on its way."""
    batch = Alike("orders", 0, bodies, [b""] * len(bodies))
    return world.engine.sender.begin_alike(batch).stored


async def spin():
    for _ in range(SPINS_TO_SLEEP):
        await asyncio.sleep(0)


@pytest.fixture
def patient(monkeypatch):
    """The loop's timer, which no manual clock stops, ends nobody's waiting."""
    monkeypatch.setattr(group_commit, "PATIENCE_S", 3_600.0)


async def with_two_senders_of_batches(world):
    """An engine that has just stored two batches together."""
    await world.open()
    await world.send(0)
    await asyncio.gather(begin_batch(world, b"1"), begin_batch(world, b"2"))
    return syncs(world)


@pytest.mark.usefixtures("patient")
async def test_a_batch_waits_for_the_sender_with_whom_it_came_the_last_time(world):
    before = await with_two_senders_of_batches(world)
    first = begin_batch(world, b"3")
    await spin()
    assert not first.done()
    await asyncio.gather(first, begin_batch(world, b"4"))
    assert syncs(world) == before + 1


async def test_a_batch_that_waits_for_nobody_is_stored_and_the_next_one_does_not_wait(world):
    before = await with_two_senders_of_batches(world)
    await begin_batch(world, b"3")  # after PATIENCE_S
    alone = begin_batch(world, b"4")
    await spin()
    assert alone.done()
    assert syncs(world) == before + 2


@pytest.mark.usefixtures("patient")
async def test_what_is_no_batch_waits_for_none_and_takes_those_that_wait_along(world):
    before = await with_two_senders_of_batches(world)
    waiting = begin_batch(world, b"3")
    await spin()
    assert not waiting.done()
    single = asyncio.create_task(world.send_ids(1_000))
    await spin()
    assert waiting.done()
    assert single.done()
    assert syncs(world) == before + 1


@pytest.mark.usefixtures("patient")
async def test_a_large_batch_waits_for_none(world):
    await with_two_senders_of_batches(world)
    large = begin_batch(world, bytes(40_000))
    await spin()
    assert large.done()


@pytest.mark.usefixtures("patient")
async def test_an_engine_that_closes_does_not_let_batches_wait(world):
    await with_two_senders_of_batches(world)
    waiting = begin_batch(world, b"3")
    await spin()
    await world.engine.close()
    await waiting
