"""The two ways out of a damaged log, `--salvage` and `--cut`, stopped at every step.

A log of several segments with sidecars, its index lost. Damage to a message leaves a hole that keeps nothing
from starting; damage to settings does, and so does a hole in a segment without a sidecar.
"""

import asyncio
import contextlib
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.harness.clock import ManualClock
from tests.harness.drive import read_all, settle, small_settings
from tests.harness.faulty import FaultyFiles, SimulatedCrashError
from tests.harness.scratch import scratch
from timerwheel.engine import Engine, LogOptions
from timerwheel.errors import TimerwheelError
from timerwheel.model.messages import Outgoing
from timerwheel.state.config_table import Put
from timerwheel.store import quarantine
from timerwheel.store.errors import LogDamagedError, StoreError
from timerwheel.store.log import OnDamage
from timerwheel.store.record import HEADER_SIZE

FATES = 3
WAYS_OUT = (OnDamage.SALVAGE, OnDamage.CUT)


class Made(NamedTuple):
    """A log on a disk, with all of it durable: offsets of its messages by body, and of its one setting."""

    files: FaultyFiles
    clock: ManualClock
    directory: Path
    offsets: dict[bytes, int]
    setting: int


async def opened(
    made: Made, files: FaultyFiles, directory: Path, on_damage: OnDamage = OnDamage.REFUSE
) -> Engine:
    clock = ManualClock(made.clock.wall_ms)
    engine = await Engine.open(
        small_settings(directory, retention_ms=10**12), clock, files, threads=False, log=LogOptions(on_damage)
    )
    await settle(engine)
    return engine


async def make(directory: Path) -> Made:
    """Four messages with fillers between them, each in a segment of its own, a setting behind the second."""
    made = Made(FaultyFiles(), ManualClock(), directory, {}, 0)
    engine = await opened(made, made.files, directory)
    setting = 0
    for body in (b"first", b"second", b"third", b"fourth"):
        [receipt] = await engine.sender.send([Outgoing("orders", body)])
        made.offsets[body] = int(receipt.id[:16], 16)
        if body == b"second":
            setting = engine.core.log.tail
            await engine.control.put([Put("topic", "orders", {"order_by": "key"})])
        last = engine.core.log.bases[-1]
        while engine.core.log.bases[-1] == last:
            await engine.sender.send([Outgoing("filler", b"f" * 500)])
    await engine.indexer.tick()
    await engine.close()
    return made._replace(setting=setting)


@pytest.fixture(scope="module")
def made() -> Iterator[Made]:
    with scratch() as root:
        directory = root / "data"
        directory.mkdir()
        yield asyncio.run(make(directory))


def damaged(made: Made, *offsets: int, sidecars: bool = True) -> FaultyFiles:
    """The disk with one bit of each of these records flipped, their segments with sidecars or without."""
    files = made.files.after_kill()
    bases = sorted(int(Path(name).stem) for name in files.names_now if name.endswith(".log"))
    for offset in offsets:
        base = max(base for base in bases if base < offset)
        name = str(made.directory / "log" / f"{base:020d}")
        node = files.names_now[f"{name}.log"]
        node.data[offset - base + HEADER_SIZE + 1] ^= 0x10
        node.durable = bytes(node.data)
        if not sidecars:
            files.names_now.pop(f"{name}.side")
    files.names_durable = dict(files.names_now)
    return files


async def bodies_of(engine: Engine) -> list[bytes]:
    return [message.body for message in await read_all(engine, "orders")]


async def start(made: Made, files: FaultyFiles, on_damage: OnDamage) -> tuple[list[bytes], list[int]]:
    """Start on a disk without an index: what can be read, and which offsets are in quarantine."""
    shutil.rmtree(made.directory / "index", ignore_errors=True)
    engine = await opened(made, files, made.directory, on_damage)
    try:
        kept = quarantine.listed(files, made.directory / "log")
        return await bodies_of(engine), [one.offset for one in kept]
    finally:
        await engine.close()


async def test_damage_to_settings_in_a_sealed_segment_is_refused_with_the_two_ways_out(made):
    with pytest.raises(LogDamagedError) as refused:
        await start(made, damaged(made, made.setting), OnDamage.REFUSE)
    assert refused.value.offset == made.setting
    for way_out in ("--salvage", "--cut"):
        assert way_out in str(refused.value)


async def test_salvage_starts_without_the_damaged_settings_and_with_every_message(made):
    bodies, cut = await start(made, damaged(made, made.setting), OnDamage.SALVAGE)
    assert (bodies, cut) == ([b"first", b"second", b"third", b"fourth"], [])


async def test_cut_ends_the_log_where_the_start_would_fail_and_leaves_older_damage_be(made):
    files = damaged(made, made.offsets[b"first"], made.setting)
    bodies, cut = await start(made, files, OnDamage.CUT)
    assert bodies == [b"", b"second"]
    assert cut[0] == made.setting
    assert cut == sorted(cut)


async def test_cut_cuts_nothing_where_no_damage_keeps_the_log_from_starting(made):
    files = damaged(made, made.offsets[b"second"])
    before = files.contents()
    _, cut = await start(made, files, OnDamage.CUT)
    assert cut == []
    assert {n: d for n, d in files.contents().items() if n.endswith(".log")} == {
        n: d for n, d in before.items() if n.endswith(".log")
    }


@pytest.mark.parametrize("on_damage", WAYS_OUT)
@pytest.mark.parametrize("sidecars", [True, False])
async def test_a_way_out_that_is_stopped_at_any_step_is_taken_again_to_the_same_end(
    made, on_damage, sidecars
):
    whole = damaged(made, made.offsets[b"third"], made.setting, sidecars=sidecars)
    expected = await start(made, whole.after_kill(), on_damage)
    counted = whole.after_kill()
    shutil.rmtree(made.directory / "index", ignore_errors=True)
    await (await opened(made, counted, made.directory, on_damage)).abandon()
    assert counted.steps
    for step in range(1, counted.steps + 1):
        stopped = whole.after_kill()
        stopped.crash_at = step
        shutil.rmtree(made.directory / "index", ignore_errors=True)
        with contextlib.suppress(SimulatedCrashError, StoreError, TimerwheelError, RuntimeError):
            await (await opened(made, stopped, made.directory, on_damage)).abandon()
        assert stopped.dead
        for fate in range(FATES):
            left = stopped.after_crash(random.Random(step * FATES + fate))
            with contextlib.suppress(LogDamagedError):
                assert (await start(made, left.after_kill(), OnDamage.REFUSE))[0] == expected[0]
            again = await start(made, left, on_damage)
            assert again[0] == expected[0], (step, fate, counted.trace[step - 1])
            assert set(again[1]) >= set(expected[1])
