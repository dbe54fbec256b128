"""Many messages get another due time: by id, or by conditions; each once, and each with one true end."""

import asyncio
import random

import pytest

from tests.harness.drive import read_all, settle
from timerwheel.model.messages import Outgoing, State
from timerwheel.runtime.bulk_changes import moved_to, shifted
from timerwheel.runtime.recall_filter import RecallFilter

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
ORDERS = RecallFilter(topic="orders")


async def send(world, *delays_ms, topic="orders", **fields):
    messages = [Outgoing(topic, b"b%d" % n, after_ms=delay, **fields) for n, delay in enumerate(delays_ms)]
    return await world.engine.sender.send(messages)


async def dues(world):
    page = await world.engine.messages.pending(limit=1000)
    return {message.id: message.due_ms for message in page.messages}


@pytest.mark.parametrize("shift_ms", [2 * HOUR_MS, -HOUR_MS, 40 * DAY_MS])
@pytest.mark.parametrize("start", [None, "commit", "crash"])
async def test_each_message_is_shifted_once_from_its_own_time(world, shift_ms, start):
    engine = await world.open()
    sent = await send(world, *(2 * HOUR_MS + n * 1_800_000 for n in range(200)))
    others = await send(world, HOUR_MS, topic="others")
    if start == "commit":
        await engine.indexer.commit()
    elif start == "crash":
        engine = await world.crash(random.Random(3))
    count = await engine.bulk_recalls.reschedule_where(ORDERS, shifted(shift_ms))
    assert (count.matched, count.rescheduled, count.missed, count.refused) == (200, 200, 0, 0)
    expected = {one.id: one.due_ms + shift_ms for one in sent} | {others[0].id: others[0].due_ms}
    assert await dues(world) == expected
    await world.crash(random.Random(4))
    assert await dues(world) == expected


async def test_while_the_index_commits_no_message_is_shifted_twice(world):
    engine = await world.open(index_records_max=20)
    sent = await send(world, *(DAY_MS + n * HOUR_MS for n in range(150)))
    await engine.indexer.commit()

    async def commit_again():
        while True:
            await engine.indexer.tick()
            await asyncio.sleep(0)

    committing = asyncio.create_task(commit_again())
    count = await engine.bulk_recalls.reschedule_where(ORDERS, shifted(10 * HOUR_MS))
    committing.cancel()
    assert count.rescheduled == 150
    assert await dues(world) == {one.id: one.due_ms + 10 * HOUR_MS for one in sent}


async def test_one_time_for_all_and_a_time_in_the_past(world):
    engine = await world.open()
    sent = await send(world, HOUR_MS, 2 * HOUR_MS, 3 * HOUR_MS)
    to = moved_to({"TIMER_DELAY_SEC": "60"}, engine.sender.rules)
    assert (await engine.bulk_recalls.reschedule_where(ORDERS, to)).rescheduled == 3
    assert set((await dues(world)).values()) == {world.clock.now_ms() + 60_000}
    assert (await engine.bulk_recalls.reschedule_where(ORDERS, shifted(-DAY_MS))).rescheduled == 3
    await settle(engine)
    assert {message.id for message in await read_all(engine, "orders")} == {one.id for one in sent}


async def test_a_dry_run_counts_and_changes_nothing(world):
    engine = await world.open()
    await send(world, HOUR_MS, 2 * HOUR_MS)
    before, tail = await dues(world), engine.core.log.tail
    count = await engine.bulk_recalls.reschedule_where(ORDERS, shifted(HOUR_MS), dry_run=True)
    assert (count.matched, count.rescheduled) == (2, 0)
    assert (await dues(world), engine.core.log.tail) == (before, tail)


async def test_conditions_choose_as_for_a_recall(world):
    engine = await world.open()
    await send(world, HOUR_MS, 2 * HOUR_MS, properties={"TAGS": "a", "KEYS": "order-1"})
    await send(world, HOUR_MS, properties={"TAGS": "b"})
    now_ms = world.clock.now_ms()
    for condition, matched in (
        (RecallFilter(tag="a || c"), 2),
        (RecallFilter(key_prefix="order"), 2),
        (RecallFilter(topic="orders", due_to_ms=now_ms + HOUR_MS + 1), 2),
        (RecallFilter(topic="none"), 0),
    ):
        count = await engine.bulk_recalls.reschedule_where(condition, shifted(0), dry_run=True)
        assert count.matched == matched


async def test_ids_are_answered_one_by_one(world):
    engine = await world.open()
    first, second, ended, gone = await send(world, HOUR_MS, 2 * HOUR_MS, HOUR_MS, 0)
    await engine.recalls.recall(ended.id)
    half = await engine.transactions.begin(Outgoing("orders", b"h"))
    ids = [first.id, "0" * 24, ended.id, gone.id, half.id, second.id, first.id]
    results = await engine.bulk_recalls.reschedule_many(ids, shifted(HOUR_MS))
    codes = [None, "unknown_message", "already_recalled", "already_delivered", "open_transaction", None, None]
    assert [one.code for one in results] == codes
    assert [results[0].due_ms, results[5].due_ms] == [first.due_ms + HOUR_MS, second.due_ms + HOUR_MS]
    assert results[6] == results[0]
    found = await dues(world)
    assert (found[first.id], found[second.id]) == (first.due_ms + HOUR_MS, second.due_ms + HOUR_MS)


async def test_what_is_too_far_away_or_in_a_full_second_stays_as_it_is(world):
    engine = await world.open(slot_messages_max=2, max_delay_ms=10 * DAY_MS)
    near, *others = await send(world, HOUR_MS, 2 * HOUR_MS, 3 * HOUR_MS, 9 * DAY_MS)
    count = await engine.bulk_recalls.reschedule_where(ORDERS, shifted(2 * DAY_MS))
    assert (count.rescheduled, count.refused) == (3, 1)
    results = await engine.bulk_recalls.reschedule_many([others[2].id], shifted(2 * DAY_MS))
    assert [one.code for one in results] == ["delay_too_long"]
    to = moved_to({"TIMER_DELAY_MS": str(HOUR_MS)}, engine.sender.rules)
    count = await engine.bulk_recalls.reschedule_where(ORDERS, to)
    assert (count.matched, count.rescheduled, count.refused) == (4, 2, 2)
    assert len(await dues(world)) == 4
    assert near.id in await dues(world)


async def test_large_bodies_go_in_units_that_fit_a_batch(world):
    engine = await world.open(batch_bytes_max=4_096, segment_size_bytes=1 << 16)
    sent = [
        receipt
        for n in range(4)
        for receipt in await engine.sender.send([Outgoing("orders", b"b" * 1_500, after_ms=HOUR_MS + n)])
    ]
    count = await engine.bulk_recalls.reschedule_where(ORDERS, shifted(HOUR_MS))
    assert count.rescheduled == 4
    assert await dues(world) == {one.id: one.due_ms + HOUR_MS for one in sent}
    results = await engine.bulk_recalls.reschedule_many([one.id for one in sent], shifted(HOUR_MS))
    assert [one.due_ms for one in results] == [one.due_ms + 2 * HOUR_MS for one in sent]


@pytest.mark.parametrize("spins", range(8))
async def test_raced_with_firing_each_message_has_one_end(world, spins):
    engine = await world.open()
    sent = await send(world, *(1_000 + n % 3 for n in range(60)))
    world.clock.advance(1_001)
    for _ in range(spins):
        await asyncio.sleep(0)
    count = await engine.bulk_recalls.reschedule_where(ORDERS, shifted(HOUR_MS))
    await settle(engine)
    delivered = {message.id for message in await read_all(engine, "orders")}
    waiting = await dues(world)
    assert delivered | waiting.keys() == {one.id for one in sent}
    assert not delivered & waiting.keys()
    assert len(waiting) == count.rescheduled
    world.clock.advance(HOUR_MS + 10)
    await settle(engine)
    found = [message.id for message in await read_all(engine, "orders")]
    assert sorted(found) == sorted(one.id for one in sent)


async def test_keys_and_ids_stay(world):
    engine = await world.open()
    delay = {"TIMER_DELAY_MS": str(HOUR_MS)}
    [sent] = await engine.sender.send([Outgoing("orders", b"x", delay, dedup_key="k")])
    await engine.bulk_recalls.reschedule_where(ORDERS, shifted(HOUR_MS))
    assert await engine.keys.id_of("orders", "k") == sent.id
    assert (await engine.recalls.recall(sent.id)).state is State.RECALLED
