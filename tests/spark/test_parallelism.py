"""How jobs are divided: by segments and cores of the cluster, evenly, and never by the driver's own cores."""

import asyncio
import shutil
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from pyspark import TaskContext

from tests.harness.sample_log import make_sample
from timerwheel.spark_jobs import tasks
from timerwheel.spark_jobs.logs import find_logs
from timerwheel.spark_jobs.segment_stats import ReadOptions, survey
from timerwheel.spark_jobs.segments import Segment
from timerwheel.spark_jobs.session import PARTITIONS, PARTITIONS_PER_CORE, match_cluster
from timerwheel.spark_jobs.shuffle import shuffle
from timerwheel.spark_jobs.tasks import TASK_BYTES, task_count

NODES = 4
CORES = 2  # of the session of these tests


@pytest.fixture(scope="module")
def surveyed(spark, tmp_path_factory):
    directory = tmp_path_factory.mktemp("nodes")
    asyncio.run(make_sample(directory / "node-0"))
    for number in range(1, NODES):
        shutil.copytree(directory / "node-0", directory / f"node-{number}")
    return survey(spark, find_logs([f"{directory}/node-*"]), ReadOptions(str(directory / "staging")))


@pytest.fixture
def as_in_jobs(spark):
    """The settings that jobs have and the session of these tests has not."""
    before = {name: spark.conf.get(name) for name in (PARTITIONS, "spark.sql.adaptive.enabled")}
    spark.conf.set("spark.sql.adaptive.enabled", "true")
    yield
    for name, value in before.items():
        spark.conf.set(name, value)


def tasks_of(spark, surveyed):
    """The frame of a shuffle whose rows tell in which task each segment was."""

    def emit(number, table):
        return {"about": table.rows["offset"].astype(np.int64), "number": np.full(len(table.rows), number)}

    def collect(number, _table, _references):
        return pa.table({"number": [number], "task": [TaskContext.get().partitionId()]})

    return shuffle(spark, surveyed.segments, emit, collect, "number bigint, task bigint")


@pytest.mark.usefixtures("as_in_jobs")
@pytest.mark.parametrize("task_bytes", [1, TASK_BYTES])
def test_segments_are_dealt_evenly_to_the_tasks_of_a_shuffle(spark, surveyed, monkeypatch, task_bytes):
    monkeypatch.setattr(tasks, "TASK_BYTES", task_bytes)
    count = len(surveyed.segments)
    wanted = count if task_bytes == 1 else CORES
    assert task_count(spark, surveyed.segments) == wanted
    rows = tasks_of(spark, surveyed).collect()
    assert sorted(row.number for row in rows) == list(range(count))
    found = Counter(row.task for row in rows)
    assert len(found) == wanted
    assert max(found.values()) - min(found.values()) <= 1


@pytest.mark.usefixtures("as_in_jobs")
def test_a_shuffle_moves_its_rows_once(spark, surveyed):
    frame = tasks_of(spark, surveyed)
    frame.collect()
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert plan.partition("== Initial Plan ==")[0].count("Exchange") == 1, plan


def test_tasks_follow_from_the_size_of_segments_and_the_cores_of_the_cluster(spark):
    def segments(count, size):
        return [Segment("n", "d", number * size, (number + 1) * size) for number in range(count)]

    assert spark.sparkContext.defaultParallelism == CORES
    assert task_count(spark, segments(1, 1)) == 1
    assert task_count(spark, segments(100, 1)) == CORES
    assert task_count(spark, segments(100, 2 * TASK_BYTES)) == 100
    assert task_count(spark, segments(100, TASK_BYTES // 4)) == 25


@pytest.mark.usefixtures("as_in_jobs")
def test_shuffles_are_divided_by_the_cores_of_the_cluster_unless_a_setting_says_how(spark):
    match_cluster(spark, {})
    assert spark.conf.get(PARTITIONS) == str(PARTITIONS_PER_CORE * CORES)
    spark.conf.set(PARTITIONS, "7")
    match_cluster(spark, {PARTITIONS: "7"})
    assert spark.conf.get(PARTITIONS) == "7"
