"""Jobs on Spark whose logs, staging and output are in stores: S3 on loopback, and a web server."""

import asyncio
import shutil

import fsspec
import pyarrow.parquet as pq
import pytest

from tests.harness.histories import History
from tests.harness.index_dump import dump_index, replay
from tests.harness.java import needs_java
from tests.harness.processes import QUICK_JAVA, timerwheel
from tests.harness.stores import BUCKET, names_below, s3_server, upload, using, web_server

pytestmark = needs_java

STAGING = f"s3://{BUCKET}/staging"


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """A data directory without its index, and the same with the one that the service makes."""
    history = asyncio.run(History(tmp_path_factory.mktemp("nodes") / "node-1", 101).live(60))
    data = history.world.directory
    replayed = shutil.copytree(data, data.parents[0] / "replayed" / "node-1")
    replay(replayed, history.world.clock.now_ms())
    shutil.rmtree(data / "index", ignore_errors=True)
    return data, replayed


@pytest.fixture(scope="module")
def s3(node):
    with s3_server() as environment, using(environment):
        upload(node[0], f"s3://{BUCKET}/node-1")
        yield environment


def run(s3, command, *arguments):
    """A job that succeeds; whatever it has staged in S3 is gone afterwards."""
    done = timerwheel(command, *arguments, "--staging", STAGING, "--json", **QUICK_JAVA, **s3)
    found = done.json
    assert names_below(STAGING) == []
    return found


def table(url):
    """All rows of a Parquet file or of the files in a directory."""
    fs, path = fsspec.core.url_to_fs(url)
    fs.invalidate_cache()
    names = fs.find(path) if fs.isdir(path) else [path]
    return [row for name in sorted(names) for row in pq.read_table(fs.open(name)).to_pylist()]


@pytest.mark.torture
def test_an_audit_reads_stages_and_writes_in_s3_what_it_does_locally(node, s3, tmp_path):
    local = timerwheel("audit", "--data", node[0], "--out", tmp_path / "out", "--json", **QUICK_JAVA).json
    out = f"s3://{BUCKET}/audit"
    found = run(s3, "audit", "--data", f"s3://{BUCKET}/node-1", "--out", out)
    for document in (local, found):
        del document["run"]
    assert found == local
    names = names_below(out)
    assert {"report.html", "audit.json"} < set(names)
    assert not [name for name in names if name.endswith(".tmp")]
    for name in ("timers", "findings", "lateness"):
        assert table(f"{out}/{name}") == table(str(tmp_path / "out" / name))
    again = timerwheel("audit", "--data", node[0], "--out", out, **s3)
    assert again.code == 1
    assert again.err == (
        f"timerwheel: {out} already exists and is not an empty directory; choose another with --out\n"
    )


@pytest.mark.torture
def test_a_forecast_stages_and_writes_in_s3(node, s3, tmp_path):
    out = f"s3://{BUCKET}/forecast"
    for place in (out, tmp_path / "out"):
        found = run(s3, "forecast", "--data", node[0], "--scan", "--out", place, "--within", "31d")
    assert found["waiting"] > 0
    assert names_below(out) == ["forecast.png", "seconds.parquet"]
    assert sum(row["messages"] for row in table(f"{out}/seconds.parquet")) == found["within"]
    assert table(f"{out}/seconds.parquet") == table(str(tmp_path / "out" / "seconds.parquet"))


@pytest.mark.torture
def test_a_rebuild_stages_in_s3_and_makes_the_index_of_the_service(node, s3, tmp_path):
    data = shutil.copytree(node[0], tmp_path / "node-1")
    tried = run(s3, "rebuild", "--data", f"s3://{BUCKET}/node-1", "--dry-run", "--scan")
    done = run(s3, "rebuild", "--data", data, "--scan")
    assert done["nodes"][0]["keys"] > 0
    assert tried["nodes"][0]["pending"] == done["nodes"][0]["pending"]
    assert dump_index(data) == dump_index(node[1])


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("audit", "--out"),
        pytest.param("audit", "--staging", marks=pytest.mark.torture),
        pytest.param("forecast", "--out", marks=pytest.mark.torture),
        ("forecast", "--data"),
        ("rebuild", "--staging"),
        pytest.param("archive", "--to", marks=pytest.mark.torture),
    ],
)
def test_a_package_that_a_url_needs_is_asked_for_before_spark_starts(node, tmp_path, command, option):
    started = tmp_path / "started"
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\ntouch {started}\n")
    java.chmod(0o755)
    arguments = {"--data": node[0], "--out": tmp_path / "out"} if command == "audit" else {"--data": node[0]}
    arguments[option] = "gs://bucket/place"  # no test installs what this kind of URL needs
    words = [word for pair in arguments.items() for word in pair]
    done = timerwheel(command, *words, JAVA_HOME=str(java.parents[1]))
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("timerwheel: gs://bucket/place")
    assert "gcsfs" in done.err
    assert done.err.endswith(", here and where the executors of Spark run\n")
    assert done.err.count("\n") == 1
    assert not started.exists()
    assert not (tmp_path / "out").exists()


@pytest.mark.torture
def test_a_forecast_of_a_log_on_the_web_is_that_of_the_log_itself(node):
    with web_server(node[0].parent) as url:
        found = [
            timerwheel("forecast", "--data", place, "--json", **QUICK_JAVA).json
            for place in (f"{url}/node-1", node[0])
        ]
    assert found[0]["records"] == found[1]["records"] > 0
    assert found[0]["waiting"] == found[1]["waiting"]
