"""Errors quote what was sent, but no more of it than is read."""

import pytest

from timerwheel.api.http.problems import DETAIL_CHARACTERS_MAX

LONG = 60_000
ANSWER_BYTES_MAX = 3 * DETAIL_CHARACTERS_MAX
LONG_NAME = "n" * LONG


def bodies_with(text):
    """Every field of every call that takes text, with a very long one."""
    message = {"topic": "orders"}
    for field in ("topic", "tags", "keys", "dedup_key", "delay", "deliver_at", text):
        yield "POST", "/v1/messages", {**message, field: text}
    yield "POST", "/v1/messages", {**message, "properties": {text: "1"}}
    yield "POST", "/v1/messages", {**message, "properties": {"DELAY": text}}
    yield "POST", "/v1/messages", {**message, "keys": [text + " b"]}
    yield "PATCH", "/v1/messages/x", {"delay": text}
    yield "PATCH", "/v1/messages/x", {"properties": {text: "1"}}
    for field in ("tags", "topic", "key_prefix", text):
        yield "POST", "/v1/messages/recall", {field: text}
    yield "POST", "/v1/messages/recall", {"ids": [text]}
    for verb in ("ack", "nack", "extend"):
        yield "POST", f"/v1/topics/orders/groups/g/{verb}", {"receipts": [text], "invisible_ms": 1}
    yield "POST", "/v1/topics/orders/groups/g/nack", {"receipts": ["x"], "delay": text}
    yield "POST", "/v1/topics/orders/groups/g/nack", {"receipts": ["x"], "reason": text}
    for field in ("tags", "start", text):
        yield "POST", "/v1/topics/orders/groups/g/receive", {field: text}
        yield "PUT", "/v1/topics/orders/groups/new", {field: text}
    for field in ("to", "time", text):
        yield "POST", "/v1/topics/orders/groups/g/rewind", {field: text}
    schedule = {"topic": "orders", "every_ms": 60_000}
    for field in ("topic", "zone", "start", "end", "missed", text):
        yield "PUT", "/v1/schedules/s", {**schedule, field: text}
    for field in ("cron", "every"):
        yield "PUT", "/v1/schedules/s", {"topic": "orders", field: text}
    hook = {"topic": "orders", "url": "https://example.com/"}
    for field in ("topic", "url", "id", "secret", "group", "tags", text):
        yield "POST", "/v1/subscriptions", {**hook, field: text}
    yield "POST", "/v1/subscriptions", {**hook, "headers": {text: "1"}}
    yield "POST", "/v1/groups/g/dead-letters/drop", {text: True}


@pytest.mark.parametrize(
    "text", [LONG_NAME, "\u20ac" * LONG, "\x01" * LONG], ids=["plain", "wide", "control"]
)
async def test_no_answer_repeats_a_very_long_text(service, text):
    await service.call("PUT", "/v1/topics/orders/groups/g", json={})
    for method, path, content in bodies_with(text):
        answer = await service.call(method, path, json=content)
        assert answer.status < 500, (path, list(content))
        size = int(answer.headers["Content-Length"])
        assert size <= ANSWER_BYTES_MAX * 3 or answer.status < 300, (path, list(content), size)


async def test_of_a_detail_that_is_cut_the_begin_and_the_end_are_kept(service):
    answer = await service.send([{"topic": "orders", "delay": "n" * LONG}, {"topic": "orders", "tags": 1}])
    assert answer.status == 400
    for fault in answer.content["errors"]:
        assert len(fault["detail"]) <= DETAIL_CHARACTERS_MAX + 100
