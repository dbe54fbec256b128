"""The commands that run on Spark, as processes: on a cluster, against a live service, wrongly used."""

import asyncio
import shutil

import pytest

from tests.harness.histories import History
from tests.harness.index_dump import dump_index, pending_of, replay
from tests.harness.java import needs_java
from tests.harness.permissions import wide_in
from tests.harness.processes import ROOT, python, serving, spark_job, timerwheel

pytestmark = needs_java

CLUSTER = "local-cluster[2,1,1024]"


@pytest.mark.torture
def test_after_a_kill_and_the_loss_of_its_index_every_message_is_delivered_once_and_the_audit_says_so():
    done = python(ROOT / "examples" / "kill_story.py", 2_000)
    assert done.code == 0, done.out + done.err
    assert done.out.endswith("every message was delivered exactly once, and the log says so\n")
    assert done.err == ""


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """Two data directories that a crash has left, without indexes, and the same replayed."""
    directory = tmp_path_factory.mktemp("logs")
    for seed in (101, 102):
        history = asyncio.run(History(directory / "nodes" / f"node {seed}", seed).live(60))
        shutil.copytree(history.world.directory, directory / "replayed" / f"node {seed}")
        shutil.rmtree(history.world.directory / "index", ignore_errors=True)
        replay(directory / "replayed" / f"node {seed}", history.world.clock.now_ms())
    return directory


@pytest.mark.torture
def test_the_processes_of_a_cluster_rebuild_what_one_process_does(logs):
    which = ("--data", f"{logs}/nodes/*", "--master", CLUSTER)
    rebuilt = spark_job("rebuild", *which, umask=0)
    assert {node["node"] for node in rebuilt["nodes"]} == {"node 101", "node 102"}
    for seed in (101, 102):
        data, replayed = logs / "nodes" / f"node {seed}", logs / "replayed" / f"node {seed}"
        assert wide_in(data / "index") == []
        assert pending_of(data) == pending_of(replayed)
        assert dump_index(data) == dump_index(replayed)


@pytest.mark.torture
def test_the_processes_of_a_cluster_do_the_other_jobs(logs, tmp_path):
    which = ("--data", logs / "nodes" / "node 101", "--master", CLUSTER)
    audited = spark_job("audit", *which, "--out", tmp_path / "audit", umask=0)
    assert audited["balanced"]
    for words in (("forecast", "--out", tmp_path / "forecast"), ("archive", "--to", tmp_path / "archive")):
        spark_job(*words, *which, umask=0)
    assert wide_in(tmp_path / "audit", tmp_path / "forecast", tmp_path / "archive") == []


def test_a_rebuild_of_a_live_directory_is_refused_at_once_and_names_its_owner(tmp_path):
    with serving(tmp_path / "data") as service:
        done = timerwheel("rebuild", "--data", service.data)
        assert done.code == 1
        assert f"in use by process {service.process.pid}" in done.err
        assert "stop it first" in done.err


@pytest.mark.parametrize("command", ["rebuild", "audit", "forecast"])
def test_a_place_without_a_log_is_one_line_and_exit_code_1(tmp_path, command):
    more = ("--out", tmp_path / "out") if command == "audit" else ()
    for place, what in ((tmp_path, "is not a data directory"), (tmp_path / "*", "matches no data directory")):
        done = timerwheel(command, "--data", place, *more)
        assert (done.code, done.out) == (1, "")
        assert what in done.err
        assert done.err.count("\n") == 1


@pytest.mark.parametrize("command", ["rebuild", "audit", "forecast", "archive"])
def test_a_place_with_spaces_is_named_whole_before_spark_is_started(tmp_path, command):
    place = tmp_path / "no such  node"
    without_java = {"JAVA_HOME": str(tmp_path)}
    more = {"audit": ("--out", tmp_path / "out"), "archive": ("--to", tmp_path / "out")}.get(command, ())
    from_environment = timerwheel(command, *more, TIMERWHEEL_DATA=str(place), **without_java)
    from_option = timerwheel(command, "--data", place, *more, **without_java)
    assert from_environment == from_option
    assert (from_option.code, from_option.out) == (1, "")
    assert from_option.err == f"timerwheel: {place} is not a data directory of timerwheel: it has no log/\n"


def test_a_wrong_setting_of_spark_is_a_usage_error(logs):
    done = timerwheel("forecast", "--data", logs / "nodes" / "node 101", "--conf", "spark.executor.memory")
    assert done.code == 2
    assert "NAME=VALUE" in done.err
