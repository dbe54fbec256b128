"""Consumer groups when calls meet: no message is lost or given to two, and no timer is left behind."""

import asyncio
from collections import Counter

import pytest

from tests.harness.consumers import ack, bodies, gated, put, receive, send, send_many
from tests.harness.drive import settle
from tests.harness.gated_threads import spin
from tests.harness.group_checks import check_groups
from timerwheel.groups.config import UnknownGroupError
from timerwheel.store.errors import NoSpaceError

AHEAD = 256  # so many are read at once: the one after needs another read


def timers_and_items(world) -> tuple[int, int]:
    view = world.engine.core.state
    return view.leases, sum(item.timed for state in view.groups for item in state.items.values())


def in_flight(world) -> set[int]:
    """The queue offsets of the messages that consumers of g have."""
    runtime = world.engine.groups.runtimes.get("orders/g")
    return set() if runtime is None else {lease.queue_offset for lease in runtime.leasing.leases}


async def test_fifty_receivers_at_once_get_every_message_once(world):
    await world.open()
    await put(world)
    names = await send_many(world, 400)
    got = await asyncio.gather(*(receive(world, 7) for _ in range(70)))
    assert sorted(body for part in got for body in bodies(part)) == names
    assert len({d.receipt for part in got for d in part}) == 400


async def test_fifty_receivers_that_wait_share_what_comes(world):
    await world.open()
    await put(world)
    waiting = [asyncio.create_task(receive(world, 1, wait_ms=60_000)) for _ in range(50)]
    await spin()
    names = await send_many(world, 50)
    got = await asyncio.gather(*waiting)
    assert sorted(bodies(part)[0] for part in got) == names


async def test_two_who_acknowledge_the_same_both_succeed_though_the_first_finds_no_space(world):
    await world.open()
    await put(world)
    await send(world, "a", "b")
    got = await receive(world)
    threads = gated(world)
    threads.writes.clear()
    first = asyncio.create_task(ack(world, *got))
    await spin()
    second = asyncio.create_task(ack(world, *got))
    await spin()
    assert not first.done()
    assert not second.done()
    space, world.files.space_bytes = world.files.space_bytes, 0
    await threads.let_one_write()
    with pytest.raises(NoSpaceError):
        await first
    assert in_flight(world) == {0, 1}
    assert await receive(world) == []
    world.files.space_bytes = space
    threads.writes.set()
    assert await second == [True, True]
    assert in_flight(world) == set()
    await world.advance(100_000)
    assert await receive(world) == []


@pytest.mark.parametrize("how", ["ack", "nack"])
async def test_a_lease_whose_end_could_not_be_stored_is_as_it_was(world, how):
    await world.open()
    await put(world)
    await send(world, "a", "b", "c")
    got = await receive(world)
    await world.advance(1_000)
    space, world.files.space_bytes = world.files.space_bytes, 0
    with pytest.raises(NoSpaceError):
        await getattr(world.engine.groups, how)("orders", "g", [d.receipt for d in got])
    world.files.space_bytes = space
    assert in_flight(world) == {0, 1, 2}
    assert await ack(world, got[0]) == [True]
    [extended] = await world.engine.groups.extend("orders", "g", [got[1].receipt], 30_000)
    assert extended.ok
    await world.advance(3_999)
    assert in_flight(world) == {1, 2}
    await world.advance(1)  # the end that it had
    assert in_flight(world) == {1}
    await world.advance(1_000)
    again = await receive(world)
    assert [(d.message.body, d.attempt) for d in again] == [(b"c", 2)]
    # Of an item that is received again the same holds.
    world.files.space_bytes = 0
    with pytest.raises(NoSpaceError):
        await getattr(world.engine.groups, how)("orders", "g", [again[0].receipt])
    world.files.space_bytes = space
    assert await receive(world) == []
    assert await ack(world, *again) == [True]
    assert timers_and_items(world) == (0, 0)


async def test_an_attempt_whose_end_cannot_be_stored_in_time_fails_once_there_is_space(world):
    await world.open()
    await put(world)
    await send(world, "a")
    got = await receive(world)
    space, world.files.space_bytes = world.files.space_bytes, 0
    await world.advance(5_000)
    assert in_flight(world) == {0}
    world.files.space_bytes = space
    await world.advance(2_000)
    await world.advance(2_000)
    assert in_flight(world) == set()
    assert [d.attempt for d in await receive(world)] == [2]
    assert await ack(world, *got) == [False]


@pytest.mark.parametrize("spins", range(25))
async def test_no_space_in_the_midst_of_many_consumers_loses_nothing_and_repeats_nothing(world, spins):
    await world.open()
    await put(world)
    names = await send_many(world, 120)
    done = []

    async def consume(count):
        got = await receive(world, count)
        if await ack(world, *got) == [True] * len(got):
            done.extend(bodies(got))

    space = world.files.space_bytes
    world.files.space_bytes = 200 + 97 * spins
    tasks = [asyncio.create_task(consume(1 + number % 5)) for number in range(30)]
    await spin(spins)
    world.files.space_bytes = space
    await asyncio.gather(*tasks, return_exceptions=True)
    await world.advance(5_000)
    await world.advance(2_000)  # what was being stored as its time passed is looked at again
    await world.advance(2_000)
    got = bodies(await receive(world, 1_000))
    assert sorted(done + got) == names


@pytest.mark.parametrize("spins", range(12))
async def test_a_receiver_that_goes_away_at_any_point_loses_nothing(world, spins):
    await world.open()
    await put(world)
    names = await send_many(world, 20)
    gate = gated(world).reads
    gate.clear()
    tasks = [asyncio.create_task(receive(world, 5)) for _ in range(3)]
    await spin(spins // 2)
    gate.set()
    await spin(spins)
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    await spin()
    got = [body for part in results if isinstance(part, list) for body in bodies(part)]
    got += bodies(await receive(world, 100))
    assert max(Counter(got).values()) == 1
    await world.advance(5_000)  # what was leased to nobody comes back, and the rest, too
    assert timers_and_items(world) == (20, 20)
    await world.advance(1_000)
    assert sorted(bodies(await receive(world, 100))) == names
    assert in_flight(world) == set(range(20))
    assert timers_and_items(world) == (0, 0)


@pytest.mark.parametrize("spins", range(16))
async def test_a_rewind_whose_caller_goes_away_is_done_or_not_done_at_all(world, spins):
    await world.open()
    await put(world)
    await send(world, *"abcdef")
    await receive(world, 4)
    rewinding = asyncio.create_task(world.engine.groups.rewind("orders", "g", to="head"))
    receiving = asyncio.create_task(receive(world, 1))
    await spin(spins)
    rewinding.cancel()
    results = await asyncio.gather(rewinding, receiving, return_exceptions=True)
    await spin()
    held = in_flight(world)
    cursor = world.engine.groups.info("orders", "g").queues[0].cursor
    assert held in ({0, 1, 2, 3, 4}, {0}, set()), results
    assert bodies(await receive(world)) == list("abcdef"[cursor:])
    lowest, highest = timers_and_items(world)
    assert lowest == highest


@pytest.mark.parametrize("spins", range(10))
async def test_an_acknowledgement_that_meets_a_deletion_ends_no_timer_twice(world, spins):
    await world.open()
    await put(world)
    await send(world, *"abc")
    got = await receive(world)
    deleting = asyncio.create_task(world.engine.groups.delete("orders", "g"))
    await spin(spins)
    settled = asyncio.gather(
        ack(world, *got),
        world.engine.groups.nack("orders", "g", [got[0].receipt]),
        world.engine.groups.extend("orders", "g", [got[1].receipt], 10_000),
        return_exceptions=True,
    )
    await asyncio.gather(deleting, settled)
    assert world.engine.core.state.leases == 0
    await world.advance(100_000)
    assert world.engine.core.state.leases == 0


@pytest.mark.parametrize("spins", range(16))
async def test_a_deletion_whose_caller_goes_away_is_done_or_not_done_at_all(world, spins):
    await world.open()
    await put(world)
    await send(world, *"abc")
    await receive(world, 2)
    waiting = asyncio.create_task(receive(world, wait_ms=1_000, invisible_ms=7_000))
    deleting = asyncio.create_task(world.engine.groups.delete("orders", "g"))
    await spin(spins)
    deleting.cancel()
    await asyncio.gather(deleting, return_exceptions=True)
    await world.advance(1_000)
    await asyncio.gather(waiting, return_exceptions=True)
    if world.engine.groups.all():
        assert in_flight(world) == {0, 1, 2}
    else:
        assert world.engine.core.state.leases == 0
        assert bodies(await receive(world)) == ["a", "b", "c"]


@pytest.mark.parametrize("spins", range(16))
async def test_a_receiver_of_a_deleted_group_takes_nothing_from_the_one_made_after(world, spins):
    await world.open()
    await put(world)
    await send_many(world, AHEAD + 4)
    gate = gated(world).reads
    await receive(world, AHEAD)
    gate.clear()
    late = asyncio.create_task(receive(world, 2))
    await spin()
    deleting = asyncio.create_task(world.engine.groups.delete("orders", "g"))
    also_late = asyncio.create_task(receive(world, 2))
    await spin(spins)
    gate.set()
    await deleting
    gate.clear()
    await put(world)
    gate.set()
    outcomes = await asyncio.gather(late, also_late, return_exceptions=True)
    assert all(isinstance(o, list | UnknownGroupError) for o in outcomes), outcomes
    held = in_flight(world)
    found = len(held) + len(await receive(world, 1_000))
    assert found == AHEAD + 4
    lowest, highest = timers_and_items(world)
    assert lowest == highest


async def test_a_receipt_that_was_given_back_stays_ended_when_the_message_comes_back(world):
    await world.open()
    await put(world)
    await send(world, "a")
    got = await receive(world)
    await world.engine.groups.nack("orders", "g", [got[0].receipt], delay_ms=1_000)
    await world.advance(1_000)
    assert await ack(world, got[0]) == [False]
    await world.restart()
    assert await ack(world, got[0]) == [False]
    await world.lose_index()
    assert await ack(world, got[0]) == [False]
    assert bodies(await receive(world)) == ["a"]


async def test_a_group_that_is_full_goes_on_as_soon_as_one_message_is_done(world):
    await world.open(group_items_max=2)
    await put(world)
    await send(world, *"abc")
    got = await receive(world)
    assert bodies(got) == ["a", "b"]
    waiting = asyncio.create_task(receive(world, wait_ms=60_000))
    await spin()
    assert not waiting.done()
    await ack(world, got[0])
    await spin()
    assert waiting.done()
    assert bodies(await waiting) == ["c"]


async def test_a_message_behind_a_thousand_of_a_key_that_is_held_is_found_by_one_call(world):
    await world.open(segment_size_bytes=1 << 20)
    await world.engine.topics.change("orders", ordered=True)
    await put(world)
    for _ in range(25):
        await send(world, *["x"] * 50, __SHARDINGKEY="a")
    await send(world, "b", __SHARDINGKEY="b")
    assert bodies(await receive(world, 1)) == ["x"]
    assert bodies(await receive(world, 1)) == ["b"]
    assert await receive(world, 1) == []


async def test_a_key_goes_on_in_order_when_its_first_is_acknowledged_while_the_next_are_looked_through(world):
    await world.open()
    await world.engine.topics.change("orders", ordered=True)
    await put(world)
    await send(world, "a1", "a2", __SHARDINGKEY="a")
    first = await receive(world, 1)
    await send(world, "a3", __SHARDINGKEY="a")
    threads = gated(world)
    threads.reads.clear()
    receiving = asyncio.create_task(receive(world))  # a2 was read ahead, a3 needs another read
    await spin()
    assert await ack(world, *first) == [True]
    threads.reads.set()
    second = await receiving or await receive(world)
    assert bodies(second) == ["a2"]
    assert await receive(world) == []
    await ack(world, *second)
    assert bodies(await receive(world)) == ["a3"]


async def test_a_key_goes_on_in_order_when_its_first_is_being_acknowledged(world):
    await world.open()
    await world.engine.topics.change("orders", ordered=True)
    await put(world)
    await send(world, "a1", __SHARDINGKEY="a")
    first = await receive(world)
    await send(world, "a2", __SHARDINGKEY="a")
    threads = gated(world)
    threads.writes.clear()
    before = asyncio.create_task(send(world, "x", topic="other"))
    await spin()
    batch = asyncio.gather(send(world, "a3", __SHARDINGKEY="a"), ack(world, *first))
    await spin()
    assert await receive(world) == []  # parks a2: a1 is not done yet
    await threads.let_one_write()
    assert before.done()
    assert await receive(world) == []
    await threads.let_one_write()
    assert batch.done()
    second = await receive(world)
    assert bodies(second) == ["a2"]
    assert await receive(world) == []
    threads.writes.set()
    await ack(world, *second)
    assert bodies(await receive(world)) == ["a3"]


@pytest.mark.parametrize("space_bytes", [0, 1 << 30])
async def test_of_a_key_nothing_follows_a_message_whose_acknowledgement_could_not_be_stored(
    world, space_bytes
):
    await world.open()
    await world.engine.topics.change("orders", ordered=True)
    await put(world)
    await send(world, "a1", "a2", __SHARDINGKEY="a")
    first = await receive(world)
    world.files.space_bytes = space_bytes
    results = await asyncio.gather(ack(world, *first), return_exceptions=True)
    assert bodies(await receive(world)) == ([] if isinstance(results[0], NoSpaceError) else ["a2"])
    assert isinstance(results[0], NoSpaceError) == (not space_bytes)


@pytest.mark.parametrize("spins", range(10))
async def test_a_dead_letter_is_redriven_once_though_the_first_caller_goes_away(world, spins):
    await world.open()
    await put(world, max_attempts=1)
    await send(world, "a", "b")
    await receive(world)
    await world.advance(5_000)
    first = asyncio.create_task(world.engine.groups.dead.redrive("g"))
    await spin(spins)
    first.cancel()
    second = await world.engine.groups.dead.redrive("g")
    await asyncio.gather(first, return_exceptions=True)
    assert second.redriven in (0, 2)
    lowest, highest = timers_and_items(world)
    assert lowest == highest
    await world.advance(1)
    assert bodies(await receive(world)) == ["a", "b"]
    assert await receive(world) == []


@pytest.mark.parametrize("other", ["rewind", "delete"])
@pytest.mark.parametrize("spins", range(8))
async def test_redriving_into_a_group_that_is_rewound_or_deleted_leaves_no_timer(world, other, spins):
    await world.open()
    await put(world, max_attempts=1)
    await send(world, "a", "b")
    await receive(world)
    await world.advance(5_000)
    options = {"to": "tail"} if other == "rewind" else {}
    redriving = asyncio.create_task(world.engine.groups.dead.redrive("g"))
    await spin(spins)
    await getattr(world.engine.groups, other)("orders", "g", **options)
    await redriving
    lowest, highest = timers_and_items(world)
    assert lowest == highest


@pytest.mark.parametrize("ready_again", [False, True])
async def test_messages_that_retention_drops_while_they_are_read_are_gone_and_not_damaged(world, ready_again):
    await world.open(retention_ms=5_000)
    await put(world, invisible_ms=20_000)
    await send(world, "a", "b")
    if ready_again:
        await receive(world)
    await world.roll()
    await world.advance(30_000)
    await send(world, "c")
    until = world.engine.core.log.bases[-1]
    positions = world.engine.queues.positions

    async def dropped_after(*args):
        found = await positions(*args)
        world.engine.core.log.drop_before(until)
        return found

    world.engine.queues.positions = dropped_after
    assert bodies(await receive(world)) == ["c"]
    await settle(world.engine)
    assert timers_and_items(world) == (0, 0)
    assert in_flight(world) == {2}


async def test_close_while_leases_of_another_group_come_back_is_whole(world):
    await world.open()
    await put(world, max_attempts=1, invisible_ms=1_000)
    await put(world, group="h")
    await send(world, "a")
    await receive(world)
    groups = world.engine.groups
    threads = gated(world)
    await spin()
    threads.reads.clear()
    world.clock.advance(1_000)
    await spin(100)
    assert groups.busy
    del groups.runtimes["orders/h"]  # as after a start, when none of its messages has come back yet
    closing = asyncio.create_task(groups.close())
    await asyncio.sleep(0)
    groups.begin_ack("orders", "h", [])
    assert "orders/h" in groups.runtimes
    await closing


@pytest.mark.parametrize("max_attempts", [1, 2])
@pytest.mark.parametrize("how", ["ack", "extend", "nack"])
async def test_what_failed_in_time_and_is_not_stored_so_yet_can_only_be_acknowledged(
    world, how, max_attempts
):
    await world.open()
    await put(world, max_attempts=max_attempts)
    await send(world, "a")
    got = await receive(world)
    threads = gated(world)
    threads.reads.clear()
    threads.writes.clear()
    world.clock.advance(5_000)
    await spin()
    options = {"invisible_ms": 60_000} if how == "extend" else {}
    settling = asyncio.create_task(
        getattr(world.engine.groups, how)("orders", "g", [got[0].receipt], **options)
    )
    await spin()
    threads.reads.set()
    threads.writes.set()
    [result] = await settling
    await world.advance(0)
    assert (result.ok, result.code) == ((True, None) if how == "ack" else (False, "receipt_ended"))
    info = world.engine.groups.info("orders", "g")
    dead = int(how != "ack" and max_attempts == 1)
    assert (info.in_flight, info.waiting, info.dead_letters) == (0, int(how != "ack" and not dead), dead)


@pytest.mark.parametrize("spins", range(6))
async def test_a_stop_in_the_midst_of_a_rewind_keeps_no_lease_from_before_it(world, spins):
    await world.open()
    await put(world)
    await send(world, "a", "b")
    got = await receive(world)
    threads = gated(world)
    threads.writes.clear()
    rewinding = asyncio.create_task(world.engine.groups.rewind("orders", "g", to="head"))
    await spin()
    closing = asyncio.create_task(world.engine.close())
    await spin(spins)
    threads.writes.set()
    await asyncio.gather(rewinding, closing)
    await world.open()
    assert in_flight(world) == set()
    assert await ack(world, *got) == [False, False]
    assert [(d.message.body, d.attempt) for d in await receive(world)] == [(b"a", 1), (b"b", 1)]


async def test_a_stop_in_the_midst_of_a_receive_keeps_the_lease_that_it_gives_out(world):
    await world.open()
    await put(world)
    await send(world, "a", "b")
    threads = gated(world)
    threads.reads.clear()
    receiving = asyncio.create_task(receive(world))
    await spin()
    closing = asyncio.create_task(world.engine.close())
    await spin()
    threads.reads.set()
    got = await receiving
    await closing
    await world.open()
    assert in_flight(world) == {0, 1}
    assert await receive(world) == []
    assert await ack(world, *got) == [True, True]


@pytest.mark.parametrize("max_attempts", [1, 5])
async def test_a_lease_that_nobody_heard_of_is_put_back_only_while_it_is_the_newest(world, max_attempts):
    await world.open()
    await put(world, max_attempts=max_attempts)
    await send(world, "a", "b")
    groups = world.engine.groups
    [first, second] = await receive(world)
    groups.put_back("orders", "g", [first.receipt, "no receipt"])
    [again] = await receive(world)
    assert (again.message.body, again.attempt) == (b"a", 1)
    groups.put_back("orders", "g", [first.receipt])
    assert await receive(world) == []
    threads = gated(world)
    threads.reads.clear()
    threads.writes.clear()
    world.clock.advance(5_000)
    await spin()
    groups.put_back("orders", "g", [again.receipt, second.receipt])  # their attempts have failed meanwhile
    threads.reads.set()
    threads.writes.set()
    await world.advance(0)
    assert await receive(world) == []
    info = groups.info("orders", "g")
    assert (info.in_flight, info.waiting + info.dead_letters) == (0, 2)
    await world.advance(1_000)
    third = await receive(world)
    groups.put_back("orders", "g", [again.receipt, second.receipt])
    assert await receive(world) == []
    assert await ack(world, *third) == [True] * len(third)


async def test_a_retried_message_of_a_lane_that_is_put_back_is_not_overtaken(world):
    await world.open()
    await world.engine.topics.change("orders", ordered=True)
    await put(world)
    await send(world, "a1", "a2", __SHARDINGKEY="a")
    for attempt in (1, 2):
        [got] = await receive(world)
        world.engine.groups.put_back("orders", "g", [got.receipt])
        [again] = await receive(world)
        assert (again.message.body, again.attempt) == (b"a1", attempt)
        await world.engine.groups.nack("orders", "g", [again.receipt])
        await world.advance(10_000)


async def test_what_was_chosen_before_a_receiver_went_away_is_chosen_again(world):
    await world.open(queues_per_topic=2)
    await put(world)
    for name in "abcd":  # to the queues in turn
        await send(world, name)
    threads = gated(world)
    queue_reader, positions = world.engine.queues, world.engine.queues.positions
    asked = []

    async def gating(topic, queue, *args):
        asked.append(queue)
        if len(asked) == 2:
            threads.reads.clear()
        return await positions(topic, queue, *args)

    queue_reader.positions = gating
    receiving = asyncio.create_task(receive(world))
    await spin()
    assert len(asked) == 2  # one queue was read, the other waits for the disk
    receiving.cancel()
    await asyncio.gather(receiving, return_exceptions=True)
    threads.reads.set()
    assert sorted(bodies(await receive(world))) == list("abcd")


@pytest.mark.parametrize("run", ["this run", "an earlier run"])
@pytest.mark.parametrize("how", ["ack", "nack", "expire"])
async def test_an_acknowledgement_during_a_rewind_does_not_outlive_it(world, how, run):
    await world.open()
    await put(world)
    await send(world, "a", "b")
    got = await receive(world, 1)
    if run == "an earlier run":
        await world.crash()
    threads = gated(world)
    threads.writes.clear()
    rewinding = asyncio.create_task(world.engine.groups.rewind("orders", "g", to="head"))
    await spin()
    groups, receipts = world.engine.groups, [got[0].receipt]
    settling = None
    if how == "expire":
        world.clock.advance(60_000)
    else:
        settling = asyncio.create_task(getattr(groups, how)("orders", "g", receipts))
    await spin()
    threads.writes.set()
    await rewinding
    if settling is not None:
        assert [result.code for result in await settling] == ["receipt_ended"]
    await spin()
    assert timers_and_items(world) == (0, 0)
    assert bodies(await receive(world)) == ["a", "b"]


@pytest.mark.parametrize("turns", range(1, 12))
async def test_a_receive_of_many_that_is_broken_off_leaves_all_to_others(world, turns):
    await world.open()
    await put(world)
    names = await send_many(world, 900)
    first = asyncio.create_task(receive(world, 1_000))
    for _ in range(turns):
        await asyncio.sleep(0)
    first.cancel()
    got = (await asyncio.gather(first, return_exceptions=True))[0]
    held = [] if isinstance(got, BaseException) else got
    rest = await receive(world, 1_000)
    assert sorted(bodies([*held, *rest])) == names
    assert {delivery.attempt for delivery in rest} <= {1}
    assert len(in_flight(world)) == len(names)
    assert all(await ack(world, *held, *rest))


async def test_who_waits_gets_what_a_receive_left_that_was_broken_off(world):
    await world.open()
    await put(world)
    names = await send_many(world, 900)
    first = asyncio.create_task(receive(world, 1_000))
    await asyncio.sleep(0)
    second = asyncio.create_task(receive(world, 1_000, wait_ms=60_000))
    await asyncio.sleep(0)
    first.cancel()
    async with asyncio.timeout(10):
        assert sorted(bodies(await second)) == names


# ---------------------------------------------------------------------- leases end though nobody calls


def counted(world):
    info = world.engine.groups.info("orders", "g")
    return info.in_flight, info.waiting, info.ready


async def test_a_lease_ends_in_time_that_began_in_the_turn_in_which_the_last_one_had_ended(world):
    await world.open()
    await put(world)
    await send(world, "a", "b")
    [a] = await receive(world, 1)
    assert await ack(world, a) == [True]
    [watching] = [task for task in asyncio.all_tasks() if task.get_name() == "timerwheel orders/g"]
    await spin()
    world.clock.advance(5_000)
    while not watching.done():
        await asyncio.sleep(0)
    assert bodies(await receive(world)) == ["b"]  # before what is called when that task is done
    await world.advance(4_999)
    assert counted(world) == (1, 0, 0)
    await world.advance(1)
    assert counted(world) == (0, 1, 0)


@pytest.mark.parametrize("how", ["ack", "nack", "give_up", "conclude"])
async def test_what_is_held_by_a_receipt_of_before_a_crash_comes_again_if_its_end_cannot_be_stored(
    world, how
):
    await world.open()
    await put(world)
    await send(world, "a")
    [got] = await receive(world)
    await world.crash()
    groups = world.engine.groups
    calls = {
        "ack": lambda: groups.ack("orders", "g", [got.receipt]),
        "nack": lambda: groups.nack("orders", "g", [got.receipt]),
        "give_up": lambda: groups.give_up("orders", "g", [got.receipt], "no use"),
        "conclude": lambda: groups.conclude("orders", "g", got.receipt, []),
    }
    space, world.files.space_bytes = world.files.space_bytes, 0
    with pytest.raises(NoSpaceError):
        await calls[how]()
    world.files.space_bytes = space
    assert counted(world) == (1, 0, 0)
    await world.advance(5_000)
    assert counted(world) == (0, 1, 0)
    await world.advance(1_000)
    [again] = await receive(world)
    assert (again.message.body, again.attempt) == (b"a", 2)


async def wait_for_retries(world, count: int) -> None:
    """Have a group hold this many messages, all given back with their retries far away."""
    await world.open(**ROOMY)
    await put(world)
    await send_many(world, count)
    got = await receive(world, count)
    assert len(got) == count
    await world.engine.groups.nack("orders", "g", [one.receipt for one in got], delay_ms=600_000)
    assert timers_and_items(world) == (count, count)


ROOMY = {"batch_bytes_max": 1 << 20, "segment_size_bytes": 1 << 20}


@pytest.mark.parametrize("change", ["rewind", "delete"])
async def test_a_group_that_holds_many_is_rewound_or_deleted_in_small_steps(world, monkeypatch, change):
    monkeypatch.setattr("timerwheel.groups.forgotten.STEP_TIMERS", 10, raising=False)
    await wait_for_retries(world, 60)
    core, limit = world.engine.core, 2_000
    core.log.unit_bytes_max = limit  # as a journal has one
    steps: list[int] = []
    take = core.in_flight.take

    def watched(entries):
        steps.append(len(entries))
        return take(entries)

    monkeypatch.setattr(core.in_flight, "take", watched)
    if change == "rewind":
        await world.engine.groups.rewind("orders", "g", to="head")
        assert len(await receive(world, 60)) == 60
    else:
        await world.engine.groups.delete("orders", "g")
    assert steps == [10] * 6
    assert world.engine.core.state.leases == 0
    await world.advance(700_000)
    assert world.engine.ready


@pytest.mark.parametrize("change", ["rewind", "delete"])
@pytest.mark.parametrize("writes", [0, 1, 2, 3])
async def test_timers_of_what_a_group_forgot_before_a_crash_are_ended_at_the_start(
    world, monkeypatch, change, writes
):
    monkeypatch.setattr("timerwheel.groups.forgotten.STEP_TIMERS", 3, raising=False)
    await wait_for_retries(world, 9)
    threads = gated(world)
    threads.writes.clear()
    options = {"to": "head"} if change == "rewind" else {}
    changing = asyncio.create_task(getattr(world.engine.groups, change)("orders", "g", **options))
    await spin()
    for _ in range(writes):
        await threads.let_one_write()
    await world.engine.abandon()
    threads.writes.set()
    await asyncio.gather(changing, return_exceptions=True)
    await world.open()
    check_groups(world.engine)
    assert world.engine.core.state.leases == (0 if writes else 9)
    if change == "rewind" and writes:
        assert len(await receive(world, 20)) == 9
    await world.advance(700_000)
    check_groups(world.engine)
