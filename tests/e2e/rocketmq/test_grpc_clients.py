"""One table of scenarios over gRPC, run with RocketMQ's own clients against the real process.

The Python client is quick and runs with all tests; those of other languages run with `make clients`.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest

from tests.harness.certificates import Authority
from tests.harness.grpc_clients import NO_RECALLS, GrpcClient, RefusedCallError, client_of
from tests.harness.ports import reserved_address, reserved_port
from tests.harness.processes import PATIENCE_S, RunningService, serving, timerwheel

OTHERS = [pytest.param(name, marks=pytest.mark.clients) for name in ("node", "java", "go", "rust")]
LANGUAGES = ["python", *OTHERS]


class Stage(NamedTuple):
    """A service, and a client of it; `restart` kills the service and starts it again at its addresses."""

    client: GrpcClient
    service: RunningService
    restart: Callable[[], RunningService]


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("clients")


@pytest.fixture(params=LANGUAGES)
def stage(request: pytest.FixtureRequest, tmp_path: Path, scratch: Path) -> Iterator[Stage]:
    endpoint = reserved_address()
    flags = ("--rocketmq-grpc", endpoint, "--redelivery-delay", "200ms")
    with ExitStack() as stack:
        client = stack.enter_context(client_of(request.param, scratch / request.param, endpoint))
        service = stack.enter_context(serving(tmp_path / "data", *flags))

        def restart() -> RunningService:
            stage.service.end(signal.SIGKILL)
            return stack.enter_context(serving(tmp_path / "data", *flags))

        stage = Stage(client, service, restart)
        yield stage


def skip_rust(stage: Stage, why: str) -> None:
    if stage.client.language == "rust":
        pytest.skip(f"the client for Rust {why}")


def test_a_message_comes_as_it_was_sent_and_not_again_once_acknowledged(stage):
    client = stage.client
    sent = client.send("orders", "close 17", tag="paid", keys=["k1", "k2"], properties={"a": "b", "ü": "ö"})
    (found,) = client.receive("orders", "closers")
    assert found["id"] == sent["id"]
    assert (found["body"], found["tag"], found["keys"]) == ("close 17", "paid", ["k1", "k2"])
    assert found["properties"] == {"a": "b", "ü": "ö"}
    assert (found["attempt"], found["corrupted"]) == (1, False)
    client.do("ack", message_id=found["id"])
    client.send("orders", "close 18")
    assert [one["body"] for one in client.receive("orders", "closers")] == ["close 18"]


def test_a_delayed_message_comes_when_it_is_due_and_not_earlier(stage):
    stage.client.send("others", "connects")  # on a busy machine that takes longer than the delay
    began_ms = time.time_ns() // 1_000_000
    sent = stage.client.send("orders", "later", delay_ms=2_000)
    assert sent["handle"] or stage.client.language in NO_RECALLS
    (found,) = stage.client.receive("orders", "closers", wait_ms=8_000)
    assert (found["body"], found["id"]) == ("later", sent["id"])
    assert time.time_ns() // 1_000_000 >= began_ms + 2_000


def test_messages_of_one_group_come_one_after_the_other(stage):
    client = stage.client
    for number in range(3):
        client.send("steps", f"a{number}", group="a")
        client.send("steps", f"b{number}", group="b")
    first = client.receive("steps", "walkers")
    assert sorted(one["body"] for one in first) == ["a0", "b0"]  # what follows waits for these
    assert client.receive("steps", "walkers", wait_ms=1_000) == []
    for one in first:
        client.do("ack", message_id=one["id"])
    rest = client.receive_all("steps", "walkers", 4)
    assert [one["body"] for one in rest if one["group"] == "a"] == ["a1", "a2"]
    assert [one["body"] for one in rest if one["group"] == "b"] == ["b1", "b2"]


def test_a_consumer_gets_the_tags_that_it_asked_for(stage):
    for tag in ("red", "green", "blue"):
        stage.client.send("lights", tag, tag=tag)
    found = stage.client.receive_all("lights", "drivers", 2, tags="red||blue")
    assert [one["body"] for one in found] == ["red", "blue"]
    with pytest.raises(RefusedCallError) as refused:
        stage.client.receive("lights", "drivers", tags="green")
    assert "has the tags" in str(refused.value)


def test_a_message_that_is_given_back_comes_again_after_the_minimum_delay(stage):
    skip_rust(stage, "cannot give a message back")
    stage.client.send("orders", "again")
    (found,) = stage.client.receive("orders", "closers")
    stage.client.do("hide", message_id=found["id"], ms=0)
    (again,) = stage.client.receive("orders", "closers")
    assert (again["id"], again["attempt"]) == (found["id"], 2)
    stage.client.do("hide", message_id=found["id"], ms=60_000)
    stage.client.do("ack", message_id=found["id"])  # a longer invisible time keeps the receipt valid
    stage.client.send("orders", "next")
    assert [one["body"] for one in stage.client.receive("orders", "closers")] == ["next"]


async def test_a_push_consumer_that_fails_gets_the_message_again_and_then_it_is_a_dead_letter(stage):
    skip_rust(stage, "has no push consumers")
    backoff = {"type": "exponential", "initial_ms": 1_000, "factor": 1.0, "max_ms": 1_000}
    config = {"max_attempts": 2, "backoff": backoff}
    async with (
        aiohttp.ClientSession(stage.service.url) as http,
        http.put("/v1/topics/jobs/groups/failing", json=config) as response,
    ):
        assert response.status == 201
    stage.client.do("push", topic="jobs", group="failing", failures=2)
    sent = stage.client.send("jobs", "hopeless")
    found = stage.client.consumed("jobs", 2)
    assert [(one["id"], one["attempt"]) for one in found] == [(sent["id"], 1), (sent["id"], 2)]
    (dead,) = stage.client.receive("%DLQ%failing", "undertakers", wait_ms=10_000)
    assert (dead["id"], dead["body"]) == (sent["id"], "hopeless")
    stage.client.send("jobs", "fine")
    assert [one["body"] for one in stage.client.consumed("jobs", 3)[2:]] == ["fine"]


def test_a_recall_says_whether_it_came_in_time(stage):
    client = stage.client
    if client.language in NO_RECALLS:
        pytest.skip("this client does not know recalls")
    sent = client.send("orders", "never", delay_ms=60_000)
    assert client.do("recall", topic="orders", handle=sent["handle"])["id"] == sent["id"]
    with pytest.raises(RefusedCallError, match="already been recalled"):
        client.do("recall", topic="orders", handle=sent["handle"])
    sent = client.send("orders", "soon", delay_ms=1_000)
    assert client.receive("orders", "closers", wait_ms=8_000)
    with pytest.raises(RefusedCallError, match="has been delivered"):
        client.do("recall", topic="orders", handle=sent["handle"])


def test_clients_go_on_after_the_service_was_killed(stage):
    client = stage.client
    client.send("orders", "before")
    delayed = client.send("orders", "over the kill", delay_ms=3_000)
    (found,) = client.receive("orders", "closers")
    client.do("ack", message_id=found["id"])
    stage.restart()
    insist(client.send, "orders", "after")
    found = insist(client.receive, "orders", "closers")
    for one in found:
        client.do("ack", message_id=one["id"])
    found += client.receive_all("orders", "closers", 2 - len(found), wait_ms=8_000)
    assert sorted(one["body"] for one in found) == ["after", "over the kill"]
    assert delayed["id"] in {one["id"] for one in found}


def insist(call: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """Call until the client has connected again, as programs must."""
    end_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s:
        with suppress(RefusedCallError):
            return call(*given, **named)
    pytest.fail("the client did not connect again")


async def test_what_one_protocol_sends_the_other_shows(stage):
    sent = stage.client.send("orders", "over gRPC", tag="paid", keys=["k"], delay_ms=60_000)
    async with aiohttp.ClientSession(stage.service.url) as http:
        async with http.get("/v1/messages", params={"topic": "orders"}) as response:
            (listed,) = (await response.json())["messages"]
        assert (listed["body"], listed["state"]) == ("over gRPC", "scheduled")
        assert listed["properties"]["UNIQ_KEY"] == sent["id"]
        assert listed["properties"]["TAGS"] == "paid"
        async with http.delete(f"/v1/messages/{listed['id']}") as response:
            assert response.status == 200
        if stage.client.language not in NO_RECALLS:
            with pytest.raises(RefusedCallError, match="recalled"):
                stage.client.do("recall", topic="orders", handle=sent["handle"])
        async with http.post("/v1/messages", json={"topic": "orders", "body": "over HTTP"}) as response:
            stored = await response.json()
    (found,) = stage.client.receive("orders", "closers")
    assert (found["body"], found["id"]) == ("over HTTP", stored["id"])


@pytest.fixture(params=["python", *(param for param in OTHERS if param.values != ("node",))])
def transactor(request: pytest.FixtureRequest, tmp_path: Path, scratch: Path) -> Iterator[Stage]:
    """A service that checks transactions soon, and a client that knows them."""
    endpoint = reserved_address()
    checks = ("--transaction-timeout", "500ms", "--transaction-interval", "1s")
    flags = ("--rocketmq-grpc", endpoint, *checks)
    with ExitStack() as stack:
        client = stack.enter_context(client_of(request.param, scratch / request.param, endpoint))
        service = stack.enter_context(serving(tmp_path / "data", *flags))

        def restart() -> RunningService:
            service.end(signal.SIGKILL)
            return stack.enter_context(serving(tmp_path / "data", *flags))

        yield Stage(client, service, restart)


def test_what_a_transaction_sends_comes_once_it_is_committed_and_never_after_a_rollback(transactor):
    client = transactor.client
    paid, dropped = (
        client.do("begin", topic="orders", body="paid"),
        client.do("begin", topic="orders", body="no"),
    )
    assert client.receive("orders", "closers", wait_ms=1_000) == []
    for _ in range(1 if client.language == "rust" else 2):  # whose program can end it once
        client.do("end", message_id=paid["id"], how="COMMIT")
        client.do("end", message_id=dropped["id"], how="ROLLBACK")
    if client.language == "go":  # which does not raise
        client.do("end", message_id=dropped["id"], how="COMMIT")
    elif client.language != "rust":
        with pytest.raises(RefusedCallError, match="already been recalled"):
            client.do("end", message_id=dropped["id"], how="COMMIT")
    (found,) = client.receive("orders", "closers")
    assert (found["id"], found["body"]) == (paid["id"], "paid")


def test_a_producer_that_leaves_a_transaction_open_is_asked_how_it_ends(transactor):
    client = transactor.client
    half = client.do("begin", topic="orders", body="asked", outcome="COMMIT")
    (checked,) = client.do("checked", count=1)["messages"]
    assert (checked["id"], checked["body"]) == (half["id"], "asked")
    (found,) = client.receive("orders", "closers")
    assert (found["id"], found["body"]) == (half["id"], "asked")


def test_a_transaction_is_committed_although_the_service_was_killed_in_between(transactor):
    client = transactor.client
    half = client.do("begin", topic="orders", body="over the kill")
    transactor.restart()
    insist(client.do, "end", message_id=half["id"], how="COMMIT")
    (found,) = insist(client.receive, "orders", "closers")
    assert (found["id"], found["body"]) == (half["id"], "over the kill")


@pytest.mark.parametrize("language", [one for one in LANGUAGES if "rust" not in getattr(one, "values", ())])
def test_the_access_key_is_a_token_over_tls(language, tmp_path, scratch):
    authority = Authority(tmp_path)
    issued = authority.issue("localhost")
    data, endpoint = tmp_path / "data", f"localhost:{reserved_port()}"
    made = timerwheel(
        "tokens", "create", "shop", "--scope", "send", "--topic", "orders", "--data", data, "--json"
    )
    key = made.json["token"]
    flags = ("--rocketmq-grpc", endpoint, "--tls-certificate", issued.certificate, "--tls-key", issued.key)
    with (
        serving(data, *flags),
        client_of(language, scratch / language, endpoint, key, authority.certificate) as client,
    ):
        assert client.send("orders", "over TLS")["id"]
        with pytest.raises(RefusedCallError, match="no access to topic"):
            client.send("bills", "forbidden")
