"""What the log says of messages that are done, given back, or left out by a filter."""

import asyncio

import pytest

from tests.harness.consumers import ack, bodies, items, put, receive, send
from tests.integration.groups.test_groups_dead import units
from timerwheel.groups.choosing import SKIPPED_MESSAGES
from timerwheel.state.config_table import decode_puts
from timerwheel.state.offset_set import OffsetSet
from timerwheel.store.errors import NoSpaceError
from timerwheel.store.record import FLAG_ENDED, Kind


def stored(world, start):
    """The units that were stored since a log offset: of each record its kind, and the stretch of an ACK."""
    return [
        [
            (Kind(row["kind"]).name, int(row["queue"]), int(row["prior_due_ms"]), int(row["due_ms"]))
            if row["kind"] == Kind.ACK
            else Kind(row["kind"]).name
            for row in unit
        ]
        for unit in (units(world.engine, start) if world.engine.core.log.tail > start else ())
    ]


def passed(world, queue=0):
    return world.engine.core.state.groups.by_name["orders/g"].passed.get(queue, OffsetSet())


async def nack(world, *deliveries, **options):
    receipts = [delivery.receipt for delivery in deliveries]
    return [one.ok for one in await world.engine.groups.nack("orders", "g", receipts, **options)]


async def tagged(world, tags: str) -> None:
    for tag in tags:
        await send(world, tag, TAGS=tag)


async def test_what_callers_acknowledge_in_one_turn_of_the_loop_is_one_record_when_it_lies_together(world):
    await world.open()
    await put(world)
    await send(world, *"abcdef")
    got = await receive(world)
    start = world.engine.core.log.tail
    results = await asyncio.gather(*(ack(world, got[n]) for n in (3, 0, 2, 1)))
    assert results == [[True]] * 4
    assert stored(world, start) == [[("ACK", 0, 0, 4)]]
    start = world.engine.core.log.tail
    assert await ack(world, got[5], got[4]) == [True, True]
    assert stored(world, start) == [[("ACK", 0, 4, 6)]]


async def test_saying_it_again_is_ok_once_it_is_stored_though_the_first_caller_has_not_looked(
    world,
):
    await world.open()
    await put(world)
    await send(world, *"ab")
    first, second = await receive(world)
    begun = world.engine.groups.begin_ack("orders", "g", [first.receipt])
    assert begun is not None
    assert await ack(world, first) == [True]
    assert [one.ok for one in await begun.results()] == [True]
    gone = asyncio.create_task(ack(world, second))
    await asyncio.sleep(0)  # it has begun
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert await ack(world, second) == [True]


async def test_separate_stretches_or_several_queues_are_a_record_each(world):
    await world.open(queues_per_topic=2)
    await put(world)
    for body in "abcdefgh":  # to the two queues in turn
        await send(world, body)
    got = {(d.message.queue, d.message.queue_offset): d for d in await receive(world)}
    start = world.engine.core.log.tail
    done = [got[0, 0], got[0, 1], got[0, 3], got[1, 1], got[1, 2]]
    await asyncio.gather(*(ack(world, one) for one in done))
    assert stored(world, start) == [[("ACK", 0, 0, 2)], [("ACK", 0, 3, 4)], [("ACK", 1, 1, 3)]]
    assert (passed(world, 0).edges, passed(world, 1).edges) == ([0, 2, 3, 4], [1, 3])


async def test_the_last_message_of_one_queue_and_the_first_of_the_next_are_two_stretches(world):
    await world.open(queues_per_topic=2)
    await put(world)
    for body in "abcd":
        await send(world, body)
    got = {(d.message.queue, d.message.queue_offset): d for d in await receive(world)}
    start = world.engine.core.log.tail
    await ack(world, got[0, 1], got[1, 0])
    assert stored(world, start) == [[("ACK", 0, 1, 2)], [("ACK", 1, 0, 1)]]


async def test_every_caller_of_a_turn_whose_record_cannot_be_stored_gets_the_error(world):
    await world.open()
    await put(world)
    await send(world, *"abc")
    got = await receive(world)
    space, world.files.space_bytes = world.files.space_bytes, 0
    results = await asyncio.gather(*(ack(world, one) for one in got), return_exceptions=True)
    assert [type(result) for result in results] == [NoSpaceError] * 3
    world.files.space_bytes = space
    start = world.engine.core.log.tail
    assert await asyncio.gather(*(ack(world, one) for one in got)) == [[True]] * 3
    assert stored(world, start) == [[("ACK", 0, 0, 3)]]


async def test_a_caller_that_goes_away_takes_no_acknowledgement_of_others_with_it(world):
    await world.open()
    await put(world)
    await send(world, *"abc")
    got = await receive(world)
    calls = [asyncio.create_task(ack(world, one)) for one in got]
    await asyncio.sleep(0)
    calls[0].cancel()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert results[1:] == [[True], [True]]
    await world.crash()
    assert await receive(world) == []  # its records were on their way


async def test_what_a_filter_left_out_before_a_message_that_was_chosen_is_stored_with_the_next_ack(world):
    await world.open()
    await put(world, tags="A")
    await tagged(world, "BBABA")
    await tagged(world, "BB")
    got = await receive(world)
    assert bodies(got) == ["A", "A"]
    start = world.engine.core.log.tail
    assert await ack(world, got[0]) == [True]
    assert sorted(stored(world, start)) == [[("ACK", 0, 0, 2)], [("ACK", 0, 2, 3)], [("ACK", 0, 3, 4)]]
    assert passed(world).edges == [0, 4]
    start = world.engine.core.log.tail
    assert await ack(world, got[1]) == [True]
    assert stored(world, start) == [[("ACK", 0, 4, 5)]]  # what was skipped is stored once
    assert passed(world).edges == [0, 5]
    await world.crash()
    assert world.engine.groups.info("orders", "g").lag == 2  # skipped behind the last that was chosen


async def test_what_was_skipped_is_stored_with_a_later_ack_when_the_first_cannot_be(world):
    await world.open()
    await put(world, tags="A")
    await tagged(world, "BBABA")
    got = await receive(world)
    space, world.files.space_bytes = world.files.space_bytes, 0
    with pytest.raises(NoSpaceError):
        await ack(world, got[0])
    world.files.space_bytes = space
    assert not passed(world).edges
    assert world.engine.groups.info("orders", "g").lag == 0
    assert await ack(world, got[1]) == [True]
    assert passed(world).edges == [0, 2, 3, 5]
    assert await ack(world, got[0]) == [True]
    assert passed(world).edges == [0, 5]


@pytest.mark.parametrize("count", [SKIPPED_MESSAGES - 1, SKIPPED_MESSAGES])
async def test_a_thousand_messages_that_were_skipped_are_stored_without_an_acknowledgement(world, count):
    await world.open(segment_size_bytes=1 << 20)
    await put(world, tags="A")
    for at in range(0, count, 100):
        await send(world, *["B"] * min(100, count - at), TAGS="B")
    start = world.engine.core.log.tail
    assert await receive(world) == []
    await world.advance(0)
    enough = count >= SKIPPED_MESSAGES
    assert stored(world, start) == [[("ACK", 0, 0, count)]] * enough
    await world.crash()
    assert world.engine.groups.info("orders", "g").lag == (0 if enough else count)


async def test_a_thousand_skipped_messages_that_cannot_be_stored_fail_no_receive_and_are_stored_later(world):
    await world.open(segment_size_bytes=1 << 20)
    await put(world, tags="A")
    for _ in range(SKIPPED_MESSAGES // 100):
        await send(world, *["B"] * 100, TAGS="B")
    await tagged(world, "A")
    space, world.files.space_bytes = world.files.space_bytes, 0
    got = await receive(world)
    assert bodies(got) == ["A"]
    await world.advance(0)
    assert not passed(world).edges
    world.files.space_bytes = space
    assert await ack(world, *got) == [True]
    assert passed(world).edges == [0, SKIPPED_MESSAGES + 1]


async def test_the_reason_of_what_is_given_back_is_stored_with_its_place_in_the_unit_of_its_retries(world):
    await world.open()
    await put(world)
    await send(world, *"abc")
    got = await receive(world)
    start = world.engine.core.log.tail
    assert await nack(world, got[0], got[2], reason="HTTP 500") == [True, True]
    assert stored(world, start) == [["TIMER", "TIMER", "CONTROL"]]
    [unit] = units(world.engine, start)
    assert [(int(row["rolls"]), bool(row["flags"] & FLAG_ENDED)) for row in unit[:2]] == [(1, True)] * 2
    [told] = decode_puts(world.engine.core.log.read(int(unit[2]["offset"])))
    assert (told.table, told.key) == ("failure", "orders/g")
    assert told.value == {"places": [[0, 0], [0, 2]], "reason": "HTTP 500"}
    start = world.engine.core.log.tail
    await world.advance(5_000)
    assert stored(world, start)[0] == ["TIMER"]  # b, which nobody gave back: without a reason
    [retry] = units(world.engine, start)[0]
    assert (int(retry["rolls"]), bool(retry["flags"] & FLAG_ENDED)) == (1, False)


async def test_of_an_ordered_topic_the_first_retry_of_a_message_names_its_key_before_it(world):
    await world.open()
    await world.engine.topics.change("orders", ordered=True)
    await put(world)
    await send(world, "a", __SHARDINGKEY="k")
    for kinds in (["HOLD", "TIMER"], ["TIMER"]):
        got = await receive(world)
        start = world.engine.core.log.tail
        assert await nack(world, *got) == [True]
        assert stored(world, start) == [kinds]
        await world.advance(60_000)


async def test_a_retry_that_is_done_is_ended_by_its_own_record_and_a_fresh_message_by_an_ack_of_one_unit(
    world,
):
    await world.open()
    await put(world)
    await send(world, "a")
    await nack(world, *await receive(world))
    await world.advance(1_000)
    await send(world, "b")
    got = await receive(world)
    assert bodies(got) == ["a", "b"]
    start = world.engine.core.log.tail
    assert await ack(world, *got) == [True, True]
    assert stored(world, start) == [["CANCEL", ("ACK", 0, 1, 2)]]
    assert not items(world)


@pytest.mark.parametrize("retried", [False, True])
async def test_a_message_that_is_given_up_ends_in_the_unit_of_its_copy(world, retried):
    await world.open()
    await put(world, max_attempts=1 + retried)
    await send(world, "a")
    if retried:
        await nack(world, *await receive(world))
        await world.advance(1_000)
    got = await receive(world)
    start = world.engine.core.log.tail
    assert await nack(world, *got) == [True]
    assert stored(world, start) == [["MESSAGE", "CANCEL" if retried else ("ACK", 0, 0, 1)]]
