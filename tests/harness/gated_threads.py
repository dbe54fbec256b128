"""Threads of an engine that run each call at once, and whose reads and log writes can be held up."""

import asyncio

from timerwheel.runtime.threads import Threads


class GatedThreads(Threads):
    """Reads and log writes that wait until their gate is opened; both gates are open at first."""

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


async def spin(count: int = 30) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
