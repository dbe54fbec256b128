"""The OpenAPI document, and the running API held against it by a property-based tester."""

from urllib.parse import unquote

import msgspec
import pytest

from tests.harness.arrow_rows import MEDIA_TYPE
from tests.harness.conformance import assert_conforms
from tests.harness.guarded import grant
from timerwheel.api.http.problems import PROBLEMS
from timerwheel.model.messages import MessageView, State
from timerwheel.push.request import headers_of
from timerwheel.push.signing import new_secret
from timerwheel.push.subscription import Subscription
from timerwheel.tokens import Scope

SECRET = new_secret(b"s" * 32)
ARROW = {"sendMessages", "readQueue", "receive"}

CALLS = {
    ("post", "/v1/messages"),
    ("get", "/v1/messages"),
    ("get", "/v1/messages/{id}"),
    ("get", "/v1/messages/{id}/history"),
    ("get", "/v1/messages/{id}/story"),
    ("delete", "/v1/messages/{id}"),
    ("patch", "/v1/messages/{id}"),
    ("post", "/v1/topics/{topic}/messages"),
    ("get", "/v1/topics"),
    ("get", "/v1/topics/{topic}"),
    ("get", "/v1/topics/{topic}/queues/{queue}/messages"),
    ("get", "/v1/wheel"),
    ("get", "/v1/wheel/slots"),
    ("get", "/v1/wheel/peak"),
    ("get", "/v1/levels"),
    ("post", "/v1/messages/recall"),
    ("post", "/v1/messages/reschedule"),
    ("get", "/v1/transactions"),
    ("post", "/v1/transactions"),
    ("post", "/v1/transactions/{id}/commit"),
    ("post", "/v1/transactions/{id}/rollback"),
    ("patch", "/v1/topics/{topic}"),
    ("post", "/v1/topics/{topic}/pause"),
    ("post", "/v1/topics/{topic}/resume"),
    ("post", "/v1/topics/{topic}/purge"),
    ("delete", "/v1/topics/{topic}"),
    *((method, "/v1/topics/{topic}/keys/{key}") for method in ("get", "delete", "patch")),
    *(
        ("post", f"/v1/topics/{{topic}}/groups/{{group}}/{verb}")
        for verb in ("receive", "ack", "nack", "extend", "rewind")
    ),
    ("get", "/v1/topics/{topic}/groups/{group}/stream"),
    ("get", "/v1/groups"),
    ("get", "/v1/topics/{topic}/groups"),
    *((method, "/v1/topics/{topic}/groups/{group}") for method in ("get", "put", "delete")),
    ("get", "/v1/topics/{topic}/groups/{group}/dead-letters"),
    ("post", "/v1/topics/{topic}/groups/{group}/dead-letters/redrive"),
    ("post", "/v1/topics/{topic}/groups/{group}/dead-letters/drop"),
    ("get", "/v1/groups/{group}/dead-letters"),
    ("post", "/v1/groups/{group}/dead-letters/redrive"),
    ("post", "/v1/groups/{group}/dead-letters/drop"),
    ("get", "/v1/schedules"),
    *((method, "/v1/schedules/{name}") for method in ("get", "put", "delete")),
    ("post", "/v1/schedules/{name}/pause"),
    ("post", "/v1/schedules/{name}/resume"),
    ("get", "/v1/schedules/{name}/runs"),
    ("get", "/v1/subscriptions"),
    ("post", "/v1/subscriptions"),
    *((method, "/v1/subscriptions/{id}") for method in ("get", "patch", "delete")),
    *(
        ("post", f"/v1/subscriptions/{{id}}/{verb}")
        for verb in ("pause", "resume", "test", "rotate-secret", "finish-rotation")
    ),
    ("get", "/v1/subscriptions/{id}/stats"),
    ("get", "/v1/cluster"),
    ("post", "/v1/cluster/move"),
    ("get", "/healthz"),
    ("get", "/readyz"),
    ("get", "/metrics"),
    ("get", "/v1/live"),
    ("get", "/v1/live/history"),
    ("get", "/v1/token"),
    ("post", "/v1/schedules/{name}/run"),
    ("get", "/v1/subscriptions/{id}/attempts"),
    ("post", "/v1/subscriptions/{id}/attempts"),
    ("get", "/v1/tasks"),
    ("post", "/v1/tasks"),
    *((method, "/v1/tasks/{id}") for method in ("get", "patch", "delete")),
    ("post", "/v1/tasks/{id}/run"),
    *(("post", f"/v1/acks/{{token}}{verb}") for verb in ("", "/nack", "/extend")),
    ("get", "/v1/task-queues"),
    *((method, "/v1/task-queues/{queue}") for method in ("get", "put")),
    *(("post", f"/v1/task-queues/{{queue}}/{verb}") for verb in ("rotate-secret", "finish-rotation")),
}


@pytest.fixture
async def document(service):
    answer = await service.call("GET", "/openapi.json")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
    return answer.content


async def test_the_document_describes_every_call(document):
    assert document["openapi"].startswith("3.1")
    found = {(method, path) for path, calls in document["paths"].items() for method in calls}
    assert found == CALLS


async def test_each_call_is_described_with_its_answer_and_its_problems(document):
    for path, calls in document["paths"].items():
        for call in calls.values():
            answer = "text/event-stream" if path.endswith(("/stream", "/live")) else "application/json"
            answer = "text/plain" if path == "/metrics" else answer
            statuses = set(call["responses"])
            assert statuses & {"200", "201"}
            assert {"400", "500"} <= statuses
            answers = {answer, MEDIA_TYPE} if call["operationId"] in ARROW else {answer}
            for status, response in call["responses"].items():
                kinds = answers if status < "400" else {"application/problem+json"}
                kinds = {"application/json"} if status == "207" else kinds  # always in JSON
                assert set(response["content"]) == kinds


async def test_every_code_of_a_call_is_in_the_document(document):
    told = " ".join(
        response["description"]
        for calls in document["paths"].values()
        for call in calls.values()
        for response in call["responses"].values()
    )
    # They belong to no call.
    anywhere = {"unknown_route", "method_not_allowed", "unsupported_version", "unsupported_transfer_encoding"}
    assert {code for code in PROBLEMS if code not in told} == anywhere
    assert document["components"]["schemas"]["Problem"]["properties"]["code"]["enum"] == sorted(PROBLEMS)


async def test_requests_are_described_as_strictly_as_they_are_read(document):
    message = document["components"]["schemas"]["NewMessage"]
    assert message["required"] == ["topic"]
    assert message["additionalProperties"] is False
    assert message["properties"]["delay_ms"]["maximum"] == 2**63 - 1
    receive = document["components"]["schemas"]["Receive"]
    most = {"type": "integer", "minimum": 1, "maximum": 1000, "description": "Default: 1"}
    assert receive["properties"]["max"] == most


async def test_the_document_has_types_for_generators_but_no_defaults_of_fields(document):
    def look(schema, path):
        if isinstance(schema, dict):
            if isinstance(schema.get("enum"), list):
                assert "type" in schema, path
            for name, value in schema.items():
                if path.endswith("/properties"):
                    assert "default" not in value, f"{path}/{name}"
                look(value, f"{path}/{name}")
        elif isinstance(schema, list):
            for place, value in enumerate(schema):
                look(value, f"{path}/{place}")

    look(document["components"]["schemas"], "")
    backoff = document["components"]["schemas"]["GroupConfig"]["properties"]["backoff"]
    assert backoff["description"] == 'Default: {"type":"ladder"}'


async def test_every_call_has_a_tag_that_is_described(document):
    tags = {tag["name"] for tag in document["tags"] if tag["description"]}
    used = {tag for calls in document["paths"].values() for call in calls.values() for tag in call["tags"]}
    assert used == tags


async def test_the_webhook_of_a_subscription_is_described_as_it_is_sent(document):
    [(name, webhook)] = document["webhooks"].items()
    told = {one["name"]: one["required"] for one in webhook["post"]["parameters"]}
    made = Subscription(id="s", topic="t", url="https://example.com/", secrets=[SECRET], cloudevents=True)
    trace = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": "a=b"}
    properties = {"KEYS": "k", "TAGS": "t", **trace, "{name}": "v", "large": "x" * 5_000}
    message = MessageView("id", "t", 0, State.DELIVERED, 1, 0, 0, properties, b"{}")
    sent = set(headers_of(made, message, 1))
    assert name == "message"
    http = {"User-Agent", "Content-Type", "Accept-Encoding"}
    assert {unquote(header) for header in sent - http} == told.keys()
    bare = msgspec.structs.replace(message, properties={})
    always = set(headers_of(msgspec.structs.replace(made, cloudevents=False), bare, 1))
    assert {header for header, required in told.items() if required} == always - http


async def test_the_key_and_the_context_of_a_send_are_described_as_headers(document):
    for path in ("/v1/messages", "/v1/topics/{topic}/messages"):
        call = document["paths"][path]["post"]
        named = {one["name"] for one in call["parameters"] if one["in"] == "header"}
        assert named == {"Idempotency-Key", "traceparent", "tracestate"}
        assert {"200", "201"} <= set(call["responses"])


@pytest.mark.parametrize("examples", [1, pytest.param(25, marks=pytest.mark.torture)])
async def test_the_running_api_conforms_to_its_document(service, tmp_path, examples):
    await service.send([{"topic": "orders"}, {"topic": "orders", "delay_ms": 3_600_000}])
    await assert_conforms(
        service.url, tmp_path, "--phases", "examples,coverage,fuzzing", "--max-examples", str(examples)
    )
    assert (await service.send({"topic": "orders"})).status == 201


@pytest.mark.torture
async def test_with_tokens_in_force_the_api_conforms_to_its_document_too(start_service, tmp_path):
    some = grant(tmp_path / "data", "some", Scope.SEND, Scope.RECEIVE, topics=("orders",), rate_per_s=100.0)
    service = await start_service(data=tmp_path / "data")
    shown = f"Authorization: {some['Authorization']}"
    await assert_conforms(
        service.url, tmp_path, "--phases", "examples,fuzzing", "--max-examples", "1", "-H", shown
    )
