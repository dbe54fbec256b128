"""Deduplication keys: under one key of one topic a message is stored once, whoever sends it and when."""

import asyncio
import random

import msgspec
import pytest

from tests.harness.drive import settle
from tests.harness.held import go_on, open_held
from timerwheel.errors import (
    AlreadyDeliveredError,
    AlreadyRecalledError,
    RefusedError,
    UnknownMessageError,
)
from timerwheel.index import dedup
from timerwheel.model.admission import HASH_PROPERTY, KEY_PROPERTY
from timerwheel.model.messages import Outgoing, State
from timerwheel.state import dedup_key
from timerwheel.state.config_table import Put
from timerwheel.state.dedup_key import CARRIED_BYTES, KEY_KEPT_MS
from timerwheel.store.errors import NoSpaceError
from timerwheel.store.record import FLAG_KEYED

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def keyed(key="k", body=b"x", delay_ms=HOUR_MS, topic="orders", **properties):
    if delay_ms:
        properties["TIMER_DELAY_MS"] = str(delay_ms)
    return Outgoing(topic, body, properties, dedup_key=key)


async def send_one(world, message):
    [receipt] = await world.engine.sender.send([message])
    return receipt


async def refusal_of(world, message):
    """The code that a send of this message alone is refused with; nothing is stored."""
    tail = world.engine.core.log.tail
    with pytest.raises(RefusedError) as refused:
        await world.engine.sender.send([message])
    assert world.engine.core.log.tail == tail
    [fault] = refused.value.faults
    return fault.code


async def start_again(world, start):
    if start == "commit":
        await world.engine.indexer.commit()
    elif start == "crash":
        await world.crash(random.Random(5))
    elif start is not None:
        await getattr(world, start)()


def index_keys(engine):
    """Rows of keys and of ends that the index holds."""
    with engine.core.index.index.read() as txn:
        return [sum(1 for _ in txn.items(table)) for table in (dedup.TABLE, dedup.ENDS_TABLE)]


STARTS = [None, "commit", "restart", "crash", "lose_index"]


@pytest.mark.parametrize("delay_ms", [0, 1_500, HOUR_MS, 50 * DAY_MS])
@pytest.mark.parametrize("start", STARTS)
async def test_the_same_message_again_gets_the_first_id_and_stores_nothing(world, start, delay_ms):
    await world.open()
    first = await send_one(world, keyed(delay_ms=delay_ms))
    assert not first.duplicate
    await start_again(world, start)
    tail = world.engine.core.log.tail
    again = await send_one(world, keyed(delay_ms=delay_ms))
    assert (again.id, again.due_ms, again.state) == (first.id, first.due_ms, first.state)
    assert again.duplicate
    assert world.engine.core.log.tail == tail
    await world.advance(delay_ms)
    assert await world.delivered_ids() == [first.id]


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize(
    "other",
    [
        keyed(body=b"y"),
        keyed(delay_ms=HOUR_MS + 1),
        keyed(delay_ms=0),
        keyed(TAGS="a"),
    ],
)
async def test_another_message_under_the_key_is_refused_and_nothing_of_the_array_is_stored(
    world, start, other
):
    await world.open()
    await send_one(world, keyed())
    await start_again(world, start)
    tail = world.engine.core.log.tail
    with pytest.raises(RefusedError) as refused:
        await world.engine.sender.send([keyed("new"), Outgoing("orders", b"plain"), other])
    assert [(fault.index, fault.code) for fault in refused.value.faults] == [(2, "key_reused")]
    assert world.engine.core.log.tail == tail
    assert not (await send_one(world, keyed("new"))).duplicate


async def test_within_one_array_a_key_stores_once_and_the_repeats_say_so(world):
    engine = await world.open()
    plain = Outgoing("orders", b"x", {"TIMER_DELAY_MS": "5000"})
    receipts = await engine.sender.send(
        [keyed("a"), plain, keyed("b"), keyed("a"), plain, keyed("b"), keyed("a")]
    )
    assert [receipt.duplicate for receipt in receipts] == [False, False, False, True, False, True, True]
    assert receipts[0].id == receipts[3].id == receipts[6].id
    assert receipts[2].id == receipts[5].id
    assert len(await world.pending_ids()) == len({receipt.id for receipt in receipts}) == 4
    with pytest.raises(RefusedError) as refused:
        await engine.sender.send([keyed("c"), keyed("c", b"y"), keyed("d"), keyed("a", b"z")])
    assert [fault.index for fault in refused.value.faults] == [1, 3]
    assert len(await world.pending_ids()) == 4


async def test_topics_have_their_own_keys(world):
    engine = await world.open()
    receipts = [await send_one(world, keyed(topic=topic)) for topic in ("orders", "tickets", "orders")]
    assert [receipt.duplicate for receipt in receipts] == [False, False, True]
    assert await engine.keys.id_of("tickets", "k") == receipts[1].id


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("end", ["delivery", "recall", "at once"])
async def test_a_key_lives_a_day_after_its_message_and_is_free_then(world, end, start):
    engine = await world.open()
    first = await send_one(world, keyed(delay_ms=0 if end == "at once" else HOUR_MS))
    if end == "recall":
        await engine.recalls.recall(first.id)
    elif end == "delivery":
        await world.advance(HOUR_MS)
    await start_again(world, start)
    again = keyed(delay_ms=0 if end == "at once" else HOUR_MS)
    await world.advance(KEY_KEPT_MS - 1)
    if end == "recall":
        assert await refusal_of(world, again) == "key_recalled"
    else:
        receipt = await send_one(world, again)
        assert (receipt.id, receipt.duplicate, receipt.state) == (first.id, True, State.DELIVERED)
    await world.advance(1)
    with pytest.raises(UnknownMessageError):
        await world.engine.keys.id_of("orders", "k")
    second = await send_one(world, keyed(body=b"another"))
    assert (second.duplicate, second.id == first.id) == (False, False)
    await start_again(world, start)
    assert (await send_one(world, keyed(body=b"another"))).id == second.id
    assert await world.engine.keys.id_of("orders", "k") == second.id


@pytest.mark.parametrize("start", STARTS)
async def test_a_reschedule_to_later_keeps_the_key_as_long(world, start):
    engine = await world.open()
    first = await send_one(world, keyed())
    for turn in range(1, 4):
        await engine.recalls.reschedule(first.id, {"TIMER_DELAY_MS": str(10 * DAY_MS)})
        await start_again(world, start)
        engine = world.engine
        await world.advance(9 * DAY_MS)
        await engine.keys.sweep()
        assert (await send_one(world, keyed())).id == first.id, turn
    await world.advance(DAY_MS)
    assert await world.delivered_ids() == [first.id]
    await world.advance(KEY_KEPT_MS - 1)
    await engine.keys.sweep()
    assert (await send_one(world, keyed())).duplicate
    await world.advance(1)
    assert not (await send_one(world, keyed())).duplicate


async def test_a_reschedule_to_sooner_and_to_now_end_the_key_sooner(world):
    engine = await world.open()
    ids = [(await send_one(world, keyed(key, delay_ms=30 * DAY_MS))).id for key in "ab"]
    await engine.recalls.reschedule(ids[0], {"TIMER_DELAY_MS": "1000"})
    await engine.recalls.reschedule(ids[1], {"TIMER_DELAY_MS": "0"})
    await world.advance(1_000)
    await world.advance(KEY_KEPT_MS - 1_000)
    duplicates = [(await send_one(world, keyed(key, delay_ms=30 * DAY_MS))).duplicate for key in "ab"]
    assert duplicates == [True, False]
    await world.advance(1_000)
    assert not (await send_one(world, keyed("a", delay_ms=30 * DAY_MS))).duplicate


@pytest.mark.parametrize("start", STARTS)
async def test_retention_that_moves_the_timer_keeps_the_key(world, start):
    engine = await world.open(retention_ms=1_000)
    first = await send_one(world, keyed(delay_ms=30 * DAY_MS))
    for _ in range(3):
        await world.roll()
        await world.advance(DAY_MS + 1)
        await world.retention_turn()
    assert engine.core.log.start > int(first.id[:16], 16)
    await start_again(world, start)
    again = await send_one(world, keyed(delay_ms=30 * DAY_MS))
    assert (again.id, again.duplicate) == (first.id, True)
    assert await world.engine.keys.id_of("orders", "k") == first.id
    with pytest.raises(RefusedError):
        await send_one(world, keyed(body=b"other"))
    view = await world.engine.recalls.recall_key("orders", "k")
    assert (view.id, view.state) == (first.id, State.RECALLED)


@pytest.mark.parametrize("start", STARTS)
async def test_a_retention_shorter_than_a_day_leaves_a_key_its_day_without_its_segment(world, start):
    await world.open(retention_ms=1_000)
    delayed = await send_one(world, keyed("d", delay_ms=1_000))
    at_once = await send_one(world, keyed("n", delay_ms=0))
    ended_ms = world.clock.now_ms() + 1_000
    await world.advance(1_000)
    starts = [world.engine.core.log.start]
    for _ in range(5):
        await world.roll()
        await world.advance(4 * HOUR_MS)
        await world.retention_turn()
        starts.append(world.engine.core.log.start)
        await start_again(world, start)
        for first, sent in ((delayed, keyed("d", delay_ms=1_000)), (at_once, keyed("n", delay_ms=0))):
            again = await send_one(world, sent)
            assert (again.id, again.duplicate, again.state) == (first.id, True, State.DELIVERED)
        assert await refusal_of(world, keyed("d", body=b"other")) == "key_reused"
    assert starts == sorted(set(starts))
    assert starts[1] > int(at_once.id[:16], 16)
    await world.advance(ended_ms + KEY_KEPT_MS - world.clock.now_ms() - 1)
    assert (await send_one(world, keyed("d", delay_ms=1_000))).id == delayed.id
    await world.advance(1)
    assert not (await send_one(world, keyed("d", delay_ms=1_000))).duplicate
    assert not (await send_one(world, keyed("n", delay_ms=0))).duplicate


@pytest.mark.parametrize("start", STARTS)
async def test_a_carried_key_of_a_recalled_message_refuses_its_repeats_and_is_free_for_others(world, start):
    await world.open(retention_ms=1_000)
    first = await send_one(world, keyed(body=b"1"))
    await world.engine.recalls.reschedule(first.id, {"TIMER_DELAY_MS": str(2 * HOUR_MS)})
    await world.engine.recalls.recall(first.id)
    second = await send_one(world, keyed(body=b"2"))
    await world.engine.recalls.recall(second.id)
    for _ in range(3):
        await world.roll()
        await world.advance(4 * HOUR_MS)
        await world.retention_turn()
        await start_again(world, start)
    assert world.engine.core.log.start > int(second.id[:16], 16)
    for body in (b"1", b"2"):
        assert await refusal_of(world, keyed(body=body)) == "key_recalled"
    named = msgspec.structs.replace(keyed(body=b"2"), after_recall=second.id)
    third = await send_one(world, named)
    assert not third.duplicate
    await start_again(world, start)
    assert (await send_one(world, keyed(body=b"2"))).id == third.id
    await world.engine.recalls.recall(third.id)
    for body in (b"1", b"2"):
        assert await refusal_of(world, keyed(body=body)) == "key_recalled"


async def test_of_a_segments_keys_only_those_that_count_are_carried(world):
    engine = await world.open(retention_ms=22 * HOUR_MS)
    await send_one(world, keyed("over", delay_ms=0))
    await world.advance(20 * HOUR_MS)
    await send_one(world, keyed("counts", delay_ms=0))
    await world.roll()
    await world.advance(23 * HOUR_MS)
    await world.retention_turn()
    [table] = engine.core.log.tables(engine.core.log.start)
    rows = table.rows[table.rows["flags"] & FLAG_KEYED != 0]
    carried = dedup_key.keys_of(rows, engine.core.log.read_many(rows["offset"], rows["size"]))
    assert list(carried) == [dedup_key.digest_of("orders", "counts")]


async def test_keys_that_ended_a_day_ago_are_carried_no_further(world):
    await world.open(retention_ms=1_000)
    await send_one(world, keyed(delay_ms=1_000))
    await world.advance(1_000)
    for _ in range(8):
        await world.roll()
        await world.advance(4 * HOUR_MS)
        await world.retention_turn()
    await world.engine.keys.sweep()
    assert index_keys(world.engine) == [0, 0]
    segments = world.engine.core.state.segments
    assert [base for base in segments if segments[base].keyed] == []


async def test_a_sender_waits_for_the_carrying_of_its_key(world):
    """Else the carried key would come after the new message's own, and hide it."""
    threads = await open_held(world, retention_ms=1_000)
    engine = world.engine
    first = await send_one(world, keyed(body=b"1"))
    await engine.recalls.recall(first.id)
    await world.roll()
    await world.advance(5_000)
    await engine.indexer.commit()
    before = threads.calls["_find"]
    with threads.holding("_find"):
        turn = asyncio.create_task(engine.retention.turn())
        await go_on()
        sending = asyncio.create_task(engine.sender.send([keyed(body=b"2")]))
        await go_on()
        assert threads.calls["_find"] == before + 1, "the sender has asked for the key meanwhile"
    assert await turn
    [second] = await sending
    await world.lose_index()
    assert await world.engine.keys.id_of("orders", "k") == second.id


async def test_dense_traffic_under_keys_takes_its_retention_and_the_keys_of_a_day(world):
    engine = await world.open(retention_ms=60_000, segment_size_bytes=16_384)
    sizes = []
    for _minute in range(60):
        at = _minute * 20
        await engine.sender.send([keyed(str(at + n), body=b"b" * 500, delay_ms=1_000) for n in range(20)])
        await world.advance(60_000)
        await world.retention_turn()
        sizes.append(engine.core.log.tail - engine.core.log.start)
    stored = engine.core.log.tail
    assert stored > 20 * 60 * 1_000
    assert sizes[-1] < stored / 4
    assert sizes[-1] < 2 * (20 * 60 * CARRIED_BYTES) + 4 * 16_384 + 3 * 20 * 1_600


@pytest.mark.parametrize("start", STARTS)
async def test_a_moved_timer_keeps_its_key_for_a_day_after_it_ended(world, start):
    await world.open(retention_ms=3 * DAY_MS)
    delivered = await send_one(world, keyed("d", delay_ms=20 * DAY_MS))
    recalled = await send_one(world, keyed("r", delay_ms=30 * DAY_MS))
    for _ in range(4):
        await world.roll()
        await world.advance(4 * DAY_MS)
        await world.retention_turn()
    assert world.engine.core.log.start > int(recalled.id[:16], 16)
    await world.advance(4 * DAY_MS)
    await world.engine.recalls.recall(recalled.id)
    await start_again(world, start)
    await world.advance(KEY_KEPT_MS - 1)
    await world.engine.keys.sweep()
    assert (await send_one(world, keyed("d", delay_ms=20 * DAY_MS))).id == delivered.id
    assert await refusal_of(world, keyed("r", delay_ms=30 * DAY_MS)) == "key_recalled"
    await world.advance(1)
    assert not (await send_one(world, keyed("d", delay_ms=20 * DAY_MS))).duplicate
    assert not (await send_one(world, keyed("r", delay_ms=30 * DAY_MS))).duplicate


@pytest.mark.parametrize("committed", [True, False])
async def test_of_any_number_of_senders_exactly_one_stores(world, committed):
    engine = await world.open()
    if committed:
        await engine.indexer.commit()
    sends = [engine.sender.send([keyed(str(n % 3)), keyed(str(n % 4))]) for n in range(24)]
    receipts = [receipt for pair in await asyncio.gather(*sends) for receipt in pair]
    stored = [receipt.id for receipt in receipts if not receipt.duplicate]
    assert len(stored) == len(set(stored)) == 4
    assert {receipt.id for receipt in receipts} == set(stored)
    assert sorted(await world.pending_ids()) == sorted(stored)
    assert not engine.keys.sending


async def test_of_senders_of_different_messages_one_wins_and_the_others_are_refused(world):
    engine = await world.open()
    answers = await asyncio.gather(
        *(engine.sender.send([keyed(body=bytes([n]))]) for n in range(8)), return_exceptions=True
    )
    assert sum(isinstance(answer, RefusedError) for answer in answers) == 7
    assert len(await world.pending_ids()) == 1


@pytest.mark.parametrize("spins", range(8))
async def test_a_sender_that_goes_away_still_lets_exactly_one_store(world, spins):
    engine = await world.open()
    first = asyncio.create_task(engine.sender.send([keyed()]))
    second = asyncio.create_task(engine.sender.send([keyed()]))
    for _ in range(spins):
        await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    [receipt] = await second
    await settle(engine)
    assert await world.pending_ids() == [receipt.id]
    assert (await send_one(world, keyed())).id == receipt.id
    assert not engine.keys.sending


async def test_a_key_whose_message_found_no_space_is_free(world):
    engine = await world.open()
    world.files.space_bytes = 0
    answers = await asyncio.gather(*(engine.sender.send([keyed()]) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(answer, NoSpaceError) for answer in answers)
    world.files.space_bytes = 1 << 40
    receipt = await send_one(world, keyed(body=b"other"))
    assert not receipt.duplicate
    assert await world.pending_ids() == [receipt.id]


@pytest.mark.parametrize("delay_ms", [0, HOUR_MS])
async def test_a_key_outlives_the_damage_of_its_message(world, delay_ms):
    engine = await world.open()
    message = keyed(body=b"b" * 200, delay_ms=delay_ms)
    first = await send_one(world, message)
    place = int(first.id[:16], 16) - engine.core.log.bases[0] + 150
    world.files.names_now[str(engine.core.log.path(engine.core.log.bases[0]))].data[place] ^= 0xFF
    again = await send_one(world, message)
    assert (again.id, again.topic, again.duplicate) == (first.id, "orders", True)


async def test_a_key_that_cannot_be_is_refused_before_anything_is_stored(world):
    engine = await world.open()
    for key in ("", "k" * 256, "ä" * 128, "a\nb", "\ud800"):
        with pytest.raises(RefusedError) as refused:
            await engine.sender.send([Outgoing("orders", b"x"), keyed(key)])
        assert [(fault.index, fault.code) for fault in refused.value.faults] == [(1, "illegal_key")]
    for name in (KEY_PROPERTY, HASH_PROPERTY):
        with pytest.raises(RefusedError):
            await engine.sender.send([Outgoing("orders", b"x", {name: "k"})])
    assert not (await send_one(world, keyed("ä" * 127))).duplicate


@pytest.mark.parametrize("start", STARTS)
async def test_recall_by_key_ends_the_message_that_the_key_stands_for(world, start):
    engine = await world.open()
    receipt = await send_one(world, keyed())
    await send_one(world, keyed("other"))
    await start_again(world, start)
    engine = world.engine
    with pytest.raises(UnknownMessageError):
        await engine.recalls.recall_key("orders", "unknown")
    with pytest.raises(UnknownMessageError):
        await engine.recalls.recall_key("tickets", "k")
    view = await engine.recalls.recall_key("orders", "k")
    assert (view.id, view.state) == (receipt.id, State.RECALLED)
    with pytest.raises(AlreadyRecalledError):
        await engine.recalls.recall_key("orders", "k")
    await world.advance(HOUR_MS)
    with pytest.raises(AlreadyDeliveredError):
        await engine.recalls.recall_key("orders", "other")


async def test_recall_by_key_waits_for_the_send_that_is_under_way(world):
    engine = await world.open()
    sending = asyncio.create_task(engine.sender.send([keyed()]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    view = await engine.recalls.recall_key("orders", "k")
    [receipt] = await sending
    assert view.id == receipt.id
    assert await world.pending_ids() == []


@pytest.mark.parametrize("delay_ms", [0, HOUR_MS])
async def test_consumers_see_the_key_and_never_the_hash(world, delay_ms):
    engine = await world.open()
    receipt = await send_one(world, keyed(delay_ms=delay_ms, TAGS="a"))
    views = [await engine.messages.get(receipt.id)]
    views += (await engine.messages.pending()).messages
    await world.advance(delay_ms)
    views += await world.delivered()
    assert len(views) >= 2
    for view in views:
        assert view.properties[KEY_PROPERTY] == "k"
        assert HASH_PROPERTY not in view.properties
        assert view.properties["TAGS"] == "a"


async def test_a_send_without_keys_leaves_no_trace_of_keys(world):
    engine = await world.open()
    await world.send(0, 1_000, HOUR_MS)
    assert len(engine.core.state.memtable.keys) == 0
    await engine.indexer.commit()
    assert index_keys(engine) == [0, 0]


async def test_the_sweep_forgets_what_has_ended_and_nothing_else(world):
    engine = await world.open()
    await engine.sender.send([keyed(f"soon{n}", delay_ms=1_000) for n in range(30)])
    moved = await send_one(world, keyed("moved", delay_ms=1_000))
    await engine.recalls.reschedule(moved.id, {"TIMER_DELAY_MS": str(3 * DAY_MS)})
    await send_one(world, keyed("later", delay_ms=10 * DAY_MS))
    await world.advance(1_000)
    await engine.indexer.commit()
    assert index_keys(engine) == [32, 32]
    await world.advance(KEY_KEPT_MS - 120_000)
    await engine.keys.sweep()
    assert index_keys(engine) == [32, 32]
    await world.advance(120_001)
    await engine.keys.sweep()
    assert index_keys(engine) == [2, 2]
    assert (await send_one(world, keyed("moved", delay_ms=1_000))).id == moved.id
    await world.advance(20 * DAY_MS)
    await world.advance(2 * DAY_MS)
    await engine.keys.sweep()
    assert index_keys(engine) == [0, 0]


async def test_a_key_taken_again_survives_the_sweep_of_the_old_one(world):
    engine = await world.open()
    await send_one(world, keyed(delay_ms=1_000))
    await engine.indexer.commit()
    await world.advance(1_000)
    await engine.close()
    world.clock.advance(KEY_KEPT_MS + 1)
    engine = await world.open()  # whose sweep has not looked yet
    second = await send_one(world, keyed(body=b"new", delay_ms=DAY_MS))
    assert not second.duplicate
    await engine.keys.sweep()
    await engine.indexer.commit()
    await engine.keys.sweep()
    assert await engine.keys.id_of("orders", "k") == second.id
    engine = await world.restart()
    assert await engine.keys.id_of("orders", "k") == second.id


async def test_puts_are_stored_also_when_every_message_is_a_repeat(world):
    engine = await world.open()
    await send_one(world, keyed())
    [receipt] = await engine.sender.send([keyed()], puts=[Put("topic", "orders", {"a": 1})])
    assert receipt.duplicate
    engine = await world.lose_index()
    assert engine.control.get("topic", "orders") == {"a": 1}
    with pytest.raises(RefusedError):
        await engine.sender.send([keyed(body=b"y")], puts=[Put("topic", "orders", {"a": 2})])
    assert engine.control.get("topic", "orders") == {"a": 1}
