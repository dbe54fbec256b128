"""Outages of any length, and clocks that step: never early, never twice, everything in due order."""

import asyncio

import pytest

from tests.harness.drive import settle
from tests.harness.world import SPINS_TO_SLEEP
from timerwheel.engine import Engine
from timerwheel.model.messages import Outgoing, State
from timerwheel.runtime.indexer import OVERDUE_TIMES

DAY_MS = 86_400_000
DELAYS_MS = [
    3, 900, 1_000, 1_999, 2_000, 59_999, 60_000, 61_000, 180_000, 181_000, 3_600_000, 3_700_000, 7_200_001,
    50 * 3_600_000, 3 * DAY_MS, 3 * DAY_MS, 40 * DAY_MS, 400 * DAY_MS, 800 * DAY_MS,
]  # fmt: skip


def in_due_order(receipts):
    return [receipt.id for receipt in sorted(receipts, key=lambda r: (r.due_ms, r.id))]


@pytest.mark.parametrize("outage_ms", [3_600_000, 5 * DAY_MS, 900 * DAY_MS, 9 * 365 * DAY_MS])
@pytest.mark.parametrize("start", ["open", "lose index"])
async def test_after_an_outage_everything_overdue_comes_at_once_in_due_order(world, outage_ms, start):
    await world.open()
    receipts = await world.send(*DELAYS_MS, *reversed(DELAYS_MS), *[70_000 + n * 137 for n in range(150)])
    await world.engine.close()
    world.clock.advance(outage_ms)
    await (world.open() if start == "open" else world.lose_index())
    overdue = [receipt for receipt in receipts if receipt.due_ms <= world.clock.now_ms()]
    assert await world.delivered_ids() == in_due_order(overdue)
    waiting = [receipt for receipt in receipts if receipt.due_ms > world.clock.now_ms()]
    assert await world.pending_ids() == in_due_order(waiting)
    await world.advance(801 * DAY_MS)
    assert await world.delivered_ids() == in_due_order(receipts)


async def test_new_work_flows_while_an_outage_is_caught_up(world):
    engine = await world.open(near_entries_max=20, fire_records_max=5)
    receipts = await world.send(*[n * 1_000 for n in range(1, 301)])
    await engine.close()
    world.clock.advance(DAY_MS)
    world.engine = engine = await Engine.open(engine.settings, world.clock, world.files, threads=False)
    [now_id] = await world.send_ids(0, topic="now")
    assert await world.delivered_ids("now") == [now_id]
    assert engine.core.state.pending > 200
    await settle(engine)
    assert await world.delivered_ids() == in_due_order(receipts)


async def test_overdue_messages_in_the_live_engine_come_in_due_order_after_a_jump(world):
    await world.open(near_entries_max=10)
    receipts = await world.send(*[1 + (n * 7_919) % 500_000 for n in range(200)])
    await world.advance(500_001)
    assert await world.delivered_ids() == in_due_order(receipts)


async def pass_time(world, duration_ms, step_ms=20):
    """Let time pass while the engine works: in no step can it do all that it could.

    Returns how much of the time ahead was at least loaded, and how many timers were at most in memory.
    """
    near = world.engine.core.near
    ahead_ms, most = near.until_ms - world.clock.now_ms(), 0
    for _ in range(duration_ms // step_ms):
        world.clock.advance(step_ms)
        for _ in range(SPINS_TO_SLEEP):
            await asyncio.sleep(0)
        ahead_ms = min(ahead_ms, near.until_ms - world.clock.now_ms())
        most = max(most, len(near))
    return ahead_ms, most


async def test_a_second_that_holds_more_than_is_loaded_keeps_those_after_it_from_nothing(world):
    engine = await world.open(near_entries_max=40, fire_records_max=2)
    crowd = await world.send(*[10_980] * 300, topic="crowd")
    others = await world.send(*range(11_000, 14_000, 20), topic="others")
    ahead_ms, most = await pass_time(world, 11_020)
    assert most >= 300
    assert ahead_ms >= 1_000
    assert 0 < len(await world.delivered("crowd")) < 300, "the crowd is at it when others are due"
    await pass_time(world, 3_000)
    await settle(engine)
    assert await world.delivered_ids("crowd") == [receipt.id for receipt in crowd]
    messages = await world.delivered("others")
    assert [message.id for message in messages] == [receipt.id for receipt in others]
    assert all(message.delivered_ms == message.due_ms for message in messages)


async def test_no_more_is_loaded_while_too_much_is_overdue_and_all_of_it_comes_once(world):
    limit = 10
    await world.open(near_entries_max=limit)
    receipts = await world.send(*range(100, 60_100, 100))
    world.files.space_bytes = 0
    ahead_ms, most = await pass_time(world, 61_000, step_ms=100)
    assert await world.delivered_ids() == []
    assert ahead_ms < 0, "what is due next is left in the index"
    assert OVERDUE_TIMES * limit < most < 2 * OVERDUE_TIMES * limit < len(receipts)
    world.files.space_bytes = 1 << 40
    await world.advance(1_000)
    assert await world.delivered_ids() == in_due_order(receipts)


@pytest.mark.parametrize("then", ["nothing", "restart", "crash", "lose_index"])
async def test_a_step_back_of_an_hour_fires_nothing_early_and_nothing_twice(world, then):
    engine = await world.open()
    receipts = await world.send(500, 1_000, 1_500, 30_000, 3_599_000, 3_601_000, 2 * DAY_MS)
    await world.advance(1_000)
    before = await world.delivered_ids()
    assert len(before) == 2
    await world.step(-3_600_000)
    if then != "nothing":
        engine = await getattr(world, then)()
    assert await world.delivered_ids() == before
    receipts += await world.send(700, 5_000, 3_600_000, 3_600_700)
    for receipt in receipts[:2]:
        assert (await engine.messages.get(receipt.id)).state is State.DELIVERED
    for _ in range(4):
        await world.advance(900_000)
    await world.advance(3 * DAY_MS)
    messages = await world.delivered()
    assert sorted(message.id for message in messages) == sorted(receipt.id for receipt in receipts)
    assert all(message.delivered_ms >= message.due_ms for message in messages)


async def test_new_work_after_a_step_back_is_on_time(world):
    """What is due before times that already fired still comes at its own millisecond."""
    await world.open()
    await world.send(1_000)
    await world.advance(1_000)
    await world.step(-3_600_000)
    [receipt] = await world.send(10, topic="new")
    await world.advance(9)
    assert await world.delivered_ids("new") == []
    await world.advance(1)
    assert await world.delivered_ids("new") == [receipt.id]


async def test_recall_after_a_step_back_still_tells_the_truth(world):
    engine = await world.open()
    delivered, waiting = await world.send_ids(1_000, 1_900)
    await world.advance(1_000)
    await world.step(-3_600_000)
    engine = await world.lose_index()
    assert (await engine.messages.get(delivered)).state is State.DELIVERED
    await engine.recalls.recall(waiting)
    await world.advance(8_000_000)
    assert await world.delivered_ids() == [delivered]


async def test_a_step_forward_fires_what_became_due_in_order(world):
    await world.open()
    receipts = await world.send(3_599_000, 30_000, 500, 3_600_000, 3_600_001)
    await world.step(3_600_000)
    assert await world.delivered_ids() == [r.id for r in sorted(receipts, key=lambda r: r.due_ms)[:4]]
    await world.advance(1)
    assert len(await world.delivered_ids()) == 5


async def test_due_exactly_now_is_due(world):
    engine = await world.open()
    now_ms = world.clock.now_ms()
    [receipt] = await engine.sender.send([Outgoing("orders", b"", {"TIMER_DELIVER_MS": str(now_ms)})])
    assert receipt.state is State.DELIVERED
    assert len(await world.delivered()) == 1
