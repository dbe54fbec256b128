"""The life of tasks of a real process that is killed while it calls, and what receivers saw of it."""

import asyncio
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import orjson

from tests.harness.processes import RunningService, serving
from tests.harness.receiver import Receiver
from timerwheel.client import Client
from timerwheel.groups.config import Exponential
from timerwheel.offline.fsck import fsck

BACKOFF = Exponential(1_000, 1.0, 1_000)


async def _succeeded(client: Client) -> set[str]:
    found: set[str] = set()
    cursor = None
    while True:
        page = await client.tasks.page(state="succeeded", limit=500, cursor=cursor)
        found |= {one.id for one in page.tasks}
        cursor = page.cursor
        if cursor is None:
            return found


async def _round(url: str, receiver: Receiver, rng: random.Random, ids: set[str], count: int) -> set[str]:
    """Create tasks, let some be called; returns those whose success was shown."""
    async with Client(url) as client:
        for _ in range(count):
            path = rng.choice(("good", "good", "flaky", "slow"))
            made = await client.tasks.create(
                receiver.url(path, rng.randint(1, 5)),
                delay_ms=rng.choice((0, 0, 300, 1_500)),
                callback=receiver.url("report"),
                backoff=BACKOFF,
            )
            ids.add(made.id or "")
        await asyncio.sleep(rng.uniform(0.2, 1.0))
        return await _succeeded(client)


@asynccontextmanager
async def _serving(data: Path) -> AsyncIterator[RunningService]:
    """A service; the receiver in this loop goes on while it starts and ends."""
    opened = serving(data, "--push-private-targets")
    service = await asyncio.to_thread(opened.__enter__)
    try:
        yield service
    finally:
        await asyncio.to_thread(opened.__exit__, None, None, None)


async def live(data: Path, *, kills: int, tasks: int) -> None:
    """Every task is called, none after its success was shown, and each outcome is reported."""
    rng = random.Random(7)
    ids: set[str] = set()
    shown: dict[str, int] = {}
    async with Receiver(addresses=5) as receiver:
        receiver.behave["flaky"] = [500, 200] * 5_000
        for number in range(kills + 1):
            async with _serving(data) as service:
                done = await _round(service.url, receiver, rng, ids, tasks)
                for task_id in done:
                    shown.setdefault(task_id, len(receiver.got))
                if number < kills:
                    await asyncio.to_thread(service.end, signal.SIGKILL)
                    continue
                async with Client(service.url) as client, asyncio.timeout(120):
                    while not ids <= (done := await _succeeded(client)):
                        await asyncio.sleep(0.2)
                    while (await client.tasks.queues())[0].ready or (await client.tasks.queues())[0].retrying:
                        await asyncio.sleep(0.2)
        called = Counter(got.headers["webhook-id"] for got in receiver.got if got.path != "report")
        assert ids <= called.keys(), "a task was never called"
        for place, got in enumerate(receiver.got):
            since = shown.get(got.headers["webhook-id"])
            assert got.path == "report" or since is None or place < since, (
                "called after its success was shown"
            )
        reported = {orjson.loads(body)["id"] for body in receiver.bodies("report")}
        assert ids <= reported, "an outcome was not reported"
    report = await asyncio.to_thread(fsck, data)
    assert not report.findings
