"""A rate limit with the service as a process: its receiver counts, and takes its time for some requests.

The service is killed in between. Nothing here depends on how fast the machine is: a slow one makes fewer
requests in a second.
"""

import asyncio
import random
import signal
import time

import pytest
from aiohttp import web

from tests.harness.ports import reserved_port
from tests.torture.process import Service
from timerwheel.client import Client

RATE = 40
EACH = 60


class CountingReceiver:
    """Counts a request when it has got around to it, and answers somewhat later."""

    def __init__(self) -> None:
        self.counted_s: list[float] = []
        self._rng = random.Random(7)

    async def __aenter__(self) -> "CountingReceiver":
        app = web.Application()
        app.router.add_post("/hook", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/hook"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        await request.read()
        await asyncio.sleep(self._rng.choice((0, 0, 0.05, 0.2)))
        self.counted_s.append(time.monotonic())
        await asyncio.sleep(self._rng.choice((0, 0.02)))
        return web.Response(status=self._rng.choice((200, 200, 200, 500)))

    async def counted(self, count: int) -> None:
        async with asyncio.timeout(120):
            while len(self.counted_s) < count:
                await asyncio.sleep(0.01)

    @property
    def most_in_a_second(self) -> int:
        found = self.counted_s
        return max(sum(at <= other < at + 1 for other in found[place:]) for place, at in enumerate(found))


@pytest.mark.parametrize("kind", ["push", "tasks"])
async def test_a_receiver_counts_no_more_than_the_limit_in_any_second(tmp_path, kind):
    async with CountingReceiver() as receiver:
        with Service(tmp_path / "data", reserved_port(), tmp_path / "stderr", forked=True) as service:
            service.start("--push-private-targets")
            await service.ready()
            async with Client(service.url) as client:
                await client.subscriptions.add("orders", receiver.url, rate_limit=RATE, concurrency=64)
                await client.tasks.put_queue("q", rate_limit=RATE, host_concurrency=64)
                for _ in range(EACH):
                    if kind == "push":
                        await client.send("orders", "x")
                    else:
                        await client.tasks.create(receiver.url, queue="q")
            await receiver.counted(RATE)
            service.signal(signal.SIGKILL)
            await service.killed()
            service.start("--push-private-targets")
            await receiver.counted(EACH)
        assert receiver.most_in_a_second <= RATE
