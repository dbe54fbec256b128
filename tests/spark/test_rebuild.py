"""One suite over both ways to make an index: replay in the service's process, and Spark."""

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.harness.drive import read_all
from tests.harness.histories import History
from tests.harness.index_dump import dump_index, pending_of, replay
from tests.harness.world import World
from timerwheel.errors import RefusedError
from timerwheel.model.messages import Outgoing, State
from timerwheel.offline.fsck import fsck
from timerwheel.schedules.recurrence import Recurrence
from timerwheel.schedules.spec import ScheduleSpec
from timerwheel.spark_jobs.logs import find_logs
from timerwheel.spark_jobs.progress import JobProgress
from timerwheel.spark_jobs.rebuild.job import Rebuild
from timerwheel.spark_jobs.segment_stats import ReadOptions
from timerwheel.store.files import DiskFiles
from timerwheel.store.segment import SEGMENT_HEADER_SIZE

SEEDS = range(16)
STEPS = 70


async def make_histories(directory: Path) -> dict[int, int]:
    """A data directory for each seed; returns the time at which each ends."""
    ends_ms = {}
    for seed in SEEDS:
        history = await History(directory / f"h{seed:02d}", seed).live(STEPS)
        ends_ms[seed] = history.world.clock.now_ms()
    return ends_ms


@pytest.fixture(scope="module")
def made(spark, tmp_path_factory):
    """Histories, indexed by replay in `replayed/` and by one run of Spark over all in `rebuilt/`."""
    directory = tmp_path_factory.mktemp("histories")
    ends_ms = asyncio.run(make_histories(directory / "replayed"))
    shutil.copytree(directory / "replayed", directory / "rebuilt")
    for seed in SEEDS:
        shutil.rmtree(directory / "rebuilt" / f"h{seed:02d}" / "index", ignore_errors=True)
        replay(directory / "replayed" / f"h{seed:02d}", ends_ms[seed])
    (directory / "staging").mkdir()
    logs = find_logs([str(directory / "rebuilt" / "*")])
    report = Rebuild(spark, JobProgress(spark, show=False), ReadOptions(str(directory / "staging"))).run(logs)
    return directory, ends_ms, {node.node: node for node in report.nodes}


@pytest.mark.parametrize("seed", SEEDS)
def test_spark_and_replay_find_the_same_pending_timers_to_the_byte_in_the_same_order(made, seed):
    directory, _, nodes = made
    name = f"h{seed:02d}"
    pending = pending_of(directory / "rebuilt" / name)
    assert pending == pending_of(directory / "replayed" / name)
    assert nodes[name].pending + nodes[name].leases == len(pending.splitlines())


@pytest.mark.parametrize("seed", SEEDS)
def test_spark_and_replay_make_indexes_that_say_the_same(made, seed):
    directory, _, _ = made
    name = f"h{seed:02d}"
    rebuilt, replayed = dump_index(directory / "rebuilt" / name), dump_index(directory / "replayed" / name)
    for what, expected in replayed.items():
        assert rebuilt[what] == expected, what


@pytest.mark.parametrize("seed", SEEDS)
def test_fsck_has_nothing_to_say_of_a_rebuilt_index(made, seed):
    directory, _, _ = made
    report = fsck(directory / "rebuilt" / f"h{seed:02d}")
    assert report.ok, report.findings


@pytest.mark.parametrize("seed", list(SEEDS)[::5])
def test_a_service_fires_the_same_in_the_same_order_from_either_index(made, seed):
    directory, ends_ms, _ = made
    assert asyncio.run(fired(directory / "rebuilt" / f"h{seed:02d}", ends_ms[seed])) == asyncio.run(
        fired(directory / "replayed" / f"h{seed:02d}", ends_ms[seed])
    )


async def fired(data: Path, now_ms: int) -> dict[str, list[tuple[str, int, bytes]]]:
    """All that consumers can read once everything was due, from a copy of the data directory."""
    copy = data.with_name(data.name + "-fired")
    shutil.copytree(data, copy)
    world = World(copy)
    world.files = DiskFiles()
    world.clock.advance(now_ms - world.clock.now_ms())
    await world.open(retention_ms=10**13)
    await world.advance(50 * 86_400_000)
    found = {topic: await read_all(world.engine, topic) for topic in ("orders", "tickets")}
    await world.engine.close()
    return {topic: [(m.id, m.due_ms, m.body) for m in messages] for topic, messages in found.items()}


def test_a_key_stands_for_the_same_after_a_rebuild_though_its_first_message_was_recalled(spark, tmp_path):
    data = tmp_path / "node"
    second_id, run_id, run_key = asyncio.run(recalled_and_sent_again(data))
    shutil.rmtree(data / "index")
    (tmp_path / "staging").mkdir()
    Rebuild(spark, JobProgress(spark, show=False), ReadOptions(str(tmp_path / "staging"))).run(
        find_logs([str(data)])
    )
    asyncio.run(check_keys(data, second_id, run_id, run_key))


_CARRIED = Outgoing("orders", b"carried", dedup_key="carried")


def _keyed(body: bytes) -> Outgoing:
    return Outgoing("orders", body, {"TIMER_DELAY_MS": "3600000"}, "k")


async def recalled_and_sent_again(data: Path) -> tuple[str, str, str]:
    world = World(data)
    world.files = DiskFiles()
    engine = await world.open(retention_ms=1_000)
    await engine.sender.send([_CARRIED])
    await world.roll()
    await world.advance(5_000)
    await world.retention_turn()
    assert engine.core.log.start > SEGMENT_HEADER_SIZE
    await engine.sender.send([_keyed(b"first")])
    await engine.recalls.recall_key("orders", "k")
    [second] = await engine.sender.send([_keyed(b"second")])
    recurrence = Recurrence(every_ms=3_600_000)
    await engine.schedules.put("n", ScheduleSpec(topic="runs", body=b"tick", recurrence=recurrence))
    [run] = (await engine.messages.pending("runs")).messages
    await world.roll()
    await engine.close()
    return second.id, run.id, run.properties["DEDUP_KEY"]


async def check_keys(data: Path, second_id: str, run_id: str, run_key: str) -> None:
    world = World(data)
    world.files = DiskFiles()
    engine = await world.open()
    [again] = await engine.sender.send([_CARRIED])
    assert (again.duplicate, again.state) == (True, State.DELIVERED)
    assert await engine.keys.id_of("orders", "k") == second_id
    assert await engine.keys.id_of("runs", run_key) == run_id
    await engine.recalls.recall(second_id)
    for body in (b"first", b"second"):
        with pytest.raises(RefusedError) as refused:
            await engine.sender.send([_keyed(body)])
        assert refused.value.faults[0].code == "key_recalled"
    await engine.close()
