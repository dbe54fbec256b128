"""RocketMQ's own Java clients, unmodified, against the real process: see `tests/clients/rocketmq-java`."""

import itertools
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.harness import maven
from tests.harness.certificates import Authority
from tests.harness.ports import reserved_address
from tests.harness.processes import PATIENCE_S, QUICK_JAVA_FLAGS, ROOT, serving, timerwheel

PROJECT = ROOT / "tests" / "clients" / "rocketmq-java"
NEW, OLD = "5.3.3", "4.9.8"
QUICK = ("send", "delays", "batch", "recall", "consume", "tags", "retry", "transaction", "pop")
ALL = (*QUICK, "delivered", "orderly", "broadcast", "litepull", "rebalance")
TLS = ("-Dtls.enable=true", "-Dtls.test.mode.enable=false", "-Dtls.client.authServer=true")
ASKING = ("--transaction-timeout", "1s", "--transaction-interval", "1s")

pytestmark = pytest.mark.skipif(maven.is_missing(), reason="needs Java 17 and Maven")


def class_path(version: str) -> str:
    """Where the scenarios are, compiled with this version of the client."""
    return maven.class_path(PROJECT, f"-Drocketmq.version={version}")


@contextmanager
def java(
    version: str, home: Path, address: str, *scenarios: str, token: str = "-", trusted: Path | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Start scenarios; with `trusted`, over TLS, if an authority of this file signed the certificate."""
    tls = () if trusted is None else (*TLS, f"-Dtls.client.trustCertPath={trusted}")
    command = [
        "java",
        *QUICK_JAVA_FLAGS,
        "-Xmx256m",
        f"-Duser.home={home}",
        *tls,
        "-cp",
        class_path(version),
        "scenarios.Scenarios",
    ]
    with subprocess.Popen(
        [*command, address, token, *scenarios], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def run(
    version: str, home: Path, address: str, *scenarios: str, token: str = "-", trusted: Path | None = None
) -> None:
    """Run scenarios; each must report that it is ok."""
    with java(version, home, address, *scenarios, token=token, trusted=trusted) as process:
        out, err = process.communicate(timeout=PATIENCE_S)
    results = [orjson.loads(line) for line in out.splitlines() if line.startswith('{"scenario"')]
    assert [(one["scenario"], one["problem"]) for one in results] == [(name, "") for name in scenarios], err[
        -4_000:
    ]


def test_a_java_client_sends_delays_recalls_consumes_and_retries(tmp_path):
    address = reserved_address()
    with serving(tmp_path / "data", "--rocketmq", address, *ASKING):
        run(NEW, tmp_path, address, *QUICK)


@pytest.mark.torture
def test_a_java_client_speaks_tls_and_gives_its_token_over_it(tmp_path):
    authority = Authority(tmp_path)
    own, other = authority.issue("localhost"), tmp_path / "other"
    other.mkdir()
    data, address = tmp_path / "data", reserved_address()
    scopes = ("--scope", "send", "--scope", "receive", "--topic", "*")
    made = timerwheel("tokens", "create", "java", *scopes, "--data", data, "--json")
    token, certificate = made.json["token"], ("--tls-certificate", own.certificate, "--tls-key", own.key)
    with serving(data, "--rocketmq", address, *certificate):
        run(NEW, tmp_path, address, "send", "consume", token=token, trusted=authority.certificate)
        run(NEW, tmp_path, address, "send", token=token)
        with java(
            NEW, tmp_path, address, "send", token=token, trusted=Authority(other).certificate
        ) as process:
            out, _ = process.communicate(timeout=PATIENCE_S)
        assert '"ok":false' in out


@pytest.mark.clients
@pytest.mark.parametrize("version", [NEW, OLD])
def test_all_scenarios_of_a_java_client(tmp_path, version):
    address = reserved_address()
    with serving(tmp_path / "data", "--rocketmq", address, *ASKING):
        run(version, tmp_path, address, *ALL)


@pytest.mark.clients
@pytest.mark.parametrize("version", [NEW, OLD])
def test_a_java_client_that_traces_logs_no_error_and_its_traces_can_be_read(tmp_path, version):
    address = reserved_address()
    with serving(tmp_path / "data", "--rocketmq", address) as service:
        run(version, tmp_path, address, "trace")
        logged = [path.read_text() for path in (tmp_path / "logs").rglob("*.log")]
        assert logged
        assert not [line for text in logged for line in text.splitlines() if "trace data" in line]
        listed = asked(f"{service.url}/v1/topics?reserved=false", "GET")["topics"]
        assert [one["topic"][:6] for one in listed] == ["trace-"]


@pytest.mark.clients
@pytest.mark.parametrize(
    ("version", "scenario", "event"),
    [
        *itertools.product((NEW, OLD), ("restart",), ("sending",)),
        *itertools.product((NEW, OLD), ("transaction-restart",), ("half",)),
        (NEW, "pop-restart", "sending"),
    ],
)
def test_a_java_client_loses_nothing_when_the_service_is_killed(tmp_path, version, scenario, event):
    address = reserved_address()
    flags = ("--rocketmq", address, *ASKING)
    with (
        serving(tmp_path / "data", *flags) as service,
        java(version, tmp_path, address, scenario) as process,
    ):
        assert process.stdout is not None
        assert any(event in line for line in process.stdout)
        service.end(signal.SIGKILL)
        with serving(tmp_path / "data", *flags):
            out, err = process.communicate(timeout=PATIENCE_S)
    [result] = [orjson.loads(line) for line in out.splitlines() if line.startswith('{"scenario"')]
    assert result["problem"] == "", err[-4_000:]


@pytest.mark.clients
@pytest.mark.parametrize("version", [NEW, OLD])
def test_another_java_producer_of_the_group_ends_what_a_killed_one_left_open(tmp_path, version):
    address = reserved_address()
    with serving(tmp_path / "data", "--rocketmq", address, *ASKING):
        with java(version, tmp_path, address, "transaction-left") as process:
            assert process.stdout is not None
            assert any("left" in line for line in process.stdout)
            process.kill()
        run(version, tmp_path, address, "transaction-taken")


@pytest.mark.clients
def test_what_a_java_consumer_pops_and_fails_is_retried_and_becomes_a_dead_letter(tmp_path):
    data, address = tmp_path / "data", reserved_address()
    with serving(data, "--rocketmq", address) as service:
        timerwheel("groups", "put", "pop-retry", "pop-retriers", "--max-attempts", "2", "--url", service.url)
        run(NEW, tmp_path, address, "pop-retry")


@pytest.mark.clients
def test_a_java_consumer_that_pops_shares_a_group_with_one_over_http(tmp_path):
    data, address = tmp_path / "data", reserved_address()
    sent = {f"message {n}" for n in range(60)}
    with serving(data, "--rocketmq", address) as service:
        place = f"{service.url}/v1/topics/pop-share/groups/sharers"
        asked(place, "PUT", {})
        messages = [{"topic": "pop-share", "body": body} for body in sent]
        with java(NEW, tmp_path, address, "pop-share") as process:
            asked(f"{service.url}/v1/messages", "POST", messages)
            mine: list[str] = []
            while asked(place, "GET")["lag"]:
                found = asked(f"{place}/receive", "POST", {"max": 1, "wait_ms": 200})["messages"]
                if found:
                    mine.append(found[0]["body"])
                    asked(f"{place}/ack", "POST", {"receipts": [found[0]["receipt"]]})
            asked(f"{service.url}/v1/messages", "POST", {"topic": "pop-share", "body": "end"})
            out, err = process.communicate(timeout=PATIENCE_S)
        [theirs] = [orjson.loads(line)["got"] for line in out.splitlines() if line.startswith('{"got"')]
        assert sorted([*mine, *theirs]) == sorted(sent | {"end"}), err[-4_000:]
        assert asked(place, "GET")["in_flight"] == 0


def asked(url: str, method: str, body: object = None) -> Any:
    """The answer of the service over HTTP, as JSON."""
    request = urllib.request.Request(url, None if body is None else orjson.dumps(body), method=method)
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return orjson.loads(answer.read())


@pytest.mark.clients
def test_a_java_client_gives_its_token_as_access_key(tmp_path):
    data, address = tmp_path / "data", reserved_address()
    scopes = ("--scope", "send", "--scope", "receive", "--topic", "*")
    made = timerwheel("tokens", "create", "java", *scopes, "--data", data, "--json")
    with serving(data, "--rocketmq", address):
        run(NEW, tmp_path, address, "send", "consume", token=made.json["token"])
        with java(NEW, tmp_path, address, "send") as process:
            out, _ = process.communicate(timeout=PATIENCE_S)
        assert '"ok":false' in out
