"""The two ways into the log take turns, whatever else wants to write, and whoever goes away meanwhile."""

import asyncio
import errno
import logging
import threading
from pathlib import Path

import pytest

from tests.harness.clock import ManualClock
from tests.harness.faulty import FaultyFiles
from tests.unit.store.test_log_ahead import numbers_in, opened, record, stored
from timerwheel.runtime.log_writer import LogWriter
from timerwheel.runtime.threads import Threads
from timerwheel.store.errors import LogFailedError
from timerwheel.store.files import DIRECT_BYTES_MAX, DiskFiles


@pytest.fixture
def files():
    return FaultyFiles()


@pytest.fixture
async def threads(request):
    threads = Threads(inline=getattr(request, "param", False))
    yield threads
    threads.close()


def made(files, threads, *, slow=False, sync=True):
    log = opened(files)
    stored(log, 0)
    assert log.open_ring() is None
    log.ring.slow = slow
    return log, LogWriter(log, threads, ManualClock(), sync=sync)


async def turns(count=20):
    for _ in range(count):
        await asyncio.sleep(0)


async def test_small_writes_are_the_kernels_and_the_others_the_threads(files, threads):
    log, writer = made(files, threads)
    for number in range(1, 4):
        assert (await writer.append([[record(number)]])).error is None
    assert log.ring.begun == 3
    large = await writer.append([[record(4, b"x" * DIRECT_BYTES_MAX)]])
    assert (large.error, log.ring.begun) == (None, 3)
    assert len(list(log.scan(0))) == 5
    writer.close()


async def test_without_a_sync_every_write_is_the_threads(files, threads):
    log, writer = made(files, threads, sync=False)
    await writer.append([[record(1)]])
    assert log.ring.begun == 0


async def test_calls_for_the_log_thread_wait_for_a_write_of_the_kernel(files, threads):
    log, writer = made(files, threads, slow=True)
    ran = []
    writing = asyncio.create_task(writer.append([[record(1)]]))
    await turns()
    calls = [asyncio.create_task(threads.log(ran.append, number)) for number in range(3)]
    await turns()
    assert (ran, writing.done()) == ([], False)
    log.ring.finish()
    await asyncio.gather(writing, *calls)
    assert ran == [0, 1, 2]
    assert numbers_in(log) == [0, 1]
    writer.close()


@pytest.mark.parametrize("threads", [False, True], indirect=True, ids=["threads", "inline"])
async def test_a_call_that_waited_for_a_write_comes_before_the_next_one(files, threads):
    log, writer = made(files, threads, slow=True)
    order = []

    async def write():
        await writer.append([[record(1)]])
        await writer.append([[record(2)]])  # in the step in which the first has ended

    writing = asyncio.create_task(write())
    await turns()
    calling = asyncio.create_task(threads.log(lambda: order.append((log.ring.begun, log.ring.in_flight))))
    await turns()
    log.ring.slow = False
    log.ring.finish()
    await asyncio.gather(writing, calling)
    assert order == [(1, False)]
    assert numbers_in(log) == [0, 1, 2]
    writer.close()


async def test_while_the_log_thread_has_a_call_a_write_waits_its_turn_there(files, threads):
    log, writer = made(files, threads)
    gate = threading.Event()
    held = asyncio.create_task(threads.log(gate.wait))
    await turns()
    writing = asyncio.create_task(writer.append([[record(1)]]))
    await turns()
    assert (log.ring.begun, writing.done()) == (0, False)
    gate.set()
    await asyncio.gather(held, writing)
    assert (log.ring.begun, numbers_in(log)) == (0, [0, 1])


async def test_a_call_that_runs_on_after_its_caller_went_away_is_still_waited_for(files, threads):
    log, writer = made(files, threads)
    gate, begun = threading.Event(), threading.Event()

    def hold():
        begun.set()
        gate.wait()

    held = asyncio.create_task(threads.log(hold))
    await turns()
    begun.wait()
    held.cancel()
    await turns()
    writing = asyncio.create_task(writer.append([[record(1)]]))
    await turns()
    assert (log.ring.begun, writing.done()) == (0, False)
    gate.set()
    await writing
    assert (log.ring.begun, numbers_in(log)) == (0, [0, 1])
    await writer.append([[record(2)]])
    assert log.ring.begun == 1
    writer.close()


async def test_when_the_writer_is_cancelled_the_log_closes_after_the_write(tmp_path: Path, threads):
    files = DiskFiles()
    log = opened(files, tmp_path / "log")
    if (reason := log.open_ring()) is not None:
        pytest.skip(reason)
    stored(log, 0)
    writer = LogWriter(log, threads, ManualClock(), sync=True)
    writing = asyncio.create_task(writer.append([[record(1)]]))
    await asyncio.sleep(0)
    assert log.ring.in_flight
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    writer.close()
    log.close()
    assert log.ring is None
    assert numbers_in(opened(files, tmp_path / "log")) == [0, 1]


async def test_other_tasks_go_on_while_the_disk_hangs(files, threads):
    log, writer = made(files, threads, slow=True)
    writing = asyncio.create_task(writer.append([[record(1)]]))
    await turns(1_000)
    assert not writing.done()
    log.ring.finish()
    await writing
    writer.close()


async def test_a_write_that_begins_as_another_ends_is_not_taken_for_it(files, threads):
    log, writer = made(files, threads, slow=True)

    async def both():
        await writer.append([[record(1)]])
        await writer.append([[record(2)]])

    writing = asyncio.create_task(both())
    await turns()
    log.ring.finish()  # the loop may notice this more than once
    await turns(1_000)
    assert (log.ring.begun, writing.done()) == (2, False)
    log.ring.finish()
    await writing
    assert numbers_in(log) == [0, 1, 2]
    writer.close()


async def test_a_kernel_that_refuses_is_asked_once_and_named_once(files, threads, caplog):
    log, writer = made(files, threads)
    log.ring.refuses = errno.EINVAL
    with caplog.at_level(logging.WARNING, "timerwheel"):
        for number in range(1, 4):
            await writer.append([[record(number)]])
    assert [line for line in caplog.messages if "Invalid argument" in line] == caplog.messages
    assert len(caplog.messages) == log.ring.begun == 1
    assert numbers_in(log) == [0, 1, 2, 3]
    writer.close()


async def test_an_error_of_the_disk_ends_all_writing(files, threads):
    log, writer = made(files, threads)
    log.ring.refuses = errno.EIO
    for number in range(1, 3):
        with pytest.raises(LogFailedError):
            await writer.append([[record(number)]])
    assert log.ring.begun == 1
    writer.close()
