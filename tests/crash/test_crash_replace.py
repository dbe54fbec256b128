"""A crash at every step of sends that replace what their key names.

The CANCEL of the earlier message and the new message are one unit. So whenever the machine stops, exactly one
message under the key is scheduled or was delivered since the last delivery: never both, never neither.
"""

import asyncio
from pathlib import Path

import pytest

from tests.harness.clock import ManualClock
from tests.harness.crashes import INDEXES, Crash, Stopped
from tests.harness.drive import read_all, settle, small_settings
from tests.harness.faulty import FaultyFiles, SimulatedCrashError
from timerwheel.engine import Engine
from timerwheel.errors import TimerwheelError
from timerwheel.model.messages import Outgoing
from timerwheel.store.errors import StoreError

FATES = 3
BURSTS = 3
SENDS = 4
DELAY_MS = 1_000


class Books:
    """For each burst the body that was acknowledged last, and the one that was asked for last."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, int] = {}
        self.asked: dict[int, int] = {}


def message(burst: int, number: int) -> Outgoing:
    delay = {"TIMER_DELAY_MS": str(DELAY_MS)}
    body = b"%d.%d.%s" % (burst, number, b"b" * 700)  # more than a sector, so that a unit can be torn
    return Outgoing("orders", body, delay, dedup_key="k", replaces=True)


async def work(engine: Engine, clock: ManualClock, books: Books) -> None:
    for burst in range(BURSTS):
        for number in range(SENDS):
            books.asked[burst] = number
            [receipt] = await engine.sender.send([message(burst, number)])
            assert (receipt.replaced is not None) == (number > 0)
            books.acknowledged[burst] = number
            clock.advance(DELAY_MS - 1)
            await settle(engine)
        clock.advance(1)
        await settle(engine)


async def run_once(directory: Path, crash_at: int | None) -> Stopped:
    clock, files, books = ManualClock(), FaultyFiles(crash_at), Books()
    try:
        engine = await Engine.open(small_settings(directory), clock, files, threads=False)
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
    engine = await Engine.open(small_settings(directory), clock, files, threads=False)
    await settle(engine)
    clock.advance(DELAY_MS)
    await settle(engine)
    found: dict[int, list[int]] = {}
    for delivered in await read_all(engine, "orders"):
        burst, number = map(int, delivered.body.split(b".")[:2])
        found.setdefault(burst, []).append(number)
    for burst, asked in books.asked.items():
        acknowledged = books.acknowledged.get(burst)
        expected = (
            [[asked]] if acknowledged == asked else [[asked], [] if acknowledged is None else [acknowledged]]
        )
        assert found.get(burst, []) in expected
    await engine.close()


@pytest.mark.parametrize("index", INDEXES)
def test_a_crash_at_any_step_of_replacing_leaves_one_message(crashes: list[Crash], index: str) -> None:
    for crash in crashes:
        for fate, files in crash.fates(FATES, index):
            with crash.again(index, fate) as (directory, clock, books):
                asyncio.run(check(directory, files, clock, books))
