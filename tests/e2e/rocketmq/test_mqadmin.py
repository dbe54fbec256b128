"""RocketMQ's own `mqadmin`, unmodified, against the real process: see `tests/clients/rocketmq-mqadmin`."""

import subprocess
import urllib.error
import urllib.request

import orjson
import pytest

from tests.harness import maven
from tests.harness.ports import reserved_address
from tests.harness.processes import PATIENCE_S, ROOT, serving

PROJECT = ROOT / "tests" / "clients" / "rocketmq-mqadmin"
PROGRAM = "org.apache.rocketmq.tools.command.MQAdminStartup"
CLUSTER = ("-c", "DefaultCluster")

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(maven.is_missing(), reason="needs Java 17 and Maven"),
]


@pytest.fixture
def service(tmp_path):
    """The URL of a service, and a function that runs a command of mqadmin against it."""
    address = reserved_address()

    def mqadmin(command: str, *flags: str) -> str:
        """Run a command; returns what it printed. Errors are printed too, and the exit code is 0 then."""
        java = ["java", "-Xmx128m", f"-Duser.home={tmp_path}", "-cp", maven.class_path(PROJECT), PROGRAM]
        done = subprocess.run(
            [*java, command, "-n", address, *flags],
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE_S,
        )
        printed = done.stdout + done.stderr
        assert "Exception" not in printed, printed
        return printed

    with serving(tmp_path / "data", "--rocketmq", address) as running:
        yield running.url, mqadmin


def call(url, method, path, body=None):
    data = None if body is None else orjson.dumps(body)
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request) as answer:
        return orjson.loads(answer.read() or b"null")


def status_of(url, path):
    try:
        with urllib.request.urlopen(url + path) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_mqadmin_makes_a_topic_and_deletes_it_whole(service):
    url, mqadmin = service
    assert "success" in mqadmin("updateTopic", *CLUSTER, "-t", "orders", "-r", "4", "-w", "4")
    sent = call(url, "POST", "/v1/messages", {"topic": "orders", "body": "x", "delay_ms": 3_600_000})
    assert "orders" in mqadmin("topicList")
    assert "success" in mqadmin("deleteTopic", *CLUSTER, "-t", "orders")
    assert "orders" not in mqadmin("topicList")
    assert status_of(url, f"/v1/messages/{sent['id']}") == 404


def test_mqadmin_deletes_a_group_with_its_offsets_only_if_asked_to(service):
    url, mqadmin = service
    call(url, "POST", "/v1/messages", {"topic": "orders", "body": "x", "delay_ms": 0})
    call(url, "PUT", "/v1/topics/orders/groups/closers", {"kind": "offsets"})
    mqadmin("deleteSubGroup", *CLUSTER, "-g", "closers")
    assert call(url, "GET", "/v1/topics/orders/groups/closers")["group"] == "closers"
    assert "success" in mqadmin("deleteSubGroup", *CLUSTER, "-g", "closers", "-r", "true")
    assert status_of(url, "/v1/topics/orders/groups/closers") == 404
