"""Sends in columns on the real engine: in turn, in one unit, within the limits, as sends one by one."""

import asyncio
import random

import pytest

from tests.harness.columns import columns_of, send_in_columns
from tests.harness.drive import read_all, settle
from timerwheel.errors import CongestedError, OutcomeUnknownError, RefusedError
from timerwheel.model.messages import Outgoing, State
from timerwheel.runtime.column_sender import ROWS_AT_ONCE
from timerwheel.runtime.steps import AT_ONCE_BYTES
from timerwheel.store.errors import NoSpaceError

SPINS = 12


async def spin(count):
    for _ in range(count):
        await asyncio.sleep(0)


def messages(*delays_ms, topic="orders", body=b"x"):
    return [Outgoing(topic, body, after_ms=delay_ms) for delay_ms in delays_ms]


async def test_every_step_of_a_large_send_is_delivered_with_its_own_body(world):
    engine = await world.open(segment_size_bytes=1 << 24, batch_bytes_max=1 << 20)
    count = 2 * ROWS_AT_ONCE + 7
    sent = [Outgoing("orders", b"%d" % n * (n % 5), {"n": f"{n % 3}"}) for n in range(count)]
    receipts = await send_in_columns(engine, sent)
    await settle(engine)
    found = await read_all(engine, "orders")
    assert [view.id for view in found] == [receipt.id for receipt in receipts]
    assert [(view.body, view.properties) for view in found] == [(one.body, one.properties) for one in sent]


async def test_bodies_of_more_than_one_step_are_sent_in_steps(world):
    engine = await world.open(segment_size_bytes=1 << 26, body_bytes_max=AT_ONCE_BYTES)
    bodies = [b"a" * 3_000_000, b"b" * 3_000_000, b"", b"c" * AT_ONCE_BYTES]
    await send_in_columns(engine, [Outgoing("orders", body) for body in bodies])
    await settle(engine)
    assert [view.body for view in await read_all(engine, "orders")] == bodies


async def test_blocks_and_single_records_are_written_together(world):
    engine = await world.open(segment_size_bytes=1 << 20, batch_bytes_max=1 << 20)
    sends = []
    for number in range(10):
        for way in (send_in_columns, lambda engine, sent: engine.sender.send(sent)):
            sent = [Outgoing(f"t{number % 3}", b"%d.%d" % (number, at)) for at in range(number + 1)]
            sends.append((sent, asyncio.create_task(way(engine, sent))))
    for sent, sending in sends:
        for message, receipt in zip(sent, await sending, strict=True):
            view = await engine.messages.get(receipt.id)
            assert (view.topic, view.body, view.state) == (message.topic, message.body, State.DELIVERED)
    await settle(engine)
    await world.crash(random.Random(5))
    for sent, sending in sends:
        for message, receipt in zip(sent, sending.result(), strict=True):
            assert (await world.engine.messages.get(receipt.id)).body == message.body


async def test_a_row_without_delay_goes_out_behind_timers_of_its_millisecond(world):
    engine = await world.open(fire_records_max=7)
    expected = []
    for spins in range(SPINS):
        topic = f"t{spins}"
        timers = await send_in_columns(engine, messages(*[1_000] * 9, topic=topic))
        await spin(SPINS)
        world.clock.advance(1_000)
        await spin(spins)  # firing has gone so far
        fresh = await send_in_columns(engine, messages(0, 0, topic=topic))
        expected.append((topic, [receipt.id for receipt in (*timers, *fresh)]))
        await settle(engine)
    for topic, ids in expected:
        assert await world.delivered_ids(topic) == ids


async def test_a_row_without_delay_goes_out_behind_rows_that_came_due_while_they_were_stored(world):
    engine = await world.open()
    for spins in range(SPINS):
        topic = f"t{spins}"
        first = asyncio.create_task(send_in_columns(engine, messages(1, 1, topic=topic)))
        await asyncio.sleep(0)  # they are on their way into the log
        world.clock.advance(1)
        await spin(spins)
        now = await engine.sender.send([Outgoing(topic, b"now")])
        await settle(engine)
        assert await world.delivered_ids(topic) == [one.id for one in (*await first, *now)]


async def test_rows_of_one_level_keep_their_order_if_the_clock_steps_back_a_little(world):
    engine = await world.open()
    level = [Outgoing("orders", b"x", {"DELAY": "1"})]
    ids = [receipt.id for receipt in await send_in_columns(engine, level * 2)]
    world.clock.step(-700)
    ids += [receipt.id for receipt in await send_in_columns(engine, level * 2)]
    ids += [receipt.id for receipt in await engine.sender.send(level)]
    await world.advance(2_000)
    assert await world.delivered_ids() == ids


async def test_the_slot_limit_holds_for_all_rows_or_none(world):
    engine = await world.open(slot_messages_max=10)
    await send_in_columns(engine, messages(*[5_000] * 6))
    with pytest.raises(CongestedError):
        await send_in_columns(engine, messages(9_000, *[5_000] * 5))
    await send_in_columns(engine, messages(*[5_000] * 4))
    assert (await engine.messages.wheel()).pending == 10


async def test_topics_beyond_the_limit_are_refused_at_their_first_row(world):
    engine = await world.open(topics_max=2)
    await send_in_columns(engine, [Outgoing("a", b""), Outgoing("b", b"")])
    with pytest.raises(RefusedError) as caught:
        await send_in_columns(engine, [Outgoing("b", b""), Outgoing("c", b""), Outgoing("c", b"")])
    assert [(fault.index, fault.code) for fault in caught.value.faults] == [(1, "too_many_topics")]


async def test_every_bad_row_is_named_and_none_is_stored(world):
    engine = await world.open(body_bytes_max=5)
    sent = [
        Outgoing("orders", b"x"),
        Outgoing("no good", b"x"),
        Outgoing("orders", b"x" * 6),
        Outgoing("orders", b"x", {"TRAN_MSG": "true"}),
        Outgoing("orders", b"x", after_ms=2**62),
        Outgoing("orders", b"x", {"DELAY": "-1"}),
    ]
    with pytest.raises(RefusedError) as caught:
        await send_in_columns(engine, sent)
    assert caught.value.faults == engine.sender.check(sent)
    assert caught.value.faults == await engine.column_sender.check(columns_of(sent))
    assert [fault.index for fault in caught.value.faults] == [1, 2, 3, 4, 5]
    assert engine.queues.topic_names()[0] != "orders"


async def test_rows_go_to_queues_in_turn_and_by_sharding_key(world):
    engine = await world.open(queues_per_topic=3)
    keyed = Outgoing("orders", b"k", {"__SHARDINGKEY": "k"})
    sent = [Outgoing("orders", b""), keyed, Outgoing("orders", b""), Outgoing("orders", b""), keyed]
    for one in await send_in_columns(engine, sent):
        assert one.state is State.DELIVERED
    queues = [(await engine.messages.get(one.id)).queue for one in await send_in_columns(engine, sent)]
    alone = [(await engine.messages.get(one.id)).queue for one in await engine.sender.send(sent)]
    assert len({queues[at] for at in (0, 2, 3)}) == 3
    assert queues[1] == queues[4] == alone[1] == alone[4]
    assert [alone[at] for at in (0, 2, 3)] == [queues[at] for at in (0, 2, 3)]


async def test_a_full_disk_refuses_a_block_and_the_log_goes_on(world):
    engine = await world.open()
    world.files.space_bytes = 100
    with pytest.raises(NoSpaceError):
        await send_in_columns(engine, messages(1_000, 1_000, body=b"b" * 500))
    world.files.space_bytes = 1 << 40
    [receipt] = await send_in_columns(engine, messages(1_000))
    await world.crash(random.Random(1))
    await world.advance(1_000)
    assert await world.delivered_ids() == [receipt.id]


async def test_a_send_that_is_cancelled_while_it_is_encoded_stores_nothing(world):
    engine = await world.open(slot_messages_max=ROWS_AT_ONCE * 3)
    sending = asyncio.create_task(send_in_columns(engine, messages(*[5_000] * ROWS_AT_ONCE * 3)))
    await asyncio.sleep(0)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    await settle(engine)
    assert (await engine.messages.wheel()).pending == 0
    await send_in_columns(engine, messages(*[5_000] * ROWS_AT_ONCE * 3))  # its places are free again


async def test_a_log_that_fails_in_the_middle_leaves_the_outcome_unknown(world):
    engine = await world.open()
    world.files.fail_sync = True
    with pytest.raises(OutcomeUnknownError):
        await send_in_columns(engine, messages(1_000, 1_000))


def test_columns_of_messages_are_the_messages():
    sent = [
        Outgoing("a", b"x", {"p": "1"}, after_ms=5),
        Outgoing("b", b"", at_ms=7),
        Outgoing("a", b"yy", {"q": "2"}),
    ]
    columns = columns_of(sent)
    assert [columns.outgoing(row) for row in range(3)] == sent
    assert columns.take(columns.topic == 1).used_topics() == ["b"]


def keyed(*keys, body=b"x"):
    return [Outgoing("orders", body, {"TIMER_DELAY_MS": "60000"}, key) for key in keys]


async def test_of_sends_with_the_same_keys_at_a_time_one_stores_and_the_others_get_its_receipts(world):
    engine = await world.open()
    sent = keyed("a", None, "b")
    ways = (send_in_columns, lambda engine, sent: engine.sender.send(sent), send_in_columns)
    answers = await asyncio.gather(*(way(engine, sent) for way in ways))
    duplicates = [tuple(one.duplicate for one in answer) for answer in answers]
    assert sorted(duplicates) == [(False, False, False), (True, False, True), (True, False, True)]
    for place in (0, 2):
        assert len({answer[place].id for answer in answers}) == 1
    assert (await engine.messages.wheel()).pending == 5


async def test_a_cancelled_send_keeps_its_keys_until_its_messages_are_stored(world):
    engine = await world.open()
    first = asyncio.create_task(send_in_columns(engine, keyed("a", "b")))
    await spin(3)
    first.cancel()
    again = await send_in_columns(engine, keyed("b", "a"))
    assert (await engine.messages.wheel()).pending == 2
    assert len({receipt.id for receipt in again}) == 2


@pytest.mark.parametrize("with_index", [True, False])
async def test_keys_of_columns_are_known_after_a_crash(world, with_index):
    engine = await world.open()
    count = ROWS_AT_ONCE + 3
    sent = keyed(*[f"k{number}" for number in range(count)])
    receipts = await send_in_columns(engine, sent)
    if with_index:
        await engine.indexer.tick()
    await world.crash(random.Random(7))
    again = await send_in_columns(world.engine, sent)
    assert [one.id for one in again] == [one.id for one in receipts]
    assert all(one.duplicate for one in again)
    with pytest.raises(RefusedError) as refused:
        await send_in_columns(world.engine, keyed("new", "k5", "k5", body=b"other"))
    assert [(fault.index, fault.code) for fault in refused.value.faults] == [
        (1, "key_reused"),
        (2, "key_reused"),
    ]


@pytest.mark.parametrize("way", [send_in_columns, lambda engine, sent: engine.sender.send(sent)])
async def test_each_topic_takes_its_own_turns_among_its_queues(world, way):
    engine = await world.open(queues_per_topic=2)
    await way(engine, [Outgoing(topic, b"x") for _ in range(4) for topic in ("orders", "tickets")])
    for topic in ("orders", "tickets"):
        for queue in range(2):
            assert engine.queues.queue_bounds(topic, queue) == (0, 2)
