"""One message after it was sent: look at it, list what waits, recall, reschedule."""

import pytest

DUE_MS = 1_900_000_000_000


async def _schedule(service, **fields):
    answer = await service.send({"topic": "orders", "body": "b", "deliver_at_ms": DUE_MS, **fields})
    return answer.content["id"]


async def test_a_waiting_message_is_shown_whole(service):
    message_id = await _schedule(service, properties={"trace": "t"})
    view = (await service.call("GET", f"/v1/messages/{message_id}")).content
    assert view["id"] == message_id
    assert (view["topic"], view["queue"], view["state"]) == ("orders", 0, "scheduled")
    assert (view["due_ms"], view["body"]) == (DUE_MS, "b")
    assert view["properties"]["trace"] == "t"
    assert not {"level", "delivered_ms", "offset", "recalled_ms", "problem"} & set(view)


async def test_a_delivered_message_says_when_and_where(service):
    sent = (await service.send({"topic": "orders", "body": "b", "delay_ms": 20})).content
    page = (await service.read("orders")).content
    assert [message["body"] for message in page["messages"]] == ["b"]
    view = (await service.call("GET", f"/v1/messages/{sent['id']}")).content
    assert (view["state"], view["offset"]) == ("delivered", 0)
    assert view["lateness_ms"] == view["delivered_ms"] - sent["due_ms"] >= 0


async def test_a_level_message_shows_its_level(service):
    sent = (await service.send({"topic": "orders", "delay_level": 18})).content
    assert (await service.call("GET", f"/v1/messages/{sent['id']}")).content["level"] == 18


@pytest.mark.parametrize("message_id", ["x", "0" * 24, "%00", "..%2f..", "%C3%A9", "a" * 3000])
@pytest.mark.parametrize("method", ["GET", "DELETE", "PATCH"])
async def test_an_unknown_id_is_not_found(service, method, message_id):
    body = b'{"delay_ms":1}' if method == "PATCH" else None
    answer = await service.call(method, f"/v1/messages/{message_id}", data=body)
    assert (answer.status, answer.code) == (404, "unknown_message")


async def test_a_forged_id_is_not_found(service):
    message_id = await _schedule(service)
    forged = message_id[:-1] + ("0" if message_id[-1] != "0" else "1")
    answer = await service.call("GET", f"/v1/messages/{forged}")
    assert (answer.status, answer.code) == (404, "unknown_message")


async def test_pending_messages_are_paged_in_due_order(service):
    items = [{"topic": "orders", "body": str(i), "deliver_at_ms": DUE_MS - i} for i in range(5)]
    await service.send([*items, {"topic": "other", "deliver_at_ms": DUE_MS}])
    seen, query = [], "topic=orders&limit=2"
    while query:
        page = (await service.call("GET", f"/v1/messages?{query}")).content
        assert len(page["messages"]) <= 2
        seen += [message["body"] for message in page["messages"]]
        query = f"topic=orders&limit=2&cursor={page['cursor']}" if page["cursor"] else None
    assert seen == ["4", "3", "2", "1", "0"]


async def test_pending_messages_are_filtered_by_due_time(service):
    await service.send([{"topic": "a", "deliver_at_ms": DUE_MS + i} for i in range(4)])
    query = f"due_from_ms={DUE_MS + 1}&due_to_ms={DUE_MS + 3}"
    page = (await service.call("GET", f"/v1/messages?{query}")).content
    assert [message["due_ms"] - DUE_MS for message in page["messages"]] == [1, 2]
    assert page["cursor"] is None


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=1001",
        "limit=ten",
        "limit=1e2",
        "limit=5.0",
        "limit=",
        "limit=1&limit=2",
        "due_from_ms=9223372036854775808",
        "due_from_ms=-1",
        "due_to_ms=-1",
        "surprise=1",
        "topic=%ff",
    ],
)
async def test_a_wrong_query_of_pending_messages_is_refused(service, query):
    answer = await service.call("GET", f"/v1/messages?{query}")
    assert (answer.status, answer.code) == (400, "invalid_parameter")


@pytest.mark.parametrize("cursor", ["", "x", "0", "%00", "AAAA", "9" * 400])
async def test_a_cursor_of_ones_own_is_refused(service, cursor):
    await _schedule(service)
    answer = await service.call("GET", f"/v1/messages?cursor={cursor}")
    assert (answer.status, answer.code) == (400, "illegal_cursor")


async def test_a_recalled_message_is_shown_as_recalled_and_stays_so(service):
    message_id = await _schedule(service)
    answer = await service.call("DELETE", f"/v1/messages/{message_id}")
    assert (answer.status, answer.content["state"]) == (200, "recalled")
    assert answer.content["recalled_ms"] > 0
    view = (await service.call("GET", f"/v1/messages/{message_id}")).content
    assert view["state"] == "recalled"
    assert await service.pending() == 0
    for method, body in (("DELETE", None), ("PATCH", b'{"delay_ms":1}')):
        answer = await service.call(method, f"/v1/messages/{message_id}", data=body)
        assert (answer.status, answer.code) == (409, "already_recalled")


async def test_a_delivered_message_can_be_neither_recalled_nor_rescheduled(service):
    sent = (await service.send({"topic": "orders", "delay_ms": 10})).content
    assert (await service.read("orders")).content["messages"]
    for method, body in (("DELETE", None), ("PATCH", b'{"delay_ms":1}')):
        answer = await service.call(method, f"/v1/messages/{sent['id']}", data=body)
        assert (answer.status, answer.code) == (409, "already_delivered")


@pytest.mark.parametrize(
    "change",
    [
        {"deliver_at_ms": DUE_MS + 5},
        {"deliver_at": "2030-03-17T17:46:40.005Z"},
        {"properties": {"TIMER_DELIVER_MS": str(DUE_MS + 5)}},
        {"properties": {"__STARTDELIVERTIME": str(DUE_MS + 5)}},
    ],
)
async def test_a_rescheduled_message_keeps_its_id(service, change):
    message_id = await _schedule(service)
    answer = await service.call("PATCH", f"/v1/messages/{message_id}", json=change)
    assert answer.status == 200
    assert answer.content == {
        "id": message_id,
        "topic": "orders",
        "due_ms": DUE_MS + 5,
        "state": "scheduled",
    }
    view = (await service.call("GET", f"/v1/messages/{message_id}")).content
    assert (view["id"], view["due_ms"], view["body"]) == (message_id, DUE_MS + 5, "b")
    assert await service.pending() == 1


async def test_a_message_rescheduled_to_now_is_delivered(service):
    message_id = await _schedule(service)
    answer = await service.call("PATCH", f"/v1/messages/{message_id}", json={"delay": "0s"})
    assert answer.status == 200
    page = (await service.read("orders")).content
    assert [message["id"] for message in page["messages"]] == [message_id]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{}", "invalid_field"),
        (b"[]", "invalid_field"),
        (b"", "malformed_json"),
        (b"{", "malformed_json"),
        (b'{"body":"new"}', "invalid_field"),
        (b'{"properties":{}}', "invalid_field"),
        (b'{"properties":{"TAGS":"a"}}', "invalid_field"),
        (b'{"properties":{"DELAY":"1"},"delay_ms":1}', "conflicting_delay"),
        (b'{"delay":"1s","delay_ms":1}', "conflicting_delay"),
        (b'{"delay":"soon"}', "illegal_delay"),
        (b'{"delay_level":-1}', "illegal_delay"),
        (b'{"delay_ms":9223372036854775807}', "delay_too_long"),
    ],
)
async def test_a_wrong_reschedule_changes_nothing(service, body, code):
    message_id = await _schedule(service)
    answer = await service.call("PATCH", f"/v1/messages/{message_id}", data=body)
    assert (answer.status, answer.code) == (400, code)
    view = (await service.call("GET", f"/v1/messages/{message_id}")).content
    assert (view["state"], view["due_ms"]) == ("scheduled", DUE_MS)


async def test_a_reschedule_takes_no_lines(service):
    message_id = await _schedule(service)
    headers = {"Content-Type": "application/x-ndjson"}
    answer = await service.call(
        "PATCH", f"/v1/messages/{message_id}", data=b'{"delay_ms":1}', headers=headers
    )
    assert (answer.status, answer.code) == (415, "unsupported_media_type")
