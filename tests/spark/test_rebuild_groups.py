"""A rebuild on Spark against the state that follows from applying every record, for random groups."""

import shutil

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.group_log import RandomGroups
from tests.harness.index_dump import dump_index, pending_of, replay
from timerwheel.offline.fsck import fsck
from timerwheel.spark_jobs.logs import find_logs
from timerwheel.spark_jobs.progress import JobProgress
from timerwheel.spark_jobs.rebuild.group_history import joined
from timerwheel.spark_jobs.rebuild.job import Rebuild
from timerwheel.spark_jobs.segment_stats import ReadOptions
from timerwheel.state.offset_set import OffsetSet

SEEDS = range(40)
STEPS = 250


@pytest.fixture(scope="module")
def made(spark, tmp_path_factory):
    """The groups by seed, their logs rebuilt by one run of Spark in `rebuilt/`, and by replay beside that."""
    directory = tmp_path_factory.mktemp("groups")
    lives = [RandomGroups(directory / "rebuilt" / f"g{seed:02d}", seed).live(STEPS) for seed in SEEDS]
    shutil.copytree(directory / "rebuilt", directory / "replayed")
    for seed, life in zip(SEEDS, lives, strict=True):
        replay(directory / "replayed" / f"g{seed:02d}", life.log.now_ms)
    (directory / "staging").mkdir()
    logs = find_logs([str(directory / "rebuilt" / "*")])
    Rebuild(spark, JobProgress(spark, show=False), ReadOptions(str(directory / "staging"))).run(logs)
    return directory, lives


@pytest.mark.parametrize("seed", SEEDS)
def test_spark_finds_what_groups_hold_and_what_they_are_done_with(made, seed):
    directory, lives = made
    expected = lives[seed].log.state.dump_settings()
    found = dump_index(directory / "rebuilt" / f"g{seed:02d}")
    groups = {
        name: (passed, sorted(items), since) for name, (passed, items, since) in expected.groups.items()
    }
    assert found["groups"] == groups
    assert found["dead"] == expected.dead
    assert found["control"] == sorted(msgspec.json.encode(put) for put in expected.control)


@pytest.mark.parametrize("seed", SEEDS)
def test_spark_and_replay_make_indexes_that_say_the_same(made, seed):
    directory, _ = made
    name = f"g{seed:02d}"
    rebuilt, replayed = dump_index(directory / "rebuilt" / name), dump_index(directory / "replayed" / name)
    for what, expected in replayed.items():
        assert rebuilt[what] == expected, what
    assert pending_of(directory / "rebuilt" / name) == pending_of(directory / "replayed" / name)


@pytest.mark.parametrize("seed", SEEDS)
def test_fsck_has_nothing_to_say_of_a_rebuilt_index(made, seed):
    report = fsck(made[0] / "rebuilt" / f"g{seed:02d}")
    assert report.ok, report.findings


def test_the_random_groups_come_to_everything(made):
    """Otherwise the tests above would prove less than they say."""
    _, lives = made
    groups = [group for life in lives for group in life.log.state.groups]
    items = [item for group in groups for item in group.items.values()]
    assert {item.state for item in items} == {1, 2, 3, 4}
    assert any(item.lane for item in items)
    assert any(len(passed.edges) > 2 for group in groups for passed in group.passed.values())
    assert any(group.since for group in groups)
    assert sum(life.log.log.bases[0] > 0 for life in lives) > 10
    assert any(letters.removed for life in lives for letters in life.log.state.groups.dead.values())


stretches = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(1, 6)))


@given(stretches)
def test_joined_stretches_are_those_of_an_offset_set_for_each_key(added):
    sets = {key: OffsetSet() for key in range(3)}
    for key, first, count in added:
        sets[key].add(first, first + count)
    columns = zip(*added, strict=True) if added else ((), (), ())
    keys, firsts, counts = (np.array(column, np.int64) for column in columns)
    found = zip(*(column.tolist() for column in joined(keys, firsts, firsts + counts)), strict=True)
    assert list(found) == [(key, *one) for key in sets for one in sets[key].stretches()]
