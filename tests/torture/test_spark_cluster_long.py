"""Jobs on a standalone cluster whose executors die in every stage, and one of whose workers dies, for good.

What comes of it is what comes of a calm run in one process.
"""

import asyncio
import subprocess

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from tests.harness.dying_executor import MODULE
from tests.harness.histories import History
from tests.harness.index_dump import dump_index, pending_of
from tests.harness.processes import ROOT, serving, spark_job, timerwheel
from tests.harness.standalone import standalone

CALM = ("--master", "local[2]")
NODES = (107, 109)
ROWS = 3_000


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("logs")
    for seed in NODES:
        asyncio.run(History(directory / f"node-{seed}", seed).live(200))
    return directory


@pytest.fixture(params=["executor", "worker"])
def dying(request, tmp_path):
    """The options of a command whose executors die, and the stages in which they did."""
    deaths = tmp_path / "deaths"
    deaths.mkdir()
    conf = {
        "spark.python.daemon.module": MODULE,
        "spark.executorEnv.PYTHONPATH": str(ROOT),
        "spark.executorEnv.TIMERWHEEL_DEATHS": str(deaths),
        "spark.executorEnv.TIMERWHEEL_DEATH": request.param,
        # The second command of a test finds one worker less, and would wait for it.
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "20s",
    }
    options = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    with standalone(tmp_path) as cluster:
        yield [*cluster, *options], deaths


def died(deaths, stages_min):
    names = {path.name for path in deaths.iterdir()}
    return names == {"worker"} or len(names) >= stages_min


def waiting_in(data):
    """How many messages wait in each topic of a data directory that no service uses."""
    with serving(data) as service:
        found = timerwheel("topics", "list", "--url", service.url, "--json").json
    return sorted((one["topic"], one["pending"]) for one in found["topics"])


def rows_of(directory):
    found = ds.dataset(directory, format="parquet").to_table()
    return sorted(map(repr, found.to_pylist()))


@pytest.mark.torture
def test_an_audit(logs, dying, tmp_path):
    options, deaths = dying
    which = ("--data", f"{logs}/node-*", "--staging", tmp_path)
    found = spark_job("audit", *which, "--out", tmp_path / "troubled", *options)
    calm = spark_job("audit", *which, "--out", tmp_path / "calm", *CALM)
    assert {**found, "run": None} == {**calm, "run": None}
    for table in ("timers", "findings", "lateness"):
        assert rows_of(tmp_path / "troubled" / table) == rows_of(tmp_path / "calm" / table)
    assert died(deaths, 4)


@pytest.mark.torture
def test_an_audit_with_a_checkpoint(dying, tmp_path):
    options, deaths = dying
    data = tmp_path / "node"
    history = History(data, 113)
    found = {}
    for night in range(2):
        asyncio.run(history.live(120))
        for name, how in (("troubled", options), ("calm", CALM)):
            out = tmp_path / f"{name}-{night}"
            which = ("--data", data, "--staging", tmp_path, "--checkpoint", tmp_path / f"{name}-checkpoint")
            answer = spark_job("audit", *which, "--out", out, *how)
            answer["reading"]["judged_ms"] = None
            found[name] = {**answer, "run": None}
        assert found["troubled"] == found["calm"]
        for table in ("timers", "findings", "lateness"):
            assert rows_of(tmp_path / f"troubled-{night}" / table) == rows_of(
                tmp_path / f"calm-{night}" / table
            )
    whole = spark_job("audit", "--data", data, "--out", tmp_path / "whole", *CALM)
    assert found["calm"]["rules"] == whole["rules"] == {}
    assert died(deaths, 4)


@pytest.mark.torture
def test_a_rebuild(logs, dying, tmp_path):
    options, deaths = dying
    for name in ("troubled", "calm"):
        for seed in NODES:
            subprocess.run(["cp", "-a", logs / f"node-{seed}", tmp_path / f"{name}-{seed}"], check=True)
    spark_job("rebuild", "--data", f"{tmp_path}/troubled-*", "--staging", tmp_path, *options)
    spark_job("rebuild", "--data", f"{tmp_path}/calm-*", *CALM)
    for seed in NODES:
        troubled, calm = tmp_path / f"troubled-{seed}", tmp_path / f"calm-{seed}"
        assert pending_of(troubled) == pending_of(calm)
        assert dump_index(troubled) == dump_index(calm)
    assert died(deaths, 3)


@pytest.mark.torture
def test_a_forecast(logs, dying, tmp_path):
    options, deaths = dying
    which = ("--data", f"{logs}/node-*", "--staging", tmp_path)
    found, calm = spark_job("forecast", *which, *options), spark_job("forecast", *which, *CALM)
    for name in ("waiting", "records", "damaged"):
        assert found[name] == calm[name]
    assert died(deaths, 2)


@pytest.mark.torture
def test_an_archive_and_a_restore_of_it(dying, tmp_path):
    options, deaths = dying
    source = tmp_path / "node"
    asyncio.run(History(source, 103).live(120))
    found = {}
    for name, how in (("troubled", options), ("calm", CALM)):
        to = tmp_path / name
        found[name] = spark_job("archive", "--data", source, "--to", to, "--verify", *how)
        assert found[name]["verified"]["problems"] == []
        data = tmp_path / f"{name}-data"
        spark_job("restore", "--from", to, "--data", data, "--staging", tmp_path, *how)
    assert found["troubled"]["verified"] == found["calm"]["verified"]
    files = [
        sorted(str(path.relative_to(tmp_path / name)) for path in (tmp_path / name / "records").rglob("*"))
        for name in ("troubled", "calm")
    ]
    assert files[0] == files[1]
    assert [path.name for path in (tmp_path / "troubled").iterdir() if path.name == "_writing"] == []
    assert found["calm"]["verified"]["records"] > 0
    for name in ("troubled", "calm"):
        spark_job("rebuild", "--data", tmp_path / f"{name}-data", *CALM)
    assert waiting_in(tmp_path / "troubled-data") == waiting_in(tmp_path / "calm-data") != []
    assert died(deaths, 2)


@pytest.mark.torture
def test_a_table_is_scheduled_once(dying, tmp_path):
    options, deaths = dying
    due_ms = 1_900_000_000_000
    rows = {"due": [due_ms + n for n in range(ROWS)], "body": [f"row {n}" for n in range(ROWS)]}
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet", row_group_size=250)
    with serving(tmp_path / "data") as service:
        command = (
            "schedule",
            "--from",
            tmp_path / "rows.parquet",
            "--due-column",
            "due",
            "--topic",
            "orders",
        )
        found = spark_job(*command, "--url", service.url, *options)
        assert (found["rows"], found["refused"]) == (ROWS, 0)
        info = timerwheel("topics", "list", "--url", service.url, "--json").json
    (topic,) = [one for one in info["topics"] if one["topic"] == "orders"]
    assert topic["pending"] == ROWS
    assert died(deaths, 1)
