"""A crash at every step on the disk while a topic is purged, and again after that.

As in `test_crash_matrix`: once a purge was answered, nothing from before it is delivered, whatever the next
start finds. What was sent since is there, and a purge that was broken off can be repeated.
"""

import asyncio
from pathlib import Path

import pytest

from tests.harness.clock import ManualClock
from tests.harness.crashes import INDEXES, Crash, work_until_stopped
from tests.harness.drive import read_all, settle, small_settings
from tests.harness.faulty import FaultyFiles
from tests.harness.group_checks import check_groups
from timerwheel.engine import Engine
from timerwheel.groups.config import GroupConfig
from timerwheel.model.messages import Outgoing

FATES = 2
HOUR_MS = 3_600_000


class Books:
    """What was answered: the ids sent before the purge, since it began, and to another topic."""

    def __init__(self) -> None:
        self.before: list[str] = []
        self.after: list[str] = []
        self.others: list[str] = []
        self.was_begun = False
        self.was_answered = False


async def send(engine: Engine, *delays_ms: int, topic: str = "orders") -> list[str]:
    messages = [Outgoing(topic, b"x", {"TIMER_DELAY_MS": str(delay_ms)}) for delay_ms in delays_ms]
    return [receipt.id for receipt in await engine.sender.send(messages)]


async def purge(engine: Engine) -> None:
    await engine.topic_purges.purge("orders", scheduled=True, delivered=True)


async def workload(engine: Engine, books: Books) -> None:
    """A topic with messages in every state is purged, and goes on."""
    books.others += await send(engine, 0, HOUR_MS, topic="tickets")
    await engine.topics.change("orders", queues=2)
    await engine.topics.pause("tickets")
    books.before += await send(engine, 0, 0, 0, 0, HOUR_MS, 50 * HOUR_MS)
    await engine.groups.put("orders", "workers", GroupConfig())
    one, two, _ = await engine.groups.receive("orders", "workers", count_max=3)
    await engine.groups.nack("orders", "workers", [one.receipt], delay_ms=HOUR_MS)
    await engine.groups.ack("orders", "workers", [two.receipt])
    await engine.indexer.tick()
    books.was_begun = True
    await purge(engine)
    books.was_answered = True
    await engine.indexer.tick()
    books.after += await send(engine, 0, HOUR_MS)
    await settle(engine)


async def run_once(directory: Path, crash_at: int | None) -> tuple[FaultyFiles, ManualClock, Books]:
    clock, files, books = ManualClock(), FaultyFiles(crash_at), Books()
    opening = Engine.open(settings_in(directory), clock, files, threads=False)
    await work_until_stopped(opening, lambda engine: workload(engine, books), close=crash_at is not None)
    return files, clock, books


def settings_in(directory: Path):
    return small_settings(directory, retention_ms=10**12)


async def finish(directory: Path, files: FaultyFiles, clock: ManualClock, books: Books) -> None:
    """Open what a crash left, repeat a purge that was broken off, let all time pass, and check the books."""
    engine = await Engine.open(settings_in(directory), clock, files, threads=False)
    await settle(engine)
    check_groups(engine)
    if books.was_begun and not books.was_answered:
        await purge(engine)
    if books.was_answered:
        assert engine.topics.paused("tickets")
    clock.advance(100 * HOUR_MS)
    await settle(engine)
    check_groups(engine)
    queues = range(engine.queues.queues_of("orders"))
    came = [message.id for queue in queues for message in await read_all(engine, "orders", queue=queue)]
    assert len(came) == len(set(came)), "a message came twice"
    assert set(books.after) <= set(came), "lost"
    assert set(books.others) <= {message.id for message in await read_all(engine, "tickets")}, "lost"
    if books.was_begun:
        assert not set(came) & set(books.before), "a purged message came out"
        found = await engine.groups.receive("orders", "workers", count_max=100)
        assert {delivery.message.id for delivery in found} == set(came)
        info = engine.groups.info("orders", "workers")
        assert (info.lag, info.waiting, info.ready) == (0, 0, 0)
    else:
        assert set(books.before) <= set(came), "lost, although the topic was not purged"
    await engine.close()


def test_the_run_without_a_crash_purges_the_topic_and_uses_it_again(tmp_path: Path) -> None:
    _, _, books = asyncio.run(run_once(tmp_path, None))
    assert books.was_answered
    assert (len(books.before), len(books.after)) == (6, 2)


@pytest.mark.parametrize("index", INDEXES)
def test_after_a_crash_at_any_step_what_was_purged_stays_away_and_a_purge_can_be_repeated(
    crashes: list[Crash], index: str
) -> None:
    for crash in crashes:
        for fate, files in crash.fates(FATES, index):
            with crash.again(index, fate) as (directory, clock, books):
                asyncio.run(finish(directory, files, clock, books))
