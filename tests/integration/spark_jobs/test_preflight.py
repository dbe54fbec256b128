"""What the preflight finds, without a cluster: the same code in this process."""

import asyncio

import pytest
from pyspark.errors import PySparkException

from tests.harness.sample_log import make_sample
from tests.harness.stores import BUCKET, names_below, s3_server, using
from timerwheel.spark_jobs import preflight
from timerwheel.spark_jobs.logs import find_logs
from timerwheel.spark_jobs.preflight import (
    LOGS_MAX,
    has_executors,
    is_one_machine,
    probe,
    problem_with,
    seen_logs,
)
from timerwheel.store.segment import segment_name
from timerwheel.version import version

MISMATCH = (
    "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has "
    "different version: 3.12 than that in driver: 3.11, PySpark cannot run with different minor versions."
)


@pytest.fixture
def log(tmp_path):
    asyncio.run(make_sample(tmp_path / "node-1"))
    (found,) = find_logs([str(tmp_path / "node-1")])
    return found


def problems(seen):
    return [problem for _, problem in preflight.executor_check(seen)([])]


def test_executors_that_see_the_same_files_have_no_problem(log, tmp_path):
    with probe("--staging", str(tmp_path / "staging")) as written:
        assert problems([written, *seen_logs([log])]) == [""]


def test_a_log_that_executors_cannot_read_is_named_with_its_option(log, tmp_path):
    seen = seen_logs([log])
    (tmp_path / "node-1" / "log" / segment_name(log.segments[-1].base)).unlink()
    (found,) = problems(seen)
    assert "cannot read it" in found
    assert found.endswith(
        f"give --data a directory or URL that all of them reach, instead of {tmp_path / 'node-1'}"
    )


def test_a_directory_that_is_another_one_there_is_named_with_its_option(tmp_path):
    with probe("--staging", str(tmp_path)) as written:
        (file,) = tmp_path.iterdir()
        file.write_bytes(b"of another machine")
        found = problem_with([written])
    assert found.startswith("they read something else there, unlike this machine: give --staging a directory")


def test_a_probe_leaves_a_directory_as_it_was(tmp_path):
    with probe("--out", str(tmp_path / "out")):
        assert len(list((tmp_path / "out").iterdir())) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_probe_finds_a_bucket_that_does_not_exist_and_leaves_nothing_in_one_that_does():
    with s3_server() as environment, using(environment):
        with pytest.raises(FileNotFoundError, match="bucket does not exist"), probe("--out", "s3://none/out"):
            pass
        with probe("--out", f"s3://{BUCKET}/out") as written:
            assert problem_with([written]) == ""
        assert names_below(f"s3://{BUCKET}/out") == []


def test_another_version_there_is_named_with_ours(monkeypatch):
    ours = version()
    monkeypatch.setattr(preflight, "version", lambda: "9.9.9")
    assert problems([]) == [
        f"they have timerwheel {ours}, this command is 9.9.9: install the same version there"
    ]


def test_another_python_there_is_named_with_ours():
    text = str(preflight.explained(PySparkException(MISMATCH)))
    assert text == (
        "the executors run Python 3.12 and this command 3.11: set PYSPARK_PYTHON to a Python 3.11 that they "
        f"have, with timerwheel[spark] {version()} installed"
    )


def test_as_many_logs_are_read_as_the_limit_says(log):
    assert len(seen_logs([log] * (LOGS_MAX + 1))) == LOGS_MAX


@pytest.mark.parametrize(
    ("master", "executors", "one_machine"),
    [
        ("local", False, True),
        ("local[*]", False, True),
        ("local-cluster[2,1,1024]", True, True),
        ("spark://host:7077", True, False),
        ("yarn", True, False),
        ("k8s://https://host", True, False),
    ],
)
def test_masters_differ_in_executors_and_machines(master, executors, one_machine):
    assert (has_executors(master), is_one_machine(master)) == (executors, one_machine)
