"""Data directories and backups as programs before wrote them: today's opens them and says the same."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.harness import golden
from tests.harness.clock import ManualClock
from tests.harness.scratch import scratch
from tests.harness.world import World
from timerwheel import tokens
from timerwheel.groups.groups import Groups
from timerwheel.groups.receipts import Receipts
from timerwheel.offline.backup.files import verify_files
from timerwheel.offline.backup.restore import restore_backup
from timerwheel.offline.fsck import fsck
from timerwheel.runtime.archived import read_archived
from timerwheel.state.groups import ItemState
from timerwheel.store.files import DiskFiles

VERSIONS = sorted(path.parent for path in (Path(__file__).parents[2] / "golden").glob("v*/expected.json"))


@pytest.fixture(params=VERSIONS, ids=lambda path: path.name)
def version(request) -> Path:
    return request.param


@pytest.fixture
def room() -> Iterator[Path]:
    with scratch() as root:
        yield root


async def opened(data: Path, expected) -> World:
    """A world in this directory at the moment at which the golden files were made."""
    world = World(data)
    world.files = DiskFiles()
    world.clock = ManualClock(expected["now_ms"])
    await world.open()
    return world


def expected_of(version: Path):
    return msgspec.json.decode((version / golden.EXPECTED).read_bytes())


def restored(version: Path, data: Path) -> None:
    restore_backup(version / golden.BACKUP, data, now_ms=0)


def copied(version: Path, data: Path) -> None:
    shutil.copytree(version / golden.SERVICE, data)


@pytest.mark.parametrize("bring", [copied, restored])
async def test_what_an_older_program_wrote_says_what_it_said_then(version, bring, room):
    expected = expected_of(version)
    bring(version, room / "d")
    world = await opened(room / "d", expected)
    assert await golden.told(world) == expected["told"]
    await world.engine.close()
    report = fsck(room / "d")
    assert (report.ok, report.findings) == (True, [])


@pytest.mark.parametrize("bring", [copied, restored])
async def test_what_waits_in_an_older_directory_is_delivered_in_due_order(version, bring, room):
    expected = expected_of(version)
    bring(version, room / "d")
    world = await opened(room / "d", expected)
    waiting = [(due_ms, one) for one, _, due_ms, *_ in expected["told"]["waiting"]]
    await world.advance(max(waiting)[0] - expected["now_ms"])
    topics = [one.topic for one in world.engine.queues.topics() if not one.system]
    found = {topic: await world.delivered_ids(topic) for topic in topics}
    assert sum(map(len, found.values())) > len(waiting)
    for ids in found.values():
        assert len(ids) == len(set(ids))
        own = [one for one in ids if one in dict(map(reversed, waiting))]
        assert own == [one for _, one in sorted(waiting) if one in ids]
    assert {one for _, one in waiting} <= set().union(*found.values())
    await world.engine.close()
    assert fsck(room / "d").ok


@pytest.mark.parametrize("bring", [copied, restored])
@pytest.mark.parametrize("how", ["ack", "time"])
@pytest.mark.parametrize("version", VERSIONS[:1], indirect=True, ids=["v1"])  # later ones are in memory
async def test_leases_in_an_older_directory_are_ended_by_their_receipts_or_expire(version, bring, how, room):
    bring(version, room / "d")
    world = await opened(room / "d", expected_of(version))
    groups, found = world.engine.groups, {}
    for topic, group in (("orders", golden.GROUP), ("lanes", "riders")):
        state = world.engine.core.state.groups.by_name[f"{topic}/{group}"]
        receipts = Receipts(world.engine.core.log.log_id, state.name, state.since)
        # A version that keeps leases in the log gives out these receipts; others have none here.
        roots = [item.root for item in state.items.values() if item.state == ItemState.LEASED]
        found[topic, group] = [receipts.encode_root(root) for root in roots]
        if how == "ack":
            assert all(one.ok for one in await groups.ack(topic, group, found[topic, group]))
    if version.name == "v1":
        assert [len(held) for held in found.values()] == [1, 1]
    await world.crash()
    await world.advance(golden.HOLD_MS if how == "time" else 0)
    dead = (await groups_of(world).dead.page(golden.GROUP)).letters
    assert [letter.reason for letter in dead] == ["broken", "attempt 1 was not acknowledged in time"][
        : 1 + (how == "time")
    ]
    await world.advance(golden.DAY_MS)
    for body in (b"one", b"two") if how == "time" else (b"two",):
        [got] = await groups_of(world).receive("lanes", "riders", count_max=5)
        assert got.message.body == body
        assert [one.ok for one in await groups_of(world).ack("lanes", "riders", [got.receipt])] == [True]
    for place, held in found.items():
        assert {one.code for one in await groups_of(world).ack(*place, held)} == {"receipt_ended"}
    await world.engine.close()
    assert fsck(room / "d").ok


def groups_of(world: World) -> Groups:
    return world.engine.groups


def test_what_lies_beside_an_older_log_is_read(version, room):
    restored(version, room / "d")
    for place in (version / golden.SERVICE, room / "d"):
        assert [token.name for token in tokens.read(place).all] == ["shop"]
        assert read_archived(DiskFiles(), place) is not None


def test_an_older_backup_is_whole(version):
    assert len(verify_files(version / golden.BACKUP).segments) > 1
