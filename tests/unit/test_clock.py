"""The alarm: rings in the event loop when the wall clock reads the time, never before."""

import asyncio
import resource
import sys
import time
from pathlib import Path

import pytest

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
    rang = asyncio.Event()
    before = open_files()
    with alarm(time.time_ns() // 1_000_000 + 1, rang.set):
        pass
    assert open_files() == before
    await asyncio.sleep(0.005)
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
