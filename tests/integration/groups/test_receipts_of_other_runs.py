"""Receipts of an earlier run: good for their own message, and for no other that is at its place now."""

import shutil

import pytest

from tests.harness.consumers import ack, bodies, put, receive, send
from tests.harness.faulty import PAGE
from timerwheel.groups.groups import MARKS
from timerwheel.groups.leases import Lease
from timerwheel.model.messages import Outgoing
from timerwheel.state.config_table import ConfigTable, Put
from timerwheel.store.errors import CorruptionError, NoSpaceError

WAYS = ("ack", "nack", "extend", "give up", "conclude")


async def power_cut(world) -> None:
    """The machine stops, and its disk has what was synced."""
    world.files.forget_unsynced()
    await world.engine.abandon()
    world.files.forget_unsynced()  # what it was about to write
    await world.open()


async def cut_off(world, end: int) -> None:
    """The log ends there now, as after a start with `--cut`, and the index is built again."""
    await world.engine.abandon()
    [node] = world.files.names_now.values()
    node.data = bytearray(node.data[:end])
    shutil.rmtree(world.directory / "index")
    await world.open()


async def say(world, how, receipt):
    groups, place = world.engine.groups, ("orders", "g")
    if how == "conclude":
        return await groups.conclude(*place, receipt, [])
    calls = {
        "ack": lambda: groups.ack(*place, [receipt]),
        "nack": lambda: groups.nack(*place, [receipt], delay_ms=1_000),
        "extend": lambda: groups.extend(*place, [receipt], 60_000),
        "give up": lambda: groups.give_up(*place, [receipt], "no use"),
    }
    [result] = await calls[how]()
    return result


async def failed_once(world) -> None:
    """The only message fails its first attempt, and is ready again."""
    [got] = await receive(world)
    await world.engine.groups.nack("orders", "g", [got.receipt], delay_ms=1_000)
    await world.advance(1_000)


async def not_acknowledged(world) -> None:
    """The only message is not acknowledged in time, and waits."""
    await receive(world)
    await world.advance(5_000)
    assert world.engine.groups.info("orders", "g").waiting == 1


async def with_a_group(world, **limits) -> None:
    await world.open(flush="async", **limits)
    await put(world)
    world.engine.core.log.sync()


@pytest.mark.parametrize("how", WAYS)
async def test_after_a_power_cut_a_receipt_says_nothing_of_the_message_that_has_its_place_now(world, how):
    await with_a_group(world)
    await send(world, "first")
    [lost] = await receive(world)
    await power_cut(world)
    await send(world, "second")
    assert (await say(world, how, lost.receipt)).code == "receipt_ended"
    [got] = await receive(world)
    assert (got.message.body, got.attempt) == (b"second", 1)


@pytest.mark.parametrize("how", WAYS)
async def test_nor_of_one_that_failed_as_often_as_the_lost_one_had(world, how):
    await with_a_group(world)
    end = world.engine.core.log.tail
    await send(world, "first")
    await failed_once(world)
    [lost] = await receive(world)
    await cut_off(world, end)
    await send(world, "second")
    await failed_once(world)
    assert (await say(world, how, lost.receipt)).code == "receipt_ended"
    [got] = await receive(world)
    assert (got.message.body, got.attempt) == (b"second", 2)


@pytest.mark.parametrize("how", ["ack", "conclude"])
async def test_nor_late_of_one_that_was_not_acknowledged_in_time(world, how):
    await with_a_group(world)
    await send(world, "first")
    [lost] = await receive(world)
    await power_cut(world)
    await send(world, "second")
    await not_acknowledged(world)
    assert (await say(world, how, lost.receipt)).code == "receipt_ended"
    await world.advance(1_000)
    assert bodies(await receive(world)) == ["second"]


async def test_nor_of_one_of_a_key_and_the_next_of_the_key_waits_for_it(world):
    await with_a_group(world)
    await world.engine.topics.change("orders", ordered=True)
    world.engine.core.log.sync()
    await send(world, "first", __SHARDINGKEY="a")
    [lost] = await receive(world)
    await power_cut(world)
    await send(world, "second", "third", __SHARDINGKEY="a")
    assert await ack(world, lost) == [False]
    assert bodies(await receive(world)) == ["second"]


async def test_no_message_is_read_by_the_receipt_of_another(world):
    await with_a_group(world)
    await send(world, "first")
    [lost] = await receive(world)
    assert (await world.engine.groups.message_of("orders", "g", lost.receipt))[0].body == b"first"
    await power_cut(world)
    assert await world.engine.groups.message_of("orders", "g", lost.receipt) is None
    await send(world, "second")
    assert await world.engine.groups.message_of("orders", "g", lost.receipt) is None


async def test_of_many_receipts_each_is_compared_with_its_own_message(world):
    await with_a_group(world, queues_per_topic=2)
    await send(world, *[f"kept {number}" for number in range(40)])
    kept = await receive(world)
    world.engine.core.log.sync()
    await send(world, *[f"lost {number}" for number in range(40)])
    lost = await receive(world)
    await power_cut(world)
    await send(world, *[f"new {number}" for number in range(60)])
    assert await ack(world, *lost, *kept) == [False] * 40 + [True] * 40
    assert sorted(bodies(await receive(world))) == sorted(f"new {number}" for number in range(60))


@pytest.mark.parametrize("how", ["crash", "lose_index", "restart", "power cut"])
@pytest.mark.parametrize("delay_ms", [0, 1_000, 100_000])
async def test_a_receipt_is_good_after_any_stop_for_the_message_that_it_was_given_out_for(
    world, how, delay_ms
):
    await world.open()
    await put(world)
    await world.send(delay_ms)
    await world.advance(delay_ms)
    [got] = await receive(world)
    await (power_cut(world) if how == "power cut" else getattr(world, how)())
    await send(world, "later")
    assert await ack(world, got) == [True]
    assert bodies(await receive(world)) == ["later"]


async def test_a_receipt_of_a_redriven_dead_letter_is_good_after_a_crash(world):
    await world.open()
    await put(world, max_attempts=1)
    await send(world, "a")
    await receive(world)
    await world.advance(5_000)
    await world.engine.groups.dead.redrive("g")
    await world.advance(0)
    [got] = await receive(world)
    await world.crash()
    assert await ack(world, got) == [True]
    assert await receive(world) == []


async def test_from_before_a_rewind_no_receipt_is_good_for_a_redriven_dead_letter(world):
    await world.open(queues_per_topic=2)
    await put(world, max_attempts=1)
    await send(world, "a")
    [first] = await receive(world)
    await world.advance(5_000)
    await world.engine.groups.dead.redrive("g")
    await world.advance(0)
    [got] = await receive(world)
    await world.engine.groups.rewind("orders", "g", offsets={1 - first.message.queue: 0})
    await world.advance(0)
    assert await ack(world, got) == [False]
    assert bodies(await receive(world)) == ["a"]


# ---------------------------------------------------------------------- after an upgrade


def unmarked(world, delivery) -> str:
    """The receipt that a version before marks gave out for this lease."""
    receipts = world.engine.groups.runtimes["orders/g"].leasing.receipts
    lease = receipts.decode(delivery.receipt)
    return receipts.encode(Lease(lease.key, lease.attempt, lease.run, lease.number))


@pytest.mark.parametrize("how", WAYS)
async def test_a_receipt_of_the_version_before_is_good_after_the_upgrade(world, how):
    await world.open()
    await put(world)
    await send(world, "a")
    [got] = await receive(world)
    receipt = unmarked(world, got)
    assert len(receipt) == 60
    await world.crash()
    assert (await say(world, how, receipt)).ok
    assert await receive(world) == []


async def test_a_lease_that_the_version_before_noted_goes_on_with_its_receipt(world):
    await world.open()
    await put(world)
    await send(world, "a", "b")
    got = await receive(world)
    receipts = [unmarked(world, one) for one in got]
    values, _ = world.engine.groups.runtimes["orders/g"].kept_leases()
    await world.engine.control.put([Put(ConfigTable.LEASES, "orders/g", values)])
    await world.crash()
    assert world.engine.groups.info("orders", "g").in_flight == 2
    assert {receipt for receipt, _ in world.engine.groups.leased("orders", "g")} == set(receipts)
    await world.restart()  # noted by this version now
    assert {receipt for receipt, _ in world.engine.groups.leased("orders", "g")} == set(receipts)
    results = await world.engine.groups.ack("orders", "g", receipts)
    assert [one.ok for one in results] == [True, True]


async def test_what_a_planned_stop_notes_is_read_by_the_version_before_and_named_as_it_was(world):
    await world.open()
    await put(world)
    await send(world, "a", "b")
    got = await receive(world)
    await world.engine.groups.keep_leases()
    noted = world.engine.control.items(ConfigTable.LEASES)
    assert [len(one) for one in noted.pop("orders/g")] == [6, 6]
    assert list(noted) == [f"{MARKS}orders/g"]
    assert "/".join(next(iter(noted)).split("/")[:2]) not in world.engine.core.state.groups.by_name
    await world.restart()
    assert world.engine.control.items(ConfigTable.LEASES) == {}
    leased = world.engine.groups.leased("orders", "g")
    assert {receipt for receipt, _ in leased} == {one.receipt for one in got}


async def test_a_kept_lease_is_no_lease_of_another_message_to_its_receipt(world):
    """As if the log had lost the message of a lease that a planned stop noted."""
    await world.open()
    await put(world)
    await send(world, "a")
    [got] = await receive(world)
    runtime = world.engine.groups.runtimes["orders/g"]
    values, [mark] = runtime.kept_leases()
    other = runtime.leasing.receipts.encode(Lease(*values[0][:4], mark=mark ^ 1))
    await world.restart()
    for how in WAYS:
        assert (await say(world, how, other)).code == "receipt_ended"
    assert world.engine.groups.info("orders", "g").in_flight == 1
    assert await ack(world, got) == [True]


async def test_what_could_not_be_acknowledged_after_a_crash_can_be_with_the_same_receipt(world):
    await world.open()
    await put(world)
    await send(world, "a")
    [got] = await receive(world)
    await world.crash()
    space, world.files.space_bytes = world.files.space_bytes, 0
    with pytest.raises(NoSpaceError):
        await ack(world, got)
    world.files.space_bytes = space
    assert await ack(world, got) == [True]


async def test_messages_of_equal_content_have_marks_of_their_own(world):
    """Sent at different times, they differ in their records."""
    await with_a_group(world)
    await world.engine.sender.send([Outgoing("orders", b"same", {})])
    [lost] = await receive(world)
    await power_cut(world)
    await world.advance(1)
    await world.engine.sender.send([Outgoing("orders", b"same", {})])
    assert await ack(world, lost) == [False]
    assert bodies(await receive(world)) == ["same"]


async def test_who_did_the_work_of_a_message_that_cannot_be_read_any_more_can_say_so(world):
    await world.open(segment_size_bytes=1 << 20)
    await put(world)
    await send(world, "x" * 2 * PAGE)
    log = world.engine.core.log
    place = log.path(log.bases[0]).name, log.tail - log.bases[0]
    await send(world, "work")
    await send(world, "x" * 2 * PAGE)
    [got] = [one for one in await receive(world) if one.message.body == b"work"]
    await world.roll()
    world.files.unreadable = [place]
    await world.crash()
    with pytest.raises(CorruptionError):
        world.engine.core.log.read(place[1])
    assert await ack(world, got) == [True]
    assert b"work" not in [one.message.body for one in await receive(world)]
