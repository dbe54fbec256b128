"""A crash at every step on the disk of a run of one-call tasks: retries, callbacks, failures, a recall.

The endpoints are in memory, and note each call. After the crash the tasks go on until none is left.
"""

import asyncio
import contextlib
from collections import Counter
from pathlib import Path

import msgspec
import orjson
import pytest

from tests.harness.clock import ManualClock
from tests.harness.crashes import INDEXES, Crash
from tests.harness.drive import read_all, settle, small_settings
from tests.harness.faulty import FaultyFiles, SimulatedCrashError
from tests.harness.group_checks import check_groups
from timerwheel.engine import Engine
from timerwheel.errors import TimerwheelError
from timerwheel.groups.config import Exponential
from timerwheel.model.ids import root_of
from timerwheel.push.ack_urls import AckUrls
from timerwheel.push.endpoint import Call, Reply
from timerwheel.push.outcome import classify
from timerwheel.push.tasks.task import GROUP, Task, log_topic_of, topic_of
from timerwheel.push.tasks.tasks import Tasks
from timerwheel.store.errors import StoreError

FATES = 2
ENDS = {"succeeded", "failed", "cancelled"}
SETTLE_TURNS = 60


class Books:
    """What was asked for, what was answered, and what the endpoints saw, by path and task."""

    def __init__(self) -> None:
        self.ids: dict[str, str] = {}
        self.ended: dict[str, str] = {}
        self.calls: Counter[str] = Counter()
        self.failed_once: set[str] = set()
        self.reported: Counter[tuple[str, str]] = Counter()


class Endpoints:
    """Answers by the path: `ok` 200, `flaky` 500 once, `bad` always 500, `gone` 410, `report` 500 once."""

    def __init__(self, books: Books) -> None:
        self._books = books

    async def call(self, call: Call) -> Reply:
        await asyncio.sleep(0)
        path = call.url.rpartition("/")[2]
        task_id = call.headers(0)["webhook-id"]
        assert task_id not in self._books.ended, f"{path} has ended and was called again"
        self._books.calls[path] += 1
        if path == "report":
            content = orjson.loads(call.body)
            self._books.reported[content["id"], content["type"]] += 1
        status = {"bad": 500, "gone": 410}.get(path, 200)
        if path in {"flaky", "report"} and task_id not in self._books.failed_once:
            self._books.failed_once.add(task_id)
            status = 500
        return Reply(classify(status, {}, 0), {}, b"answer")


class Site:
    """An engine with tasks, its clock and its books."""

    def __init__(self, engine: Engine, clock: ManualClock, books: Books) -> None:
        self.engine = engine
        self.clock = clock
        self.books = books
        self.endpoints = Endpoints(books)
        urls = AckUrls(engine.core.log.log_id, engine.shard.number, "")
        self.tasks = Tasks(engine, allow_private=True, calls_max=100, ack_urls=urls)

    async def start(self) -> None:
        await self.tasks.start(self.endpoints)  # type: ignore[arg-type] - all that a runner uses of it

    async def create(self, path: str, delay_ms: int = 0) -> None:
        at = "http://h.example/"
        task = Task(
            url=at + path,
            max_attempts=2,
            backoff=Exponential(1_000, 1.0, 1_000),
            callback=at + "report",
            failure_callback=at + "report",
        )
        delay = {"TIMER_DELAY_MS": str(delay_ms)} if delay_ms else {}

        def more(message):
            return msgspec.structs.replace(message, properties=delay)

        self.books.ids[path] = (await self.tasks.create("q", task, path.encode(), more=more)).id

    async def advance(self, duration_ms: int) -> None:
        self.clock.advance(duration_ms)
        await self.rest()
        for path, task_id in self.books.ids.items():
            state = (await self.tasks.get(task_id)).state
            if state in ENDS:
                assert self.books.ended.setdefault(task_id, state) == state, f"{path} ended in two ways"

    async def rest(self) -> None:
        for _ in range(SETTLE_TURNS):
            await asyncio.sleep(0)
        await settle(self.engine)


async def workload(site: Site) -> None:
    await site.create("ok")
    await site.create("flaky")
    await site.create("cancelled", delay_ms=3_000)
    await site.advance(1)
    await site.create("bad", delay_ms=500)
    await site.create("gone", delay_ms=500)
    await site.engine.indexer.tick()
    await site.advance(600)
    await site.tasks.reschedule(site.books.ids["cancelled"], {"TIMER_DELAY_MS": "5000"})
    await site.advance(1_000)
    await site.engine.indexer.tick()
    await site.tasks.cancel(site.books.ids["cancelled"])
    await site.advance(1_500)
    await site.engine.indexer.tick()
    await site.advance(1_500)


async def run_once(directory: Path, crash_at: int | None) -> tuple[FaultyFiles, ManualClock, Books]:
    clock, files, books = ManualClock(), FaultyFiles(crash_at), Books()
    engine = site = None
    with contextlib.suppress(SimulatedCrashError, TimerwheelError, StoreError, RuntimeError):
        engine = await Engine.open(settings_in(directory), clock, files, threads=False)
        site = Site(engine, clock, books)
        await site.start()
        await workload(site)
    if site is not None:
        with contextlib.suppress(SimulatedCrashError, TimerwheelError, StoreError):
            await site.tasks.close(0)
    if engine is not None:
        with contextlib.suppress(SimulatedCrashError):
            await engine.abandon()
    return files, clock, books


def settings_in(directory: Path):
    return small_settings(directory, retention_ms=10**12)


async def finish(directory: Path, files: FaultyFiles, clock: ManualClock, books: Books) -> None:
    """Open what a crash left, let the tasks go on to their ends, and check the books."""
    engine = await Engine.open(settings_in(directory), clock, files, threads=False)
    await settle(engine)
    check_groups(engine)
    site = Site(engine, clock, books)
    await site.start()
    for _ in range(12):
        await site.advance(1_000)
    for path, task_id in books.ids.items():
        wanted = {"ok": "succeeded", "flaky": "succeeded", "bad": "failed", "gone": "failed"}.get(path)
        state = books.ended.get(task_id)
        assert state == wanted or (path == "cancelled" and state in {"cancelled", "succeeded"}), path
        kind = f"timerwheel.task.{state}"
        assert books.reported[task_id, kind] >= (state != "cancelled"), f"{path}: nobody was called back"
    outcomes = Counter(root_of(one.id) for one in await read_all(engine, log_topic_of("q")))
    assert set(outcomes.values()) <= {1}, "a task has two outcomes"
    callbacks = [Task.of(one.envelope) for one in await read_all(engine, topic_of("q"))]
    reports = Counter(task.reports for task in callbacks if task is not None and task.reports)
    assert set(reports.values()) <= {1}, "an outcome has two callbacks"
    if engine.core.state.groups.by_name:
        info = engine.groups.info(topic_of("q"), GROUP)
        assert (info.lag, info.in_flight, info.waiting, info.ready) == (0, 0, 0, 0)
    assert engine.core.state.leases == 0
    await site.tasks.close(0)
    await engine.close()


def test_the_run_without_a_crash_ends_every_task(tmp_path: Path) -> None:
    _, _, books = asyncio.run(run_once(tmp_path, None))
    assert len(books.ids) == 5
    assert {path: books.ended[task_id] for path, task_id in books.ids.items()} == {
        "ok": "succeeded",
        "flaky": "succeeded",
        "bad": "failed",
        "gone": "failed",
        "cancelled": "cancelled",
    }
    assert books.calls["ok"] == 1
    assert books.calls["bad"] == books.calls["flaky"] == 2


@pytest.mark.parametrize("index", INDEXES)
def test_after_a_crash_at_any_step_every_task_ends_once_and_is_not_called_after_it(
    crashes: list[Crash], index: str
) -> None:
    for crash in crashes:
        for fate, files in crash.fates(FATES, index):
            with crash.again(index, fate) as (directory, clock, books):
                asyncio.run(finish(directory, files, clock, books))
