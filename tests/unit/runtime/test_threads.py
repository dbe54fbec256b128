"""Jobs of the engine's threads: in order, with what they raise, and until the last."""

import asyncio
import threading

import pytest

from timerwheel.runtime.threads import Threads


@pytest.fixture
def threads():
    threads = Threads()
    yield threads
    threads.close()


async def test_a_call_gives_what_it_returns_or_raises(threads):
    def fail():
        raise KeyError("x")

    assert await threads.read(divmod, 7, 2) == (3, 1)
    assert await threads.log(int, "ff", base=16) == 255
    with pytest.raises(KeyError, match="x"):
        await threads.index(fail)
    assert await threads.index(threading.get_ident) != threading.get_ident()


async def test_the_jobs_of_one_writer_run_in_the_order_given(threads):
    done = []
    await asyncio.gather(*[threads.log(done.append, number) for number in range(500)])
    assert done == list(range(500))


async def test_a_call_that_is_cancelled_before_its_turn_is_not_made(threads):
    held, done = threading.Event(), []
    first = asyncio.create_task(threads.log(held.wait))
    second = asyncio.create_task(threads.log(done.append, 1))
    third = asyncio.create_task(threads.log(done.append, 2))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.sleep(0)
    held.set()
    await asyncio.gather(first, third)
    assert done == [2]


async def test_a_call_that_is_cancelled_while_it_runs_is_carried_out(threads):
    began, held, done = threading.Event(), threading.Event(), []

    def job():
        began.set()
        held.wait()
        done.append(1)

    running = asyncio.create_task(threads.log(job))
    assert await threads.read(began.wait)
    running.cancel()
    await asyncio.sleep(0)
    held.set()
    await threads.log(int)
    assert done == [1]


async def test_closing_waits_for_what_is_queued_and_ends_the_threads():
    threads, done = Threads(), []
    running = [asyncio.create_task(threads.index(done.append, number)) for number in range(100)]
    await asyncio.sleep(0)
    threads.close()
    assert len(done) == 100
    await asyncio.gather(*running)
    with pytest.raises(RuntimeError, match="have ended"):
        await threads.index(int)


def test_a_closed_loop_gets_no_callback():
    threads, held, done = Threads(), threading.Event(), []

    def job():
        held.wait()
        done.append(1)

    async def leave():
        asyncio.create_task(threads.log(job)).cancel()
        waiting = asyncio.ensure_future(threads.log(job))
        await asyncio.sleep(0)
        waiting.cancel()

    asyncio.run(leave())
    held.set()
    threads.close()
    assert done in ([], [1])  # its turn may have come before it was cancelled


async def test_what_is_due_is_read_while_all_readers_are_busy(threads):
    held = threading.Event()
    listings = [asyncio.create_task(threads.read(held.wait)) for _ in range(10)]
    await asyncio.sleep(0)
    assert await asyncio.wait_for(threads.read_due(divmod, 7, 2), 30) == (3, 1)
    held.set()
    assert await asyncio.gather(*listings) == [True] * 10
