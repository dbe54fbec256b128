"""Random lives of tasks, with crashes, restarts and late receivers, against what was promised of them.

1. A task is not called before it is due, and not after its end was shown or it was cancelled.
2. Two calls of a task never overlap, and no more calls are made than attempts, but for those that a crash
   took back.
3. In the end each task has ended in one way, and its callback was told of that, and of nothing else.
"""

import asyncio
import contextlib
import random
from collections import Counter
from dataclasses import dataclass, field

import msgspec
import orjson
import pytest

from tests.harness.drive import settle
from tests.harness.world import World
from timerwheel.groups.config import Exponential
from timerwheel.model.messages import Outgoing
from timerwheel.push.ack_urls import ACK_URL_HEADER, AckUrls
from timerwheel.push.acks import AckEndedError
from timerwheel.push.endpoint import Call, Reply
from timerwheel.push.outcome import Taken, classify
from timerwheel.push.push import Push
from timerwheel.push.tasks.task import Task
from timerwheel.push.tasks.task_queue import TaskQueueOptions
from timerwheel.push.tasks.tasks import TaskStateError

ATTEMPTS = 3
BACKOFF = Exponential(1_000, 2.0, 4_000)
PATHS = ("ok", "flaky", "bad", "gone", "later", "lost")
HOSTS = ("a", "b", "c")
QUEUE = "q"
ENDS = {"succeeded", "failed", "cancelled"}
TURNS = 40


@dataclass
class Books:
    """What is known of the tasks from outside; it outlives every crash."""

    due_ms: dict[str, int] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    under_way: set[str] = field(default_factory=set)
    tokens: dict[str, str] = field(default_factory=dict)
    told: dict[str, set[str]] = field(default_factory=dict)
    crashes: int = 0


class Endpoints:
    """Answers as the path of the URL says, some turns of the loop later."""

    def __init__(self, books: Books, rng: random.Random, world: World) -> None:
        self._books, self._rng, self._world = books, rng, world

    async def call(self, call: Call) -> Reply:
        headers, books = call.headers(self._world.clock.now_ms()), self._books
        path, task = call.url.rpartition("/")[2], headers["webhook-id"]
        assert task not in books.ended, f"{path} is called after it {books.ended[task]}"
        assert task not in books.under_way, f"{path} is called twice at one time"
        assert self._world.clock.now_ms() >= books.due_ms.get(task, 0), f"{path} is called before it is due"
        books.calls[task] += 1
        books.under_way.add(task)
        try:
            for _ in range(self._rng.randrange(8)):
                await asyncio.sleep(0)
        finally:
            books.under_way.discard(task)
        if path == "report":
            told = orjson.loads(call.body)
            books.told.setdefault(told["id"], set()).add(told["type"].rpartition(".")[2])
        return self._reply(path, task, headers)

    def _reply(self, path: str, task: str, headers: dict[str, str]) -> Reply:
        if path in {"later", "lost"}:
            if path == "later":
                self._books.tokens[task] = headers[ACK_URL_HEADER].rpartition("/")[2]
            return Reply(Taken("delivered", "HTTP 202: later", 202, ack_within_ms=5_000))
        status = {"bad": 503, "gone": 410}.get(path, 200)
        if path == "flaky" and self._rng.random() < 0.5:
            status = 500
        return Reply(classify(status, {}, 0), {}, b"answer")


class Life:
    """One life of a service with tasks."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.random = random.Random(seed)
        self.books = Books()
        self.push: Push

    async def start(self) -> None:
        engine = self.world.engine
        urls = AckUrls(engine.core.log.log_id, engine.shard.number, "http://service")
        self.push = Push(engine, allow_private=True, ack_urls=urls)
        endpoints = Endpoints(self.books, self.random, self.world)
        await self.push.tasks.start(endpoints)  # type: ignore[arg-type] - all that a runner uses of it

    async def rest(self) -> None:
        for _ in range(TURNS):
            await asyncio.sleep(0)
        await settle(self.world.engine)
        for task in self.books.due_ms:
            state = (await self.push.tasks.get(task)).state
            if state in ENDS:
                assert self.books.ended.setdefault(task, state) == state

    def some(self) -> str:
        return self.random.choice(list(self.books.due_ms))

    # ------------------------------------------------------------------ steps

    async def create(self) -> None:
        path, host = self.random.choice(PATHS), self.random.choice(HOSTS)
        report = "http://reports/report"
        task = Task(
            url=f"http://{host}/{path}",
            max_attempts=ATTEMPTS,
            backoff=BACKOFF,
            callback=report,
            failure_callback=report,
        )
        delay = self.random.choice((0, 0, 500, 3_000, 90_000))

        def more(message: Outgoing) -> Outgoing:
            return msgspec.structs.replace(message, properties={"TIMER_DELAY_MS": str(delay)})

        due_ms = self.world.clock.now_ms() + delay
        made = await self.push.tasks.create(QUEUE, task, b"", more=more)
        self.books.due_ms[made.id] = due_ms

    async def cancel(self) -> None:
        task = self.some()
        with contextlib.suppress(TaskStateError):
            await self.push.tasks.cancel(task)
            self.books.ended[task] = "cancelled"

    async def run(self) -> None:
        await self._move(self.some(), 0)

    async def reschedule(self) -> None:
        await self._move(self.some(), self.random.choice((700, 20_000)))

    async def _move(self, task: str, delay_ms: int) -> None:
        before, now_ms = self.books.due_ms[task], self.world.clock.now_ms()
        self.books.due_ms[task] = min(before, now_ms + delay_ms)
        with contextlib.suppress(TaskStateError):
            if delay_ms:
                await self.push.tasks.reschedule(task, {"TIMER_DELAY_MS": str(delay_ms)})
            else:
                await self.push.tasks.run(task)

    async def settle_later(self) -> None:
        if not self.books.tokens:
            return
        task, token = self.random.choice(list(self.books.tokens.items()))
        acks = self.push.acks
        act = self.random.choice(("acknowledge", "acknowledge", "give back", "extend"))
        with contextlib.suppress(AckEndedError):
            if act == "extend":
                await acks.extend(token, 30_000)
            elif act == "give back":
                await acks.give_back(token, None, "r")
            else:
                await acks.acknowledge(token)
                self.books.ended.setdefault(task, "succeeded")

    async def limit(self) -> None:
        options = TaskQueueOptions(
            paused=self.random.random() < 0.3,
            rate_limit=self.random.choice((None, 2.0)),
            concurrency=self.random.choice((None, 1, 3)),
        )
        await self.push.tasks.put_queue(QUEUE, options)

    async def advance(self) -> None:
        await self.world.advance(self.random.choice((1, 300, 1_000, 6_000, 60_000)))

    async def restart(self) -> None:
        await self.push.tasks.close(grace_ms=2_000)  # as a planned stop does: calls in progress end
        await self.world.restart()
        await self.start()

    async def crash(self) -> None:
        self.books.crashes += 1
        await self.push.tasks.close(grace_ms=0)  # what is under way is forgotten; nothing is stored
        await self.world.crash(self.random)
        await self.start()

    async def live(self, steps: int) -> None:
        await self.create()
        for _ in range(steps):
            await self.random.choice(STEPS)(self)
            if self.random.random() < 0.6:
                await self.rest()

    async def end(self) -> None:
        """Let everything end."""
        await self.push.tasks.put_queue(QUEUE, TaskQueueOptions(paused=False, rate_limit=None))
        for _ in range(400):
            await self.world.advance(3_000)
            await self.rest()
            if self.books.ended.keys() >= self.books.due_ms.keys() and not self._untold():
                return
        raise AssertionError(f"never ended: {self.books.due_ms.keys() - self.books.ended.keys()}")

    def _untold(self) -> set[str]:
        ended = {task for task, state in self.books.ended.items() if state != "cancelled"}
        return ended - self.books.told.keys()

    def check(self) -> None:
        for task, state in self.books.ended.items():
            assert self.books.told.get(task, {state}) == {state}
            assert self.books.calls[task] <= ATTEMPTS + self.books.crashes
        assert not any(task in self.books.told for task, s in self.books.ended.items() if s == "cancelled")


STEPS = (
    *([Life.create] * 5 + [Life.advance] * 5 + [Life.settle_later] * 3),
    *(Life.cancel, Life.run, Life.reschedule, Life.limit, Life.crash, Life.restart),
)


@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.torture) for seed in range(6, 60))]
)
async def test_tasks_keep_their_promises_whatever_happens(tmp_path, seed):
    life = Life(World(tmp_path / "data"), seed)
    await life.world.open()
    await life.start()
    await life.live(60)
    await life.end()
    life.check()
    await life.push.tasks.close(grace_ms=0)
    await life.world.engine.close()
