"""A send that replaces: it takes the key, and the place of the message that the key names."""

import asyncio
import random

import msgspec
import pytest

from tests.harness.drive import read_all, settle
from timerwheel.errors import CongestedError, RefusedError, UnknownMessageError
from timerwheel.model.messages import Outgoing, State
from timerwheel.state.config_table import ConfigTable, Put
from timerwheel.state.dedup_key import KEY_KEPT_MS
from timerwheel.store.errors import NoSpaceError

HOUR_MS = 3_600_000


def keyed(body=b"x", delay_ms=HOUR_MS, key="k", *, replaces=True, **fields):
    properties = {"TIMER_DELAY_MS": str(delay_ms)} if delay_ms else {}
    return Outgoing("orders", body, properties, dedup_key=key, replaces=replaces, **fields)


async def send(world, *messages):
    return await world.engine.sender.send(messages)


async def state_of(world, message_id):
    return (await world.engine.messages.get(message_id)).state


async def bodies(world):
    return [message.body for message in await read_all(world.engine, "orders")]


@pytest.mark.parametrize("again", [b"x", b"y"])
@pytest.mark.parametrize("start", [None, "commit", "crash"])
async def test_a_scheduled_message_is_recalled_and_the_key_names_the_new_one(world, again, start):
    engine = await world.open()
    [first] = await send(world, keyed())
    if start == "commit":
        await engine.indexer.commit()
    elif start == "crash":
        engine = await world.crash(random.Random(1))
    [second] = await send(world, keyed(again, 2 * HOUR_MS))
    assert (second.replaced, second.duplicate, second.state) == (first.id, False, State.SCHEDULED)
    assert await state_of(world, first.id) is State.RECALLED
    assert await engine.keys.id_of("orders", "k") == second.id
    assert await world.pending_ids() == [second.id]
    world.clock.advance(2 * HOUR_MS)
    await settle(engine)
    assert await bodies(world) == [again]


async def test_the_timer_of_a_burst_starts_again_with_each_send(world):
    engine = await world.open()
    for number in range(5):
        await send(world, keyed(b"%d" % number, 10_000))
        world.clock.advance(9_000)
        await settle(engine)
        assert await bodies(world) == []
    world.clock.advance(1_000)
    await settle(engine)
    assert await bodies(world) == [b"4"]


async def test_after_the_delivery_a_new_message_is_stored_and_the_key_names_it(world):
    engine = await world.open()
    [first] = await send(world, keyed(delay_ms=0))
    [second] = await send(world, keyed())
    assert (second.replaced, second.duplicate) == (None, False)
    assert await state_of(world, first.id) is State.DELIVERED
    assert await engine.keys.id_of("orders", "k") == second.id


async def test_a_new_message_without_delay_replaces_too(world):
    await world.open()
    [first] = await send(world, keyed())
    [second] = await send(world, keyed(b"now", 0))
    assert (second.replaced, second.state) == (first.id, State.DELIVERED)
    assert await bodies(world) == [b"now"]
    assert await world.pending_ids() == []


async def test_after_a_recall_the_same_content_is_stored_without_naming_the_recalled_one(world):
    engine = await world.open()
    [first] = await send(world, keyed())
    await engine.recalls.recall(first.id)
    [second] = await send(world, keyed())
    assert (second.replaced, second.duplicate, second.state) == (None, False, State.SCHEDULED)


async def test_a_late_repeat_of_what_was_replaced_is_not_stored_once_the_key_is_free(world):
    engine = await world.open()
    await send(world, keyed(b"1", replaces=False))
    await send(world, keyed(b"2"))
    await send(world, keyed(b"3"))
    await engine.recalls.recall_key("orders", "k")
    for body in (b"1", b"2", b"3"):
        with pytest.raises(RefusedError) as refused:
            await send(world, keyed(body, replaces=False))
        assert [fault.code for fault in refused.value.faults] == ["key_recalled"]
    assert not (await send(world, keyed(b"4", replaces=False)))[0].duplicate


async def test_without_it_the_key_is_treated_as_before(world):
    await world.open()
    [first] = await send(world, keyed(b"1"))
    [again] = await send(world, keyed(b"1", replaces=False))
    assert (again.id, again.duplicate) == (first.id, True)
    with pytest.raises(RefusedError):
        await send(world, keyed(b"2", replaces=False))


async def test_of_an_array_the_last_item_under_a_key_is_stored_and_the_others_name_it(world):
    engine = await world.open()
    [old] = await send(world, keyed(b"old"))
    receipts = await send(world, keyed(b"1"), keyed(b"a", key="other"), keyed(b"2"), keyed(b"3", 5_000))
    first, other, second, last = receipts
    assert last.replaced == old.id
    assert (other.replaced, other.duplicate) == (None, False)
    assert {(one.id, one.duplicate, one.replaced) for one in (first, second)} == {(last.id, True, None)}
    assert sorted(await world.pending_ids()) == sorted([last.id, other.id])
    world.clock.advance(5_000)
    await settle(engine)
    assert await bodies(world) == [b"3"]


async def test_in_an_array_sends_that_replace_and_sends_that_do_not_are_taken_in_order(world):
    await world.open()
    first, second, third = await send(
        world, keyed(b"1", replaces=False), keyed(b"2"), keyed(b"2", replaces=False)
    )
    assert {first.id, second.id, third.id} == {second.id}
    assert (first.duplicate, second.duplicate, third.duplicate) == (True, False, True)
    with pytest.raises(RefusedError) as refused:
        await send(world, keyed(b"3"), keyed(b"4", replaces=False))
    assert [(fault.index, fault.code) for fault in refused.value.faults] == [(1, "key_reused")]
    assert await world.pending_ids() == [second.id]


async def test_many_keys_are_replaced_in_one_unit_with_settings_beside_them(world):
    engine = await world.open()
    old = await send(world, *(keyed(b"old", key=str(n)) for n in range(20)))
    new = await engine.sender.send(
        [keyed(b"new", key=str(n)) for n in range(20)], [Put(ConfigTable.CURSOR, "none/none", None)]
    )
    assert [one.replaced for one in new] == [one.id for one in old]
    engine = await world.crash(random.Random(2))
    assert sorted(await world.pending_ids()) == sorted(one.id for one in new)


@pytest.mark.parametrize("committed", [False, True])
async def test_of_any_number_of_senders_the_last_one_stored_wins_and_one_is_delivered(world, committed):
    engine = await world.open()
    if committed:
        await send(world, keyed(b"first"))
        await engine.indexer.commit()
    receipts = await asyncio.gather(*(send(world, keyed(b"%d" % n, 1_000)) for n in range(24)))
    named = await engine.keys.id_of("orders", "k")
    assert await world.pending_ids() == [named]
    replaced = [receipt.replaced for [receipt] in receipts if receipt.replaced]
    ids = {receipt.id for [receipt] in receipts}
    assert len(set(replaced)) == len(replaced) == 23 + committed
    assert ids - set(replaced) == {named}
    world.clock.advance(1_000)
    await settle(engine)
    [delivered] = await read_all(engine, "orders")
    assert delivered.id == named


@pytest.mark.parametrize("spins", range(12))
async def test_raced_with_firing_and_recall_each_message_has_one_end(world, spins):
    engine = await world.open()
    [first] = await send(world, keyed(b"1", 1_000))
    world.clock.advance(1_000)
    for _ in range(spins):
        await asyncio.sleep(0)
    recall = asyncio.ensure_future(engine.recalls.recall(first.id))
    [second] = await send(world, keyed(b"2", 1_000))
    await asyncio.gather(recall, return_exceptions=True)
    await settle(engine)
    is_delivered = b"1" in await bodies(world)
    is_recalled = recall.exception() is None
    assert is_delivered + is_recalled + (second.replaced == first.id) == 1
    world.clock.advance(1_000)
    await settle(engine)
    assert await bodies(world) == [b"1"] * is_delivered + [b"2"]


@pytest.mark.parametrize("spins", range(10))
async def test_a_sender_that_goes_away_leaves_one_message(world, spins):
    engine = await world.open()
    await send(world, keyed(b"1"))
    sending = asyncio.create_task(send(world, keyed(b"2")))
    for _ in range(spins):
        await asyncio.sleep(0)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    await settle(engine)
    assert len(await world.pending_ids()) == 1
    assert await world.pending_ids() == [await engine.keys.id_of("orders", "k")]
    assert not engine.keys.sending


async def test_on_a_full_disk_the_earlier_message_stays_scheduled(world):
    engine = await world.open()
    [first] = await send(world, keyed(b"1", 1_000))
    world.files.space_bytes = 0
    with pytest.raises(NoSpaceError):
        await send(world, keyed(b"2" * 5_000))
    world.files.space_bytes = 1 << 40
    assert await world.pending_ids() == [first.id]
    world.clock.advance(1_000)
    await settle(engine)
    assert await bodies(world) == [b"1"]


async def test_a_full_second_has_room_for_the_message_that_replaces_its_own(world):
    engine = await world.open(slot_messages_max=1)
    [first] = await send(world, keyed(b"1"))
    [second] = await send(world, keyed(b"2"))
    assert second.replaced == first.id
    with pytest.raises(CongestedError):
        await send(world, keyed(b"3", key="other"))
    with pytest.raises(CongestedError):
        await send(world, keyed(b"4"), keyed(b"5", key="other"))
    assert await world.pending_ids() == [second.id]
    await engine.recalls.recall(second.id)


async def test_it_needs_a_key(world):
    await world.open()
    with pytest.raises(RefusedError) as refused:
        await send(world, msgspec.structs.replace(keyed(), dedup_key=None))
    assert [fault.code for fault in refused.value.faults] == ["illegal_key"]


async def test_a_key_that_ended_a_day_ago_replaces_nothing(world):
    engine = await world.open()
    await send(world, keyed(delay_ms=0))
    world.clock.advance(KEY_KEPT_MS + 1)
    await engine.keys.sweep()
    with pytest.raises(UnknownMessageError):
        await engine.keys.id_of("orders", "k")
    assert (await send(world, keyed()))[0].replaced is None
