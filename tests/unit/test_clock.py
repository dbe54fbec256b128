"""The alarm: rings in the event loop when the wall clock reads the time, never before."""

import asyncio
import resource
import sys
import time
from pathlib import Path

import pytest

from tests.harness.drive import turns_between
from timerwheel.clock import SystemClock, alarm

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="timers that are files are Linux's")


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_it_rings_when_the_clock_reads_the_time_and_not_before():
    for ahead_ms in (1, 2, 7, 20):
        rang: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        due_ms = time.time_ns() // 1_000_000 + ahead_ms

        def ring(rang=rang):
            if not rang.done():
                rang.set_result(time.time_ns() // 1_000_000)

        with alarm(due_ms, ring):
            assert await rang >= due_ms


async def test_a_time_that_is_past_rings_at_once():
    rang = asyncio.Event()
    with alarm(1, rang.set):
        await rang.wait()


async def test_it_leaves_no_file_open_and_never_rings_after_its_block():
    rang, later = asyncio.Event(), asyncio.Event()
    before = open_files()
    with alarm(time.time_ns() // 1_000_000 + 1, rang.set):
        pass
    assert open_files() == before
    with alarm(time.time_ns() // 1_000_000 + 3, later.set):
        await later.wait()
    assert not rang.is_set()


async def test_without_a_file_to_be_had_the_clock_still_waits_until_the_time():
    clock, wake = SystemClock(), asyncio.Event()
    await clock.wait_until(clock.now_ms() + 1, wake)  # what is opened once is open now
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    none_free = max(int(file.name) for file in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (none_free, hard))
    try:
        due_ms = clock.now_ms() + 3
        while clock.now_ms() < due_ms:
            wake.clear()
            await clock.wait_until(due_ms, wake)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_the_clock_never_tells_that_a_time_has_come_before_it_has():
    clock, wake = SystemClock(), asyncio.Event()
    for ahead_ms in range(1, 12):
        wake.clear()
        due_ms = clock.now_ms() + ahead_ms
        await clock.wait_until(due_ms, wake)
        assert clock.now_ms() >= due_ms


async def test_an_event_ends_the_wait_before_its_time():
    clock, wake = SystemClock(), asyncio.Event()
    asyncio.get_running_loop().call_soon(wake.set)
    due_ms = clock.now_ms() + 400
    await clock.wait_until(due_ms, wake)
    assert clock.now_ms() < due_ms


async def test_of_long_work_one_piece_takes_a_step_in_each_turn_of_the_loop():
    clock, loop = SystemClock(), asyncio.get_running_loop()
    turn = 0
    steps: list[tuple[int, str]] = []

    def count() -> None:
        nonlocal turn
        turn += 1
        loop.call_soon(count)

    async def work(name: str) -> None:
        for _ in range(5):
            await clock.breathe()
            steps.append((turn, name))

    count()
    tasks = [asyncio.create_task(work(name)) for name in "abcd"]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    turns = [at for at, _ in steps]
    assert len(set(turns)) == len(turns), "two steps in one turn"
    assert "".join(name for _, name in steps) == "acd" * 5
    assert turns[-1] - turns[0] == len(turns) - 1, "a turn was lost though there was work"


async def test_work_that_is_alone_goes_on_at_once():
    clock = SystemClock()
    async with asyncio.timeout(10), turns_between() as turns:
        for _ in range(1_000):
            await clock.breathe()
        assert turns() <= 2_010  # one to be let in, one to go on, and a few to begin
