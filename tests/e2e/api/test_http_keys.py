"""Deduplication keys over HTTP: the field, the header, and messages by their key."""

import pytest

HOUR_MS = 3_600_000


def _message(**more):
    return {"topic": "orders", "body": "b", "delay_ms": HOUR_MS, **more}


async def _send_raw(service, key, body=b"b", query="?TIMER_DELAY_MS=3600000"):
    headers = {"Idempotency-Key": key}
    return await service.call("POST", f"/v1/topics/orders/messages{query}", data=body, headers=headers)


async def _send_with_header(service, content, *keys):
    headers = [("Idempotency-Key", key) for key in keys]
    return await service.call("POST", "/v1/messages", json=content, headers=headers)


async def test_a_message_that_is_sent_again_under_its_key_is_stored_once(service):
    first = await service.send(_message(dedup_key="k"))
    assert (first.status, "duplicate" in first.content) == (201, False)
    again = await service.send(_message(dedup_key="k"))
    assert (again.status, again.content) == (200, {**first.content, "duplicate": True})
    assert await service.pending() == 1


async def test_the_header_is_the_key_of_a_single_message(service):
    first = await _send_with_header(service, _message(), "k")
    assert first.status == 201
    for key in ("k", '"k"', " k "):
        assert (await _send_with_header(service, _message(), key)).content["id"] == first.content["id"]
    assert (await service.send(_message(dedup_key="k"))).content["duplicate"]
    assert (await _send_with_header(service, _message(dedup_key="k"), "k")).status == 200
    view = (await service.call("GET", f"/v1/messages/{first.content['id']}")).content
    assert (view["dedup_key"], view["properties"]["DEDUP_KEY"]) == ("k", "k")


async def test_the_header_is_the_key_of_a_raw_body(service):
    first = await _send_raw(service, '"a \\"b\\" \\\\"')
    assert first.status == 201
    again = await _send_raw(service, '"a \\"b\\" \\\\"')
    assert (again.status, again.content) == (200, {**first.content, "duplicate": True})
    view = (await service.call("GET", f"/v1/messages/{first.content['id']}")).content
    assert view["dedup_key"] == 'a "b" \\'


async def test_a_key_stands_for_one_message_of_one_topic(service):
    await service.send(_message(dedup_key="k"))
    answer = await service.send(_message(dedup_key="k", body="other"))
    assert (answer.status, answer.code) == (422, "key_reused")
    assert (await _send_raw(service, "k", b"other")).code == "key_reused"
    assert (await service.send(_message(dedup_key="k", topic="other"))).status == 201
    assert await service.pending() == 2


async def test_an_array_says_of_each_message_whether_it_was_there(service):
    await service.send(_message(dedup_key="a"))
    answer = await service.send([_message(dedup_key="a"), _message(dedup_key="b"), _message(dedup_key="b")])
    assert answer.status == 201
    assert [receipt.get("duplicate", False) for receipt in answer.content] == [True, False, True]
    answer = await service.send([_message(dedup_key="a"), _message(dedup_key="b")])
    assert answer.status == 200
    assert await service.pending() == 2


async def test_an_array_with_a_key_that_stands_for_another_stores_nothing(service):
    await service.send(_message(dedup_key="a"))
    answer = await service.send([_message(dedup_key="b"), _message(dedup_key="a", body="other")])
    assert (answer.status, answer.code) == (422, "refused")
    assert [(fault["index"], fault["code"]) for fault in answer.content["errors"]] == [(1, "key_reused")]
    assert await service.pending() == 1


async def test_the_header_cannot_stand_for_an_array(service):
    answer = await _send_with_header(service, [_message()], "k")
    assert (answer.status, answer.code) == (400, "invalid_field")
    assert "dedup_key" in answer.content["detail"]
    headers = {"Idempotency-Key": "k", "Content-Type": "application/x-ndjson"}
    answer = await service.call("POST", "/v1/messages", data=b'{"topic":"orders"}', headers=headers)
    assert (answer.status, answer.code) == (400, "invalid_field")
    assert await service.topics() == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/messages/recall"),
        ("POST", "/v1/messages/reschedule"),
        ("POST", "/v1/topics/orders/groups/g/receive"),
        ("POST", "/v1/topics/orders/groups/g/ack"),
        ("POST", "/v1/groups/g/dead-letters/redrive"),
        ("POST", "/v1/schedules/s/pause"),
        ("POST", "/v1/subscriptions"),
        ("PATCH", "/v1/topics/orders"),
        ("PATCH", "/v1/topics/orders/keys/k"),
    ],
)
async def test_a_call_that_cannot_honour_the_header_refuses_it(service, method, path):
    answer = await service.call(method, path, data=b"{}", headers={"Idempotency-Key": "k"})
    assert (answer.status, answer.code) == (400, "invalid_field")
    assert "Idempotency-Key" in answer.content["detail"]
    assert await service.topics() == []


async def test_every_call_that_a_client_may_repeat_honours_the_header_or_refuses_it(service):
    document = (await service.call("GET", "/openapi.json")).content
    for path, calls in document["paths"].items():
        for method in calls.keys() & {"post", "patch"}:
            named = {one["name"] for one in calls[method]["parameters"] if one["in"] == "header"}
            told = calls[method]["responses"]["400"]["description"]
            assert ("Idempotency-Key" in named) or "invalid_field" in told, (method, path)
            if "Idempotency-Key" not in named:
                url = path.replace("{", "").replace("}", "")
                answer = await service.call(method.upper(), url, headers={"Idempotency-Key": "k"})
                assert answer.code == "invalid_field", (method, path)


@pytest.mark.parametrize(
    ("keys", "field", "code"),
    [
        (["k"], {"dedup_key": "other"}, "conflicting_key"),
        (["k", "k"], {}, "conflicting_key"),
        ([""], {}, "illegal_key"),
        (['"k'], {}, "illegal_key"),
        (['"k"x'], {}, "illegal_key"),
        (['"a\\b"'], {}, "illegal_key"),
        (["k" * 256], {}, "illegal_key"),
        ([], {"dedup_key": ""}, "illegal_key"),
        ([], {"dedup_key": "a\nb"}, "illegal_key"),
        ([], {"dedup_key": 7}, "invalid_field"),
    ],
)
async def test_a_wrong_key_is_refused(service, keys, field, code):
    answer = await _send_with_header(service, _message(**field), *keys)
    assert (answer.status, answer.code) == (400, code)
    assert await service.topics() == []


@pytest.mark.parametrize(
    ("key", "path"),
    [("k", "k"), ("a/b", "a%2Fb"), ("50%", "50%25"), ("é ?", "%C3%A9%20%3F"), ("..", "%2E%2E")],
)
async def test_a_message_is_found_by_its_key(service, key, path):
    sent = (await service.send(_message(dedup_key=key))).content
    where = f"/v1/topics/orders/keys/{path}"
    view = (await service.call("GET", where)).content
    assert (view["id"], view["dedup_key"], view["state"]) == (sent["id"], key, "scheduled")
    answer = await service.call("PATCH", where, json={"deliver_at_ms": 1_900_000_000_000})
    assert (answer.status, answer.content["id"]) == (200, sent["id"])
    answer = await service.call("DELETE", where)
    assert (answer.status, answer.content["state"]) == (200, "recalled")
    for method, body in (("DELETE", None), ("PATCH", b'{"delay_ms":1}')):
        answer = await service.call(method, where, data=body)
        assert (answer.status, answer.code) == (409, "already_recalled")
    assert (await service.call("GET", where)).content["state"] == "recalled"


async def test_a_recalled_key_takes_another_message_and_the_same_only_from_who_names_it(service):
    first = (await service.send(_message(dedup_key="k"))).content
    await service.call("DELETE", "/v1/topics/orders/keys/k")
    answer = await service.send(_message(dedup_key="k"))
    assert (answer.status, answer.code) == (409, "key_recalled")
    assert first["id"] in answer.content["detail"]
    assert (await _send_raw(service, "k")).code == "key_recalled"
    answer = await service.send([_message(dedup_key="new"), _message(dedup_key="k")])
    assert (answer.status, answer.code) == (409, "refused")
    assert [(fault["index"], fault["code"]) for fault in answer.content["errors"]] == [(1, "key_recalled")]
    assert await service.pending() == 0
    same = _message(dedup_key="k", after_recall=first["id"])
    second = await service.send(same)
    assert (second.status, second.content["id"] == first["id"]) == (201, False)
    assert (await service.send(same)).content == {**second.content, "duplicate": True}
    await service.call("DELETE", "/v1/topics/orders/keys/k")
    raw = await _send_raw(service, "k", query=f"?delay_ms={HOUR_MS}&after_recall={second.content['id']}")
    assert raw.status == 201
    await service.call("DELETE", "/v1/topics/orders/keys/k")
    with_header = _message(after_recall=raw.content["id"])
    assert (await _send_with_header(service, with_header, "k")).status == 201
    await service.call("DELETE", "/v1/topics/orders/keys/k")
    assert (await service.send(_message(dedup_key="k", body="other"))).status == 201
    assert await service.pending() == 1


@pytest.mark.parametrize("method", ["GET", "DELETE", "PATCH"])
async def test_an_unknown_key_is_not_found(service, method):
    await service.send(_message(dedup_key="k"))
    body = b'{"delay_ms":1}' if method == "PATCH" else None
    for path in ("/v1/topics/orders/keys/other", "/v1/topics/other/keys/k"):
        answer = await service.call(method, path, data=body)
        assert (answer.status, answer.code) == (404, "unknown_message")
        assert "the key" in answer.content["detail"]


async def test_a_wrong_reschedule_by_key_changes_nothing(service):
    sent = (await service.send(_message(dedup_key="k"))).content
    for body, code in (
        (b"{}", "invalid_field"),
        (b'{"delay":"soon"}', "illegal_delay"),
        (b"", "malformed_json"),
    ):
        answer = await service.call("PATCH", "/v1/topics/orders/keys/k", data=body)
        assert (answer.status, answer.code) == (400, code)
    view = (await service.call("GET", "/v1/topics/orders/keys/k")).content
    assert view["due_ms"] == sent["due_ms"]


async def test_a_send_that_replaces_is_answered_with_what_it_replaced(service):
    first = await service.send(_message(dedup_key="k", on_duplicate="replace"))
    assert (first.status, "replaced" in first.content) == (201, False)
    second = await service.send(_message(dedup_key="k", on_duplicate="replace"))
    assert (second.status, second.content["replaced"]) == (201, first.content["id"])
    old = (await service.call("GET", f"/v1/messages/{first.content['id']}")).content
    assert old["state"] == "recalled"
    headers = {"Idempotency-Key": "k", "Content-Type": "application/json"}
    third = await service.call(
        "POST", "/v1/topics/orders/messages?on_duplicate=replace", data=b"x", headers=headers
    )
    assert (third.status, third.content["replaced"]) == (201, second.content["id"])
    many = await service.send([_message(dedup_key="k", on_duplicate="replace", body=body) for body in "ab"])
    assert many.status == 201
    assert [one.get("duplicate", False) for one in many.content] == [True, False]
    assert "replaced" not in many.content[1]  # the third one was delivered
    again = await service.send(_message(dedup_key="k", body="b", on_duplicate="return"))
    assert (again.status, again.content["id"]) == (200, many.content[1]["id"])


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"on_duplicate": "replace"}, "illegal_key"),
        ({"on_duplicate": "ignore", "dedup_key": "k"}, "invalid_field"),
        ({"on_duplicate": None, "dedup_key": "k"}, "invalid_field"),
    ],
)
async def test_a_wrong_on_duplicate_is_refused(service, fields, code):
    answer = await service.send(_message(**fields))
    assert (answer.status, answer.code) == (400, code)
