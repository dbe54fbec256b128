"""Two things at once: one is held up in its thread at the worst moment, the other goes on."""

import asyncio
import shutil

import pytest

from tests.harness.cold import make_cold
from tests.harness.drive import settle
from tests.harness.held import go_on, open_held
from tests.integration.engine.test_failure import PLENTY, damage_record, dropped
from tests.integration.index.test_dedup import HOUR_MS, keyed, send_one
from timerwheel.errors import CongestedError
from timerwheel.model.messages import Outgoing, State
from timerwheel.state.config_table import Put
from timerwheel.state.dedup_key import KEY_KEPT_MS
from timerwheel.state.log_manifest import read_start
from timerwheel.store.errors import NoSpaceError

DAY_MS = 24 * HOUR_MS


async def test_retention_leaves_a_timer_alone_whose_recall_is_being_stored(world):
    threads = await open_held(world, retention_ms=1_000)
    engine = world.engine
    [far, other] = await world.send_ids(30 * DAY_MS, 30 * DAY_MS)
    await world.roll()
    await world.advance(2_000)
    with threads.holding("append"):
        recall = asyncio.create_task(engine.recalls.recall(far))
        await go_on()
        turn = asyncio.create_task(engine.retention.turn())
        await go_on()
        assert not recall.done()
    assert (await recall).state is State.RECALLED
    await turn
    await settle(engine)
    roots = [int(message_id[:16], 16) for message_id in (far, other)]
    assert (
        engine.core.state.pointer_of(roots[1]) > engine.core.log.bases[1]
    )  # retention did move the other one
    assert (await engine.messages.get(far)).state is State.RECALLED
    assert await world.pending_ids() == [other]
    await world.lose_index()
    assert await world.pending_ids() == [other]
    await world.advance(30 * DAY_MS)
    assert await world.delivered_ids() == [other]


@pytest.mark.parametrize("space", [True, False])
async def test_a_timer_whose_recall_is_being_stored_is_not_loaded_a_second_time(world, space):
    threads = await open_held(world)
    engine = world.engine
    [far] = await world.send_ids(60_000)
    await engine.indexer.commit()
    with threads.holding("append"):
        recall = asyncio.create_task(engine.recalls.recall(far))
        await go_on()
        world.clock.advance(59_500)
        await go_on(500)
        assert engine.core.near.until_ms > world.clock.now_ms() + 500
        assert not recall.done()
        world.files.space_bytes = PLENTY if space else 0
    if space:
        assert (await recall).state is State.RECALLED
    else:
        with pytest.raises(NoSpaceError):
            await recall
    world.files.space_bytes = PLENTY
    await world.advance(500)
    await world.advance(60_000)
    assert await world.delivered_ids() == ([] if space else [far])


async def test_a_recall_waits_for_the_firing_that_is_being_stored(world):
    threads = await open_held(world)
    engine = world.engine
    [message_id] = await world.send_ids(1_000)
    with threads.holding("append"):
        world.clock.advance(1_000)
        await go_on()
        recall = asyncio.create_task(engine.recalls.recall(message_id))
        await go_on()
        assert not recall.done()
        world.files.space_bytes = 0
    with pytest.raises(NoSpaceError):
        await recall
    assert (await engine.messages.get(message_id)).state is State.SCHEDULED
    world.files.space_bytes = PLENTY
    await world.advance(500)
    assert await world.delivered_ids() == [message_id]


async def test_no_batch_overtakes_one_that_found_no_space(world):
    threads = await open_held(world, fire_records_max=7)
    engine = world.engine
    ids = await world.send_ids(*[1_000 + n for n in range(14)])
    make_cold(engine)
    with threads.holding("read_many", after=1):
        with threads.holding("append"):
            world.clock.advance(1_100)
            await go_on()
            assert len(engine.core.in_flight) == 14  # one batch waits for the log, the next for its records
            world.files.space_bytes = 0
        await go_on()
        assert engine.firing.retries == 1
        world.files.space_bytes = PLENTY
    await go_on()
    await world.advance(500)
    assert await world.delivered_ids() == ids


async def test_a_key_that_was_taken_during_a_failed_index_commit_stays_taken(world):
    threads = await open_held(world)
    engine = world.engine
    await send_one(world, keyed("before"))
    environment = engine.core.index.index.env
    with threads.holding("commit"):
        commit = asyncio.create_task(engine.indexer.commit())
        await go_on()
        meanwhile = await send_one(world, keyed())
        environment.set_mapsize(1)  # LMDB keeps what is in use
    with pytest.raises(NoSpaceError):
        await commit
    environment.set_mapsize(1 << 28)
    for start in (None, "commit", "restart"):
        if start == "commit":
            await engine.indexer.commit()
        elif start is not None:
            await world.restart()
        again = await send_one(world, keyed())
        assert (again.id, again.duplicate) == (meanwhile.id, True)
        assert (await send_one(world, keyed("before"))).duplicate


async def test_an_index_commit_begins_with_a_sync_of_the_log(world):
    engine = await world.open(flush="async")
    for count in (1, 7, 20):
        await world.send(*[0] * count, *[HOUR_MS] * count)
        await engine.indexer.commit()
        assert engine.core.index.state.until == engine.core.log.synced == engine.core.log.tail
    [lost] = await world.send_ids(HOUR_MS)
    await engine.abandon()
    world.files = dropped(world.files)
    engine = await world.open()
    assert engine.recovered.rebuilt is None
    assert len(await world.pending_ids()) == 28
    assert lost not in await world.pending_ids()


async def test_the_manifest_of_retention_knows_of_nothing_that_a_crash_may_forget(world):
    threads = await open_held(world, flush="async", retention_ms=1_000)
    engine = world.engine
    await world.roll()
    await world.advance(2_000)
    with threads.holding("_queue_firsts"):
        turn = asyncio.create_task(engine.retention.turn())
        await go_on()
        await engine.control.put([Put("topic", "orders", {"ordered": True, "queues": 1})])
        assert engine.core.log.synced < engine.core.log.tail
    assert await turn == 1
    manifest = read_start(world.files, engine.core.log.directory)
    assert manifest.settings_until <= engine.core.log.synced
    await engine.abandon()
    world.files = dropped(world.files)
    engine = await world.open()
    assert engine.control.get("topic", "orders") == {"ordered": True, "queues": 1}


@pytest.mark.parametrize("cut_bytes", [1, 40, 100])
async def test_messages_and_the_settings_that_were_sent_with_them_are_kept_or_lost_together(world, cut_bytes):
    engine = await world.open()
    [kept] = await world.send_ids(HOUR_MS)
    await engine.sender.send(
        [Outgoing("orders", b"x", {"TIMER_DELAY_MS": "1000"})] * 3,
        puts=[Put("topic", "orders", {"ordered": True})],
    )
    path = str(engine.core.log.path(engine.core.log.bases[-1]))
    await engine.abandon()
    node = world.files.names_now[path]
    del node.data[engine.core.log.tail - engine.core.log.bases[-1] - cut_bytes :]
    node.durable = bytes(node.data)
    (world.directory / "index").rename(world.directory / "lost")
    engine = await world.open()
    assert engine.control.get("topic", "orders") is None
    assert await world.pending_ids() == [kept]


async def test_the_sweep_keeps_a_key_whose_message_was_delivered_and_cannot_be_read(world):
    engine = await world.open()
    first = await send_one(world, keyed(delay_ms=1_000))
    await world.advance(1_000)
    [delivered] = engine.core.state.topics["orders"].queues[0].tail
    position = delivered[1][0]
    await engine.indexer.commit()
    damage_record(world, f"{int(position['offset']):016x}")
    await world.advance(KEY_KEPT_MS + 1)
    await engine.keys.sweep()
    again = await send_one(world, keyed(delay_ms=1_000))
    assert (again.id, again.duplicate) == (first.id, True)
    assert await world.pending_ids() == []


@pytest.mark.parametrize("index", ["kept", "lost"])
async def test_a_start_after_a_step_back_loads_what_ever_fired_in_a_bounded_number_of_looks(world, index):
    await world.open()
    delivered, waiting = await world.send_ids(1_000, 1_900)
    await world.advance(1_000)
    await world.step(-HOUR_MS)
    fired_until_ms = world.engine.core.state.fired_until_ms
    await world.engine.close()
    if index == "lost":
        shutil.rmtree(world.directory / "index")
    await open_held(world, calls_max=500)
    assert world.engine.core.near.until_ms >= fired_until_ms
    assert (await world.engine.messages.get(delivered)).state is State.DELIVERED
    assert (await world.engine.messages.get(waiting)).state is State.SCHEDULED


async def test_a_reschedule_whose_caller_goes_away_keeps_its_place_in_the_second(world):
    threads = await open_held(world, slot_messages_max=1)
    engine = world.engine
    [message_id] = await world.send_ids(HOUR_MS)
    with threads.holding("append"):
        rescheduling = asyncio.create_task(engine.recalls.reschedule(message_id, {"TIMER_DELAY_MS": "5000"}))
        await go_on()
        rescheduling.cancel()
        await go_on()
        sending = asyncio.create_task(world.send(5_000))
        await go_on()
    with pytest.raises(CongestedError):
        await sending
    await settle(engine)
    assert [message.due_ms for message in (await engine.messages.pending()).messages] == [
        world.clock.now_ms() + 5_000
    ]
