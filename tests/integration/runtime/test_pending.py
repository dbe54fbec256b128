"""Listing what waits: filters, and pages that give each message once."""

import random

import pytest

from timerwheel.errors import IllegalCursorError
from timerwheel.wheel.geometry import SLOT_MS

SPREAD_MS = [1, 999, 1_000, 1_999, 60_000, 179_000, 181_000, 3_600_000, 7_300_000, 200_000_000, 10**10]


async def all_pages(engine, limit, **filters):
    found, cursor = [], None
    while True:
        page = await engine.messages.pending(limit=limit, cursor=cursor, **filters)
        assert len(page.messages) <= limit
        found += [message.id for message in page.messages]
        cursor = page.cursor
        if cursor is None:
            return found


@pytest.mark.parametrize("limit", [1, 3, 7, 1_000])
async def test_pages_give_each_message_once_in_due_order_over_all_slots_and_the_stage(world, limit):
    rng = random.Random(limit)
    engine = await world.open(index_records_max=10_000)
    receipts = []
    for turn in range(8):
        receipts += await world.send(*[rng.choice(SPREAD_MS) + rng.randint(0, 3) for _ in range(12)])
        if turn in (1, 4):
            await engine.indexer.commit()
    for receipt in rng.sample(receipts, 20):
        await engine.recalls.recall(receipt.id)
        receipts.remove(receipt)
    expected = [r.id for r in sorted(receipts, key=lambda r: (r.due_ms, r.id))]
    assert engine.core.state.memtable.rows
    assert await all_pages(engine, limit) == expected
    await world.advance(170_000)
    waiting = [
        r.id for r in sorted(receipts, key=lambda r: (r.due_ms, r.id)) if r.due_ms > world.clock.now_ms()
    ]
    assert await all_pages(engine, limit) == waiting


async def test_one_due_time_shared_by_many_is_paged_without_gap(world):
    engine = await world.open()
    ids = await world.send_ids(*[90_000] * 50)
    await engine.indexer.commit()
    ids += await world.send_ids(*[90_000] * 30)
    assert await all_pages(engine, 7) == ids


async def test_what_arrives_between_pages_is_given_if_it_lies_ahead_and_nothing_twice(world):
    engine = await world.open()
    ids = await world.send_ids(*[10_000 + n * 1_000 for n in range(10)])
    first = await engine.messages.pending(limit=4)
    [behind] = await world.send_ids(5_000)
    [ahead] = await world.send_ids(15_500)
    await engine.recalls.recall(ids[8])
    rest = await engine.messages.pending(limit=100, cursor=first.cursor)
    seen = [message.id for message in (*first.messages, *rest.messages)]
    assert seen == [*ids[:6], ahead, *ids[6:8], ids[9]]
    assert behind not in seen


async def test_filters_choose_topic_and_half_open_span_of_due_times(world):
    engine = await world.open()
    now_ms = world.clock.now_ms()
    a = await world.send_ids(1_000, 2_000, 3_000, 90_000_000, topic="a")
    b = await world.send_ids(2_000, 2_500, topic="b")
    assert await all_pages(engine, 2, topic="a") == a
    assert await all_pages(engine, 1, topic="b") == b
    assert await all_pages(engine, 10, topic="never") == []
    span = {"due_from_ms": now_ms + 2_000, "due_to_ms": now_ms + 3_000}
    assert await all_pages(engine, 1, **span) == [a[1], b[0], b[1]]
    assert await all_pages(engine, 1, topic="b", **span) == b
    assert await all_pages(engine, 10, due_from_ms=now_ms + 3_000) == [a[2], a[3]]
    assert await all_pages(engine, 10, due_to_ms=now_ms + 1_000) == []
    assert await all_pages(engine, 10, due_from_ms=now_ms + 9_000, due_to_ms=now_ms) == []
    assert await all_pages(engine, 10, due_from_ms=-(10**15), due_to_ms=10**18) == [
        a[0], a[1], b[0], b[1], a[2], a[3],
    ]  # fmt: skip


@pytest.mark.parametrize("cursor", ["", ".", "zz.1", "1", "1.2.3", "1.-2", "g", "\u0661.\u0661", "1.2\n"])
async def test_a_foreign_cursor_is_refused(engine, cursor):
    with pytest.raises(IllegalCursorError):
        await engine.messages.pending(cursor=cursor)


@pytest.mark.parametrize("committed", [False, True])
async def test_wheel_and_slots_count_every_waiting_message_once(world, committed):
    engine = await world.open()
    now_ms = world.clock.now_ms()
    ids = await world.send_ids(*SPREAD_MS, *SPREAD_MS)
    await engine.recalls.recall(ids[3])
    if committed:
        await engine.indexer.commit()
    wheel = await engine.messages.wheel()
    assert wheel.pending == sum(level.count for level in wheel.levels) == 21
    assert (wheel.next_due_ms, wheel.overdue) == (now_ms + 1, 0)
    slots = await engine.messages.slots(None, 0, 1 << 60)
    assert sum(slot.count for slot in slots) == 21
    for level in wheel.levels:
        own = await engine.messages.slots(level.level, 0, 1 << 60)
        assert (len(own), sum(slot.count for slot in own)) == (level.slots, level.count)
        assert all(slot.end_ms - slot.start_ms == level.slot_ms for slot in own)
        assert level.slot_ms in SLOT_MS
    for slot in slots:
        page = await engine.messages.pending(due_from_ms=slot.start_ms, due_to_ms=slot.end_ms)
        assert len(page.messages) == slot.count


async def test_overdue_counts_what_should_have_come_out(world):
    engine = await world.open()
    await world.send(*[1_000] * 4, 5_000)
    world.files.space_bytes = 0
    world.clock.advance(2_000)
    assert (await engine.messages.wheel()).overdue == 4
    world.files.space_bytes = 1 << 40
    await world.advance(1_000)
    assert (await engine.messages.wheel()).overdue == 0
