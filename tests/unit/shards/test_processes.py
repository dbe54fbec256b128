"""The process of a shard, started by a node that may lack what a process needs."""

import asyncio
import os
import resource
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.harness.clock import ManualClock
from tests.harness.log_lines import log_lines
from timerwheel.shards.processes import AGAIN_MS_MAX, ShardFailedError, ShardProcess


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def without_descriptors(taken: ExitStack) -> None:
    """Let this process open no file until the end of the block."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    taken.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, before[1]))
    with suppress(OSError):
        while True:
            taken.callback(os.close, os.open(os.devnull, os.O_RDONLY))


async def test_a_process_that_cannot_be_started_now_is_started_later(listening):
    clock, begun = ManualClock(), asyncio.Event()
    process = ShardProcess(0, listening, ["--version"], clock)
    begun.set()
    with log_lines() as lines:
        running = asyncio.create_task(process.run(begun))
        await lines.wait_for("it starts again")
        assert process.starts == 1
        with ExitStack() as taken:
            without_descriptors(taken)
            clock.advance(AGAIN_MS_MAX)
            await lines.wait_for("could not be started")
        assert not running.done()
        clock.advance(AGAIN_MS_MAX)
        await lines.wait_for("it starts again", 3)
    assert process.starts == 2
    await process.stop()
    await running


async def test_what_connects_to_a_shard_that_has_stopped_is_refused_at_once(listening):
    """A socket that listens and that nobody accepts from would keep callers until the node ends."""
    address = listening.getsockname()
    process = ShardProcess(0, listening, ["--version"], ManualClock())
    socket.create_connection(address).close()
    await process.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


async def test_a_process_that_cannot_be_started_at_first_ends_the_node(listening):
    process = ShardProcess(0, listening, ["--version"], ManualClock())
    with ExitStack() as taken:
        without_descriptors(taken)
        with pytest.raises(ShardFailedError, match=r"could not be started: .*Too many open files"):
            await process.run(asyncio.Event())
