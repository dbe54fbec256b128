"""A crash at every write, sync, rename, create and unlink of a run that does everything.

The run is fixed and so is the count of its steps. For each step the machine stops in the middle of it, the
disk keeps what a disk might keep, and a new engine opens what is left. Then the books are checked:
nothing acknowledged is lost, nothing comes early, nothing comes twice, a recall that was answered holds.
"""

import asyncio
import random
from pathlib import Path

import pytest

from tests.harness.clock import ManualClock
from tests.harness.columns import send_in_columns
from tests.harness.crashes import INDEXES, Crash, work_until_stopped
from tests.harness.drive import read_all, settle, small_settings
from tests.harness.faulty import FaultyFiles
from timerwheel.engine import Engine
from timerwheel.model.messages import Outgoing

TOPIC = "orders"
RETENTION_MS = 5_000
FATES = 4
RESTARTED = ("kept", "lost")
"""Fates of the index that a restart may find."""


class Books:
    """What clients were told, and what they asked without an answer."""

    def __init__(self) -> None:
        self.dues: dict[str, set[int]] = {}
        self.recalled: set[str] = set()
        self.maybe_recalled: set[str] = set()
        self.open: set[str] = set()
        self.maybe_committed: set[str] = set()
        self.seen: dict[int, str] = {}
        self.next_offset = 0

    def saw(self, queue_offset: int, message_id: str) -> None:
        assert self.seen.setdefault(queue_offset, message_id) == message_id, "a queue offset changed"


async def consume(engine: Engine, books: Books) -> None:
    """Read what is new, as a consumer with an offset does."""
    for message in await read_all(engine, TOPIC, books.next_offset):
        assert message.delivered_ms >= message.due_ms, "early"
        books.saw(message.queue_offset, message.id)
        books.next_offset = message.queue_offset + 1
        if message.id in books.dues:
            assert message.due_ms in books.dues[message.id]


async def send(engine: Engine, books: Books, *delays_ms: int) -> list[str]:
    messages = [Outgoing(TOPIC, b"b" * 300, {"TIMER_DELAY_MS": str(d)}) for d in delays_ms]
    receipts = await engine.sender.send(messages)
    for receipt in receipts:
        books.dues[receipt.id] = {receipt.due_ms}
    return [receipt.id for receipt in receipts]


async def send_columns(engine: Engine, books: Books, *delays_ms: int) -> None:
    """As columns: a block of the log."""
    for receipt in await send_in_columns(
        engine, [Outgoing(TOPIC, b"c" * 300, after_ms=d) for d in delays_ms]
    ):
        books.dues[receipt.id] = {receipt.due_ms}


async def send_separately(engine: Engine, books: Books, *delays_ms: int) -> None:
    """As messages that came one by one and are written together."""
    begun = engine.sender.begin([Outgoing(TOPIC, b"a" * 300, after_ms=d) for d in delays_ms], separate=True)
    await begun.stored
    for receipt in engine.sender.receipts(begun):
        books.dues[receipt.id] = {receipt.due_ms}


async def recall(engine: Engine, books: Books, message_id: str) -> None:
    books.maybe_recalled.add(message_id)
    await engine.recalls.recall(message_id)
    books.recalled.add(message_id)


async def reschedule(engine: Engine, books: Books, message_id: str, delay_ms: int) -> None:
    before = set(books.dues[message_id])
    due_ms = engine.clock.now_ms() + delay_ms
    books.dues[message_id].add(due_ms)
    await engine.recalls.reschedule(message_id, {"TIMER_DELAY_MS": str(delay_ms)})
    books.dues[message_id] -= before - {due_ms}


async def begin(engine: Engine, books: Books, delay_ms: int) -> str:
    half = await engine.transactions.begin(Outgoing(TOPIC, b"h" * 300, after_ms=delay_ms))
    books.open.add(half.id)
    return half.id


async def commit(engine: Engine, books: Books, message_id: str) -> None:
    books.maybe_committed.add(message_id)
    receipt = await engine.transactions.commit(message_id)
    books.open.discard(message_id)
    books.dues[message_id] = {receipt.due_ms}


async def roll_back(engine: Engine, books: Books, message_id: str) -> None:
    books.maybe_recalled.add(message_id)
    await engine.transactions.rollback(message_id)
    books.recalled.add(message_id)
    books.open.discard(message_id)


async def advance(engine: Engine, clock: ManualClock, books: Books, duration_ms: int) -> None:
    clock.advance(duration_ms)
    await settle(engine)
    await consume(engine, books)


async def workload(engine: Engine, clock: ManualClock, books: Books) -> None:
    """Every path that writes: schedule, fire, recall, reschedule, commit, cascade, checkpoint, retention."""
    first = await send(engine, books, 50, 1_000, 1_000, 70_000, 200_000)
    await send(engine, books, 0)
    await advance(engine, clock, books, 60)
    far = await send(engine, books, 8_000_000, 90_000_000, 40 * 86_400_000)
    halves = [await begin(engine, books, delay_ms) for delay_ms in (0, 900, 0, 5_000_000)]
    await recall(engine, books, first[3])
    await reschedule(engine, books, far[0], 3_000)
    await advance(engine, clock, books, 1_200)
    await commit(engine, books, halves[0])
    await roll_back(engine, books, halves[2])
    await engine.indexer.tick()
    await commit(engine, books, halves[1])
    await send(engine, books, *range(500, 3_500, 300))
    await reschedule(engine, books, first[4], 2_000)
    await advance(engine, clock, books, 3_100)
    await send(engine, books, 600_000, 700)
    await send_separately(engine, books, 400, 0, 900_000, 400)
    await send_columns(engine, books, 300, 0, 800_000, 300, 300)
    await advance(engine, clock, books, RETENTION_MS * 3)
    await engine.retention.turn()
    await settle(engine)
    await send(engine, books, 5_000)
    await advance(engine, clock, books, 90_000)
    await engine.retention.turn()
    await engine.indexer.tick()
    await recall(engine, books, far[2])
    await consume(engine, books)


def settings_in(directory: Path):
    return small_settings(directory, retention_ms=RETENTION_MS)


async def finish(directory: Path, files: FaultyFiles, clock: ManualClock, books: Books) -> None:
    """Open what a crash left, let all time pass, and check the books."""
    engine = await Engine.open(settings_in(directory), clock, files, threads=False)
    await settle(engine)
    await check_books(engine, clock, books)
    await engine.close()


async def check_books(engine: Engine, clock: ManualClock, books: Books) -> None:
    """Let all time pass, and compare what comes with what clients were told."""
    await consume(engine, books)
    for _ in range(4):
        await advance(engine, clock, books, 15 * 86_400_000)
    delivered = list(books.seen.values())
    assert len(delivered) == len(set(delivered)), "twice"
    for message_id in books.open - books.maybe_committed:
        assert message_id not in delivered, "delivered without a commit"
    for message_id in books.dues.keys() | books.recalled:
        if message_id in books.recalled:
            assert message_id not in delivered, "delivered after its recall was answered"
        elif message_id not in books.maybe_recalled:
            assert message_id in delivered, f"lost: {message_id}"
    still_open = {one.id for one in engine.transactions.page().transactions}
    assert books.open - books.maybe_committed - books.maybe_recalled <= still_open, "neither ended nor open"
    assert (await engine.messages.wheel()).pending == len(still_open)


async def run_once(directory: Path, crash_at: int | None) -> tuple[FaultyFiles, ManualClock, Books]:
    clock, files, books = ManualClock(), FaultyFiles(crash_at), Books()
    opening = Engine.open(settings_in(directory), clock, files, threads=False)
    await work_until_stopped(
        opening, lambda engine: workload(engine, clock, books), close=crash_at is not None
    )
    return files, clock, books


def test_the_run_takes_every_kind_of_step(tmp_path: Path) -> None:
    files, _, books = asyncio.run(run_once(tmp_path, None))
    kinds = {step.split()[0] for step in files.trace}
    assert kinds == {"create", "append", "sync", "truncate", "write", "rename", "unlink"}
    assert len(books.seen) > 15


def test_at_every_kind_of_step_the_disk_does_all_that_it_may_do(crashes: list[Crash]) -> None:
    met: dict[str, set[str]] = {}
    for crash in crashes:
        kind = crash.files.trace[-1].split()[0]
        met.setdefault(kind, set()).update(*(files.fates for _, files in crash.all_fates(FATES)))
    unsynced = {"dropped", "kept", "cut", "sectors"}
    assert met["append"] >= unsynced
    assert met["sync"] >= unsynced
    for kind in ("create", "sync", "rename", "unlink"):
        assert met[kind] >= {"entry old", "entry new"}, kind


@pytest.mark.parametrize("index", INDEXES)
def test_a_crash_at_any_step_loses_nothing_and_repeats_nothing(crashes: list[Crash], index: str) -> None:
    for crash in crashes:
        for fate, files in crash.fates(FATES, index):
            with crash.again(index, fate) as (directory, clock, books):
                asyncio.run(finish(directory, files, clock, books))


async def messages_in(engine: Engine) -> dict[int, str]:
    """Every message that a consumer can read now."""
    if TOPIC not in engine.core.state.topics:
        return {}
    first = engine.core.state.queue(engine.core.state.topics[TOPIC], 0).min_offset
    return {message.queue_offset: message.id for message in await read_all(engine, TOPIC, first)}


async def restart_and_cut(
    directory: Path, files: FaultyFiles, clock: ManualClock, books: Books, seed: int
) -> None:
    """The process was killed. Start it again on the same files, show what it has, and let the power fail."""
    engine = await Engine.open(settings_in(directory), clock, files, threads=False)
    await settle(engine)
    await consume(engine, books)
    shown = await messages_in(engine)
    await engine.abandon()
    left = files.after_crash(random.Random(seed))
    engine = await Engine.open(settings_in(directory), clock, left, threads=False)
    await settle(engine)
    found = await messages_in(engine)
    assert {offset: found.get(offset) for offset in shown} == shown, "shown to a consumer, then gone"
    await engine.close()
    await finish(directory, left, clock, books)


@pytest.mark.parametrize("index", RESTARTED)
def test_a_power_cut_after_a_kill_and_a_restart_takes_nothing_that_the_restart_showed(
    crashes: list[Crash], index: str
) -> None:
    for crash in (one for one in crashes if one.meets(index, RESTARTED)):
        with crash.again(index, 0) as (directory, clock, books):
            asyncio.run(restart_and_cut(directory, crash.files.after_kill(), clock, books, crash.seed))
