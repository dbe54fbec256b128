"""A backup and a restore that are killed at any of their steps: what is there is whole or is not there."""

import asyncio
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.harness import golden
from tests.harness.cutting import cut, steps_of
from tests.harness.scratch import scratch
from tests.harness.world import World
from timerwheel.index.swap import exchange as exchanged
from timerwheel.offline.backup.backup import back_up
from timerwheel.offline.backup.files import read_manifest, verify_files
from timerwheel.offline.backup.restore import restore_backup
from timerwheel.runtime.data_directory import is_backup
from timerwheel.store.files import DiskFiles


class Logs(NamedTuple):
    """One directory at two times, a backup of it as of the first, and room for others."""

    earlier: Path
    later: Path
    backup: Path
    room: Path


async def _make(root: Path) -> Logs:
    logs = Logs(root / "earlier", root / "later", root / "backup", root / "room")
    world = World(root / "data")
    world.files = DiskFiles()
    await world.open(retention_ms=golden.RETENTION_MS)
    await golden.live(world)
    golden.put_beside(world.directory, world.engine.core.log.log_id.hex(), world.clock.now_ms())
    await world.restart()
    shutil.copytree(world.directory, logs.earlier)
    await world.roll()
    await world.engine.close()
    shutil.copytree(world.directory, logs.later)
    back_up(logs.earlier, logs.backup, 1)
    return logs


@pytest.fixture(scope="module")
def logs() -> Iterator[Logs]:
    with scratch() as root:
        yield asyncio.run(_make(root))


def files_of(place: Path) -> dict[str, bytes]:
    found = {path.relative_to(place): path.read_bytes() for path in place.rglob("*") if path.is_file()}
    return {str(path): data for path, data in found.items() if path.name != "lock"}


def fresh(place: Path, like: Path | None) -> Path:
    """A place like another one, or that is not there."""
    shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(exist_ok=True)
    if like is not None:
        shutil.copytree(like, place)
    return place


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("exchange", [True, False])
def test_a_backup_that_is_killed_at_any_step_leaves_the_last_one_or_the_new_one(
    logs, first, exchange, monkeypatch
):
    if not exchange:  # as on a file system where two directories cannot change places at once
        monkeypatch.setattr("timerwheel.index.swap.RENAME_EXCHANGE", 1 << 30)
        assert not exchanged(logs.earlier, logs.later)
    target, like = logs.room / "b", None if first else logs.backup
    run = partial(back_up, logs.later, target, 2)
    until_old = None if first else read_manifest(logs.backup).until
    steps = steps_of(run, fresh(target, like).parent)
    whole = files_of(target)
    until_new = read_manifest(target).until
    met = set()
    for step in range(1, steps + 1):
        cut(run, fresh(target, like).parent, step)
        kept = read_manifest(target)
        met.add(None if kept is None else kept.until)
        if kept is not None:
            verify_files(target)
            assert is_backup(target)
        else:
            # Between two renames there is none under its name; the next run puts it back.
            assert first or not exchange
            assert not (target / "log").exists()
        back_up(logs.later, target, 2)
        assert files_of(target) == whole
    assert met >= {until_old, until_new}
    assert steps > 20


def test_a_restore_that_is_killed_at_any_step_leaves_no_log_or_the_whole_one(logs):
    data = fresh(logs.room / "new", None)
    run = partial(restore_backup, logs.backup, data, 3)
    steps = steps_of(run, logs.room)
    whole = files_of(data)
    for step in range(1, steps + 1):
        shutil.rmtree(data)
        cut(run, logs.room, step)
        if (data / "log").exists():
            assert files_of(data) == whole
        else:
            run()
            assert files_of(data) == whole
    assert steps > 10


@pytest.mark.parametrize("first", [True, False])
def test_ctrl_c_at_any_moment_leaves_the_last_backup(logs, first):
    target, like = logs.room / "b", None if first else logs.backup
    told = []
    back_up(logs.later, fresh(target, like), 2, lambda *at: told.append(at))
    for stop_at in range(len(told)):
        calls = iter(range(stop_at))

        def stop(_done, _total, calls=calls):
            if next(calls, None) is None:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            back_up(logs.later, fresh(target, like), 2, stop)
        if first:
            assert read_manifest(target) is None
        else:
            assert verify_files(target).until == read_manifest(logs.backup).until
    assert told[-1][0] == told[-1][1]
