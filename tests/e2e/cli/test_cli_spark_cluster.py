"""The preflight of jobs on a cluster: executors that lack something, and how the package is sent to them."""

import asyncio
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest

from tests.harness.java import needs_java
from tests.harness.processes import QUICK_JAVA, ROOT, environment, serving, timerwheel
from tests.harness.sample_log import make_sample
from tests.harness.stores import BUCKET, s3_server, using
from timerwheel.cli import main

pytestmark = needs_java

SPARK_SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
CLUSTER = "local-cluster[1,1,1024]"  # executors are processes of their own
STANDALONE = "spark://127.0.0.1:7077"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return asyncio.run(make_sample(tmp_path_factory.mktemp("nodes") / "node-1")).data


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory):
    """A Python with all packages of this one but timerwheel, which is installed by a file that it ignores."""
    directory = tmp_path_factory.mktemp("bare") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    packages = (
        directory / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    )
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return directory / "bin" / "python"


def forecast(data, *arguments, **changed):
    return timerwheel(
        "forecast", "--data", data, "--master", CLUSTER, *arguments, **QUICK_JAVA, PYTHONPATH="", **changed
    )


@pytest.mark.torture
def test_executors_without_the_package_are_told_with_what_to_install(data, bare_python):
    done = forecast(data, PYSPARK_PYTHON=str(bare_python))
    assert (done.code, done.out) == (1, "")
    line = done.err.splitlines()[-1]
    assert line.startswith("timerwheel: the executors on ")
    assert "ModuleNotFoundError: No module named 'timerwheel'" in line
    assert f"Install timerwheel[spark] 0.1.0 for {bare_python}" in line
    assert "or send the package with --conf spark.submit.pyFiles" in line


@pytest.mark.torture
def test_a_package_that_is_sent_along_is_enough(data, bare_python, tmp_path):
    with zipfile.ZipFile(tmp_path / "timerwheel.zip", "w") as archive:
        for directory, _, names in os.walk(ROOT / "timerwheel", followlinks=True):
            for path in (Path(directory) / name for name in names):
                archive.write(path, path.relative_to(ROOT))
    sent = ("--conf", f"spark.submit.pyFiles={tmp_path / 'timerwheel.zip'}")
    done = forecast(data, "--json", *sent, PYSPARK_PYTHON=str(bare_python))
    assert done.json["waiting"] > 0


@pytest.mark.torture
def test_executors_without_the_interpreter_are_told_what_to_set(data, tmp_path):
    done = forecast(data, PYSPARK_PYTHON=str(tmp_path / "python"))
    assert (done.code, done.out) == (1, "")
    assert f"the executors have no {tmp_path / 'python'}: set PYSPARK_PYTHON" in done.err


@pytest.mark.parametrize("command", ["audit", "forecast"])
def test_a_cluster_without_a_shared_staging_directory_is_refused_before_spark_starts(data, tmp_path, command):
    out = ("--out", tmp_path / "out") if command == "audit" else ()
    done = timerwheel(command, "--data", data, *out, "--master", STANDALONE, JAVA_HOME=str(tmp_path))
    assert done.code == 2
    assert f"timerwheel: --staging is missing: with --master {STANDALONE} it must be a" in done.err


def test_the_master_of_spark_submit_counts(data, tmp_path):
    words = ("audit", "--data", data, "--out", tmp_path / "out")
    done = subprocess.run(
        [SPARK_SUBMIT, "--master", STANDALONE, main.__file__, *words],
        capture_output=True,
        text=True,
        env=environment(**QUICK_JAVA, PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1"),
        check=False,
    )
    # It writes what the program prints to stderr to its own stdout.
    assert f"timerwheel: --staging is missing: with --master {STANDALONE} it must be a" in done.stdout
    assert done.returncode == 2


@pytest.mark.torture
def test_a_table_that_executors_do_not_reach_is_named_before_a_row_is_sent(tmp_path):
    rows = pa.table({"due": [1_900_000_000_000 + n for n in range(3)]})
    with s3_server() as store, using(store), serving(tmp_path / "data") as service:
        source = f"s3://{BUCKET}/rows.parquet"
        with fsspec.open(source, "wb") as file:
            pq.write_table(rows, file)
        words = ("schedule", "--from", source, "--topic", "orders", "--due-column", "due")
        flags = ("--url", service.url, "--master", CLUSTER, "--json")
        elsewhere = ("--conf", "spark.executorEnv.AWS_ENDPOINT_URL=http://127.0.0.1:9")
        done = timerwheel(*words, *flags, *elsewhere, **QUICK_JAVA, **store)
        assert done.code == 1
        line = done.err.splitlines()[-1]
        assert line.startswith("timerwheel: the executors on ")
        assert f"they cannot read {BUCKET}/rows.parquet (" in line
        assert line.endswith(f"give --from a file or directory that all of them reach, instead of {source}")
        assert timerwheel(*words, *flags, **QUICK_JAVA, **store).json["stored"] == 3
