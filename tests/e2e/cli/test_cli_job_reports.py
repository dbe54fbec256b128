"""What jobs on Spark tell others about a run: metrics for Prometheus, events for OpenLineage."""

import asyncio

import orjson
import pytest

from tests.harness.histories import History
from tests.harness.java import needs_java
from tests.harness.processes import QUICK_JAVA, timerwheel
from tests.harness.scraping import Scrape
from timerwheel.spark_jobs.monitoring.job_metrics import LAST_SUCCESS

pytestmark = needs_java


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    directory = tmp_path_factory.mktemp("logs") / "node-1"
    asyncio.run(History(directory, 41).live(60))
    return directory


def events(path):
    return [
        (
            event["eventType"],
            event["job"]["name"],
            [one["name"] for one in event["inputs"]],
            [one["name"] for one in event["outputs"]],
        )
        for event in map(orjson.loads, path.read_text().splitlines())
    ]


@pytest.mark.torture
def test_an_audit_and_an_archive_leave_metrics_and_events(data, tmp_path):
    transport = {"type": "file", "log_file_path": str(tmp_path / "events.json"), "append": True}
    told = {**QUICK_JAVA, "OPENLINEAGE__TRANSPORT": orjson.dumps(transport).decode()}
    prom, out = tmp_path / "nightly.prom", tmp_path / "audit"
    which = ("--data", data, "--master", "local[1]", "--metrics", prom, "--json")
    audited = timerwheel("audit", *which, "--out", out, **told)
    assert audited.code == 0, audited.err
    found = Scrape(prom.read_text())
    assert found.total("timerwheel_audit_balanced") == 1
    assert set(found.values("timerwheel_audit_findings", "rule").values()) == {0}
    timers = {name: float(count) for name, count in audited.json["timers"].items()}
    assert found.values("timerwheel_audit_timers", "outcome") == timers
    assert set(found.values("timerwheel_job_stage_duration_seconds", "stage")) == {"survey", "judge"}
    succeeded = found.total(LAST_SUCCESS)

    page = tmp_path / "lateness.html"
    board = timerwheel("lateness", out, "--out", page, "--target", "2s", "--json", **told).json
    assert board["lateness"] == audited.json["lateness"]
    assert {one["topic"]: one["lateness"] for one in board["topics"]} == {
        one["topic"]: one["lateness"] for one in audited.json["topics"] if one["lateness"]["count"]
    }
    assert "delivered within\n2s of their due time" in page.read_text()
    twice = timerwheel("lateness", out, out, "--out", page)
    assert twice.code == 0
    assert f"of {audited.json['lateness']['count']:,} messages" in twice.out
    assert timerwheel("lateness", out, "--zone", "Nowhere", "--out", page).code == 2

    refused = timerwheel("audit", *which, "--out", out, **told)  # the directory is in use
    assert refused.code == 1
    assert Scrape(prom.read_text()).total(LAST_SUCCESS) == succeeded

    to = tmp_path / "archive"
    archived = timerwheel("archive", *which, "--to", to, **told)
    assert archived.code == 0, archived.err
    records = sum(one["records"] for one in archived.json["logs"])
    assert Scrape(prom.read_text()).total("timerwheel_archive_records") == records
    assert events(tmp_path / "events.json") == [
        (state, job, [str(data)], [str(written)])
        for job, written, ended in (
            ("audit", out, "COMPLETE"),
            ("audit", out, "FAIL"),
            ("archive", to, "COMPLETE"),
        )
        for state in ("START", ended)
    ]


@pytest.mark.torture
def test_a_job_that_fails_says_so_in_its_metrics_and_events(tmp_path):
    data = tmp_path / "node-1"
    asyncio.run(History(data, 43).live(60))
    first = min((data / "log").glob("*.log"))
    first.write_bytes(first.read_bytes()[:100] + b"damage" + first.read_bytes()[106:])
    transport = {"type": "file", "log_file_path": str(tmp_path / "events.json"), "append": True}
    prom = tmp_path / "nightly.prom"
    told = {**QUICK_JAVA, "OPENLINEAGE__TRANSPORT": orjson.dumps(transport).decode()}
    which = ("--data", data, "--master", "local[1]", "--scan", "--metrics", prom)
    audited = timerwheel("audit", *which, "--out", tmp_path / "audit", **told)
    assert audited.code == 1
    found = Scrape(prom.read_text())
    assert found.total("timerwheel_job_success") == 0
    assert LAST_SUCCESS not in found.series()
    assert [state for state, *_ in events(tmp_path / "events.json")] == ["START", "FAIL"]
