"""Closing: what was promised is kept, nobody waits for ever, and the next start finds a whole directory."""

import asyncio
import contextlib

import pytest

from tests.harness.consumers import gated
from tests.harness.gated_threads import spin
from timerwheel.errors import NotReadyError, TimerwheelError
from timerwheel.model.messages import Outgoing


async def ended(task):
    """Give a task every chance to end by itself."""
    for _ in range(2_000):
        if task.done():
            return True
        await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return False


async def test_close_leaves_nothing_for_the_next_start_to_replay(world):
    engine = await world.open()
    await world.send(*[5_000] * 30)
    await world.send(*[0] * 5)
    engine = await world.restart()
    assert engine.recovered.replayed_records == 0
    assert engine.recovered.truncation is None


async def test_close_twice_is_close_once(world):
    engine = await world.open()
    await engine.close()
    await engine.close()
    with pytest.raises(NotReadyError):
        await world.send(0)


@pytest.mark.parametrize("spins", range(0, 12, 2))
async def test_a_large_send_under_way_at_close_is_answered(world, spins):
    """It is stored whole or refused whole; it never hangs."""
    engine = await world.open()
    task = asyncio.create_task(engine.sender.send([Outgoing("orders", b"x")] * 3_000))
    for _ in range(spins):
        await asyncio.sleep(0)
    closing = asyncio.create_task(engine.close())
    assert await ended(closing)
    assert await ended(task), "the send waits for ever"
    stored = 3_000 if task.exception() is None else 0
    assert stored or isinstance(task.exception(), TimerwheelError)
    await world.open()
    assert len(await world.delivered_ids()) == stored


async def test_recalls_under_way_at_close_are_answered_and_hold(world):
    engine = await world.open()
    ids = await world.send_ids(*[5_000] * 30)
    tasks = [asyncio.create_task(engine.recalls.recall(message_id)) for message_id in ids]
    await asyncio.sleep(0)
    await engine.close()
    assert all([await ended(task) for task in tasks])
    recalled = {i for i, task in zip(ids, tasks, strict=True) if task.exception() is None}
    await world.open()
    await world.advance(5_000)
    assert set(await world.delivered_ids()) == set(ids) - recalled


async def test_firing_under_way_at_close_doubles_nothing(world):
    engine = await world.open()
    ids = await world.send_ids(*[1_000] * 50)
    world.clock.advance(1_000)
    for _ in range(3):
        await asyncio.sleep(0)
    await engine.close()
    await world.open()
    assert await world.delivered_ids() == ids


async def test_close_while_due_messages_wait_for_their_turn_leaves_no_recall_waiting(world):
    engine = await world.open(fire_records_max=1)
    ids = await world.send_ids(*[1_000] * 4)
    threads = gated(world)
    threads.writes.clear()
    await spin()
    world.clock.advance(1_000)
    await spin(100)
    # Two batches are with the log, the third waits for one of them, the fourth is in the near wheel. A change
    # of a schedule recalls as this does, and `close` waits for it.
    calls = [asyncio.create_task(engine.schedules.finish(engine.recalls.recall(one))) for one in ids]
    await spin(100)
    closing = asyncio.create_task(engine.close())
    await spin(100)
    threads.writes.set()
    assert await ended(closing)
    assert all([await ended(call) for call in calls])
    recalled = {one for one, call in zip(ids, calls, strict=True) if call.exception() is None}
    await world.open()
    assert set(await world.delivered_ids()) == set(ids) - recalled


async def test_an_index_without_room_at_close_is_logged_and_the_log_is_ended_all_the_same(world, caplog):
    engine = await world.open()
    await world.send(*[5_000] * 30)
    engine.core.index.index.env.set_mapsize(1)  # LMDB keeps what is in use
    base = engine.core.log.bases[-1]
    await engine.close()
    assert "the index lags behind the log, which the next start replays" in caplog.text
    assert world.files.open_readonly(engine.core.log.path(base)).size() == engine.core.log.tail - base
    await world.open()
    assert len(await world.pending_ids()) == 30


async def test_a_sync_that_fails_at_close_is_logged_as_an_error(world, caplog):
    engine = await world.open(flush="async")
    await world.send(*[5_000] * 3)
    world.files.fail_sync = True
    await engine.close()
    [record] = [one for one in caplog.records if one.levelname == "ERROR"]
    assert record.getMessage().startswith("the end of the log may not be on the disk: ")
