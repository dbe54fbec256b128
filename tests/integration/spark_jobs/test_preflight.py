"""What the preflight finds, without a cluster: the same code in this process."""

import asyncio

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException

from tests.harness.ports import reserved_port
from tests.harness.processes import serving
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
from timerwheel.spark_jobs.schedule.reach import calls
from timerwheel.spark_jobs.schedule.sending import Target
from timerwheel.spark_jobs.schedule.table import open_table
from timerwheel.spark_jobs.storage import StorageError
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
        with (
            pytest.raises(StorageError, match="check the name of the bucket"),
            probe("--out", "s3://none/out"),
        ):
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


# ---------------------------------------------------------------------- of `schedule`


@pytest.fixture
def rows(tmp_path):
    pq.write_table(pa.table({"due": [1_900_000_000_000]}), tmp_path / "rows.parquet")
    return tmp_path / "rows.parquet"


def reached(url, rows, **target):
    """The problem of an executor that is to send the rows there."""
    wanted = calls(Target(url, **target), str(rows), open_table(str(rows), None))
    (found,) = (problem for _, problem in preflight.executor_check([], wanted)([]))
    return found


def test_executors_that_reach_service_and_table_have_no_problem(tmp_path, rows):
    with serving(tmp_path / "data") as service:
        assert reached(service.url, rows) == ""


def test_a_service_that_executors_do_not_reach_is_named_with_what_to_give(rows):
    url = f"http://127.0.0.1:{reserved_port()}"
    found = reached(url, rows)
    assert found.startswith("they cannot send to the service (")
    what = "give --url an address that all of them reach, instead of"
    assert found.endswith(f"unlike this machine: {what} {url}")


def test_a_certificate_that_executors_do_not_have_is_named(rows):
    found = reached("https://127.0.0.1:1", rows, ca="/nowhere/ca.pem")
    assert found.startswith("ca /nowhere/ca.pem cannot be read on ")


@pytest.mark.parametrize("change", ["gone", "another"])
def test_a_table_that_executors_cannot_read_is_named_with_what_to_give(tmp_path, rows, change):
    with serving(tmp_path / "data") as service:
        target = Target(service.url)
        wanted = calls(target, str(rows), open_table(str(rows), None))
        if change == "gone":
            rows.unlink()
        else:
            rows.write_bytes(b"of another machine")
        (found,) = (problem for _, problem in preflight.executor_check([], wanted)([]))
    why = f"cannot read {rows} (" if change == "gone" else f"read something else in {rows}, unlike"
    assert found.startswith(f"they {why}")
    assert found.endswith(f"give --from a file or directory that all of them reach, instead of {rows}")


def test_of_a_query_only_the_service_is_asked_for():
    wanted = calls(Target("http://h"), "jdbc:derby:x", None)
    assert [name for _, name, _ in wanted] == ["problem_with_service"]
