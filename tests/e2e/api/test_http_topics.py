"""Topics, their queues, and reading what was delivered, with and without waiting."""

import asyncio

import pytest

from timerwheel.api import engine_handle
from timerwheel.api.http.steps import AT_ONCE

SIGNED = {"X-Requested-With": "tests", "Content-Type": "application/json"}


async def test_topics_are_counted(service):
    await service.send([{"topic": "a"}, {"topic": "a", "delay_ms": 3_600_000}, {"topic": "b"}])
    listed = {t["topic"]: t for t in (await service.call("GET", "/v1/topics")).content["topics"]}
    assert {"a", "b"} <= set(listed)
    assert (listed["a"]["visible"], listed["a"]["pending"]) == (1, 1)
    one = (await service.call("GET", "/v1/topics/a")).content
    assert one == listed["a"]
    assert one["queues"] == [{"queue": 0, "min_offset": 0, "max_offset": 1}]


async def test_topics_with_a_reserved_name_are_left_out_when_asked(service):
    await service.send({"topic": "a"})
    group = "/v1/topics/a/groups/g"
    await service.call("PUT", group, json={"max_attempts": 1})
    [held] = (await service.call("POST", f"{group}/receive", json={})).content["messages"]
    await service.call("POST", f"{group}/nack", json={"receipts": [held["receipt"]]})
    own = ["%DLQ%g", "a", "rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX"]
    for query, names in (("", own), ("?reserved=true", own), ("?reserved=false", ["a"])):
        listed = (await service.call("GET", f"/v1/topics{query}")).content["topics"]
        assert [one["topic"] for one in listed] == names
    page = (await service.call("GET", "/v1/topics?reserved=false&limit=1")).content
    assert ([one["topic"] for one in page["topics"]], page["cursor"]) == (["a"], None)
    assert (await service.call("GET", "/v1/topics?reserved=maybe")).code == "invalid_parameter"


async def test_many_topics_are_listed_in_steps_between_which_others_have_their_turn(service, monkeypatch):
    names = [f"topic-{number}" for number in range(2 * AT_ONCE + 10)]
    await service.send([{"topic": name} for name in names])
    in_step, steps, look = 0, [], service.engine.queues.find_topic

    def counted(name):
        nonlocal in_step
        in_step += 1
        return look(name)

    async def have_turns():
        nonlocal in_step
        while True:
            steps.append(in_step)
            in_step = 0
            await asyncio.sleep(0)

    monkeypatch.setattr(service.engine.queues, "find_topic", counted)
    other = asyncio.create_task(have_turns())
    assert set(names) <= set(await service.topics())
    other.cancel()
    assert (max(steps), sum(steps) >= len(names)) == (AT_ONCE, True)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/topics/none",
        "/v1/topics/none/queues/0/messages",
        "/v1/topics/none/queues/0/messages?wait_ms=50",
        "/v1/topics/none/queues/0/messages?offset=5&wait_ms=60000",
        "/v1/topics/none/queues/0/messages?offset=-1",
    ],
)
async def test_an_unknown_topic_is_not_found(service, path):
    await service.send({"topic": "a"})
    answer = await service.call("GET", path)
    assert (answer.status, answer.code) == (404, "unknown_topic")


@pytest.mark.parametrize(
    "path",
    [
        "/v1/topics/a/queues/7/messages",
        "/v1/topics/a/queues/7/messages?wait_ms=60000",
        "/v1/topics/none/queues/7/messages?wait_ms=60000",
        "/v1/topics/rmq_sys_wheel_timer/queues/0/messages",
    ],
)
async def test_an_unknown_queue_is_not_found_and_not_waited_for(service, path):
    await service.send({"topic": "a"})
    answer = await service.call("GET", path)
    assert (answer.status, answer.code) == (404, "unknown_queue")


@pytest.mark.parametrize("path", ["/v1/topics/soon", "/v1/topics/soon/queues/0/messages"])
async def test_a_topic_is_known_once_a_message_waits_for_it_or_it_was_set_to_be_ordered(service, path):
    await service.send({"topic": "soon", "delay_ms": 3_600_000})
    assert (await service.call("GET", path)).status == 200
    await service.call("PATCH", "/v1/topics/set", json={"ordered": True})
    assert (await service.call("GET", path.replace("soon", "set"))).status == 200


@pytest.mark.parametrize("wait_ms", [0, 60_000])
async def test_an_offset_behind_the_end_is_refused_with_the_end(service, wait_ms):
    await service.send([{"topic": "a"}] * 3)
    assert (await service.read("a", "offset=3")).content["messages"] == []
    answer = await service.read("a", f"offset=4&wait_ms={wait_ms}")
    assert (answer.status, answer.code, answer.content["max_offset"]) == (416, "offset_out_of_range", 3)


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/v1/topics/a%20b", "illegal_topic"),
        ("/v1/topics/a%20b/groups", "illegal_topic"),
        ("/v1/topics/a%20b/groups/g", "illegal_topic"),
        ("/v1/topics/a%20b/groups/g/stream", "illegal_topic"),
        ("/v1/topics/a%20b/keys/k", "illegal_topic"),
        ("/v1/topics/a%20b/queues/0/messages", "illegal_topic"),
        (f"/v1/topics/{'t' * 128}/groups", "illegal_topic"),
        ("/v1/topics/a/groups/g%20h", "illegal_group"),
        ("/v1/groups/g%20h/dead-letters", "illegal_group"),
        ("/v1/topics/a/keys/%00", "illegal_key"),
        (f"/v1/topics/a/keys/{'k' * 256}", "illegal_key"),
        ("/v1/schedules/a%20b", "illegal_schedule"),
        ("/v1/schedules/a%20b/runs", "illegal_schedule"),
    ],
)
async def test_a_name_that_nothing_can_have_is_refused_wherever_it_stands(service, path, code):
    answer = await service.call("GET", path, headers=SIGNED)
    assert (answer.status, answer.code) == (400, code)


async def test_no_call_takes_an_illegal_name_in_its_path(service):
    document = (await service.call("GET", "/openapi.json")).content
    for path, calls in document["paths"].items():
        for part, code in (
            ("{topic}", "illegal_topic"),
            ("{group}", "illegal_group"),
            ("{key}", "illegal_key"),
            ("{name}", "illegal_schedule"),
        ):
            if part not in path:
                continue
            url = path.replace(part, "%00").replace("{queue}", "0").replace("{", "").replace("}", "")
            for method in calls:
                body = None if method == "get" else b"{}"
                answer = await service.call(method.upper(), url, data=body, headers=SIGNED)
                assert (answer.status, answer.code) == (400, code), (method, path)
                assert code in calls[method]["responses"]["400"]["description"], (method, path)


async def test_a_queue_is_read_on_from_where_the_last_page_ended(service):
    await service.send([{"topic": "a", "body": str(i)} for i in range(5)])
    seen, offset = [], 0
    while offset < 5:
        page = (await service.read("a", f"offset={offset}&max=2")).content
        assert (page["min_offset"], page["max_offset"]) == (0, 5)
        seen += [message["body"] for message in page["messages"]]
        assert [m["offset"] for m in page["messages"]] == list(range(offset, page["next_offset"]))
        offset = page["next_offset"]
    assert seen == ["0", "1", "2", "3", "4"]
    page = (await service.read("a", "offset=5")).content
    assert (page["messages"], page["next_offset"]) == ([], 5)


@pytest.mark.parametrize(
    "query",
    [
        "offset=-2",
        "offset=x",
        "max=0",
        "max=1001",
        "wait_ms=-1",
        "wait_ms=60001",
        "waitms=1",
        "offset=1&offset=1",
    ],
)
async def test_a_wrong_read_is_refused(service, query):
    await service.send({"topic": "a"})
    answer = await service.read("a", query)
    assert (answer.status, answer.code) == (400, "invalid_parameter")


@pytest.mark.parametrize("queue", ["x", "-1", "1.0", "65536"])
async def test_a_queue_is_a_number(service, queue):
    await service.send({"topic": "a"})
    answer = await service.call("GET", f"/v1/topics/a/queues/{queue}/messages")
    assert (answer.status, answer.code) == (400, "invalid_parameter")


async def test_a_waiting_read_is_answered_when_the_message_falls_due(service):
    sent = (await service.send({"topic": "a", "body": "b", "delay_ms": 700})).content
    page = (await service.read("a", "offset=0&wait_ms=30000")).content
    assert [message["body"] for message in page["messages"]] == ["b"]
    assert page["messages"][0]["delivered_ms"] >= sent["due_ms"]


async def test_a_read_from_the_end_gets_only_what_comes_later(service):
    await service.send({"topic": "a", "body": "old"})
    await service.send({"topic": "a", "body": "new", "delay_ms": 800})
    page = (await service.read("a", "offset=-1&wait_ms=30000")).content
    assert [message["body"] for message in page["messages"]] == ["new"]
    page = (await service.read("a", "offset=-1")).content
    assert (page["messages"], page["next_offset"]) == ([], 2)


async def test_the_first_message_of_a_topic_can_be_waited_for(service):
    waiting = asyncio.create_task(service.read("a", "offset=0&wait_ms=30000"))
    await service.send({"topic": "a", "body": "first"})
    assert [message["body"] for message in (await waiting).content["messages"]] == ["first"]


async def test_a_wait_in_vain_ends_empty(service):
    await service.send({"topic": "a"})
    page = (await service.read("a", "offset=1&wait_ms=50")).content
    assert (page["messages"], page["next_offset"]) == ([], 1)


async def test_a_waiting_read_ends_soon_after_its_client_has_gone(service):
    await service.send({"topic": "a"})
    reader, writer = await asyncio.open_connection(service.url.host, service.url.port)
    running = asyncio.all_tasks()
    path = b"/v1/topics/a/queues/0/messages?offset=1&wait_ms=60000"
    writer.write(b"GET " + path + b" HTTP/1.1\r\nHost: x\r\n\r\n")
    await writer.drain()
    await service.call("GET", "/healthz")  # by now the read waits
    waiting = asyncio.all_tasks() - running
    writer.close()
    await writer.wait_closed()
    assert await reader.read() == b""
    async with asyncio.timeout(20 * engine_handle.LOOK_UP_MS / 1000):
        await asyncio.wait(waiting)
    assert (await service.send({"topic": "a"})).status == 201


async def test_a_topic_gets_more_queues_and_never_fewer(service):
    answer = await service.call("PATCH", "/v1/topics/wide", json={"queues": 3})
    assert (answer.content["queue_count"], answer.content["ordered"]) == (3, False)
    answer = await service.call("PATCH", "/v1/topics/wide", json={"ordered": True})
    assert (answer.content["queue_count"], answer.content["ordered"]) == (3, True)
    answer = await service.call("PATCH", "/v1/topics/wide", json={"queues": 2})
    assert (answer.status, answer.code) == (409, "queues_shrink")
    await service.send({"topic": "wide"})
    answer = await service.call("PATCH", "/v1/topics/wide", json={"queues": 4})
    assert (answer.status, answer.code) == (409, "keys_move")
    answer = await service.call("PATCH", "/v1/topics/wide", json={"queues": 4, "move_keys": True})
    assert answer.content["queue_count"] == 4
    assert (await service.call("GET", "/v1/topics/wide")).content == answer.content


@pytest.mark.parametrize("body", [b"{}", b'{"move_keys":true}', b'{"queues":0}', b'{"queues":1025}'])
async def test_options_of_a_topic_that_cannot_be_are_refused(service, body):
    answer = await service.call("PATCH", "/v1/topics/wide", data=body)
    assert (answer.status, answer.code) == (400, "invalid_field")


async def test_a_message_goes_to_the_queue_that_it_names(service):
    await service.call("PATCH", "/v1/topics/wide", json={"queues": 3})
    for number, more in enumerate(({}, {"tags": "x"}, {"delay_ms": 5}, {"dedup_key": "k"})):
        answer = await service.send({"topic": "wide", "queue": 2, "body": str(number), **more})
        [message] = [answer.content] if isinstance(answer.content, dict) else answer.content
        found = await service.call("GET", f"/v1/messages/{message['id']}")
        assert found.content["queue"] == 2
    answer = await service.send({"topic": "wide", "queue": 3})
    assert (answer.status, answer.code) == (400, "illegal_queue")
    answer = await service.send([{"topic": "wide"}, {"topic": "narrow", "queue": 1}])
    assert [(fault["index"], fault["code"]) for fault in answer.content["errors"]] == [(1, "illegal_queue")]
    assert (await service.send({"topic": "wide", "queue": -1})).code == "invalid_field"


async def test_of_a_raw_body_a_queue_in_the_query_is_a_property(service):
    answer = await service.call("POST", "/v1/topics/wide/messages?queue=7", data=b"x")
    found = await service.call("GET", f"/v1/messages/{answer.content['id']}")
    assert (found.content["queue"], found.content["properties"]) == (0, {"queue": "7"})


async def test_a_topic_is_deleted_with_what_it_has(service):
    answer = await service.send([{"topic": "old"}, {"topic": "old", "delay_ms": 3_600_000}])
    message_id = answer.content[1]["id"]
    await service.call("PUT", "/v1/topics/old/groups/workers", json={})
    planned = (await service.call("DELETE", "/v1/topics/old?dry_run=true")).content
    assert planned == {
        "topic": "old",
        "state": "planned",
        "pending": 1,
        "visible": 1,
        "groups": [{"group": "workers", "left": 1}],
        "schedules": [],
        "subscriptions": [],
    }
    answer = await service.call("DELETE", "/v1/topics/old?wait_ms=5000")
    assert (answer.status, answer.content) == (200, planned | {"state": "deleted"})
    for path in ("/v1/topics/old", "/v1/topics/old/queues/0/messages"):
        answer = await service.call("GET", path)
        assert (answer.status, answer.code) == (404, "unknown_topic")
    for path in (f"/v1/messages/{message_id}", f"/v1/messages/{message_id}/history"):
        answer = await service.call("GET", path)
        assert (answer.status, answer.code) == (404, "message_deleted")
        assert answer.content["deleted_ms"] > 0
    assert (await service.call("DELETE", "/v1/topics/old")).status == 404
    await service.send({"topic": "old"})
    assert (await service.read("old")).content["min_offset"] == 1


async def test_a_topic_that_is_being_deleted_says_so_and_takes_nothing(service):
    await service.send({"topic": "old", "delay_ms": 3_600_000})
    service.engine.topics.ending.add("old")
    answer = await service.call("DELETE", "/v1/topics/old?wait_ms=0")
    assert (answer.status, answer.content["state"]) == (202, "ending")
    assert (await service.call("GET", "/v1/topics/old")).content["ending"] is True
    for answer in (
        await service.send({"topic": "old"}),
        await service.call("PATCH", "/v1/topics/old", json={"queues": 2}),
        await service.call("PUT", "/v1/topics/old/groups/workers", json={}),
    ):
        assert (answer.status, answer.code) == (409, "topic_ending")


async def test_the_services_own_topics_are_not_deleted(service):
    answer = await service.call("DELETE", "/v1/topics/SCHEDULE_TOPIC_XXXX")
    assert (answer.status, answer.code) == (400, "system_topic")


async def test_a_paused_topic_hands_out_nothing_until_it_is_resumed_but_can_be_read(service):
    paused = await service.call("POST", "/v1/topics/orders/pause")
    assert (paused.status, paused.content["paused"]) == (200, True)
    await service.send({"topic": "orders", "body": "x"})
    group = "/v1/topics/orders/groups/g"
    await service.call("PUT", group, json={})
    for body in ({}, {"wait_ms": 200}):
        assert (await service.call("POST", f"{group}/receive", json=body)).content["messages"] == []
    assert (await service.call("GET", group)).content["paused"]
    assert (await service.call("GET", "/v1/topics/orders")).content["paused"]
    assert len((await service.read("orders")).content["messages"]) == 1
    assert not (await service.call("POST", "/v1/topics/orders/resume")).content["paused"]
    assert len((await service.call("POST", f"{group}/receive", json={})).content["messages"]) == 1


async def test_a_topic_says_whether_it_goes_to_kafka_and_is_kept_from_there(service):
    path = "/v1/topics/payments"
    for wanted in (True, False):
        changed = await service.call("PATCH", path, json={"to_kafka": wanted})
        assert (changed.status, changed.content["to_kafka"]) == (200, wanted)
    (listed,) = (await service.call("GET", "/v1/topics?reserved=false")).content["topics"]
    assert (listed["topic"], listed["to_kafka"]) == ("payments", False)
    service.engine.topics.bridge(frozenset({"payments"}), lambda: None)
    answer = await service.call("PATCH", path, json={"to_kafka": False})
    assert (answer.status, answer.code) == (409, "fixed_outlet")


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/topics/none/resume", 404, "unknown_topic"),
        ("/v1/topics/rmq_sys_wheel_timer/pause", 400, "system_topic"),
        ("/v1/topics/a%20b/pause", 400, "illegal_topic"),
        ("/v1/topics/a/pause?for_ms=1", 400, "invalid_parameter"),
    ],
)
async def test_what_cannot_be_paused_or_resumed_is_refused_with_the_reason(service, path, status, code):
    answer = await service.call("POST", path)
    assert (answer.status, answer.code) == (status, code)


async def test_a_purge_says_what_it_took_away_and_leaves_the_topic(service):
    await service.send([{"topic": "orders"}, {"topic": "orders"}, {"topic": "orders", "delay": "1h"}])
    group = "/v1/topics/orders/groups/g"
    await service.call("PUT", group, json={})
    await service.call("POST", f"{group}/receive", json={})
    wanted = {"scheduled": True, "delivered": True}
    told = {"topic": "orders", "scheduled": 1, "delivered": 2, "missed": 0}
    told["groups"] = [{"group": "g", "dropped": 2}]
    planned = await service.call("POST", "/v1/topics/orders/purge", json=wanted | {"dry_run": True})
    assert planned.content == told | {"dry_run": True}
    assert (await service.call("POST", "/v1/topics/orders/purge", json=wanted)).content == told | {
        "dry_run": False
    }
    topic = (await service.call("GET", "/v1/topics/orders")).content
    assert (topic["visible"], topic["pending"]) == (0, 0)
    assert (await service.call("POST", f"{group}/receive", json={})).content["messages"] == []
    assert (await service.read("orders", "offset=0")).content["next_offset"] == 2


@pytest.mark.parametrize(
    ("topic", "body", "status", "code"),
    [
        ("orders", {}, 400, "invalid_field"),
        ("orders", {"dry_run": True}, 400, "invalid_field"),
        ("orders", {"all": True}, 400, "invalid_field"),
        ("none", {"delivered": True}, 404, "unknown_topic"),
        ("rmq_sys_wheel_timer", {"scheduled": True}, 400, "system_topic"),
    ],
)
async def test_a_purge_of_nothing_or_of_what_is_not_there_is_refused(service, topic, body, status, code):
    await service.send({"topic": "orders"})
    answer = await service.call("POST", f"/v1/topics/{topic}/purge", json=body)
    assert (answer.status, answer.code) == (status, code)
    assert (await service.call("GET", "/v1/topics/orders")).content["visible"] == 1


@pytest.mark.parametrize(
    ("fields", "property_name", "value"),
    [
        ({"ttl_ms": 1_500}, "TIMER_TTL_MS", "1500"),
        ({"ttl": "10m"}, "TIMER_TTL_MS", "600000"),
        ({"ttl": "PT90S", "delay": "1h"}, "TIMER_TTL_MS", "90000"),
        ({"max_attempts": 3}, "TIMER_MAX_ATTEMPTS", "3"),
    ],
)
async def test_limits_of_a_message_are_properties_in_json_and_in_a_query(
    service, fields, property_name, value
):
    sent = await service.send({"topic": "orders", **fields})
    raw = "&".join(f"{name}={text}" for name, text in fields.items())
    again = await service.call("POST", f"/v1/topics/orders/messages?{raw}", data=b"x")
    for message_id in (sent.content["id"], again.content["id"]):
        message = (await service.call("GET", f"/v1/messages/{message_id}")).content
        assert message["properties"][property_name] == value


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"ttl_ms": 0}, "ttl_ms"),
        ({"ttl": "soon"}, "ttl"),
        ({"ttl": "1m", "ttl_ms": 1}, "only one of ttl and ttl_ms"),
        ({"ttl": "1m", "properties": {"TIMER_TTL_MS": "1"}}, "either ttl or the property"),
        ({"max_attempts": 1_001}, "max_attempts"),
        ({"max_attempts": 2, "properties": {"TIMER_MAX_ATTEMPTS": "1"}}, "either max_attempts or"),
    ],
)
async def test_limits_that_are_wrong_or_given_twice_are_refused_by_name(service, fields, said):
    answer = await service.call("POST", "/v1/messages", json={"topic": "orders", **fields})
    assert (answer.status, answer.code) == (400, "invalid_field")
    assert said in str(answer.content)


async def test_a_message_is_not_received_after_its_ttl(service):
    await service.send([{"topic": "orders", "ttl_ms": 1}, {"topic": "orders", "body": "kept"}])
    await asyncio.sleep(0.002)
    group = "/v1/topics/orders/groups/g"
    config = {"max_age_ms": 60_000, "expired": "dead_letter"}
    assert (await service.call("PUT", group, json=config)).content["config"] | config == (
        await service.call("GET", group)
    ).content["config"]
    got = (await service.call("POST", f"{group}/receive", json={"max": 9})).content["messages"]
    assert [one["body"] for one in got] == ["kept"]
