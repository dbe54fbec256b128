import http.server
import os
import sys
import threading

import orjson
import pytest

from timerwheel.spark_jobs.monitoring.lineage import Dataset, dataset_of, lineage, topic_of


@pytest.fixture
def receiver(monkeypatch):
    """The events that arrive at an OpenLineage server."""
    events = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            events.append(orjson.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(201)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("OPENLINEAGE_URL", f"http://127.0.0.1:{server.server_port}")
    yield events
    server.shutdown()
    thread.join()
    server.server_close()


READS, WRITES = [Dataset("file", "/srv/node-1")], [Dataset("s3://lake", "audits/today")]


def test_a_run_is_reported_from_its_start_to_its_end(receiver):
    with lineage("audit", READS, WRITES, pytest.fail):
        assert [event["eventType"] for event in receiver] == ["START"]
    start, end = receiver
    assert end["eventType"] == "COMPLETE"
    assert start["run"]["runId"] == end["run"]["runId"]
    for event in receiver:
        assert (event["job"]["namespace"], event["job"]["name"]) == ("timerwheel", "audit")
        assert [(one["namespace"], one["name"]) for one in event["inputs"]] == READS
        assert [(one["namespace"], one["name"]) for one in event["outputs"]] == WRITES
        assert event["eventTime"].endswith("+00:00")


def test_a_failure_and_a_signal_are_reported_and_raised(receiver, monkeypatch):
    monkeypatch.setenv("OPENLINEAGE_NAMESPACE", "nightly")
    with pytest.raises(ValueError, match="no such log"), lineage("audit", READS, WRITES, pytest.fail):
        raise ValueError("no such log")
    with pytest.raises(KeyboardInterrupt), lineage("audit", READS, WRITES, pytest.fail):
        raise KeyboardInterrupt
    assert [event["eventType"] for event in receiver] == ["START", "FAIL", "START", "ABORT"]
    assert receiver[1]["run"]["facets"]["errorMessage"]["message"] == "no such log"
    assert {event["job"]["namespace"] for event in receiver} == {"nightly"}


def test_without_the_variables_of_openlineage_nothing_is_reported(receiver, monkeypatch):
    monkeypatch.delenv("OPENLINEAGE_URL")
    with lineage("audit", READS, WRITES, pytest.fail):
        pass
    assert receiver == []


def test_reports_can_be_switched_off(receiver, monkeypatch):
    monkeypatch.setenv("OPENLINEAGE_DISABLED", "true")
    with lineage("audit", READS, WRITES, pytest.fail):
        pass
    assert receiver == []


def test_a_server_that_is_not_there_does_not_fail_the_job(monkeypatch):
    config = {"type": "http", "url": "http://127.0.0.1:9", "retry": {"total": 0}}
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT", orjson.dumps(config).decode())
    warnings = []
    with lineage("audit", READS, WRITES, warnings.append):
        pass
    assert [text[: text.index(":", 35)] for text in warnings] == [
        "OpenLineage was not informed: START",
        "OpenLineage was not informed: COMPLETE",
    ]


def test_events_that_a_transport_sends_in_the_background_are_sent_before_the_job_ends(receiver, monkeypatch):
    url = os.environ["OPENLINEAGE_URL"]
    config = {"type": "async_http", "url": url}
    monkeypatch.delenv("OPENLINEAGE_URL")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT", orjson.dumps(config).decode())
    with lineage("audit", READS, WRITES, pytest.fail):
        pass
    assert [event["eventType"] for event in receiver] == ["START", "COMPLETE"]


def test_without_the_package_the_job_says_what_to_install(receiver, monkeypatch):
    monkeypatch.setitem(sys.modules, "openlineage", None)
    warnings = []
    with lineage("audit", READS, WRITES, warnings.append):
        pass
    assert warnings == [
        "OpenLineage was not informed: openlineage-python is missing: `pip install 'timerwheel[lineage]'`"
    ]
    assert receiver == []


@pytest.mark.parametrize(
    ("url", "dataset"),
    [
        ("/srv/node-1", ("file", "/srv/node-1")),
        ("file:///srv/node-1", ("file", "/srv/node-1")),
        ("s3://lake/audits/today/", ("s3://lake", "audits/today")),
        ("https://user:secret@example.net/logs", ("https://example.net", "logs")),
    ],
)
def test_datasets_have_the_names_of_openlineage(url, dataset):
    assert dataset_of(url) == dataset


def test_a_topic_is_a_dataset_of_its_service():
    assert topic_of("http://timers:8686", "orders") == ("timerwheel://timers:8686", "orders")
    assert topic_of("https://user:secret@timers:8686/", None) == ("timerwheel://timers:8686", "*")
