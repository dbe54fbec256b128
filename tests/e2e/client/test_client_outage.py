"""A worker whose service is killed under it and comes back."""

import asyncio
import logging
from contextlib import ExitStack

from tests.harness.processes import serving
from timerwheel.client import Client

LOGGER = "timerwheel.client.worker"
TRIES = 4
LIMIT_S = 60  # only keeps a failure from hanging


class Tries(logging.Handler):
    """Sets `enough` once the consumer failed so often."""

    def __init__(self):
        super().__init__(logging.DEBUG)
        self.count = 0
        self.enough = asyncio.Event()

    def emit(self, _record):
        self.count += 1
        if self.count >= TRIES:
            self.enough.set()


async def test_an_acknowledgement_that_meets_an_outage_is_sent_again_after_it(tmp_path, caplog):
    caplog.set_level(logging.DEBUG, LOGGER)
    attempts: list[int] = []
    tries, stop = Tries(), asyncio.Event()
    logging.getLogger(LOGGER).addHandler(tries)
    with ExitStack() as services:
        first = services.enter_context(serving(tmp_path / "data"))

        async def handle(lease):
            attempts.append(lease.attempt)
            if len(attempts) == 1:
                first.process.kill()
                first.process.wait()
            else:
                stop.set()

        async with Client(first.url) as client, asyncio.timeout(LIMIT_S):
            await client.send("t", "x")
            group = client.group("t", "g")
            working = asyncio.create_task(group.consume(handle, stop=stop, retry_ms=1))
            await tries.enough.wait()
            port = first.url.rpartition(":")[2]
            services.enter_context(serving(tmp_path / "data", "--port", port))
            await client.send("t", "y")
            await working
            info = await group.info()
    logging.getLogger(LOGGER).removeHandler(tries)
    assert attempts == [1, 1]
    assert (info.in_flight, info.waiting, info.lag) == (0, 0, 0)


async def test_a_worker_tells_of_an_outage_in_one_line_and_goes_on_after_it(tmp_path, caplog):
    caplog.set_level(logging.DEBUG, LOGGER)
    tries, stop, attempts = Tries(), asyncio.Event(), []
    logging.getLogger(LOGGER).addHandler(tries)
    with ExitStack() as services:
        first = services.enter_context(serving(tmp_path / "data", "--redelivery-delay", "0"))

        async def handle(lease):
            attempts.append(lease.attempt)
            if len(attempts) == 1:
                first.process.kill()
                first.process.wait()
            else:
                stop.set()

        async with Client(first.url) as client, asyncio.timeout(LIMIT_S):
            await client.send("t", "x")
            working = asyncio.create_task(
                client.group("t", "g").consume(handle, stop=stop, retry_ms=1, invisible_ms=1_000)
            )
            await tries.enough.wait()
            port = first.url.rpartition(":")[2]
            services.enter_context(serving(tmp_path / "data", "--port", port))
            await client.send("t", "y")
            await working
    logging.getLogger(LOGGER).removeHandler(tries)
    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.name for record in told] == [LOGGER]
    assert first.url in told[0].getMessage()
    assert told[0].exc_info is None
    assert [r.getMessage() for r in caplog.records if r.levelno == logging.INFO and r.name == LOGGER] == [
        "the service answers again"
    ]
