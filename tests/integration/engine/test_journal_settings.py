"""A leader looks each minute whether what keeps its journal may still be trusted."""

import asyncio
from pathlib import Path

import pytest

from tests.harness.clock import ManualClock
from tests.harness.drive import settle
from tests.harness.faulty import FaultyFiles
from tests.harness.memory_journal import MemoryJournal
from timerwheel.engine import Engine, LogOptions
from timerwheel.runtime.journal_watch import JOURNAL_CHECK_MS
from timerwheel.settings import Settings

WHY = "the Kafka topic shop-log has retention.ms=1: Kafka would delete the beginning of the log; set it to -1"


async def leading(directory: Path, clock: ManualClock, journal: MemoryJournal) -> Engine:
    settings = Settings(data=directory, disk_reserve_bytes=0)
    leader = journal.leader(run_bytes_max=1 << 20)
    engine = await Engine.open(settings, clock, FaultyFiles(), threads=False, log=LogOptions(journal=leader))
    await settle(engine)  # so that its loops have begun to wait
    return engine


async def test_a_leader_ends_within_a_minute_of_a_change_that_would_lose_messages(tmp_path: Path) -> None:
    clock, journal = ManualClock(), MemoryJournal()
    engine = await leading(tmp_path, clock, journal)
    journal.loses = WHY
    failed = asyncio.create_task(engine.failed())
    clock.advance(JOURNAL_CHECK_MS - 1)
    await settle(engine)
    assert not failed.done()
    clock.advance(1)
    with pytest.raises(
        RuntimeError, match=r"failed: the Kafka topic shop-log has retention\.ms=1: Kafka would"
    ):
        await settle(engine)
    assert await failed == WHY
    await engine.close()


async def test_a_journal_that_does_not_answer_is_not_held_against_it(tmp_path: Path) -> None:
    clock, journal = ManualClock(), MemoryJournal()
    engine = await leading(tmp_path, clock, journal)
    journal.is_away = True
    clock.advance(JOURNAL_CHECK_MS)
    await settle(engine)
    assert engine.ready
    journal.is_away = False
    await engine.close()
