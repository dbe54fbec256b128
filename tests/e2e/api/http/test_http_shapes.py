"""Every call once with success, its answer held against the schema in the OpenAPI document."""

import re

import jsonschema_rs
import pytest

from tests.harness.receiver import Receiver
from timerwheel.push.ack_urls import AckUrls, Attempted

DUE_MS = 1_900_000_000_000
GROUP = "/v1/topics/orders/groups/workers"
DEAD = "/v1/topics/orders/groups/workers/dead-letters"
DEAD_OF_NAME = "/v1/groups/workers/dead-letters"
NOT_HERE = {
    ("get", "/v1/topics/{topic}/groups/{group}/stream"),  # see test_http_stream.py
    ("get", "/metrics"),  # see test_metrics_scrape.py
    ("post", "/v1/cluster/move"),  # see tests/e2e/kafka/test_cluster.py
    ("get", "/v1/live"),  # see test_console_live.py
}


class Checked:
    """A service whose answers are checked; `seen` has the calls that were made."""

    def __init__(self, service, document):
        self._service = service
        self._document = document
        self.told = {(method, path) for path, calls in document["paths"].items() for method in calls}
        self.seen = set()

    async def call(self, method, path, content=None, **request):
        if content is not None:
            request["json"] = content
        answer = await self._service.call(method, path, **request)
        assert answer.status < 300, answer.content
        template, call = self._find(method, path.partition("?")[0])
        schema = call["responses"][str(answer.status)]["content"]["application/json"]["schema"]
        whole = {**schema, "components": self._document["components"]}
        jsonschema_rs.validate(whole, answer.content)
        self._check_known(schema, answer.content)
        self.seen.add((method.lower(), template))
        return answer.content

    def ack_token(self, topic, group, receipt):
        engine = self._service.engine
        return AckUrls(engine.core.log.log_id, engine.shard.number, "").token(
            Attempted(topic, group, receipt)
        )

    def _find(self, method, path):
        for template, calls in self._document["paths"].items():
            pattern = re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(template))
            if re.fullmatch(pattern, path) and method.lower() in calls:
                return template, calls[method.lower()]
        raise AssertionError(f"{method} {path} is not in the document")

    def _check_known(self, schema, content):
        """No field that the document does not name."""
        if "$ref" in schema and isinstance(content, dict):
            named = self._document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
            assert set(content) <= set(named["properties"])


@pytest.fixture
async def checked(start_service):
    service = await start_service(push_private_targets=True)
    document = (await service.call("GET", "/openapi.json")).content
    return Checked(service, document)


async def test_every_call_answers_in_the_shape_that_the_document_tells(checked):
    call = checked.call
    await _messages(call)
    await _groups(call)
    await _acks(checked)
    await _schedules(call)
    async with Receiver() as receiver:
        await _subscriptions(call, receiver.url())
        await _tasks(call, receiver.url())
        receiver.release()
    for dry_run in (True, False):
        purge = {"scheduled": True, "delivered": True, "dry_run": dry_run}
        await call("POST", "/v1/topics/orders/purge", purge)
    await call("DELETE", "/v1/topics/orders?dry_run=true")
    await call("DELETE", "/v1/topics/orders")
    for path in (
        "/v1/wheel",
        "/v1/wheel/slots",
        "/v1/wheel/peak",
        "/v1/levels",
        "/v1/live/history",
        "/v1/token",
        "/v1/cluster",
        "/healthz",
        "/readyz",
    ):
        await call("GET", path)
    assert checked.told - checked.seen == NOT_HERE


async def _messages(call):
    one = {"topic": "orders", "deliver_at_ms": DUE_MS, "dedup_key": "k", "tags": "t", "keys": ["a"]}
    sent = await call("POST", "/v1/messages", one)
    assert (await call("POST", "/v1/messages", one))["duplicate"]
    await call("POST", "/v1/messages", [{"topic": "orders", "body_base64": "/w=="}, {"topic": "orders"}])
    await call("POST", "/v1/topics/orders/messages?TIMER_DELAY_SEC=3600", data=b"raw")
    await call("GET", f"/v1/messages/{sent['id']}")
    history = await call("GET", f"/v1/messages/{sent['id']}/history")
    assert await call("GET", f"/v1/messages/{sent['id']}/story") == history  # the older path
    await call("PATCH", f"/v1/messages/{sent['id']}", {"delay": "1h"})
    await call("GET", "/v1/messages")
    await call("GET", "/v1/topics/orders/keys/k")
    await call("PATCH", "/v1/topics/orders/keys/k", {"delay": "2h"})
    await call("DELETE", f"/v1/messages/{sent['id']}")
    await call("POST", "/v1/messages", {**one, "dedup_key": "other"})
    await call("DELETE", "/v1/topics/orders/keys/other")
    await call("POST", "/v1/messages/recall", {"ids": [sent["id"], "x"]})
    await call("POST", "/v1/messages/recall", {"topic": "orders", "dry_run": True})
    await call("POST", "/v1/messages/reschedule", {"ids": [sent["id"], "x"], "shift": "+1h"})
    await call("POST", "/v1/messages/reschedule", {"topic": "orders", "delay": "1h", "dry_run": True})
    for end in ("commit", "rollback"):
        half = await call("POST", "/v1/transactions", {"topic": "orders", "body": "x", "delay": "1h"})
        assert len((await call("GET", "/v1/transactions"))["transactions"]) == 1
        await call("POST", f"/v1/transactions/{half['id']}/{end}")
    await call("PATCH", "/v1/topics/orders", {"ordered": False})
    await call("POST", "/v1/topics/orders/pause")
    await call("POST", "/v1/topics/orders/resume")
    await call("GET", "/v1/topics")
    await call("GET", "/v1/topics/orders")
    await call("GET", "/v1/topics/orders/queues/0/messages")


async def _groups(call):
    await call("PUT", GROUP, {"max_attempts": 1, "backoff": {"type": "exponential"}})
    held = (await call("POST", f"{GROUP}/receive", {"max": 2}))["messages"]
    receipts = [one["receipt"] for one in held]
    await call("POST", f"{GROUP}/extend", {"receipts": [*receipts, "x"], "invisible_ms": 60_000})
    await call("POST", f"{GROUP}/nack", {"receipts": receipts, "reason": "r"})
    await call("POST", f"{GROUP}/ack", {"receipts": receipts})
    for path in (GROUP, "/v1/groups", "/v1/topics/orders/groups"):
        await call("GET", path)
    assert len((await call("GET", DEAD))["letters"]) == 2
    await call("POST", f"{DEAD}/redrive", {"offsets": [0]})
    await call("POST", f"{DEAD}/drop", {"all": True})
    assert (await call("GET", DEAD_OF_NAME))["letters"] == []
    for verb in ("redrive", "drop"):
        await call("POST", f"{DEAD_OF_NAME}/{verb}", {"all": True, "topics": ["orders"]})
    await call("POST", f"{GROUP}/rewind", {"to": "tail"})
    await call("DELETE", GROUP)


async def _schedules(call):
    at = "/v1/schedules/daily"
    spec = {"topic": "reports", "cron": "@daily", "body_base64": "/w==", "end": "2999-01-01T00:00:00Z"}
    await call("PUT", at, spec)
    await call("GET", at)
    await call("GET", "/v1/schedules")
    await call("GET", f"{at}/runs")
    await call("POST", f"{at}/pause")
    await call("POST", f"{at}/resume")
    await call("POST", f"{at}/run", {"key": "once"})
    await call("DELETE", at)


async def _acks(checked):
    for body in ("a", "b"):
        await checked.call("POST", "/v1/messages", {"topic": "taken", "body": body})
    await checked.call("PUT", "/v1/topics/taken/groups/g", {})
    held = (await checked.call("POST", "/v1/topics/taken/groups/g/receive", {"max": 2}))["messages"]
    first, second = (f"/v1/acks/{checked.ack_token('taken', 'g', one['receipt'])}" for one in held)
    await checked.call("POST", f"{first}/extend", {"invisible_ms": 60_000})
    await checked.call("POST", first)
    await checked.call("POST", f"{second}/nack", {"delay": "1h", "reason": "r"})


async def _tasks(call, url):
    at = "/v1/task-queues/default"
    made = await call("PUT", at, {"rate_limit": 5})
    assert "secret" in made
    assert "secret" not in await call("PUT", at, {"rate_limit": None, "concurrency": 3})
    for verb in ("rotate-secret", "finish-rotation"):
        await call("POST", f"{at}/{verb}")
    await call("GET", at)
    await call("GET", "/v1/task-queues")
    task = {"url": url, "delay": "1h", "dedup_key": "k", "headers": {"X-A": "b"}, "callback": url}
    made = await call("POST", "/v1/tasks", task)
    assert (await call("POST", "/v1/tasks", task))["duplicate"]
    await call("POST", "/v1/tasks", {"url": url, "cron": "@daily"})
    one = f"/v1/tasks/{made['id']}"
    await call("PATCH", one, {"delay": "2h"})
    await call("GET", one)
    await call("DELETE", one)
    other = await call("POST", "/v1/tasks", {"url": url, "delay": "1h"})
    await call("POST", f"/v1/tasks/{other['id']}/run")
    await call("GET", "/v1/tasks")


async def _subscriptions(call, url):
    at = "/v1/subscriptions/s"
    await call("POST", "/v1/subscriptions", {"id": "s", "topic": "pushed", "url": url})
    await call("GET", "/v1/subscriptions")
    await call("GET", at)
    await call("PATCH", at, {"backoff": {"type": "exponential"}, "headers": {"X-A": "b"}})
    for verb in ("test", "rotate-secret", "finish-rotation", "pause", "resume"):
        await call("POST", f"{at}/{verb}")
    await call("GET", f"{at}/stats")
    await call("GET", f"{at}/attempts")
    sent = await call("POST", "/v1/messages", {"topic": "pushed", "body": "x"})
    await call("POST", f"{at}/attempts", {"message_id": sent["id"]})
    await call("DELETE", at)
