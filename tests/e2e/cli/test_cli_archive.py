"""`archive` as a process on a cluster: with two attempts of each task."""

import asyncio
from pathlib import Path

import orjson
import pytest

from tests.harness.histories import History
from tests.harness.java import needs_java
from tests.harness.processes import spark_job
from tests.harness.standalone import standalone

pytestmark = needs_java

# A task that is alone in its stage gets a second attempt in the other executor after a millisecond.
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "1ms",
    "spark.speculation.task.duration.threshold": "1ms",
    "spark.speculation.minTaskRuntime": "0",
    "spark.speculation.efficiency.enabled": "false",
}


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    history = asyncio.run(History(tmp_path_factory.mktemp("logs") / "node", 103).live(120))
    return history.world.directory


def lines_of(path: Path) -> list[str]:
    """The events in a file of the event log; its checksums are files, too."""
    if not path.is_file() or path.name.startswith("."):
        return []
    return [line for line in path.read_text().splitlines() if line.startswith("{")]


@pytest.mark.torture
def test_with_speculation_each_record_is_archived_once_and_the_files_are_those_of_a_calm_run(log, tmp_path):
    conf = {
        **SPECULATION,
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{tmp_path}/events",
    }
    conf |= {"spark.eventLog.compress": "false"}
    (tmp_path / "events").mkdir()
    options = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    which = ("--data", log, "--verify")
    with standalone(tmp_path) as cluster:
        found = spark_job("archive", *which, "--to", tmp_path / "speculated", *cluster, *options)
    calm = spark_job("archive", *which, "--to", tmp_path / "calm", "--master", "local[1]")
    assert found["verified"] == calm["verified"]
    assert found["verified"]["problems"] == []
    lines = [line for path in (tmp_path / "events").rglob("*") for line in lines_of(path)]
    events = list(map(orjson.loads, lines))
    stages = [event["Stage Info"] for event in events if event["Event"] == "SparkListenerStageSubmitted"]
    (archiving,) = {stage["Stage ID"] for stage in stages if "archive/job.py" in stage["Stage Name"]}
    starts = [event for event in events if event["Event"] == "SparkListenerTaskStart"]
    attempts = [event["Task Info"]["Speculative"] for event in starts if event["Stage ID"] == archiving]
    assert attempts == [False, True]
    records = [
        sorted(str(path.relative_to(tmp_path / name)) for path in (tmp_path / name / "records").rglob("*"))
        for name in ("speculated", "calm")
    ]
    assert records[0] == records[1]
    assert not (tmp_path / "speculated" / "_writing").exists()
