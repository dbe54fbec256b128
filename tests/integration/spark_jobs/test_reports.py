"""Every run of a job ends in one outcome, in its metrics and its events, also if it fails early."""

import asyncio
import http.server
import os
import signal
import threading
from pathlib import Path

import orjson
import pytest
import typer
from typer.testing import CliRunner

from tests.harness.scraping import Scrape
from tests.harness.world import World
from timerwheel.cli.archive import archive
from timerwheel.cli.audit import audit
from timerwheel.cli.forecast import forecast
from timerwheel.cli.rebuild import rebuild
from timerwheel.cli.restore import restore
from timerwheel.cli.schedule import schedule
from timerwheel.cli.spark_options import SparkOptions, reported
from timerwheel.cli.table import typed
from timerwheel.spark_jobs.audit.checkpoint import open_checkpoint
from timerwheel.spark_jobs.errors import JobError
from timerwheel.store.files import DiskFiles
from timerwheel.store.lock import DirectoryLock

COMMANDS = {
    "audit": audit,
    "forecast": forecast,
    "archive": archive,
    "rebuild": rebuild,
    "restore": restore,
    "schedule": schedule,
}
TABLE = ("--from", "rows.csv", "--due-column", "due", "--topic", "t", "--url", "http://127.0.0.1:9")
EARLY = {
    "no log": ("audit", "--data", "nowhere"),
    "a wrong url": ("audit", "--data", "nosuch://bucket/node"),
    "a pattern without a match": ("audit", "--data", "nowhere-*"),
    "output in use": ("audit", "--data", "node-1", "--out", "used"),
    "a locked checkpoint": ("audit", "--data", "node-1", "--checkpoint", "locked"),
    "no staging on a cluster": ("audit", "--data", "node-1", "--master", "spark://127.0.0.1:9"),
    "a forecast of no log": ("forecast", "--data", "nowhere"),
    "a forecast into a directory in use": ("forecast", "--data", "node-1", "--out", "used"),
    "an archive of no log": ("archive", "--data", "nowhere", "--to", "archive"),
    "a rebuild of no log": ("rebuild", "--data", "nowhere"),
    "a rebuild of a log that is served": ("rebuild", "--data", "node-1"),
    "a restore of no archive": ("restore", "--from", "nowhere", "--data", "new"),
    "a restore into a directory in use": ("restore", "--from", "nowhere", "--data", "node-1"),
    "no table": ("schedule", *TABLE),
    "no service": ("schedule", *TABLE[2:], "--from", "there.csv"),
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A directory with a log that is in use, a checkpoint that is locked, and an output of another job."""
    monkeypatch.chdir(tmp_path)
    world = World(tmp_path / "node-1")
    world.files = DiskFiles()

    async def live() -> None:
        await world.open()
        await world.send(300)
        await world.engine.close()

    asyncio.run(live())
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    (tmp_path / "there.csv").write_text("due,body\n2030-01-01T00:00:00Z,x\n")
    lock = DirectoryLock(tmp_path / "node-1", purpose="serve", now_text="now")
    with open_checkpoint("locked", "now"):
        yield tmp_path
    lock.release()


@pytest.fixture
def events(tmp_path, monkeypatch):
    """The states that OpenLineage was sent."""
    file = tmp_path / "events.json"
    transport = {"type": "file", "log_file_path": str(file), "append": True}
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT", orjson.dumps(transport).decode())
    return lambda: [orjson.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def run(name: str, *words: str) -> int:
    app = typer.Typer()
    app.command()(typed(COMMANDS[name]))
    done = CliRunner().invoke(app, words)
    assert done.exception is not None
    return done.exit_code


@pytest.mark.parametrize("words", EARLY.values(), ids=EARLY)
def test_a_failure_before_spark_starts_is_reported(place, events, words):
    name, *options = words
    assert run(name, *options, "--metrics", "run.prom") != 0
    found = Scrape((place / "run.prom").read_text())
    assert found.total("timerwheel_job_success") == 0
    start, end = events()
    assert (start["eventType"], end["eventType"]) == ("START", "FAIL")
    assert end["run"]["facets"]["errorMessage"]["message"]
    assert end["job"]["name"] == name


def test_the_last_event_has_the_logs_that_a_pattern_matched(place, events):
    assert run("audit", "--data", "node-*", "--out", "used") != 0
    start, end = events()
    assert start["inputs"] == []
    assert [one["name"] for one in end["inputs"]] == [str(place / "node-1")]
    assert [one["name"] for one in end["outputs"]] == [str(place / "used")]


OPTIONS = SparkOptions("local[1]", None, Path("run.prom"))


def test_a_refusal_of_the_preflight_is_reported(place, events):
    with pytest.raises(JobError), reported("audit", OPTIONS, ["node-1"], ["out"]):
        raise JobError("the executors on host cannot run this job")
    assert Scrape((place / "run.prom").read_text()).total("timerwheel_job_success") == 0
    assert [event["eventType"] for event in events()] == ["START", "FAIL"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_before_spark_starts_is_reported(place, events, number, code, capsys):
    with pytest.raises(SystemExit) as caught, reported("audit", OPTIONS, ["node-1"], ["out"]):
        signal.raise_signal(number)
    assert caught.value.code == code
    assert "the job was stopped" in capsys.readouterr().err
    assert Scrape((place / "run.prom").read_text()).total("timerwheel_job_success") == 0
    assert [event["eventType"] for event in events()] == ["START", "ABORT"]


@pytest.mark.parametrize("state", ["START", "COMPLETE"])
def test_a_signal_while_an_event_is_sent_does_not_take_the_outcome_away(place, monkeypatch, state):
    states = []

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            states.append(orjson.loads(body)["eventType"])
            if states[-1] == state:
                os.kill(os.getpid(), signal.SIGTERM)
            self.send_response(201)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("OPENLINEAGE_URL", f"http://127.0.0.1:{server.server_port}")
    code = 0
    try:
        with reported("audit", OPTIONS, ["node-1"], ["out"]):
            pass
    except SystemExit as error:
        code = error.code
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    outcome = {"START": ["START", "ABORT"], "COMPLETE": ["START", "COMPLETE"]}[state]
    assert states == outcome
    assert code == (143 if state == "START" else 0)
    success = Scrape((place / "run.prom").read_text()).total("timerwheel_job_success")
    assert success == (state == "COMPLETE")


def test_a_run_that_found_something_came_to_its_end(place, events):
    with reported("audit", OPTIONS, ["node-1"], ["out"]) as found:
        found.metrics.set("timerwheel_audit_balanced", "Whether", 0)
    assert Scrape((place / "run.prom").read_text()).total("timerwheel_job_success") == 1
    assert [event["eventType"] for event in events()] == ["START", "COMPLETE"]
