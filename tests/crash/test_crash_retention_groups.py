"""A crash at every step of a turn of retention, while groups hold all that a group can hold.

Retention stores the timers of retries again and notes what groups hold in its manifest, before it removes the
segments that told of it. So whenever the machine stops, the next start must find every group as it was: what
is done, waits or came back, its settings, and which dead letters were dealt with. What was leased is visible
again, as far as it is kept, and its receipts are good.

Two turns are taken: the first finds everything in the log, the second what the first has moved and noted.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.harness.clock import ManualClock
from tests.harness.crashes import INDEXES, Crash
from tests.harness.drive import read_all, settle, small_settings
from tests.harness.faulty import FaultyFiles, SimulatedCrashError
from tests.harness.group_checks import check_groups
from tests.harness.scratch import scratch
from timerwheel.engine import Engine
from timerwheel.errors import TimerwheelError
from timerwheel.groups.config import Exponential, GroupConfig, GroupTerms
from timerwheel.groups.leases import Lease
from timerwheel.groups.receipts import Receipts
from timerwheel.model.messages import DeadLetter, Outgoing
from timerwheel.offline.fsck import fsck
from timerwheel.state.groups import DEAD_QUEUE, ItemState
from timerwheel.store.errors import StoreError

FATES = 2
RETENTION_MS = 5_000
FAR_MS = 36_000_000
NEVER_MS = 10**12
QUICK = Exponential(initial_ms=1_000, factor=1.0, max_ms=1_000)
ORDERS, LANES, DYING = PLACES = (("orders", "g"), ("lanes", "o"), ("orders", "d"))
CONFIGS = {
    ORDERS: GroupConfig(max_attempts=5, invisible_ms=FAR_MS, backoff=QUICK),
    LANES: GroupConfig(max_attempts=5, invisible_ms=FAR_MS, backoff=QUICK),
    DYING: GroupConfig(max_attempts=1, invisible_ms=100, backoff=QUICK),
}
ATTEMPTS_MAX_AFTERWARDS = 100


class When(NamedTuple):
    """In which turn of retention the machine stops, counted from 0, and at which step of it, from 1."""

    turn: int
    step: int


NO_CRASH = When(-1, 0)


class Books:
    """What consumers were told, by place and body, and how the groups stood before the turn under way."""

    def __init__(self) -> None:
        self.receipts: dict[tuple[str, str], dict[str, str]] = {place: {} for place in PLACES}
        self.good: dict[tuple[str, str], set[str]] = {place: set() for place in PLACES}
        self.acked: dict[tuple[str, str], set[str]] = {place: set() for place in PLACES}
        self.died: set[str] = set()
        self.redriven: set[str] = set()
        self.before: list[Any] = []
        self.dead: list[DeadLetter] = []
        self.first_base = 0
        self.turns: list[list[str]] = []


def settings_in(directory: Path, retention_ms: int) -> Any:
    return small_settings(directory, retention_ms=retention_ms, retention_interval_ms=86_400_000)


def groups_of(engine: Engine) -> list[Any]:
    """All that groups are and hold, but for where their timers lie, which retention may change."""
    view = engine.core.state
    held = {
        state.name: (
            {queue: passed.pack() for queue, passed in state.passed.items()},
            state.since,
            [(i.key, i.state, i.attempt, i.root, i.due_ms, i.lane, i.ended) for i in in_order(state.items)],
            {lane: list(keys) for lane, keys in state.lanes.items()},
        )
        for state in view.groups
    }
    return [held, *({**engine.control.items(table)} for table in ("group", "topic"))]


def in_order(items: dict[int, Any]) -> list[Any]:
    return [items[key] for key in sorted(items)]


async def dead_letters(engine: Engine) -> list[DeadLetter]:
    return (await engine.groups.dead.page("d", limit=1_000)).letters


class Consumer:
    """An engine under the workload, and the books of it."""

    def __init__(
        self, engine: Engine, clock: ManualClock, files: FaultyFiles, books: Books, crash: When
    ) -> None:
        self.engine = engine
        self.groups = engine.groups
        self.clock = clock
        self.files = files
        self.books = books
        self.crash = crash

    async def send(self, topic: str, *bodies: str) -> None:
        await self.engine.sender.send([Outgoing(topic, b.encode(), {"__SHARDINGKEY": b[0]}) for b in bodies])

    async def receive(self, place: tuple[str, str], *expected: str, invisible_ms: int | None = None) -> None:
        # Of the lanes more than can come: what waits behind others of its key is looked at and parked, too.
        count_max = 10 if place == LANES else len(expected)
        got = await self.groups.receive(*place, count_max=count_max, invisible_ms=invisible_ms)
        bodies = [delivery.message.body.decode() for delivery in got]
        assert bodies == list(expected)
        self.books.receipts[place] |= dict(zip(bodies, (d.receipt for d in got), strict=True))
        self.books.good[place] |= set(bodies)

    async def ack(self, place: tuple[str, str], *bodies: str) -> None:
        results = await self.groups.ack(*place, [self.books.receipts[place][body] for body in bodies])
        assert all(result.ok for result in results)
        self.books.acked[place].update(bodies)

    async def nack(self, place: tuple[str, str], body: str, delay_ms: int) -> None:
        [result] = await self.groups.nack(*place, [self.books.receipts[place][body]], delay_ms)
        assert result.ok
        self.books.good[place].discard(body)

    async def advance(self, duration_ms: int) -> None:
        self.clock.advance(duration_ms)
        await settle(self.engine)

    async def die(self, *bodies: str) -> None:
        """Have the group that tries once give up its next messages."""
        await self.receive(DYING, *bodies)
        await self.advance(100)
        self.books.good[DYING].difference_update(bodies)
        self.books.died.update(bodies)

    async def redrive(self, body: str) -> None:
        """Send a dead letter back to its group; it can be received at once."""
        assert await self.groups.dead.redrive("d", await self.letters(body)) == (1, 0)
        await settle(self.engine)
        self.books.redriven.add(body)

    async def letters(self, *bodies: str) -> list[int]:
        """The offsets of the dead letters with these bodies."""
        found = await dead_letters(self.engine)
        return [letter.offset for letter in found if letter.message.body.decode() in bodies]

    async def age(self) -> None:
        """Have all that is stored so far lie in sealed segments that are past retention."""
        last = self.engine.core.log.bases[-1]
        while self.engine.core.log.bases[-1] == last:
            await self.engine.sender.send([Outgoing("filler", b"f" * 1_900)])
        await self.advance(RETENTION_MS + 1)

    async def turn(self) -> None:
        """A turn of retention; the crash comes at a step of it, or when it has no more steps, at its end."""
        books, files = self.books, self.files
        books.before, books.dead = groups_of(self.engine), await dead_letters(self.engine)
        books.first_base = self.engine.core.log.bases[0]
        crashes = len(books.turns) == self.crash.turn
        begin = files.steps
        if crashes:
            files.crash_at = begin + self.crash.step
        await self.engine.retention.turn()
        books.turns.append(files.trace[begin:])
        if crashes:
            raise SimulatedCrashError("the end of the turn")


async def workload(consumer: Consumer) -> None:  # noqa: PLR0915 - one step after the other
    """Groups with all that they can hold, aged; something recent; retention; and that once more."""
    engine, groups, books = consumer.engine, consumer.groups, consumer.books
    await engine.topics.change("lanes", ordered=True)
    for place, config in CONFIGS.items():
        await groups.put(*place, config)
    await groups.put("tickets", "other", GroupConfig(start="tail", tags="A || B"))
    await consumer.send("orders", *"abcdefgh")
    await consumer.send("lanes", "x1", "x2", "y1", "x3", "y2")
    await engine.sender.send([Outgoing("later", b"far", {"TIMER_DELAY_MS": str(FAR_MS)})])
    await groups.receive("orders", "gone", count_max=2, terms=GroupTerms(create=True))
    await groups.delete("orders", "gone")
    await consumer.receive(ORDERS, "a", "b", "c", "d")
    await consumer.receive(ORDERS, "e", invisible_ms=500)
    await consumer.receive(ORDERS, "f", "g", invisible_ms=2_000)
    await consumer.receive(LANES, "x1", "y1")
    await consumer.ack(ORDERS, "a")
    await consumer.ack(LANES, "x1")
    await consumer.nack(ORDERS, "b", FAR_MS)
    await consumer.nack(ORDERS, "f", 2_000)
    await consumer.nack(LANES, "y1", FAR_MS)
    await groups.extend(*ORDERS, [books.receipts[ORDERS]["c"]], FAR_MS + 1)
    await consumer.die("a", "b", "c", "d")
    await groups.dead.drop("d", await consumer.letters("b"))
    await consumer.redrive("c")
    await consumer.advance(1_000)  # e comes back, then f and g
    await consumer.advance(2_000)
    await consumer.receive(DYING, "c", invisible_ms=FAR_MS)
    await engine.indexer.tick()
    await consumer.age()
    await consumer.receive(ORDERS, "e")
    await consumer.die("e", "f")
    await groups.dead.drop("d", await consumer.letters("e"))
    await consumer.turn()
    await consumer.ack(ORDERS, "c")
    await consumer.send("orders", "i", "j", "k")
    await consumer.send("lanes", "x4", "z1")
    await consumer.receive(LANES, "z1")  # x2 is found to be gone
    await consumer.age()
    await consumer.die("i", "j", "k")
    await consumer.redrive("j")
    await groups.dead.drop("d", await consumer.letters("i"))
    await consumer.send("orders", "l", "m")
    await consumer.turn()


async def run_once(directory: Path, crash: When) -> tuple[FaultyFiles, ManualClock, Books]:
    clock, files, books = ManualClock(), FaultyFiles(), Books()
    engine = None
    with contextlib.suppress(SimulatedCrashError, TimerwheelError, StoreError, RuntimeError):
        engine = await Engine.open(settings_in(directory, RETENTION_MS), clock, files, threads=False)
        await settle(engine)
        await workload(Consumer(engine, clock, files, books, crash))
    if engine is not None:
        with contextlib.suppress(SimulatedCrashError):
            await engine.abandon()
    return files, clock, books


async def check_as_before(engine: Engine, books: Books) -> None:
    """Groups are as before the turn; of the dead letters those are left that retention keeps."""
    check_groups(engine)
    assert groups_of(engine) == books.before
    for state in engine.core.state.groups:
        items = [state.items[key] for key in state.ready]
        assert items == sorted(items, key=lambda item: (item.due_ms, item.root)), "came back in another order"
    first = engine.core.state.topics["%DLQ%d"].queues[0].min_offset
    kept = [letter for letter in books.dead if letter.offset >= first]
    assert await dead_letters(engine) == kept
    assert engine.groups.info("orders", "d").dead_letters == len(kept)


def check_whole(directory: Path, files: FaultyFiles) -> None:
    """The offline check finds nothing in the log in memory and the index beside it."""
    for name, node in files.names_now.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes(node.data)
    report = fsck(directory)
    found = [finding for finding in report.findings if finding.code != "log_quarantined"]
    assert (report.ok, found) == (True, []), report


def is_kept(engine: Engine, place: tuple[str, str], receipt: str) -> bool:
    """Whether a receipt's message failed an attempt, or is still in its queue."""
    state = engine.core.state.groups.by_name["/".join(place)]
    lease = Receipts(engine.core.log.log_id, state.name, state.since).decode(receipt)
    assert isinstance(lease, Lease)
    fresh = lease.queue != DEAD_QUEUE and lease.queue_offset >= engine.queues.queue_bounds(place[0], 0)[0]
    return lease.key in state.items or fresh


async def consume_rest(engine: Engine, clock: ManualClock, books: Books) -> None:
    """Receipts are as good as before; all that is kept and not done comes, and nothing that is done."""
    for place in PLACES:
        topic, group = place
        await engine.groups.put(
            topic, group, GroupConfig(max_attempts=ATTEMPTS_MAX_AFTERWARDS, backoff=QUICK)
        )
        held = sorted(books.receipts[place].keys() - books.acked[place])
        receipts = books.receipts[place]
        good = {body for body in books.good[place] if is_kept(engine, place, receipts[body])}
        results = await engine.groups.ack(topic, group, [books.receipts[place][body] for body in held])
        told = {body for body, result in zip(held, results, strict=True) if result.ok}
        assert told == good - books.acked[place]
        books.acked[place] |= told
    came: dict[tuple[str, str], list[str]] = {place: [] for place in PLACES}
    for wait_ms in (0, FAR_MS, FAR_MS):
        clock.advance(wait_ms)
        await settle(engine)
        for place in PLACES:
            while got := await engine.groups.receive(*place, count_max=100):
                came[place] += [delivery.message.body.decode() for delivery in got]
                await engine.groups.ack(*place, [delivery.receipt for delivery in got])
    for (topic, group), bodies in came.items():
        wanted = {message.body.decode() for message in await read_all(engine, topic)}
        if (topic, group) == DYING:
            wanted = wanted - books.died | books.redriven
        assert sorted(bodies) == sorted(wanted - books.acked[topic, group]), (topic, group)
        info = engine.groups.info(topic, group)
        assert (info.lag, info.in_flight, info.waiting, info.ready, info.parked) == (0, 0, 0, 0, 0)
    assert [message.body for message in await read_all(engine, "later")] == [b"far"]
    assert engine.core.state.leases == 0


async def finish(
    directory: Path, files: FaultyFiles, clock: ManualClock, books: Books, *, again: bool
) -> None:
    """Open what a crash left, if asked let retention go on, check, and consume to the end."""
    if again:
        engine = await Engine.open(settings_in(directory, RETENTION_MS), clock, files, threads=False)
        await check_as_before(engine, books)
        await engine.retention.turn()
        await check_as_before(engine, books)
        assert engine.core.log.bases[0] > books.first_base, "retention does not go on"
        await engine.close()
        check_whole(directory, files)
    engine = await Engine.open(settings_in(directory, NEVER_MS), clock, files, threads=False)
    await check_as_before(engine, books)
    await consume_rest(engine, clock, books)
    await engine.close()
    check_whole(directory, files)


def test_without_a_crash_segments_are_dropped_twice_from_under_groups_with_everything(tmp_path: Path) -> None:
    _, _, books = asyncio.run(run_once(tmp_path, NO_CRASH))
    assert len(books.turns) == 2
    for turn in books.turns:
        assert {step.split()[0] for step in turn} >= {"append", "sync", "write", "rename", "unlink"}
    held = [item for _, _, items, _ in books.before[0].values() for item in items]
    assert {item[1] for item in held} == {ItemState.WAITING, ItemState.READY}
    assert any(lanes for *_, lanes in books.before[0].values())
    assert books.dead


@pytest.fixture(scope="module")
def crashes_by_turn() -> Iterator[list[list[Crash]]]:
    with scratch() as root:
        yield [asyncio.run(crashes_in(turn, root)) for turn in (0, 1)]


async def crashes_in(turn: int, root: Path) -> list[Crash]:
    """A crash at every step of a turn of retention, and at its end."""
    crashes = []
    for step in itertools.count(1):
        directory = root / f"{turn}-{step}"
        directory.mkdir()
        run = run_once(directory, When(turn, step))
        crash = await Crash.of(run, f"turn {turn}, step {step}", directory, turn * 1_000 + step)
        crashes.append(crash)
        if len(crash.books.turns) > turn:
            break
    return crashes


@pytest.mark.parametrize("turn", [0, 1])
@pytest.mark.parametrize("index", INDEXES)
def test_a_crash_at_any_step_of_retention_leaves_groups_as_they_were(
    crashes_by_turn: list[list[Crash]], index: str, turn: int
) -> None:
    for crash in (one for one in crashes_by_turn[turn] if one.meets(index)):
        for fate in range(FATES):
            files = crash.fate(fate, FATES)
            with crash.again(index, fate) as (directory, clock, books):
                asyncio.run(finish(directory, files, clock, books, again=bool(fate % 2)))
