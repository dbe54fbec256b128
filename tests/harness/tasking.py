"""Pushes and one-call tasks on the engine of a world, with a receiver."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from tests.harness.receiver import Receiver
from tests.harness.world import World
from timerwheel.groups.config import Exponential
from timerwheel.model.messages import Outgoing
from timerwheel.push.ack_urls import ACK_URL_HEADER, AckUrls
from timerwheel.push.push import Push
from timerwheel.push.subscription import Draft
from timerwheel.push.tasks.task import Task
from timerwheel.push.tasks.tasks import Tasks
from timerwheel.push.tasks.view import TaskView

PUBLIC_URL = "http://timers.example/base"
LATER = (202, {"timerwheel-ack": "later"})


def later(within: str) -> tuple[int, dict[str, str]]:
    return 202, {"timerwheel-ack": "later", "timerwheel-ack-within": within}


class Tasking:
    """The tasks of a world, and its subscription `s`; `crash` opens them again."""

    def __init__(self, world: World, receiver: Receiver) -> None:
        self.world = world
        self.receiver = receiver
        self.push: Push

    @property
    def tasks(self) -> Tasks:
        return self.push.tasks

    async def start(self) -> None:
        engine = self.world.engine
        urls = AckUrls(engine.core.log.log_id, engine.shard.number, PUBLIC_URL)
        self.push = Push(engine, allow_private=True, ack_urls=urls)
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

    # ------------------------------------------------------------------ the subscription

    async def subscribe(self, **fields: object) -> None:
        backoff = Exponential(1_000, 2.0, 60_000)
        values = {"id": "s", "topic": "orders", "url": self.receiver.url(), "backoff": backoff}
        await self.push.create(Draft(**(values | fields)))

    async def send(self, *bodies: bytes, delay_ms: int = 0) -> None:
        properties = {"TIMER_DELAY_MS": str(delay_ms)} if delay_ms else {}
        messages = [Outgoing("orders", body, properties) for body in bodies or (b"x",)]
        await self.world.engine.sender.send(messages)

    def in_flight(self) -> int:
        return self.world.engine.groups.info("orders", "push-s").in_flight

    # ------------------------------------------------------------------ acknowledged later

    async def taken(self, count: int = 1) -> str:
        """Wait until so many were answered, and return the token of the last."""
        await self.until(lambda: self.push.stats("s").delivered == count)
        return self.token()

    async def task_taken(self, count: int = 1, before: int = 0) -> str:
        """As `taken` for calls of tasks; `before` of them were made by an earlier run."""
        await self.until(lambda: self.count() == count, step_ms=10)
        calls = self.world.engine.counters.task_calls
        await self.until(lambda: calls["delivered"] == count - before)
        return self.token()

    def token(self, at: int = -1) -> str:
        url = self.receiver.got[at].headers[ACK_URL_HEADER]
        assert url.startswith(f"{PUBLIC_URL}/v1/acks/")
        return url.rpartition("/")[2]

    async def later_for(self, duration_ms: int) -> None:
        """Let the clock go on in steps, and the engine with it."""
        for _ in range(10):
            await self.world.advance(duration_ms // 10)
