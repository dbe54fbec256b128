"""`timerwheel worker`: an app in a process of its own, with signals, outages and wrong input."""

import json
import signal

import pytest

from tests.harness.processes import RunningService, serving, started, timerwheel
from timerwheel import SyncClient

APP = """
import time
from timerwheel import App, SyncClient
app = App()

@app.worker("orders", group="closers", concurrency=2)
def close(text: str):
    print("begin", text, flush=True)
    time.sleep({"quick": 0, "slow": 0.5, "hangs": 3600}[text])
    print("end", text, flush=True)
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory) -> RunningService:
    with serving(tmp_path_factory.mktemp("worker") / "data", "--redelivery-delay", "1ms") as service:
        yield service


@pytest.fixture
def project(tmp_path):
    (tmp_path / "shop.py").write_text(APP)
    return tmp_path


def worker(folder, *arguments):
    """Run `timerwheel worker` in a folder to its end; returns its exit code and its stderr."""
    with started("worker", *arguments, cwd=folder) as process:
        _, errors = process.communicate()
        return process.returncode, errors


def test_sigterm_finishes_what_is_in_progress_and_gives_the_rest_back(service, project):
    with (
        SyncClient(service.url) as client,
        started("worker", "shop:app", "--drain", "2s", cwd=project, TIMERWHEEL_URL=service.url) as worker,
    ):
        client.send_many([{"topic": "orders", "body": body} for body in ("quick", "slow", "hangs")])
        lines = [worker.stdout.readline().strip() for _ in range(4)]
        assert "begin hangs" in lines
        worker.send_signal(signal.SIGTERM)
        rest, errors = worker.communicate()
        assert worker.returncode == 0
        assert [*lines, *rest.split("\n")].count("end slow") == 1
        info = client.group("orders", "closers").info()
        assert (info.lag, info.in_flight, info.dead_letters) == (0, 0, 0)
        [again] = client.group("orders", "closers").receive(wait_ms=20_000)
        assert (again.text, again.attempt) == ("hangs", 2)
    lines = errors.splitlines()
    assert any(f"INFO timerwheel.worker [{again.id}]" not in line for line in lines)
    done = [line for line in lines if line.endswith("attempt 1: done")]
    assert len(done) == 2
    assert "timerwheel.worker [0000" in done[0]  # the id of its message
    assert lines[-1].endswith("orders/closers: giving back 1 messages that are not done")


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("shop", "write it as MODULE:APP"),
        ("nothing:app", "there is no module 'nothing'"),
        ("shop:missing", "has no 'missing'"),
        ("shop:close", "'close' is a function, not a timerwheel App"),
        ("json:dumps", "not a timerwheel App"),
    ],
)
def test_what_is_no_app_is_one_line_and_exit_code_2(project, place, says):
    code, errors = worker(project, place)
    assert code == 2
    assert says in errors
    assert len(errors.splitlines()) == 1


def test_an_app_without_workers_is_refused(tmp_path):
    (tmp_path / "empty.py").write_text("from timerwheel import App\napp = App()\n")
    code, errors = worker(tmp_path, "empty:app")
    assert (code, "no workers" in errors) == (2, True)
    assert "debug, info, warning or error" in worker(tmp_path, "empty:app", "--log-level", "loud")[1]


def test_a_group_that_differs_ends_the_worker_with_exit_code_1(service, project):
    with SyncClient(service.url) as client:
        client.send("others", "x")
        client.group("others", "g2").receive(tags="a", create=True)
    text = APP.replace('"orders", group="closers"', '"others", group="g2", tags="b"')
    (project / "shop.py").write_text(text)
    code, errors = worker(project, "shop:app", "--url", service.url)
    assert code == 1
    assert "tags" in errors


def test_nack_with_dead_letter_gives_a_message_up(service):
    with SyncClient(service.url) as client:
        client.send("given-up", "x")
        [held] = client.group("given-up", "g").receive()
    at = ("--url", service.url)
    refused = timerwheel(
        "groups", "nack", "given-up", "g", held.receipt, "--dead-letter", "--delay", "1s", *at
    )
    assert (refused.code, "not redelivered" in refused.err) == (2, True)
    done = timerwheel(
        "groups", "nack", "given-up", "g", held.receipt, "--dead-letter", "--reason", "bad", *at
    )
    assert done.code == 0
    assert "made a dead letter" in done.out
    [letter] = json.loads(timerwheel("dlq", "list", "g", "--json", *at).out)["letters"]
    assert (letter["reason"], letter["attempts"]) == ("bad", 1)
