"""A crash at every step of turns of retention that carry deduplication keys.

Retention stores the keys of ended messages again before it removes the segments that told of them. So
whenever the machine stops, each key must stand for the message that it stood for. The first turn finds the
messages' own records, the later ones what earlier turns have carried.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.harness.clock import ManualClock
from tests.harness.crashes import INDEXES, Crash, Stopped
from tests.harness.drive import settle, small_settings
from tests.harness.faulty import FaultyFiles, SimulatedCrashError
from timerwheel.engine import Engine
from timerwheel.errors import RefusedError, TimerwheelError
from timerwheel.model.messages import Outgoing, State
from timerwheel.store.errors import StoreError

FATES = 3
RETENTION_MS = 5_000
TURNS = 3
FAR_MS = 36_000_000


class Books:
    """The id that each key stands for, by what became of its message."""

    def __init__(self) -> None:
        self.delivered: dict[str, str] = {}
        self.recalled: dict[str, str] = {}
        self.waiting: dict[str, str] = {}
        self.start = 0


def settings_in(directory: Path) -> Any:
    return small_settings(directory, retention_ms=RETENTION_MS, retention_interval_ms=86_400_000)


def keyed(key: str) -> Outgoing:
    delay_ms = {"now": 0, "soon": 1_000}.get(key.partition("-")[0], FAR_MS)
    return Outgoing("orders", b"b" * 200, {"TIMER_DELAY_MS": str(delay_ms)}, dedup_key=key)


async def work(engine: Engine, clock: ManualClock, books: Books) -> None:
    for number in range(2):
        for kind, found in (
            ("now", books.delivered),
            ("soon", books.delivered),
            ("recalled", books.recalled),
            ("moved", books.waiting),
        ):
            key = f"{kind}-{number}"
            [receipt] = await engine.sender.send([keyed(key)])
            if kind == "recalled":
                await engine.recalls.recall(receipt.id)
            found[key] = receipt.id
    clock.advance(1_000)
    await settle(engine)
    for _ in range(TURNS):
        await roll(engine)
        clock.advance(RETENTION_MS + 2_000)
        await settle(engine)
        await engine.retention.turn()
        books.start = engine.core.log.start


async def roll(engine: Engine) -> None:
    for _ in range(3):
        last = engine.core.log.bases[-1]
        while engine.core.log.bases[-1] == last:
            await engine.sender.send([Outgoing("filler", b"f" * 900)])


async def run_once(directory: Path, crash_at: int | None) -> Stopped:
    clock, files, books = ManualClock(), FaultyFiles(crash_at), Books()
    try:
        engine = await Engine.open(settings_in(directory), clock, files, threads=False)
    except (SimulatedCrashError, TimerwheelError, StoreError):
        return files, clock, books
    try:
        await settle(engine)
        await work(engine, clock, books)
    except (SimulatedCrashError, TimerwheelError, StoreError, RuntimeError):
        assert files.dead
    await engine.abandon()
    return files, clock, books


async def check(directory: Path, files: FaultyFiles, clock: ManualClock, books: Books) -> None:
    engine = await Engine.open(settings_in(directory), clock, files, threads=False)
    await settle(engine)
    for states, found in (({State.DELIVERED}, books.delivered), ({State.SCHEDULED}, books.waiting)):
        for key, message_id in found.items():
            [again] = await engine.sender.send([keyed(key)])
            assert (again.id, again.duplicate) == (message_id, True), key
            assert again.state in states | ({State.SCHEDULED} if key.startswith("soon") else set())
    for key, message_id in books.recalled.items():
        assert await engine.keys.id_of("orders", key) == message_id
        with pytest.raises(RefusedError) as refused:
            await engine.sender.send([keyed(key)])
        assert [fault.code for fault in refused.value.faults] == ["key_recalled"]
    await engine.close()


def test_the_run_drops_the_records_of_the_keys_and_their_copies(crashes: list[Crash]) -> None:
    last = crashes[-1].books
    assert len(last.delivered) == 4
    assert last.start > max(int(message_id[:16], 16) for message_id in last.delivered.values())
    assert len({crash.books.start for crash in crashes}) > TURNS - 1


@pytest.mark.parametrize("index", INDEXES)
def test_a_crash_at_any_step_of_carrying_leaves_each_key_as_it_was(crashes: list[Crash], index: str) -> None:
    for crash in crashes:
        for fate, files in crash.fates(FATES, index):
            with crash.again(index, fate) as (directory, clock, books):
                asyncio.run(check(directory, files, clock, books))
