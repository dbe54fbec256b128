"""Retention against counting: real threads, segments of 4 KiB that are removed while messages arrive.

TIMERWHEEL_TORTURE_RETENTION_S seconds each, five minutes unless told.
"""

import asyncio
import os
import random
from itertools import count

import pytest

from tests.torture.killing import Loop, Plan, seed_given
from timerwheel.clock import SystemClock
from timerwheel.engine import Engine
from timerwheel.model.messages import Outgoing
from timerwheel.offline.fsck import fsck
from timerwheel.settings import Settings

LASTS_S = float(os.environ.get("TIMERWHEEL_TORTURE_RETENTION_S") or 300)
SENDERS = 8
SMALL = {"--segment-size": "4KiB", "--retention": "1s", "--retention-interval": "10ms"}


@pytest.mark.torture
async def test_with_kills_retention_leaves_the_books_right(tmp_path):
    plan = Plan(seed_given(), kills=5, lasts_s=LASTS_S, flags=SMALL, share=1_500, up_s_max=8.0)
    await Loop(plan, tmp_path).run()
    turns = (tmp_path / "stderr").read_text(errors="replace").count("retention removed")
    assert turns >= plan.kills, "retention had nothing to remove, so nothing raced with it"


@pytest.mark.torture
async def test_retention_that_never_rests_miscounts_nothing(tmp_path):
    clock = SystemClock()
    settings = Settings(
        data=tmp_path / "data",
        segment_size_bytes=4096,
        retention_ms=1,
        retention_interval_ms=1,
        index_interval_ms=20,
        disk_reserve_bytes=0,
        index_map_size_bytes=1 << 30,
    )
    engine = await Engine.open(settings)
    until_ms = clock.monotonic_ms() + int(LASTS_S * 1_000)
    dice = random.Random(seed_given())
    sent = 0

    async def send() -> None:
        nonlocal sent
        for number in count():
            if clock.monotonic_ms() >= until_ms:
                return
            array = [
                Outgoing("t", b"x" * dice.randint(1, 300), after_ms=dice.choice((0, 0, 1, 40)))
                for _ in range(dice.randint(1, 20))
            ]
            await engine.sender.send(array)
            sent += len(array)
            if number % 50 == 0:
                await engine.queues.read_queue("t", 0, 0, 100)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(SENDERS):
            tasks.create_task(send())
    while engine.queues.topic("t").pending:
        await clock.sleep_for(5)
        assert engine.ready, engine.status
    bases, segments = engine.core.log.bases, engine.core.state.segments
    assert bases[0] > 100 * settings.segment_size_bytes, "retention removed next to nothing"
    assert {base: one.pending for base, one in segments.items() if one.pending} == {}
    bases = engine.core.log.bases
    assert {base for base in segments if base >= bases[0]} <= set(bases)
    assert engine.queues.topic("t").queues[0].max_offset == sent
    await engine.close()
    report = fsck(settings.data)
    assert report.ok, report.findings[:5]
