"""A crash at every step on the disk while groups commit offsets, are rewound and deleted.

As in `test_crash_matrix`, but the books are the offsets. Each is the one that was stored last, by a flush or
a rewind that was answered, or one that somebody committed or rewound to since; so a crash brings messages
again, and skips none.
"""

import asyncio
from pathlib import Path

import pytest

from tests.harness.clock import ManualClock
from tests.harness.crashes import INDEXES, Crash, work_until_stopped
from tests.harness.drive import settle, small_settings
from tests.harness.faulty import FaultyFiles
from tests.harness.group_checks import check_groups
from timerwheel.engine import Engine
from timerwheel.groups.config import GroupConfig, UnknownGroupError
from timerwheel.groups.groups import Groups
from timerwheel.model.messages import Outgoing

FATES = 2
QUEUES = 2
MESSAGES = 6
Place = tuple[str, int]
"""A group, and a queue."""


class Books:
    """The offsets that each queue of a group may have after a crash, oldest first; None for none."""

    def __init__(self) -> None:
        self.possible: dict[Place, list[int | None]] = {}
        self.made: set[str] = set()
        self.deleted: set[str] = set()

    def changed(self, group: str, offsets: dict[int, int]) -> None:
        for queue, offset in offsets.items():
            self.possible.setdefault((group, queue), [None]).append(offset)

    def stored(self, *groups: str) -> None:
        """What was committed so far is durable, so all that was before it is not possible any more."""
        for (group, queue), offsets in self.possible.items():
            if group in groups:
                self.possible[group, queue] = offsets[-1:]


class Consumers:
    """The groups of an engine, and its books."""

    def __init__(self, engine: Engine, books: Books) -> None:
        self.groups: Groups = engine.groups
        self.books = books

    async def make(self, group: str) -> None:
        await self.groups.put("orders", group, GroupConfig(kind="offsets"))
        self.books.made.add(group)

    def commit(self, group: str, offsets: dict[int, int]) -> None:
        self.books.changed(group, offsets)
        self.groups.offsets.commit("orders", group, offsets)

    async def flush(self) -> None:
        await self.groups.offsets.flush()
        self.books.stored(*self.books.made)

    async def rewind(self, group: str, offsets: dict[int, int]) -> None:
        """What was committed before is stored with it."""
        self.books.changed(group, offsets)
        await self.groups.rewind("orders", group, offsets=offsets)
        self.books.stored(group)

    async def delete(self, group: str) -> None:
        self.books.made.discard(group)
        await self.groups.delete("orders", group)
        self.books.deleted.add(group)


async def workload(engine: Engine, books: Books) -> None:
    await engine.topics.change("orders", queues=QUEUES)
    for queue in range(QUEUES):
        await engine.sender.send([Outgoing("orders", b"x", queue=queue) for _ in range(MESSAGES)])
    consumers = Consumers(engine, books)
    for group in ("one", "two", "gone"):
        await consumers.make(group)
    consumers.commit("one", {0: 2})
    consumers.commit("gone", {0: 1})
    await consumers.flush()
    await engine.indexer.tick()
    consumers.commit("one", {0: 4, 1: 1})
    consumers.commit("two", {1: 3})
    await consumers.flush()
    consumers.commit("one", {0: 5})
    await consumers.rewind("one", {0: 1})
    await engine.indexer.tick()
    await consumers.delete("gone")
    consumers.commit("one", {0: 6, 1: 2})
    consumers.commit("two", {1: 2})  # a commit may go back
    await consumers.flush()
    consumers.commit("two", {0: 6})
    await settle(engine)


async def run_once(directory: Path, crash_at: int | None) -> tuple[FaultyFiles, ManualClock, Books]:
    clock, files, books = ManualClock(), FaultyFiles(crash_at), Books()
    opening = Engine.open(settings_in(directory), clock, files, threads=False)
    await work_until_stopped(opening, lambda engine: workload(engine, books), close=crash_at is not None)
    return files, clock, books


def settings_in(directory: Path):
    return small_settings(directory, retention_ms=10**12, offset_commit_interval_ms=3_600_000)


def committed(engine: Engine, group: str, queue: int) -> int | None:
    return engine.groups.offsets.committed("orders", group, queue)


async def finish(directory: Path, files: FaultyFiles, clock: ManualClock, books: Books) -> None:
    """Open what a crash left, compare it with the books, and have the consumers come to the end."""
    engine = await Engine.open(settings_in(directory), clock, files, threads=False)
    await settle(engine)
    check_groups(engine)
    for (group, queue), offsets in books.possible.items():
        if group in books.made:
            assert committed(engine, group, queue) in offsets, f"queue {queue} of group {group}"
    for group in books.deleted:
        with pytest.raises(UnknownGroupError):
            committed(engine, group, 0)
    consumers = Consumers(engine, books)
    for group in books.made:
        ends = {queue: engine.queues.queue_bounds("orders", queue)[1] for queue in range(QUEUES)}
        assert set(ends.values()) == {MESSAGES}
        consumers.commit(group, ends)
    await consumers.flush()
    assert all(engine.groups.info("orders", group).lag == 0 for group in books.made)
    await engine.close()


def test_the_run_without_a_crash_stores_every_offset(tmp_path: Path) -> None:
    _, _, books = asyncio.run(run_once(tmp_path, None))
    assert books.possible["one", 0] == [6]
    assert books.possible["one", 1] == books.possible["two", 1] == [2]
    assert books.possible["two", 0] == [None, 6]
    assert (books.made, books.deleted) == ({"one", "two"}, {"gone"})


@pytest.mark.parametrize("index", INDEXES)
def test_after_a_crash_at_any_step_an_offset_is_the_stored_one_or_a_later_one(
    crashes: list[Crash], index: str
) -> None:
    for crash in crashes:
        for fate, files in crash.fates(FATES, index):
            with crash.again(index, fate) as (directory, clock, books):
                asyncio.run(finish(directory, files, clock, books))
