"""Consumers of an engine: what tests do with a group, and threads whose reads and writes can be held up."""

import asyncio
from typing import Any

from tests.harness.cold import make_cold
from timerwheel.groups.config import Exponential, GroupConfig
from timerwheel.model.messages import Delivery, Outgoing
from timerwheel.runtime.threads import Threads

QUICK = Exponential(initial_ms=1_000, factor=2.0, max_ms=60_000)


async def put(world, topic="orders", group="g", **config: Any) -> None:
    values = {"backoff": QUICK, "invisible_ms": 5_000, **config}
    await world.engine.groups.put(topic, group, GroupConfig(**values))


async def send(world, *bodies: str, topic="orders", **properties: str) -> None:
    await world.engine.sender.send([Outgoing(topic, body.encode(), dict(properties)) for body in bodies])


async def receive(world, count=100, topic="orders", group="g", **options: Any) -> list[Delivery]:
    return await world.engine.groups.receive(topic, group, count_max=count, create=True, **options)


async def ack(world, *deliveries: Delivery, group="g") -> list[bool]:
    results = await world.engine.groups.ack("orders", group, [d.receipt for d in deliveries])
    return [result.ok for result in results]


def bodies(deliveries: list[Delivery]) -> list[str]:
    return [delivery.message.body.decode() for delivery in deliveries]


def items(world, group="g"):
    return world.engine.core.state.groups.by_name[f"orders/{group}"].items


async def send_many(world, count: int) -> list[str]:
    names = [f"m{number:04}" for number in range(count)]
    for at in range(0, count, 50):
        await send(world, *names[at : at + 50])
    return names


class GatedThreads(Threads):
    """Reads and log writes that wait until their gate is opened."""

    def __init__(self) -> None:
        super().__init__(inline=True)
        self.reads, self.writes = asyncio.Event(), asyncio.Event()
        self.reads.set()
        self.writes.set()

    async def read(self, call, *args, **kwargs):
        await self.reads.wait()
        return await super().read(call, *args, **kwargs)

    async def read_due(self, call, *args, **kwargs):
        await self.reads.wait()
        return await super().read_due(call, *args, **kwargs)

    async def log(self, call, *args, **kwargs):
        await self.writes.wait()
        return await super().log(call, *args, **kwargs)

    async def let_one_write(self) -> None:
        """The batch that waits is written; the next one waits."""
        self.writes.set()
        self.writes.clear()
        await spin()


def gated(world) -> GatedThreads:
    make_cold(world.engine)
    threads = GatedThreads()
    world.engine.core.commit._threads = threads
    world.engine.core.record_cache._threads = threads
    return threads


async def spin(count: int = 30) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
