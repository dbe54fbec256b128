"""Consumer groups when calls meet: no message is lost or given to two, and no timer is left behind."""

import asyncio
from collections import Counter

import pytest

from tests.harness.cold import make_cold
from tests.integration.groups.test_groups import ack, bodies, put, receive, send
from timerwheel.groups.config import UnknownGroupError
from timerwheel.runtime.threads import Threads
from timerwheel.store.errors import NoSpaceError

AHEAD = 256  # so many are read at once: the one after needs another read


class GatedThreads(Threads):
    """Reads and log writes that wait until their gate is opened."""

    def __init__(self) -> None:
        super().__init__(inline=True)
        self.reads, self.writes = asyncio.Event(), asyncio.Event()
        self.reads.set()
        self.writes.set()

    async def read(self, call, *args, **kwargs):
        await self.reads.wait()
        return await super().read(call, *args, **kwargs)

    async def log(self, call, *args, **kwargs):
        await self.writes.wait()
        return await super().log(call, *args, **kwargs)

    async def let_one_write(self) -> None:
        """The batch that waits is written; the next one waits."""
        self.writes.set()
        self.writes.clear()
        await spin()


def gated(world) -> GatedThreads:
    make_cold(world.engine)
    threads = GatedThreads()
    world.engine.core.commit._threads = threads
    world.engine.core.record_cache._threads = threads
    return threads


async def refused_while_choosing(world, first, second) -> tuple[asyncio.Task, asyncio.Task]:
    """Start both calls; the first's leases are refused while the second, which chose after them, reads."""
    threads = gated(world)
    threads.writes.clear()
    one = asyncio.create_task(first)
    await spin()
    threads.reads.clear()
    world.engine.groups._runtimes["orders/g"].leasing._chooser._ahead.clear()
    two = asyncio.create_task(second)
    await spin()
    space = world.files.space_bytes
    world.files.space_bytes = 0
    threads.writes.set()
    await spin()
    assert one.done()
    assert not two.done()
    world.files.space_bytes = space
    threads.reads.set()
    return one, two


async def spin(count: int = 30) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def timers_and_items(world) -> tuple[int, int]:
    view = world.engine.core.state
    return view.leases, sum(item.timed for state in view.groups for item in state.items.values())


async def many(world, count: int) -> list[str]:
    names = [f"m{number:04}" for number in range(count)]
    for at in range(0, count, 50):
        await send(world, *names[at : at + 50])
    return names


async def test_fifty_receivers_at_once_get_every_message_once(world):
    await world.open()
    await put(world)
    names = await many(world, 400)
    got = await asyncio.gather(*(receive(world, 7) for _ in range(70)))
    assert sorted(body for part in got for body in bodies(part)) == names
    assert len({d.receipt for part in got for d in part}) == 400


async def test_fifty_receivers_that_wait_share_what_comes(world):
    await world.open()
    await put(world)
    waiting = [asyncio.create_task(receive(world, 1, wait_ms=60_000)) for _ in range(50)]
    await spin()
    names = await many(world, 50)
    got = await asyncio.gather(*waiting)
    assert sorted(bodies(part)[0] for part in got) == names


async def test_what_is_chosen_while_an_earlier_unit_is_refused_is_chosen_anew(world):
    await world.open()
    await put(world)
    names = await many(world, 10)
    first, second = await refused_while_choosing(world, receive(world, 4), receive(world, 2))
    with pytest.raises(NoSpaceError):
        await first
    got = bodies(await second)
    got += bodies(await receive(world, 1_000))
    assert sorted(got) == names


async def test_a_receiver_that_is_cancelled_while_an_earlier_unit_is_refused_skips_nothing(world):
    await world.open()
    await put(world)
    names = await many(world, 10)
    first, second = await refused_while_choosing(world, receive(world, 4), receive(world, 2))
    second.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    assert sorted(bodies(await receive(world, 1_000))) == names


async def test_a_filter_that_looks_on_while_an_earlier_unit_is_refused_skips_nothing(world):
    await world.open()
    await put(world, tags="A")
    await send(world, "a0", "a1", "a2", TAGS="A")
    await send(world, *["x"] * 50, TAGS="B")
    first, second = await refused_while_choosing(world, receive(world, 3), receive(world, 3))
    await asyncio.gather(first, second, return_exceptions=True)
    got = bodies(await second)
    got += bodies(await receive(world, 3))
    assert sorted(got) == ["a0", "a1", "a2"]


@pytest.mark.parametrize("spins", range(25))
async def test_no_space_in_the_midst_of_many_receivers_loses_nothing(world, spins):
    await world.open()
    await put(world)
    names = await many(world, 120)
    space = world.files.space_bytes
    world.files.space_bytes = 2_000 + 97 * spins
    tasks = [asyncio.create_task(receive(world, 1 + number % 5)) for number in range(30)]
    await spin(spins)
    world.files.space_bytes = space
    results = await asyncio.gather(*tasks, return_exceptions=True)
    got = [body for part in results if isinstance(part, list) for body in bodies(part)]
    got += bodies(await receive(world, 1_000))
    assert sorted(got) == names
    assert timers_and_items(world) == (120, 120)


@pytest.mark.parametrize("spins", range(12))
async def test_a_receiver_that_goes_away_at_any_point_loses_nothing(world, spins):
    await world.open()
    await put(world)
    names = await many(world, 20)
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
    await world.advance(6_000)  # what was leased to nobody comes back
    got += [d.message.body.decode() for d in await receive(world, 100)]
    assert sorted(set(got)) == names
    lowest, highest = timers_and_items(world)
    assert lowest == highest == 20


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
    state = world.engine.core.state.groups.by_name["orders/g"]
    held = {item.queue_offset for item in state.items.values()}
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
        assert timers_and_items(world) == (3, 3)
    else:
        assert world.engine.core.state.leases == 0
        assert bodies(await receive(world)) == ["a", "b", "c"]


@pytest.mark.parametrize("spins", range(16))
async def test_a_receiver_of_a_deleted_group_takes_nothing_from_the_one_made_after(world, spins):
    await world.open()
    await put(world)
    await many(world, AHEAD + 4)
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
    held = world.engine.core.state.groups.by_name["orders/g"].items
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
    await world.engine.groups.set_ordered("orders", ordered=True)
    await put(world)
    for _ in range(25):
        await send(world, *["x"] * 50, __SHARDINGKEY="a")
    await send(world, "b", __SHARDINGKEY="b")
    assert bodies(await receive(world, 1)) == ["x"]
    assert bodies(await receive(world, 1)) == ["b"]
    assert await receive(world, 1) == []


async def test_a_key_goes_on_in_order_when_its_first_is_acknowledged_while_the_next_are_looked_through(world):
    await world.open()
    await world.engine.groups.set_ordered("orders", ordered=True)
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


async def test_a_key_goes_on_in_order_when_its_first_is_acknowledged_while_the_next_are_stored(world):
    await world.open()
    await world.engine.groups.set_ordered("orders", ordered=True)
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
    await threads.let_one_write()
    receiving = [asyncio.create_task(receive(world))]  # holds a2 back, in the batch after that
    await spin()
    await threads.let_one_write()
    assert before.done()
    assert batch.done()
    receiving.append(asyncio.create_task(receive(world)))  # finds a3, while a2 is not held back yet
    await spin()
    threads.writes.set()
    got = [delivery for task in receiving for delivery in await task]
    assert bodies([*got, *await receive(world)]) == ["a2"]


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


@pytest.mark.parametrize("came_back", [False, True])
async def test_messages_that_retention_drops_while_they_are_read_are_gone_and_not_damaged(world, came_back):
    await world.open(retention_ms=5_000)
    await put(world, invisible_ms=20_000)
    await send(world, "a", "b")
    if came_back:
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
    assert timers_and_items(world) == (1, 1)


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
    del groups._runtimes["orders/h"]  # as after a start, when none of its messages has come back yet
    closing = asyncio.create_task(groups.close())
    await asyncio.sleep(0)
    groups._desk_of("orders/h")
    await closing
