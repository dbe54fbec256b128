"""Consumer groups over HTTP: receive and settle, and the groups themselves."""

import asyncio

import pytest

from timerwheel.api import engine_handle

HOUR_MS = 3_600_000
GROUP = "/v1/topics/orders/groups/workers"


@pytest.fixture
async def service(start_service):
    """A service on which messages come back as soon as they are given back."""
    return await start_service(redelivery_delay_ms=0)


async def _post(service, verb, **content):
    return await service.call("POST", f"{GROUP}/{verb}", json=content)


async def _receive(service, **content):
    answer = await _post(service, "receive", **{"create": True, **content})
    assert answer.status == 200
    return answer.content["messages"]


async def test_a_message_is_received_with_a_receipt_and_gone_once_acknowledged(service):
    sent = (await service.send({"topic": "orders", "body": "b", "tags": "paid"})).content
    [held] = await _receive(service)
    assert (held["id"], held["body"], held["tags"], held["state"]) == (sent["id"], "b", "paid", "delivered")
    assert held["attempt"] == 1
    assert held["invisible_until_ms"] - held["delivered_ms"] >= 30_000
    assert await _receive(service) == []
    answer = await _post(service, "ack", receipts=[held["receipt"]])
    assert answer.status == 200
    assert answer.content == {"results": [{"receipt": held["receipt"], "ok": True}]}
    assert (await service.call("GET", GROUP)).content["in_flight"] == 0


async def test_a_typo_in_the_topic_or_the_group_of_a_receive_creates_nothing(service):
    await service.send({"topic": "orders"})
    await service.call("PUT", GROUP, json={})
    for path, says in (
        ("/v1/topics/orders/groups/wrokers", "'wrokers'; create the group with PUT"),
        ("/v1/topics/ordres/groups/workers", "the topic does not exist"),
    ):
        headers = {"X-Requested-With": "tests"}
        for method, verb in (("POST", "receive"), ("GET", "stream")):
            answer = await service.call(method, f"{path}/{verb}", headers=headers)
            assert (answer.status, answer.code) == (404, "group_not_found")
            assert says in answer.content["detail"]
        answer = await service.call("POST", f"{path}/receive", json={"create": False, "tags": "a"})
        assert answer.code == "group_not_found"
    groups = (await service.call("GET", "/v1/groups")).content["groups"]
    assert [(one["topic"], one["group"]) for one in groups] == [("orders", "workers")]
    assert [one["topic"] for one in (await service.call("GET", "/v1/topics")).content["topics"]][:1] == [
        "orders"
    ]


async def test_a_receive_that_asks_for_it_creates_the_group_as_it_says(service):
    asked = {"create": True, "tags": "a || b", "start": "tail"}
    assert (await service.call("POST", f"{GROUP}/receive", json=asked)).content == {"messages": []}
    config = (await service.call("GET", GROUP)).content["config"]
    assert (config["tags"], config["start"]) == ("a || b", "tail")


async def test_a_receive_that_waits_for_a_group_that_is_deleted_does_not_create_it_again(service):
    await service.call("PUT", GROUP, json={})
    waiting = asyncio.create_task(_post(service, "receive", wait_ms=60_000, create=True))
    while not service.engine.groups.runtimes["orders/workers"].waiting:
        await asyncio.sleep(0)
    await service.call("DELETE", GROUP)
    assert (await waiting).content == {"messages": []}
    assert (await service.call("GET", GROUP)).code == "unknown_group"


async def test_a_receive_needs_no_body(service):
    await service.call("PUT", GROUP, json={})
    await service.send([{"topic": "orders"}, {"topic": "orders"}])
    for data in (None, b"", b" ", b"{}"):
        answer = await service.call("POST", f"{GROUP}/receive", data=data)
        assert answer.status == 200
        assert len(answer.content["messages"]) <= 1
    assert (await service.call("GET", GROUP)).content["in_flight"] == 2


async def test_a_receive_gets_at_most_what_it_asks_for(service):
    await service.send([{"topic": "orders", "body": str(i)} for i in range(5)])
    assert [held["body"] for held in await _receive(service, max=3)] == ["0", "1", "2"]
    assert [held["body"] for held in await _receive(service, max=1000)] == ["3", "4"]


async def test_one_call_acknowledges_what_was_received_before_and_receives_what_is_next(service):
    await service.send([{"topic": "orders", "body": str(i)} for i in range(3)])
    [first] = await _receive(service)
    answer = await _post(service, "receive", ack=[first["receipt"]])
    assert answer.content["results"] == [{"receipt": first["receipt"], "ok": True}]
    [second] = answer.content["messages"]
    assert second["body"] == "1"
    answer = await _post(service, "receive", ack=[second["receipt"], second["receipt"], "x"], max=10)
    assert [result.get("code") for result in answer.content["results"]] == [None, None, "illegal_receipt"]
    [third] = answer.content["messages"]
    answer = await _post(service, "receive", ack=[first["receipt"], third["receipt"]])
    assert answer.content["messages"] == []
    assert [result["ok"] for result in answer.content["results"]] == [True, True]
    info = (await service.call("GET", GROUP)).content
    assert (info["lag"], info["in_flight"]) == (0, 0)
    assert "results" not in (await _post(service, "receive")).content


async def test_acknowledging_and_receiving_in_one_call_costs_one_commit(service):
    await service.send([{"topic": "orders"}] * 12)
    [held] = await _receive(service)
    batches = service.engine.core.counters.batch_records
    before = sum(batches.counts)
    for _ in range(10):
        [held] = (await _post(service, "receive", ack=[held["receipt"]])).content["messages"]
    assert sum(batches.counts) - before == 10


async def test_what_a_receive_acknowledges_stays_so_when_the_receive_is_refused(service):
    await service.send({"topic": "orders"})
    [held] = await _receive(service)
    assert (await _post(service, "receive", ack=[held["receipt"]], tags="other")).code == "group_differs"
    assert (await service.call("GET", GROUP)).content["in_flight"] == 0


async def test_a_receive_that_acknowledges_needs_its_group_as_any_other(service):
    await service.send({"topic": "orders"})
    assert (await _post(service, "receive", ack=["0" * 32])).code == "group_not_found"
    answer = await _post(service, "receive", ack=["0" * 32], create=True)
    assert [result["code"] for result in answer.content["results"]] == ["illegal_receipt"]
    assert len(answer.content["messages"]) == 1


async def test_an_acknowledgement_lets_the_same_call_receive_the_next_of_its_key(service):
    await service.call("PATCH", "/v1/topics/orders", json={"ordered": True})
    keyed = {"topic": "orders", "properties": {"__SHARDINGKEY": "k"}}
    await service.send([{**keyed, "body": str(i)} for i in range(3)])
    [held] = await _receive(service, max=10)
    for body in ("1", "2"):
        answer = await _post(service, "receive", ack=[held["receipt"]], max=10)
        [held] = answer.content["messages"]
        assert held["body"] == body


async def test_a_waiting_receive_has_acknowledged_long_before_it_is_answered(service):
    await service.send({"topic": "orders"})
    [held] = await _receive(service)
    waiting = asyncio.create_task(_post(service, "receive", ack=[held["receipt"]], wait_ms=60_000))
    async with asyncio.timeout(60):
        while (await service.call("GET", GROUP)).content["in_flight"]:
            await asyncio.sleep(0.01)
    await service.send({"topic": "orders", "body": "next"})
    answer = await waiting
    assert answer.content["results"][0]["ok"]
    assert [one["body"] for one in answer.content["messages"]] == ["next"]


async def test_results_say_of_each_receipt_whether_it_was_good(service):
    await service.send({"topic": "orders"})
    [held] = await _receive(service)
    receipt = held["receipt"]
    [again] = (await _post(service, "nack", receipts=[receipt], delay_ms=0)).content["results"]
    assert again == {"receipt": receipt, "ok": True}
    [newer] = await _receive(service, wait_ms=20_000)
    assert newer["attempt"] == 2
    results = (await _post(service, "ack", receipts=[receipt, "x", newer["receipt"]])).content["results"]
    assert results == [
        {"receipt": receipt, "ok": False, "code": "receipt_ended"},
        {"receipt": "x", "ok": False, "code": "illegal_receipt"},
        {"receipt": newer["receipt"], "ok": True},
    ]


@pytest.mark.parametrize("delay", [{"delay_ms": HOUR_MS}, {"delay": "1h"}, {"delay": "PT1H"}])
async def test_a_message_that_is_given_back_comes_after_its_delay(service, delay):
    await service.send({"topic": "orders"})
    [held] = await _receive(service)
    answer = await _post(service, "nack", receipts=[held["receipt"]], reason="busy", **delay)
    assert answer.content["results"][0]["ok"]
    info = (await service.call("GET", GROUP)).content
    assert (info["waiting"], info["in_flight"], info["ready"]) == (1, 0, 0)


async def test_a_message_that_is_given_up_is_a_dead_letter_at_once(service):
    await service.send({"topic": "orders"})
    [held] = await _receive(service)
    answer = await _post(service, "nack", receipts=[held["receipt"]], dead_letter=True)
    assert answer.content["results"] == [{"receipt": held["receipt"], "ok": True}]
    info = (await service.call("GET", GROUP)).content
    assert (info["waiting"], info["in_flight"], info["dead_letters"]) == (0, 0, 1)
    [letter] = (await service.call("GET", f"{GROUP}/dead-letters")).content["letters"]
    assert (letter["reason"], letter["attempts"]) == ("given up by its consumer", 1)
    again = await _post(service, "nack", receipts=[held["receipt"]], dead_letter=True)
    assert again.content["results"][0]["code"] == "receipt_ended"


async def test_an_extended_message_stays_with_its_consumer(service):
    await service.send({"topic": "orders"})
    [held] = await _receive(service, invisible_ms=200)
    answer = await _post(service, "extend", receipts=[held["receipt"]], invisible_ms=HOUR_MS)
    assert answer.content["results"] == [{"receipt": held["receipt"], "ok": True}]
    assert await _receive(service, wait_ms=400) == []


async def test_a_message_comes_back_when_its_time_is_over_and_wakes_who_waits(service):
    await service.send({"topic": "orders", "body": "b"})
    config = {"backoff": {"type": "exponential", "initial_ms": 1, "factor": 1, "max_ms": 1}}
    await service.call("PUT", GROUP, json=config)
    [first] = await _receive(service, invisible_ms=300)
    [second] = await _receive(service, wait_ms=30_000)
    assert (second["id"], second["attempt"]) == (first["id"], 2)
    assert second["receipt"] != first["receipt"]


async def test_a_waiting_receive_is_answered_when_a_message_is_delivered(service):
    waiting = asyncio.create_task(_receive(service, wait_ms=30_000))
    await service.send({"topic": "orders", "body": "soon", "delay_ms": 700})
    assert [held["body"] for held in await waiting] == ["soon"]


async def test_a_receive_in_vain_ends_empty(service):
    assert await _receive(service, wait_ms=50) == []


async def test_a_deleted_group_ends_the_receives_that_wait_and_is_not_made_again(service):
    waiting = asyncio.create_task(_receive(service, wait_ms=60_000))
    await _until(service.engine.groups.all)
    await service.call("DELETE", GROUP)
    async with asyncio.timeout(30):
        assert await waiting == []
    assert (await service.call("GET", "/v1/groups")).content == {"groups": []}


async def test_nothing_is_leased_for_a_client_that_has_gone(service):
    await _receive(service)  # makes the group
    _, writer = await asyncio.open_connection(service.url.host, service.url.port)
    running = asyncio.all_tasks()
    body = b'{"wait_ms":60000}'
    head = f"POST {GROUP}/receive HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    await service.call("GET", "/healthz")  # by now the receive waits
    waiting = asyncio.all_tasks() - running
    writer.close()
    await writer.wait_closed()
    async with asyncio.timeout(20 * engine_handle.LOOK_UP_MS / 1000):
        await asyncio.wait(waiting)
    await service.send({"topic": "orders"})
    [held] = await _receive(service)
    assert held["attempt"] == 1


async def test_what_was_leased_while_its_client_went_is_given_back(service):
    await _receive(service)
    _, writer = await asyncio.open_connection(service.url.host, service.url.port)
    body = b'{"wait_ms":60000,"invisible_ms":3600000}'
    head = f"POST {GROUP}/receive HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    await service.call("GET", "/healthz")
    writer.close()
    await writer.wait_closed()
    await service.send({"topic": "orders"})  # within the step in which the service has not looked yet
    [held] = await _receive(service, wait_ms=30_000)
    assert held["attempt"] in {1, 2}


@pytest.mark.parametrize(
    ("verb", "body", "code"),
    [
        ("receive", b'{"max":0}', "invalid_field"),
        ("receive", b'{"max":1001}', "invalid_field"),
        ("receive", b'{"wait_ms":60001}', "invalid_field"),
        ("receive", b'{"invisible_ms":0}', "invalid_field"),
        ("receive", b'{"invisible_ms":43200001}', "invalid_field"),
        ("receive", b'{"start":"middle"}', "invalid_field"),
        ("receive", b'{"surprise":1}', "invalid_field"),
        ("receive", b'{"tags":"a || "}', "illegal_filter"),
        ("receive", b'{"tags":"a b"}', "illegal_filter"),
        ("receive", b"[]", "invalid_field"),
        ("receive", b"{", "malformed_json"),
        ("ack", b"", "malformed_json"),
        ("ack", b"{}", "invalid_field"),
        ("ack", b'{"receipts":"x"}', "invalid_field"),
        ("ack", b'{"receipts":[' + b'"x",' * 1000 + b'"x"]}', "invalid_field"),
        ("nack", b'{"receipts":[],"delay_ms":-1}', "invalid_field"),
        ("nack", b'{"receipts":[],"delay":"soon"}', "illegal_delay"),
        ("nack", b'{"receipts":[],"delay":"1s","delay_ms":1000}', "conflicting_delay"),
        ("nack", b'{"receipts":[],"delay":"1s","dead_letter":true}', "conflicting_delay"),
        ("nack", b'{"receipts":[],"dead_letter":1}', "invalid_field"),
        ("nack", b'{"receipts":[],"reason":"' + b"r" * 501 + b'"}', "invalid_field"),
        ("nack", b'{"receipts":[],"delay_ms":9223372036854775807}', "delay_too_long"),
        ("extend", b'{"receipts":[]}', "invalid_field"),
        ("extend", b'{"receipts":[],"invisible_ms":0}', "invalid_field"),
        ("rewind", b"{}", "invalid_field"),
        ("rewind", b'{"to":"head","time_ms":1}', "invalid_field"),
        ("rewind", b'{"to":"middle"}', "invalid_field"),
        ("rewind", b'{"time":"yesterday"}', "illegal_delay"),
        ("rewind", b'{"offsets":{}}', "invalid_field"),
        ("rewind", b'{"offsets":{"x":1}}', "invalid_field"),
        ("rewind", b'{"offsets":{"7":1}}', "invalid_field"),
    ],
)
async def test_a_wrong_call_is_refused(service, verb, body, code):
    await service.call("PUT", GROUP, json={})
    answer = await service.call("POST", f"{GROUP}/{verb}", data=body)
    assert (answer.status, answer.code) == (400, code)


@pytest.mark.parametrize("verb", ["ack", "nack", "extend", "rewind"])
async def test_what_needs_a_group_does_not_make_it(service, verb):
    content = {
        "rewind": {"to": "head"},
        "extend": {"receipts": [], "invisible_ms": 1},
    }.get(verb, {"receipts": []})
    answer = await _post(service, verb, **content)
    assert (answer.status, answer.code) == (404, "unknown_group")
    for method in ("GET", "DELETE"):
        answer = await service.call(method, GROUP)
        assert (answer.status, answer.code) == (404, "unknown_group")


HEADERS = {"X-Requested-With": "test", "Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/v1/topics/a%20b/groups/g", "illegal_topic"),
        ("/v1/topics/rmq_sys_wheel_timer/groups/g", "system_topic"),
        ("/v1/topics/TBW102/groups/g", "system_topic"),
        ("/v1/topics/a/groups/%C3%A9", "illegal_group"),
        ("/v1/topics/a/groups/" + "g" * 121, "illegal_group"),
    ],
)
async def test_names_are_checked(service, path, code):
    for method, where, data in (("POST", "/receive", None), ("PUT", "", b"{}"), ("GET", "/stream", None)):
        answer = await service.call(method, path + where, data=data, headers=HEADERS)
        assert (answer.status, answer.code) == (400, code)


async def test_a_group_takes_one_filter(service):
    await service.send([{"topic": "orders", "tags": tag} for tag in ("paid", "new", "paid")])
    assert [held["tags"] for held in await _receive(service, max=9, tags="paid || late")] == ["paid", "paid"]
    answer = await _post(service, "receive", tags="new")
    assert (answer.status, answer.code) == (409, "group_differs")
    assert await _receive(service, tags="late||paid") == []


async def test_a_new_group_begins_at_its_start(service):
    await service.send({"topic": "orders", "body": "old"})
    assert await _receive(service, start="tail") == []
    await service.send({"topic": "orders", "body": "new"})
    assert [held["body"] for held in await _receive(service, max=9)] == ["new"]


async def test_another_start_than_the_group_has_is_refused_as_other_tags_are(service):
    await service.send({"topic": "orders", "body": "old"})
    assert await _receive(service, start="tail") == []
    answer = await _post(service, "receive", start="head")
    assert (answer.status, answer.code) == (409, "group_differs")
    answer = await service.call("GET", f"{GROUP}/stream?start=head", headers={"X-Requested-With": "tests"})
    assert (answer.status, answer.code) == (409, "group_differs")
    assert await _receive(service, start="tail") == []


async def test_a_put_that_makes_a_group_says_where_it_lies_and_one_that_replaces_it_does_not(service):
    made = await service.call("PUT", GROUP, json={})
    assert (made.status, made.headers["Location"]) == (201, GROUP)
    again = await service.call("PUT", GROUP, json={"max_attempts": 3})
    assert (again.status, "Location" in again.headers) == (200, False)
    other = await service.call("PUT", "/v1/topics/a%7Cb/groups/g%25", json={})
    assert (other.status, other.headers["Location"]) == (201, "/v1/topics/a%7Cb/groups/g%25")
    assert (await service.call("GET", other.headers["Location"])).status == 200
    await service.call("DELETE", GROUP)
    assert (await service.call("PUT", GROUP, json={})).status == 201


async def test_groups_are_made_changed_listed_and_deleted(service):
    config = {
        "kind": "leases",
        "start": "head",
        "tags": "*",
        "max_attempts": 3,
        "invisible_ms": 5000,
        "backoff": {"type": "exponential", "initial_ms": 10, "factor": 2.0, "max_ms": 1000},
        "max_age_ms": None,
        "expired": "drop",
    }
    given = {name: value for name, value in config.items() if value is not None}
    answer = await service.call("PUT", GROUP, json=given)
    assert answer.status == 201
    assert answer.content == {
        "topic": "orders",
        "group": "workers",
        "config": config,
        "ordered": False,
        "queues": [{"queue": 0, "cursor": 0, "max_offset": 0, "lag": 0}],
        **dict.fromkeys(("lag", "in_flight", "waiting", "ready", "parked", "dead_letters"), 0),
        "oldest_age_ms": None,
        "paused": False,
    }
    assert (await service.call("GET", GROUP)).content == answer.content
    await service.call("PUT", "/v1/topics/other/groups/g", json={"backoff": {"type": "ladder"}})
    for path, names in (
        ("/v1/groups", ["workers", "g"]),
        ("/v1/topics/orders/groups", ["workers"]),
        ("/v1/topics/nothing/groups", []),
    ):
        listed = (await service.call("GET", path)).content["groups"]
        assert sorted(group["group"] for group in listed) == sorted(names)
    await service.send({"topic": "orders"})
    deleted = await service.call("DELETE", GROUP)
    assert (deleted.status, deleted.content["lag"]) == (200, 1)
    assert (await service.call("GET", GROUP)).code == "unknown_group"


@pytest.mark.parametrize(
    "config",
    [
        {"max_attempts": 0},
        {"max_attempts": 1001},
        {"invisible_ms": 0},
        {"backoff": {}},
        {"backoff": {"type": "linear"}},
        {"backoff": {"type": "exponential", "factor": 0.5}},
        {"surprise": 1},
    ],
)
async def test_a_wrong_configuration_is_refused(service, config):
    answer = await service.call("PUT", GROUP, json=config)
    assert (answer.status, answer.code) == (400, "invalid_field")
    assert (await service.call("PUT", GROUP, json={"tags": "a || "})).code == "illegal_filter"
    assert (await service.call("GET", "/v1/groups")).content == {"groups": []}


async def test_groups_have_a_limit(start_service):
    service = await start_service(groups_max=1)
    await service.call("PUT", GROUP, json={})
    for method, path, data in (
        ("PUT", "/v1/topics/orders/groups/second", b"{}"),
        ("POST", "/v1/topics/orders/groups/second/receive", b'{"create":true}'),
    ):
        answer = await service.call(method, path, data=data)
        assert (answer.status, answer.code) == (400, "too_many_groups")


@pytest.mark.parametrize(
    ("place", "bodies"),
    [
        ({"to": "head"}, ["0", "1", "2"]),
        ({"to": "tail"}, []),
        ({"time_ms": 0}, ["0", "1", "2"]),
        ({"time": "2999-01-01T00:00:00Z"}, []),
        ({"offsets": {"0": 1}}, ["1", "2"]),
        ({"offsets": {"0": 99}}, []),
    ],
)
async def test_a_rewound_group_goes_on_from_there(service, place, bodies):
    await service.send([{"topic": "orders", "body": str(i)} for i in range(3)])
    [held] = await _receive(service)
    answer = await _post(service, "rewind", **place)
    assert (answer.status, answer.content["in_flight"]) == (200, 0)
    assert answer.content["lag"] == len(bodies)
    assert [held["body"] for held in await _receive(service, max=9)] == bodies
    [result] = (await _post(service, "ack", receipts=[held["receipt"]])).content["results"]
    assert result["code"] == "receipt_ended"


async def test_messages_of_one_sharding_key_come_one_after_the_other(service):
    answer = await service.call("PATCH", "/v1/topics/orders", json={"ordered": True})
    assert answer.content == {
        "topic": "orders",
        "queues": [],
        "visible": 0,
        "pending": 0,
        "system": False,
        "ordered": True,
        "queue_count": 1,
        "ending": False,
        "paused": False,
        "to_kafka": None,
    }
    assert (await service.call("GET", "/v1/topics/orders")).content == answer.content
    keyed = {"topic": "orders", "properties": {"__SHARDINGKEY": "k"}}
    await service.send([{**keyed, "body": "1"}, {**keyed, "body": "2"}])
    [held] = await _receive(service, max=9)
    assert (await service.call("GET", GROUP)).content["ordered"]
    await _post(service, "ack", receipts=[held["receipt"]])
    assert [held["body"] for held in await _receive(service, wait_ms=20_000)] == ["2"]
    listed = (await service.call("GET", "/v1/topics")).content["topics"]
    assert [topic["topic"] for topic in listed if topic["ordered"]] == ["orders"]


@pytest.mark.parametrize(
    ("topic", "body", "code"),
    [
        ("orders", b"{}", "invalid_field"),
        ("orders", b'{"ordered":1}', "invalid_field"),
        ("a%20b", b'{"ordered":true}', "illegal_topic"),
        ("rmq_sys_wheel_timer", b'{"ordered":true}', "system_topic"),
    ],
)
async def test_a_wrong_change_of_a_topic_is_refused(service, topic, body, code):
    answer = await service.call("PATCH", f"/v1/topics/{topic}", data=body)
    assert (answer.status, answer.code) == (400, code)


async def _until(true):
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0)


async def test_a_group_of_offsets_is_made_shown_and_moved_and_leases_nothing(service):
    await service.send([{"topic": "orders"}] * 3)
    answer = await service.call("PUT", GROUP, json={"kind": "offsets"})
    assert (answer.status, answer.content["config"]["kind"], answer.content["lag"]) == (201, "offsets", 3)
    service.engine.groups.offsets.commit("orders", "workers", {0: 2})
    assert (await service.call("GET", GROUP)).content["lag"] == 1
    answer = await service.call("POST", f"{GROUP}/rewind", json={"offsets": {"0": 1}})
    assert answer.content["queues"] == [{"queue": 0, "cursor": 1, "max_offset": 3, "lag": 2}]
    for verb, body in (
        ("receive", {"create": True}),
        ("ack", {"receipts": ["r"]}),
        ("nack", {"receipts": ["r"]}),
        ("extend", {"receipts": ["r"], "invisible_ms": 1}),
    ):
        refused = await service.call("POST", f"{GROUP}/{verb}", json=body)
        assert (refused.status, refused.code) == (409, "group_differs"), verb
    refused = await service.call("GET", f"{GROUP}/stream", headers={"X-Requested-With": "test"})
    assert (refused.status, refused.code) == (409, "group_differs")
    for config in ({}, {"kind": "leases"}):
        refused = await service.call("PUT", GROUP, json=config)
        assert (refused.status, refused.code) == (409, "group_differs")
    refused = await service.call("PUT", GROUP, json={"kind": "offsets", "tags": "a"})
    assert (refused.status, refused.code) == (400, "invalid_field")
    subscription = {"topic": "orders", "group": "workers", "url": "https://example.com/"}
    refused = await service.call("POST", "/v1/subscriptions", json=subscription)
    assert (refused.status, refused.code) == (409, "group_differs")
    assert (await service.call("DELETE", GROUP)).content["config"]["kind"] == "offsets"
