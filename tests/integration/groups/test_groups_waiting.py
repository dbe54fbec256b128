"""Who waits for messages of a group: as many are woken as there is work for, and no message is left over."""

import asyncio

import pytest

from tests.harness.consumers import ack, bodies, put, receive, send
from tests.harness.gated_threads import spin
from timerwheel.errors import NotReadyError
from timerwheel.store.errors import CorruptionError, JournalFencedError

LONG_MS = 60_000


async def waiting(world, count: int, **more) -> list[asyncio.Task]:
    """So many consumers of one message each, in the order in which they began to wait."""
    tasks = []
    for _ in range(count):
        tasks.append(asyncio.create_task(receive(world, 1, wait_ms=LONG_MS, **more)))
        await spin()
    return tasks


async def taken(tasks: list[asyncio.Task]) -> list[str]:
    return sorted(body for got in await asyncio.gather(*tasks) for body in bodies(got))


async def stopped(tasks: list[asyncio.Task]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_one_message_goes_to_who_waits_longest_and_the_others_do_not_look(world):
    await world.open()
    await put(world)
    tasks = await waiting(world, 3)
    looks = 0
    leasing = world.engine.groups.runtimes["orders/g"].leasing
    take = leasing.take

    async def counting(*args):
        nonlocal looks
        looks += 1
        return await take(*args)

    leasing.take = counting
    await send(world, "a")
    await spin()
    assert [task.done() for task in tasks] == [True, False, False]
    assert bodies(await tasks[0]) == ["a"]
    assert looks == 1
    await stopped(tasks[1:])


async def test_several_messages_wake_as_many(world):
    await world.open()
    await put(world)
    tasks = await waiting(world, 3)
    await send(world, "a", "b")
    await spin()
    assert await taken(tasks[:2]) == ["a", "b"]
    assert not tasks[2].done()
    await stopped(tasks[2:])


async def test_who_is_cancelled_as_it_is_woken_wakes_the_next(world):
    await world.open()
    await put(world)
    tasks = await waiting(world, 2)
    runtime = world.engine.groups.runtimes["orders/g"]
    wake = runtime.wake

    def wake_and_cancel(count=None):
        wake(count)
        tasks[0].cancel()

    runtime.wake = wake_and_cancel
    await send(world, "a")
    await spin()
    assert tasks[0].cancelled()
    assert bodies(await tasks[1]) == ["a"]


async def test_who_is_gone_when_it_is_woken_wakes_the_next(world):
    await world.open()
    await put(world)
    there = True
    gone = await waiting(world, 1, wanted=lambda: there)
    tasks = await waiting(world, 1)
    there = False
    await send(world, "a")
    await spin()
    assert bodies(await gone[0]) == []
    assert bodies(await tasks[0]) == ["a"]


async def test_a_receiver_that_finds_more_than_it_takes_wakes_the_next(world):
    """Three messages are there, and nothing arrives any more to wake who waits."""
    await world.open()
    await put(world)
    tasks = await waiting(world, 3)
    runtime = world.engine.groups.runtimes["orders/g"]
    runtime.wake = lambda *_: None
    await send(world, "a", "b", "c")
    await spin()
    assert not any(task.done() for task in tasks)
    runtime.notify(1)
    await spin()
    assert await taken(tasks) == ["a", "b", "c"]


async def test_who_fails_as_it_looks_wakes_the_next(world):
    await world.open()
    await put(world)
    tasks = await waiting(world, 2)
    runtime = world.engine.groups.runtimes["orders/g"]
    take, refused = runtime.leasing.take, []

    async def refusing(*args):
        if not refused:
            refused.append(True)
            raise CorruptionError("a segment", 0, "it cannot be read")
        return await take(*args)

    runtime.leasing.take = refusing
    await send(world, "a")
    await spin()
    assert isinstance(tasks[0].exception(), CorruptionError)
    assert bodies(await tasks[1]) == ["a"]


async def test_what_came_back_wakes_one_for_each(world):
    await world.open()
    await put(world)
    await send(world, "a", "b")
    first = await receive(world, 2, invisible_ms=5_000)
    tasks = await waiting(world, 3)
    await world.advance(LONG_MS - 1)
    assert await taken(tasks[:2]) == ["a", "b"]
    assert not tasks[2].done()
    assert await ack(world, *first) == [False, False]
    await stopped(tasks[2:])


async def test_what_came_back_here_and_there_is_found_whole_and_in_order(world):
    """Neighbours are read together; what lies apart, or was acknowledged in between, is read over."""
    await world.open()
    await put(world)
    await send(world, *(str(number) for number in range(60)))
    held = await receive(world, 60, invisible_ms=1_000)
    wanted = [0, 1, 3, 7, 20, 21, 22, 40, 59]
    await ack(world, *(one for number, one in enumerate(held) if number not in wanted))
    await world.advance(LONG_MS)
    assert bodies(await receive(world, 60)) == [str(number) for number in wanted]


async def test_a_consumer_that_waits_is_given_nothing_once_another_process_may_lead(world):
    """After a long pause leases seem to have ended; the successor may have had them acknowledged."""
    await world.open()
    await put(world)
    await send(world, "a")
    assert bodies(await receive(world)) == ["a"]
    [waits] = await waiting(world, 1)

    async def refuse() -> None:
        raise JournalFencedError("another process has claimed the journal")

    lead = world.engine.lead
    lead.until_ms, lead.confirm = lambda: -1, refuse
    await world.advance(60_000)
    with pytest.raises(NotReadyError, match="another one may"):
        await waits
    with pytest.raises(NotReadyError):
        await receive(world)
    lead.until_ms = lambda: 1 << 62
    assert bodies(await receive(world)) == ["a"]
