"""The real service on a journal: killed, its disk kept or removed, its brokers away."""

import json
import shutil
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("confluent_kafka")

from tests.harness.kafka.broker import Broker, missing
from tests.harness.kafka.clients import Clients
from tests.harness.processes import RunningService, serving, timerwheel

SAME_NODE = ("--node-url", "http://shop.example")
"""So that a node that starts again need not wait until its former self has lost the election."""


def call(service: RunningService, path: str, body: object | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(service.url + path, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def send(service: RunningService, *texts: str) -> None:
    call(service, "/v1/messages", [{"topic": "orders", "body": text, "delay_ms": 200} for text in texts])


def delivered(service: RunningService, count: int) -> list[str]:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        found = call(service, "/v1/topics/orders/queues/0/messages?offset=0&max=1000")["messages"]
        if len(found) >= count:
            return [one["body"] for one in found]
        time.sleep(0.1)
    pytest.fail("not all messages came")


def address(kafka: Clients) -> str:
    return f"kafka://{kafka.address}/shop-{time.time_ns()}"


def test_after_kills_all_that_was_acknowledged_comes_once(tmp_path: Path, kafka: Clients) -> None:
    journal, sent = address(kafka), []
    for kill in range(3):
        with serving(tmp_path / "data", "--journal", journal, *SAME_NODE) as service:
            texts = [f"{kill}-{number}" for number in range(50)]
            for text in texts[:10]:
                send(service, text)
            send(service, *texts[10:])
            sent += texts
            service.end(signal.SIGKILL)
        if kill != 1:
            shutil.rmtree(tmp_path / "data")
    with serving(tmp_path / "data", "--journal", journal, *SAME_NODE) as service:
        assert sorted(delivered(service, len(sent))) == sorted(sent)


def test_a_copy_is_served_with_its_journal_only(tmp_path: Path, kafka: Clients) -> None:
    with serving(tmp_path / "data", "--journal", address(kafka)) as service:
        send(service, "one")
        service.end(signal.SIGTERM)
    refused = timerwheel("serve", "--port", 0, "--data", tmp_path / "data")
    assert refused.code == 1
    assert "is a copy of the journal" in refused.err
    assert "start with --journal" in " ".join(refused.err.split())


def test_a_service_moves_to_kafka_and_back_with_its_ids(tmp_path: Path, kafka: Clients) -> None:
    data, journal = tmp_path / "data", address(kafka)
    with serving(data) as service:
        waiting = call(service, "/v1/messages", {"topic": "t", "body": "later", "delay": "1h"})
        send(service, "one")
        refused = timerwheel("cluster", "fill", "--data", data, "--journal", journal)
        assert "in use" in refused.err
        service.end(signal.SIGTERM)
    refused = timerwheel("serve", "--port", 0, "--data", data, "--journal", journal)
    assert "timerwheel cluster fill" in " ".join(refused.err.split())

    filled = timerwheel("cluster", "fill", "--data", data, "--journal", journal)
    assert filled.code == 0, filled.err
    assert f"from now on, start with --journal {journal}" in filled.out
    assert timerwheel("cluster", "fill", "--data", data, "--journal", journal).code == 1
    with serving(data, "--journal", journal, *SAME_NODE) as service:
        send(service, "two")
        service.end(signal.SIGTERM)
    with serving(tmp_path / "other", "--journal", journal, *SAME_NODE) as service:
        assert call(service, f"/v1/messages/{waiting['id']}")["state"] == "scheduled"
        assert delivered(service, 2) == ["one", "two"]
        service.end(signal.SIGTERM)

    assert timerwheel("backup", "create", tmp_path / "backup", "--data", tmp_path / "other").code == 0
    assert timerwheel("backup", "restore", tmp_path / "backup", "--data", tmp_path / "back").code == 0
    with serving(tmp_path / "back") as service:
        assert call(service, f"/v1/messages/{waiting['id']}")["state"] == "scheduled"
        assert delivered(service, 2) == ["one", "two"]


def test_a_node_whose_topic_was_deleted_makes_no_other_and_its_copy_fills_a_new_one(
    tmp_path: Path, kafka: Clients
) -> None:
    data, journal = tmp_path / "data", address(kafka)
    topic = journal.rpartition("/")[2] + "-log"
    with serving(data, "--journal", journal, *SAME_NODE) as service:
        waiting = call(service, "/v1/messages", {"topic": "t", "body": "later", "delay": "1h"})
        service.end(signal.SIGKILL)
    kafka.delete(topic)
    refused = timerwheel("serve", "--port", 0, "--data", data, "--journal", journal, *SAME_NODE)
    assert refused.code == 1
    assert f"there is no Kafka topic {topic}" in " ".join(refused.err.split())
    assert topic not in kafka.topics()

    filled = timerwheel("cluster", "fill", "--from-copy", "--data", data, "--journal", journal)
    assert filled.code == 0, filled.err
    with serving(data, "--journal", journal, *SAME_NODE) as service:
        assert call(service, f"/v1/messages/{waiting['id']}")["state"] == "scheduled"


def refusal(service: RunningService) -> str:
    """The code with which a send is refused."""
    with pytest.raises(urllib.error.HTTPError) as caught:
        send(service, "during")
    return json.load(caught.value)["code"]


def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.1)


def is_ready(service: RunningService) -> bool:
    try:
        return call(service, "/readyz")["status"] == "ready"
    except urllib.error.HTTPError:
        return False


@pytest.mark.skipif(missing(own=True) is not None, reason=f"needs Kafka: {missing(own=True)}")
def test_without_brokers_it_refuses_and_goes_on_by_itself_when_they_are_back(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "broker")
    properties = tmp_path / "kafka.properties"
    properties.write_text("message.timeout.ms=2000\ntransaction.timeout.ms=10000\n")
    flags = ("--journal", f"kafka://{broker.address}/shop", "--kafka-properties", properties)
    try:
        broker.start()
        with serving(tmp_path / "data", *flags) as service:
            send(service, "before")
            broker.kill()
            until(lambda: refusal(service) == "not_ready")
            assert not is_ready(service)
            broker.start()
            until(lambda: is_ready(service))
            send(service, "after")
            until(lambda: "after" in delivered(service, 2))
            found = delivered(service, 2)
            assert [body for body in found if body != "during"] == ["before", "after"]
            assert found.count("during") <= 1
            assert service.process.poll() is None
    finally:
        broker.kill()


@pytest.mark.skipif(missing(own=True) is not None, reason=f"needs Kafka: {missing(own=True)}")
def test_a_service_stops_though_its_brokers_hang(tmp_path: Path) -> None:
    """librdkafka would wait for the answer to all that the election has asked them."""
    broker = Broker(tmp_path / "kafka")
    broker.start()
    try:
        flags = ("--journal", address(Clients(broker.address)), "--kafka", broker.address, *SAME_NODE)
        with serving(tmp_path / "data", *flags) as service:
            send(service, "one")
            broker.hang()
            until(lambda: not is_ready(service))
            ended = service.end(signal.SIGTERM)
            assert (ended.code, "Traceback" in ended.err) == (0, False)
    finally:
        broker.kill()
