"""Workers in a closed loop, on real systems and on a server that lies: each fault must show."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count, repeat
from pathlib import Path

import pytest

from bench.body import body
from bench.generator.plan import Delays, Job, Load
from bench.generator.run import run
from bench.peers.beanstalkd import Beanstalkd
from bench.peers.redis import Redis
from bench.peers.rocketmq.broker import RocketMQ
from bench.peers.system import System
from bench.peers.timerwheel import Timerwheel
from bench.wires.wire import RefusedError
from bench.workers import work

STORED = 400
SECONDS_MAX = 60
Make = Callable[[Path], System]


def needing(kind: type[System]) -> object:
    """A parameter, skipped with the line that would install what is missing.

    RocketMQ, which needs two JVMs, is left to `make torture`.
    """
    missing = kind.missing()
    marks = [pytest.mark.skipif(missing is not None, reason=f"not installed: {missing}")]
    marks += [pytest.mark.torture] if kind is RocketMQ else []
    return pytest.param(kind, marks=marks, id=kind.__name__)


@pytest.mark.parametrize("make", [needing(kind) for kind in (Timerwheel, Beanstalkd, Redis, RocketMQ)])
async def test_workers_finish_each_message_once_in_both_forms(make: Make, tmp_path: Path) -> None:
    system = make(tmp_path / "system")
    try:
        await system.start()
        for workers, count_max in ((3, 1), (2, 32)):
            for ack_with_next in (False, True):
                if count_max > system.work_max:
                    continue
                topic = f"work-{count_max}-{ack_with_next}"
                await system.prepare_work(topic)
                load = Load(topic, system.work_sender(topic), Delays(), array=100, count=STORED)
                done = await run(Job([load]))
                assert done.loads[0].sent.count == STORED
                worked = await work(
                    system,
                    system.worker(topic, count_max, ack_with_next=ack_with_next),
                    workers=workers,
                    stored=STORED,
                    warm_up_s=0,
                    seconds=SECONDS_MAX,
                )
                assert worked.fault is None
                assert worked.figures["messages_per_s"] > 0
                assert worked.cycle
    finally:
        system.stop()


@asynccontextmanager
async def served(numbers: Iterator[int], *, deleted: bytes = b"DELETED\r\n") -> AsyncIterator[dict]:
    """Enough of beanstalkd for a worker: these numbers, one for each reserve."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            if line == b"reserve\r\n":
                number = next(numbers)
                writer.write(b"RESERVED %d 200\r\n%b\r\n" % (number, body(number, 0)))
            elif line.startswith(b"delete"):
                writer.write(deleted)
            else:
                writer.write(b"WATCHING 1\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        spec = {"wire": "beanstalk", "host": "127.0.0.1", "port": server.sockets[0].getsockname()[1]}
        yield spec | {"topic": "t", "count_max": 1, "ack_with_next": False}


@pytest.mark.parametrize(
    ("numbers", "fault"),
    [(count(), None), (repeat(7), "19 twice"), (count(11), "10 never sent")],
    ids=["each once", "again and again", "unknown"],
)
async def test_what_comes_twice_or_was_never_sent_is_reported(
    numbers: Iterator[int], fault: str | None, tmp_path: Path
) -> None:
    async with served(numbers) as spec:
        worked = await work(
            Beanstalkd(tmp_path), spec, workers=1, stored=21, warm_up_s=0, seconds=SECONDS_MAX
        )
    assert worked.fault == fault


async def test_work_that_is_over_before_it_is_measured_is_a_fault(tmp_path: Path) -> None:
    async with served(count()) as spec:
        worked = await work(Beanstalkd(tmp_path), spec, workers=1, stored=21, warm_up_s=60, seconds=1)
    assert worked.fault == "nothing was acknowledged in the measured time"


async def test_a_refused_acknowledgement_ends_the_work(tmp_path: Path) -> None:
    async with served(count(), deleted=b"NOT_FOUND\r\n") as spec:
        with pytest.raises(RefusedError, match=r"^NOT_FOUND$"):
            await work(Beanstalkd(tmp_path), spec, workers=1, stored=21, warm_up_s=0, seconds=1)
