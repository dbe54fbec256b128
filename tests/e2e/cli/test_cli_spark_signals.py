"""Jobs on Spark that are ended from outside: one line, the right exit code, and nothing left behind."""

import asyncio
import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.harness.java import needs_java
from tests.harness.processes import QUICK_JAVA, started
from tests.harness.sample_log import make_sample
from tests.harness.stores import Gate, web_server

pytestmark = needs_java

TERMINATED = "timerwheel: terminated; the job was stopped and its temporary files removed\n"
INTERRUPTED = "timerwheel: interrupted; the job was stopped and its temporary files removed\n"


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    directory = tmp_path_factory.mktemp("nodes")
    asyncio.run(make_sample(directory / "node-1"))
    return directory


def children_of(pid):
    return [
        int(child)
        for path in Path(f"/proc/{pid}/task").glob("*/children")
        for child in path.read_text().split()
    ]


@pytest.mark.parametrize(
    ("number", "group", "code", "line"),
    [
        pytest.param(signal.SIGTERM, False, 143, TERMINATED, marks=pytest.mark.torture),
        (signal.SIGTERM, True, 143, TERMINATED),
        pytest.param(signal.SIGINT, True, 130, INTERRUPTED, marks=pytest.mark.torture),
    ],
)
def test_a_signal_in_the_middle_of_a_job_ends_it_with_one_line(nodes, tmp_path, number, group, code, line):
    gate = Gate(".side")  # only executors read sidecars
    staging, out = tmp_path / "staging", tmp_path / "out"
    with (
        web_server(nodes, gate=gate) as url,
        started(
            *("audit", "--data", f"{url}/node-1", "--staging", staging, "--out", out),
            own_group=True,
            **QUICK_JAVA,
        ) as process,
    ):
        gate.reached.wait()
        (os.killpg if group else os.kill)(process.pid, number)
        output, error = process.communicate()
    assert (process.returncode, output, error) == (code, "", line)
    assert list(staging.iterdir()) == []
    assert not out.exists()


@pytest.mark.torture
def test_a_java_process_that_is_killed_is_told_and_nothing_is_left(nodes, tmp_path):
    gate = Gate(".side")
    staging, out = tmp_path / "staging", tmp_path / "out"
    with (
        web_server(nodes, gate=gate) as url,
        started(
            *("audit", "--data", f"{url}/node-1", "--staging", staging, "--out", out), **QUICK_JAVA
        ) as process,
    ):
        gate.reached.wait()
        (java,) = children_of(process.pid)
        os.kill(java, signal.SIGKILL)
        output, error = process.communicate()
    assert (process.returncode, output) == (1, "")
    assert error.count("\n") == 1
    assert error.startswith("timerwheel: Spark's Java process ended in the middle of the job")
    assert list(staging.iterdir()) == []
    assert not out.exists()


# Builds the command as Spark does, and then is a Java that never gets ready.
JAVA = """#!/bin/sh
case "$*" in *org.apache.spark.launcher.Main*) exec {java} "$@";; esac
echo $$ > {told}
exec cat {never}
"""


@pytest.mark.parametrize(
    ("number", "code", "line"), [(signal.SIGTERM, 143, TERMINATED), (signal.SIGINT, 130, INTERRUPTED)]
)
def test_a_signal_while_spark_starts_leaves_no_java_behind(nodes, tmp_path, number, code, line):
    told, never = tmp_path / "told", tmp_path / "never"
    os.mkfifo(told)
    os.mkfifo(never)
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(JAVA.format(java=shutil.which("java"), told=told, never=never))
    java.chmod(0o755)
    staging = tmp_path / "staging"
    with started(
        *("forecast", "--data", nodes / "node-1", "--staging", staging), JAVA_HOME=str(java.parents[1])
    ) as process:
        child = int(told.read_text())
        assert child in children_of(process.pid)
        process.send_signal(number)
        output, error = process.communicate()
    assert (process.returncode, output, error) == (code, "", line)
    assert list(staging.iterdir()) == []
    assert not Path(f"/proc/{child}").exists()
