"""A crash at every step on the disk of a run in which consumer groups do everything that they can.

As in `test_crash_matrix`, but the books are those of consumers: what was acknowledged is never delivered
again, all else is until it is acknowledged or a dead letter, and each timer belongs to an item. Attempts
count on; only the one that was in flight may come once more after a crash, and after a planned restart not
even that.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.harness.clock import ManualClock
from tests.harness.crashes import INDEXES, Crash, crashes_of
from tests.harness.drive import read_all, settle, small_settings
from tests.harness.faulty import FaultyFiles, SimulatedCrashError
from tests.harness.group_checks import check_groups
from tests.harness.scratch import scratch
from timerwheel.engine import Engine
from timerwheel.errors import TimerwheelError
from timerwheel.groups.config import Exponential, GroupConfig, GroupTerms
from timerwheel.groups.groups import Groups
from timerwheel.model.messages import Delivery, GroupInfo, Outgoing
from timerwheel.store.errors import StoreError

FATES = 2
CONFIG = GroupConfig(
    max_attempts=2, invisible_ms=1_000, backoff=Exponential(initial_ms=1_000, factor=1.0, max_ms=1_000)
)
PLACES = (("orders", "g"), ("lanes", "o"))


class Books:
    """What consumers were told, and what they asked without an answer, by body."""

    def __init__(self) -> None:
        self.sent: set[str] = set()
        self.acked: set[str] = set()
        self.maybe_acked: set[str] = set()
        self.attempts: dict[str, int] = {}
        self.given_back: dict[str, int] = {}
        self.redriven: set[str] = set()
        self.expiring: set[str] = set()
        self.expired = False
        self.paused: bool | None = False  # None while nobody knows
        self.held: dict[str, str] = {}

    def got(self, delivery: Delivery) -> None:
        body = delivery.message.body.decode()
        assert body not in self.acked, f"{body} was acknowledged and came again"
        assert not (self.expired and body in self.expiring), f"{body} came after its TTL"
        if body not in self.redriven:
            assert delivery.attempt > self.attempts.get(body, 0), f"{body}: attempt {delivery.attempt} again"
        assert delivery.attempt <= CONFIG.max_attempts
        self.attempts[body] = delivery.attempt
        self.held[body] = delivery.receipt

    def crash(self) -> None:
        """The attempts in flight may come again; those that were given back have failed for good."""
        for body, attempt in self.attempts.items():
            self.attempts[body] = attempt - (self.given_back.get(body) != attempt)


class Consumer:
    """An engine, its clock and its books."""

    def __init__(self, engine: Engine, clock: ManualClock, books: Books) -> None:
        self.engine = engine
        self.clock = clock
        self.books = books

    @property
    def groups(self) -> Groups:
        return self.engine.groups

    async def send(self, topic: str, *bodies: str) -> None:
        keys = [{"__SHARDINGKEY": body[0]} for body in bodies]
        await self.engine.sender.send(
            [Outgoing(topic, b.encode(), key) for b, key in zip(bodies, keys, strict=True)]
        )
        self.books.sent.update(bodies)

    async def send_expiring(self, topic: str, *bodies: str) -> None:
        """Send messages that nobody may get after two seconds."""
        self.books.expiring.update(bodies)
        limits = {"TIMER_TTL_MS": "2000", "TIMER_MAX_ATTEMPTS": "9"}
        await self.engine.sender.send([Outgoing(topic, body.encode(), limits) for body in bodies])
        self.books.sent.update(bodies)

    async def receive(self, place: tuple[str, str], count: int) -> list[str]:
        got = await self.groups.receive(*place, count_max=count)
        for delivery in got:
            self.books.got(delivery)
        if place[0] == "lanes":
            keys = Counter(delivery.message.body[0] for delivery in got)
            assert not keys or max(keys.values()) == 1, "two of a key at once"
        return [delivery.message.body.decode() for delivery in got]

    async def pause(self) -> None:
        self.books.paused = None
        await self.engine.topics.pause("orders")
        self.books.paused = True
        assert await self.receive(PLACES[0], 10) == []

    async def resume(self) -> None:
        self.books.paused = None
        await self.engine.topics.resume("orders")
        self.books.paused = False

    async def ack(self, place: tuple[str, str], *bodies: str) -> None:
        self.books.maybe_acked.update(bodies)
        results = await self.groups.ack(*place, [self.books.held[body] for body in bodies])
        self.books.acked.update(b for b, result in zip(bodies, results, strict=True) if result.ok)

    async def nack(self, place: tuple[str, str], body: str, delay_ms: int | None, reason: str) -> None:
        [result] = await self.groups.nack(*place, [self.books.held[body]], delay_ms, reason)
        if result.ok:
            self.books.given_back[body] = self.books.attempts[body]

    async def restart(self) -> None:
        """Stop as planned and start: who has what is as it was."""
        before = self.groups.all()
        files, settings = self.engine.core.log.files, self.engine.core.settings
        await self.engine.close()
        self.engine = await Engine.open(settings, self.clock, files, threads=False)
        await settle(self.engine)
        check_groups(self.engine)
        assert [parked_are_new(info) for info in self.groups.all()] == list(map(parked_are_new, before))

    async def redrive(self, group: str) -> None:
        page = await self.groups.dead.page(group)
        self.books.redriven.update(letter.message.body.decode() for letter in page.letters)
        await self.groups.dead.redrive(group)
        await settle(self.engine)

    async def advance(self, duration_ms: int) -> None:
        self.clock.advance(duration_ms)
        await settle(self.engine)
        check_groups(self.engine)

    async def dead(self, group: str) -> list[str]:
        page = await self.groups.dead.page(group, limit=1_000)
        return [letter.message.body.decode() for letter in page.letters]


def parked_are_new(info: GroupInfo) -> tuple[object, ...]:
    """A group's numbers, where what is parked counts as not seen: after a start it is looked at again."""
    numbers = (info.in_flight, info.waiting, info.ready, info.dead_letters)
    return info.topic, info.group, info.lag + info.parked, *numbers


async def workload(consumer: Consumer) -> None:
    """Lease, acknowledge, give back, extend, come back, stop, die, be redriven, rewind, delete."""
    groups, books = consumer.groups, consumer.books
    orders, lanes = PLACES
    await consumer.engine.topics.change("lanes", ordered=True)
    for place in PLACES:
        await groups.put(*place, CONFIG)
    await consumer.send("orders", "a", "b", "c", "d", "e")
    await consumer.receive(orders, 4)
    await consumer.ack(orders, "a")
    await consumer.nack(orders, "b", 1_500, "later")
    await groups.extend(*orders, [books.held["c"]], 4_000)
    await consumer.send("lanes", "x1", "y1", "x2", "x3", "y2")
    await consumer.receive(lanes, 5)
    await consumer.engine.indexer.tick()
    await consumer.ack(lanes, "x1")
    await consumer.receive(lanes, 1)
    await consumer.pause()
    await consumer.advance(2_000)  # b and d come back, and y1 and x2
    await consumer.engine.indexer.tick()
    await consumer.resume()
    await consumer.receive(orders, 2)
    await consumer.restart()
    groups = consumer.groups
    await consumer.nack(orders, "d", None, "never")
    await consumer.advance(2_500)
    await consumer.receive(lanes, 5)
    await consumer.engine.indexer.tick()
    await consumer.redrive("g")
    await consumer.receive(orders, 2)
    if "d" in books.held:
        await consumer.ack(orders, "d")
    await groups.receive("orders", "other", count_max=3, terms=GroupTerms(create=True))
    await groups.delete("orders", "other")
    await consumer.advance(2_000)
    await groups.rewind("orders", "g", offsets={0: 5})
    await consumer.send("orders", "f", "g", "h")
    await consumer.receive(orders, 3)
    await consumer.ack(orders, "f", "g")
    await consumer.engine.indexer.tick()
    await expire(consumer)


async def expire(consumer: Consumer) -> None:
    """The TTL of one message ends while it is leased, and of one that nobody had."""
    await consumer.send_expiring("orders", "u", "v")
    await consumer.receive(PLACES[0], 1)
    await consumer.advance(1_000)
    await consumer.advance(1_000)
    consumer.books.expired = True
    await consumer.receive(PLACES[0], 3)
    await consumer.engine.indexer.tick()
    await consumer.advance(1_000)


async def run_once(
    directory: Path, crash_at: int | None, flush: str
) -> tuple[FaultyFiles, ManualClock, Books]:
    clock, files, books = ManualClock(), FaultyFiles(crash_at), Books()
    consumer = None
    with contextlib.suppress(SimulatedCrashError, TimerwheelError, StoreError, RuntimeError):
        engine = await Engine.open(settings_in(directory, flush), clock, files, threads=False)
        consumer = Consumer(engine, clock, books)
        await workload(consumer)
        if crash_at is not None:
            await consumer.engine.close()
    if consumer is not None:
        with contextlib.suppress(SimulatedCrashError):
            await consumer.engine.abandon()
    return files, clock, books


def settings_in(directory: Path, flush: str):
    return small_settings(directory, retention_ms=10**12, flush=flush)


async def say_old_receipts(consumer: Consumer) -> None:
    """Acknowledge with every receipt of before the crash, where other messages may be now."""
    held = dict(consumer.books.held)
    await consumer.send("orders", *"nopqrs")
    await consumer.send("lanes", *[f"{key}1" for key in "nopqr"])
    for place in PLACES:
        await consumer.groups.put(*place, CONFIG)
        mine = [body for body in held if (body[1:] != "") == (place[0] == "lanes")]
        results = await consumer.groups.ack(*place, [held[body] for body in mine])
        done = {body for body, result in zip(mine, results, strict=True) if result.ok}
        consumer.books.acked |= done
        consumer.books.maybe_acked |= done


async def finish(directory: Path, files: FaultyFiles, clock: ManualClock, books: Books, flush: str) -> None:
    """Open what a crash left, consume to the end, and check the books."""
    engine = await Engine.open(settings_in(directory, flush), clock, files, threads=False)
    await settle(engine)
    check_groups(engine)
    books.crash()
    if flush == "async":  # what was answered since the last sync may be forgotten
        books.acked.clear()
        books.attempts.clear()
        books.paused = None
    assert books.paused in (None, engine.topics.paused("orders")), "a pause was lost, or came back"
    await engine.topics.resume("orders")
    consumer = Consumer(engine, clock, books)
    seen: dict[tuple[str, str], set[str]] = {place: set() for place in PLACES}
    await engine.topics.change("lanes", ordered=True)
    if flush == "async":
        await say_old_receipts(consumer)
    for place in PLACES:
        await engine.groups.put(*place, CONFIG)
        for _ in range(8):
            bodies = await consumer.receive(place, 10)
            seen[place].update(bodies)
            if bodies:
                await consumer.ack(place, *bodies)
            await consumer.advance(3_000)
    for (topic, group), came in seen.items():
        bodies = {message.body.decode() for message in await read_all(engine, topic)}
        dead = await consumer.dead(group)
        assert len(dead) == len(set(dead)), f"a dead letter came twice: {dead}"
        assert not set(dead) & came, "dead, yet it came"
        rewound = set("abcde") if topic == "orders" else set()
        assert bodies - rewound - books.expiring <= came | set(dead) | books.maybe_acked, "lost"
        if flush == "sync":
            sent = {body for body in books.sent if (body[1:] != "") == (topic == "lanes")}
            assert sent <= bodies, "a message that was sent is not there"
            assert not set(dead) & books.acked, "dead, though acknowledged"
        info = engine.groups.info(topic, group)
        assert (info.lag, info.in_flight, info.waiting, info.ready, info.parked) == (0, 0, 0, 0, 0)
    assert engine.core.state.leases == 0
    await engine.close()


@pytest.fixture(scope="module")
def crashes_by_flush() -> Iterator[dict[str, list[Crash]]]:
    with scratch() as root:
        found = {}
        for flush in ("sync", "async"):
            (root / flush).mkdir()
            run = partial(run_once, flush=flush)
            found[flush] = asyncio.run(crashes_of(run, root / flush, sampled=True))
        yield found


def test_the_run_without_a_crash_does_all_that_groups_can(tmp_path: Path) -> None:
    files, _, books = asyncio.run(run_once(tmp_path, None, "sync"))
    assert {step.split()[0] for step in files.trace} >= {"create", "append", "sync"}
    assert books.acked == {"a", "d", "f", "g", "x1"}
    assert books.redriven
    assert max(books.attempts.values()) == 2


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_after_a_crash_at_any_step_consumers_get_what_is_left_and_nothing_that_is_done(
    crashes_by_flush: dict[str, list[Crash]], index: str, flush: str
) -> None:
    for crash in crashes_by_flush[flush]:
        for fate, files in crash.fates(FATES, index):
            with crash.again(index, fate) as (directory, clock, books):
                asyncio.run(finish(directory, files, clock, books, flush))
