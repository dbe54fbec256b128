"""A crash at every step of a run in which workers drain dead letters, and others look on and fail.

Claims: a message has at most one dead letter of a group, and that one names its first origin; what was
acknowledged, as a message or as a dead letter, is never delivered again; nothing is lost.
"""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from tests.harness.clock import ManualClock
from tests.harness.crashes import INDEXES, Crash, work_until_stopped
from tests.harness.drive import read_all, settle, small_settings
from tests.harness.faulty import FaultyFiles
from tests.harness.group_checks import check_groups
from timerwheel.engine import Engine
from timerwheel.groups.config import Exponential, GroupConfig
from timerwheel.model.messages import Outgoing

FATES = 2
DEAD = "%DLQ%g"
CONFIG = GroupConfig(
    max_attempts=1, invisible_ms=1_000, backoff=Exponential(initial_ms=1_000, factor=1.0, max_ms=1_000)
)
REASONS = {"g of orders failed", "attempt 1 was not acknowledged in time"}
READERS = ((DEAD, "g"), (DEAD, "w"), ("%DLQ%w", "g"), ("%DLQ%w", "w"))


class Books:
    """Bodies: what was sent, what was answered to be done, and what may be."""

    def __init__(self) -> None:
        self.sent: set[str] = set()
        self.done: set[str] = set()
        self.maybe_done: set[str] = set()


class Worker:
    """Consumes as any group, and notes what becomes of each body."""

    def __init__(self, engine: Engine, clock: ManualClock, books: Books) -> None:
        self.engine, self.groups, self.clock, self.books = engine, engine.groups, clock, books

    async def work(self, topic: str, group: str, good: str, count: int = 10) -> set[str]:
        """Receive; acknowledge the bodies in `good`, let the others fail; returns what came."""
        got = await self.groups.receive(topic, group, count_max=count)
        bodies = {delivery.receipt: delivery.message.body.decode() for delivery in got}
        ends = group == "g" and topic in ("orders", DEAD)  # the others only look on
        if ends:
            assert not set(bodies.values()) & self.books.done, "acknowledged, and it came again"
        acks = [receipt for receipt, body in bodies.items() if body in good]
        fails = [receipt for receipt, body in bodies.items() if body not in good]
        if acks:
            if ends:
                self.books.maybe_done.update(bodies[receipt] for receipt in acks)
            results = await self.groups.ack(topic, group, acks)
            if ends:
                self.books.done.update(bodies[one.receipt] for one in results if one.ok)
        if fails:
            await self.groups.nack(topic, group, fails, reason=f"{group} of {topic} failed")
        return set(bodies.values())

    async def advance(self, duration_ms: int) -> None:
        self.clock.advance(duration_ms)
        await settle(self.engine)
        check_groups(self.engine)
        await self.check_letters()

    async def check_letters(self) -> None:
        for group in "gw":
            letters = (await self.groups.dead.page(group, limit=1_000)).letters
            counts = Counter(letter.origin_id for letter in letters)
            assert not counts or max(counts.values()) == 1, "a message has two dead letters"
            assert all(letter.origin_topic == "orders" for letter in letters)
            assert {letter.reason for letter in letters} <= REASONS


async def workload(worker: Worker) -> None:
    engine, groups = worker.engine, worker.groups
    for place in (("orders", "g"), *READERS):
        await groups.put(*place, CONFIG)
    worker.books.sent.update("abcdef")
    await engine.sender.send([Outgoing("orders", body.encode()) for body in "abcdef"])
    await worker.work("orders", "g", good="a")  # b to f are dead letters
    await worker.work(DEAD, "g", good="b", count=2)
    await engine.indexer.tick()
    await worker.work(DEAD, "w", good="b")
    await worker.advance(2_500)
    await groups.dead.redrive("g", [1, 2])  # c and d, of which the group has seen c
    await worker.advance(2_500)
    await worker.work("orders", "g", good="d")  # c has a dead letter again
    await engine.indexer.tick()
    for place in READERS:
        await worker.work(*place, good="e")
    await worker.advance(2_500)
    await groups.rewind(DEAD, "g", to="head")
    await worker.work(DEAD, "g", good="c")
    await worker.advance(2_500)


async def run_once(directory: Path, crash_at: int | None) -> tuple[FaultyFiles, ManualClock, Books]:
    clock, files, books = ManualClock(), FaultyFiles(crash_at), Books()
    opening = Engine.open(settings_in(directory), clock, files, threads=False)
    await work_until_stopped(
        opening, lambda engine: workload(Worker(engine, clock, books)), close=crash_at is not None
    )
    return files, clock, books


def settings_in(directory: Path):
    return small_settings(directory, retention_ms=10**12)


async def finish(directory: Path, files: FaultyFiles, clock: ManualClock, books: Books) -> None:
    """Open what a crash left, drain what there is, and check the books."""
    engine = await Engine.open(settings_in(directory), clock, files, threads=False)
    await settle(engine)
    worker = Worker(engine, clock, books)
    await worker.check_letters()
    for place in (("orders", "g"), *READERS):
        await engine.groups.put(*place, CONFIG)
    await engine.groups.rewind(DEAD, "g", to="head")
    came: set[str] = set()
    for _ in range(6):
        came |= await worker.work("orders", "g", good="")
        await worker.advance(2_500)
    for place in READERS[1:]:
        await worker.work(*place, good="")
    for _ in range(4):
        came |= await worker.work(DEAD, "g", good="abcdef")
        await worker.advance(2_500)
    sent = {message.body.decode() for message in await read_all(engine, "orders")}
    assert sent <= came | books.maybe_done, "lost"
    assert not (await engine.groups.dead.page("g")).letters
    assert engine.core.state.leases == 0
    await engine.close()


def test_the_run_without_a_crash_drains_redrives_and_fails(tmp_path: Path) -> None:
    _, _, books = asyncio.run(run_once(tmp_path, None))
    assert books.done == set("abcde")


@pytest.mark.parametrize("index", INDEXES)
def test_after_a_crash_at_any_step_drained_letters_are_one_each_with_their_origin_and_none_is_lost(
    crashes: list[Crash], index: str
) -> None:
    for crash in crashes:
        for fate, files in crash.fates(FATES, index):
            with crash.again(index, fate) as (directory, clock, books):
                asyncio.run(finish(directory, files, clock, books))
