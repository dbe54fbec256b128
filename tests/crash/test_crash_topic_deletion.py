"""A crash at every step on the disk while topics are deleted and used again.

As in `test_crash_matrix`: what was answered stands. Once a deletion was answered, nothing of the topic comes
out any more, whatever the next start finds; once one was begun, it either ends or never was.
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
from timerwheel.errors import DeletedMessageError
from timerwheel.groups.config import GroupConfig
from timerwheel.model.messages import Outgoing
from timerwheel.schedules.recurrence import Recurrence
from timerwheel.schedules.spec import ScheduleSpec

FATES = 2
HOUR_MS = 3_600_000
SPEC = ScheduleSpec(topic="orders", recurrence=Recurrence(every_ms=HOUR_MS), body=b"run")


class Books:
    """What was answered: the ids sent to `orders` before and after its deletion, and to another topic."""

    def __init__(self) -> None:
        self.before: list[str] = []
        self.after: list[str] = []
        self.others: list[str] = []
        self.was_begun = False
        self.was_answered = False


async def send(engine: Engine, *delays_ms: int, topic: str = "orders") -> list[str]:
    messages = [Outgoing(topic, b"x", {"TIMER_DELAY_MS": str(delay_ms)}) for delay_ms in delays_ms]
    return [receipt.id for receipt in await engine.sender.send(messages)]


async def workload(engine: Engine, books: Books) -> None:
    """Fill a topic with everything that it can have, delete it, use its name again."""
    books.others += await send(engine, 0, HOUR_MS, topic="tickets")
    await engine.topics.change("orders", queues=2)
    books.before += await send(engine, 0, 0, 0, HOUR_MS, 50 * HOUR_MS)
    books.before.append((await engine.transactions.begin(Outgoing("orders", b"half"))).id)
    await engine.groups.put("orders", "workers", GroupConfig())
    [one] = await engine.groups.receive("orders", "workers")
    await engine.groups.nack("orders", "workers", [one.receipt], delay_ms=HOUR_MS)
    await engine.schedules.put("hourly", SPEC)
    await engine.indexer.tick()
    books.was_begun = True
    await engine.topic_deletions.delete("orders")
    books.was_answered = True
    await settle(engine)
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
    """Open what a crash left, let all time pass, and check the books."""
    engine = await Engine.open(settings_in(directory), clock, files, threads=False)
    await settle(engine)
    check_groups(engine)
    state = engine.core.state
    assert not engine.topics.ending, "a deletion did not go on"
    if books.was_answered:
        assert "orders" in state.control.topic_ends
    if not books.was_begun:
        assert "orders" not in state.control.topic_ends
    was_deleted = "orders" in state.control.topic_ends
    if was_deleted:
        assert engine.groups.all("orders") == []
        assert await engine.schedules.all() == []
        assert engine.transactions.page().transactions == []
    clock.advance(100 * HOUR_MS)
    await settle(engine)
    queues = range(engine.queues.queues_of("orders"))
    came = [message.id for queue in queues for message in await read_all(engine, "orders", queue=queue)]
    assert len(came) == len(set(came)), "a message came twice"
    assert set(books.after) <= set(came), "lost"
    assert set(books.others) <= {message.id for message in await read_all(engine, "tickets")}, "lost"
    if was_deleted:
        assert (state.topic("orders").pending, state.leases) == (0, 0)
        assert not set(came) & set(books.before), "a deleted message came out"
        for message_id in books.before:
            with pytest.raises(DeletedMessageError):
                await engine.messages.get(message_id)
    else:
        half = books.before[5:6]
        assert set(books.before) - set(half) <= set(came), "lost, although the topic was not deleted"
    await engine.close()


def test_the_run_without_a_crash_deletes_the_topic_and_uses_it_again(tmp_path: Path) -> None:
    _, _, books = asyncio.run(run_once(tmp_path, None))
    assert books.was_answered
    assert (len(books.before), len(books.after)) == (6, 2)


@pytest.mark.parametrize("index", INDEXES)
def test_after_a_crash_at_any_step_a_topic_is_deleted_whole_or_not_at_all(
    crashes: list[Crash], index: str
) -> None:
    for crash in crashes:
        for fate, files in crash.fates(FATES, index):
            with crash.again(index, fate) as (directory, clock, books):
                asyncio.run(finish(directory, files, clock, books))
