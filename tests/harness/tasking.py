"""One-call tasks on the engine of a world, with a receiver."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from tests.harness.receiver import Receiver
from tests.harness.world import World
from timerwheel.groups.config import Exponential
from timerwheel.model.messages import Outgoing
from timerwheel.push.push import Push
from timerwheel.push.tasks.task import Task
from timerwheel.push.tasks.tasks import Tasks
from timerwheel.push.tasks.view import TaskView


class Tasking:
    """The tasks of a world; `crash` and `restart` open them again."""

    def __init__(self, world: World, receiver: Receiver) -> None:
        self.world = world
        self.receiver = receiver
        self.push: Push

    @property
    def tasks(self) -> Tasks:
        return self.push.tasks

    async def start(self) -> None:
        self.push = Push(self.world.engine, allow_private=True)
        await self.push.start()

    async def crash(self, *args: Any) -> None:
        await self.push.close(grace_ms=0)
        await self.world.crash(*args)
        await self.start()

    async def create(
        self, path: str = "hook", body: bytes = b"", queue: str = "default", delay_ms: int = 0, **fields: Any
    ) -> str:
        key = fields.pop("dedup_key", None)
        values = {"url": self.receiver.url(path), "backoff": Exponential(1_000, 2.0, 60_000)} | fields

        def more(message: Outgoing) -> Outgoing:
            properties = {"TIMER_DELAY_MS": str(delay_ms)} if delay_ms else {}
            return msgspec.structs.replace(message, properties=properties, dedup_key=key)

        return (await self.tasks.create(queue, Task(**values), body, more=more)).id

    async def get(self, task_id: str) -> TaskView:
        return await self.tasks.get(task_id)

    async def until(self, true: Callable[[], bool], step_ms: int = 0) -> None:
        """Let requests and the engine go on, and the clock by `step_ms` at a time."""
        async with asyncio.timeout(60):
            while not true():
                await asyncio.sleep(0.001)
                if step_ms:
                    await self.world.advance(step_ms)

    async def until_state(self, task_id: str, *states: str, step_ms: int = 0) -> TaskView:
        """As `until`, for a task to be in one of these states."""
        async with asyncio.timeout(60):
            while (view := await self.get(task_id)).state not in states:
                await asyncio.sleep(0.001)
                if step_ms:
                    await self.world.advance(step_ms)
        return view

    def count(self, path: str = "hook") -> int:
        return len(self.receiver.bodies(path))
