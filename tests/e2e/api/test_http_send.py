"""POST /v1/messages and POST /v1/topics/{topic}/messages: what is taken, and as what."""

import base64
import time
from urllib.parse import urlencode

import orjson
import pytest

HOUR_MS = 3_600_000


async def test_a_message_is_answered_with_id_topic_due_time_and_state(service):
    before_ms = time.time_ns() // 1_000_000
    answer = await service.send({"topic": "orders", "body": "hello", "delay_ms": HOUR_MS})
    after_ms = time.time_ns() // 1_000_000
    assert answer.status == 201
    assert answer.headers["Content-Type"] == "application/json"
    assert set(answer.content) == {"id", "topic", "due_ms", "state"}
    assert answer.content["topic"] == "orders"
    assert answer.content["state"] == "scheduled"
    assert before_ms + HOUR_MS <= answer.content["due_ms"] <= after_ms + HOUR_MS


@pytest.mark.parametrize(
    ("field", "value", "delay_ms"),
    [
        ("delay_ms", 90_000, 90_000),
        ("delay", "90s", 90_000),
        ("delay", "1h30m", 5_400_000),
        ("delay", "PT90S", 90_000),
        ("delay_level", 5, 60_000),
        ("delay_level", 99, 7_200_000),
    ],
)
async def test_each_relative_delay_field_sets_the_due_time(service, field, value, delay_ms):
    answer = await service.send({"topic": "orders", field: value})
    view = (await service.call("GET", f"/v1/messages/{answer.content['id']}")).content
    assert view["due_ms"] - view["enqueue_ms"] == delay_ms


@pytest.mark.parametrize(
    ("field", "value"),
    [("deliver_at_ms", 1_900_000_000_123), ("deliver_at", "2030-03-17T18:46:40.123+01:00")],
)
async def test_each_absolute_delay_field_sets_the_due_time(service, field, value):
    answer = await service.send({"topic": "orders", field: value})
    assert answer.content["due_ms"] == 1_900_000_000_123


@pytest.mark.parametrize("delay", [{}, {"delay_ms": 0}, {"delay_ms": -5}, {"deliver_at_ms": 1}])
async def test_a_message_that_is_due_is_delivered_at_once(service, delay):
    answer = await service.send({"topic": "orders", "body": "now", **delay})
    assert (answer.status, answer.content["state"]) == (201, "delivered")
    page = (await service.read("orders")).content
    assert [message["body"] for message in page["messages"]] == ["now"]


async def test_rocketmq_properties_delay_as_the_fields_do(service):
    properties = {"TIMER_DELAY_SEC": "90", "trace": "t1"}
    answer = await service.send({"topic": "orders", "properties": properties})
    view = (await service.call("GET", f"/v1/messages/{answer.content['id']}")).content
    assert view["due_ms"] - view["enqueue_ms"] == 90_000
    assert view["properties"]["trace"] == "t1"


async def test_tags_and_keys_become_properties(service):
    sent = {"topic": "orders", "tags": "paid", "keys": ["o1", "o2"], "delay_ms": HOUR_MS}
    answer = await service.send(sent)
    view = (await service.call("GET", f"/v1/messages/{answer.content['id']}")).content
    assert (view["tags"], view["keys"]) == ("paid", ["o1", "o2"])
    assert view["properties"]["TAGS"] == "paid"
    assert view["properties"]["KEYS"] == "o1 o2"


@pytest.mark.parametrize("body", [b"", b"hello", "grüße 😀".encode(), b"\xff\x00\xfe"])
async def test_a_base64_body_comes_back_byte_for_byte(service, body):
    text = base64.b64encode(body).decode()
    await service.send({"topic": "orders", "body_base64": text})
    message = (await service.read("orders")).content["messages"][0]
    if "body" in message:
        assert message["body"].encode() == body
    else:
        assert base64.b64decode(message["body_base64"]) == body


async def test_an_array_is_answered_in_its_order(service):
    items = [{"topic": "orders", "body": str(i), "delay_ms": HOUR_MS + i} for i in range(1200)]
    answer = await service.send(items)
    assert answer.status == 201
    due = [receipt["due_ms"] for receipt in answer.content]
    assert due == list(range(due[0], due[0] + 1200))
    assert await service.pending() == 1200


async def test_an_empty_array_stores_nothing_and_is_no_error(service):
    answer = await service.send([])
    assert (answer.status, answer.content) == (200, [])


async def test_newline_delimited_messages_are_an_array(service):
    body = b'{"topic":"a","delay_ms":60000}\r\n\n  {"topic":"b","delay_ms":60000}'
    answer = await service.send_bytes(body, "application/x-ndjson")
    assert answer.status == 201
    assert [receipt["topic"] for receipt in answer.content] == ["a", "b"]


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "Application/JSON; charset=UTF-8",
        'application/json;charset="utf-8"',
        "application/json; charset=utf-8; profile=x",
        'application/json; profile="charset=x"; Charset=UTF-8',
        "application/x-www-form-urlencoded",
    ],
)
async def test_json_is_taken_under_the_types_that_clients_give_it(service, content_type):
    answer = await service.send_bytes(b' {"topic": "orders", "delay_ms": 60000}', content_type)
    assert answer.status == 201


async def test_a_missing_content_type_means_json(service):
    bare = {"headers": {}, "skip_auto_headers": ["Content-Type"]}
    answer = await service.call("POST", "/v1/messages", data=b'[{"topic":"a"}]', **bare)
    assert answer.status == 201


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Content-Type": "text/plain"}, "unsupported_media_type"),
        ({"Content-Type": "application/json; charset=latin-1"}, "unsupported_media_type"),
        ({"Content-Type": "application/json; Charset=latin-1"}, "unsupported_media_type"),
        ({"Content-Type": "application/json; charset = latin-1"}, "unsupported_media_type"),
        ({"Content-Type": "application/json; charset=utf-8; charset=latin-1"}, "unsupported_media_type"),
        ({"Content-Type": "application/json", "Content-Encoding": "gzip"}, "unsupported_encoding"),
    ],
)
async def test_other_types_and_encodings_are_refused(service, headers, code):
    answer = await service.call("POST", "/v1/messages", data=b'{"topic":"a"}', headers=headers)
    assert (answer.status, answer.code) == (415, code)


async def test_a_raw_body_is_the_message_and_the_query_its_properties(service):
    answer = await service.call(
        "POST",
        "/v1/topics/orders/messages?TIMER_DELAY_MS=3600000&TAGS=a%26b+c&note=gr%C3%BC%C3%9Fe",
        data=b"\x00\xffraw",
        headers={"Content-Type": "application/x-www-form-urlencoded"},
    )
    assert (answer.status, answer.content["state"]) == (201, "scheduled")
    view = (await service.call("GET", f"/v1/messages/{answer.content['id']}")).content
    assert base64.b64decode(view["body_base64"]) == b"\x00\xffraw"
    assert view["properties"]["TAGS"] == "a&b c"
    assert view["properties"]["note"] == "grüße"


async def test_a_topic_in_a_path_is_percent_decoded_once(service):
    answer = await service.call("POST", "/v1/topics/a%7Cb%2525/messages", data=b"x")
    assert (answer.status, answer.content["topic"]) == (201, "a|b%25")
    page = (await service.read("a%7Cb%2525")).content
    assert page["messages"][0]["topic"] == "a|b%25"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("delay_ms", 3_600_000),
        ("delay", "1h"),
        ("delay", "PT1H"),
        ("deliver_at_ms", 1_900_000_000_000),
        ("deliver_at", "2030-03-17T17:46:40Z"),
        ("delay_level", 17),
        ("tags", "a b"),
        ("keys", "k1 k2"),
        ("dedup_key", "close 17"),
    ],
)
async def test_a_raw_send_honours_each_field_of_the_json_call_and_stores_it_alike(service, field, value):
    names = {"topic": "orders", "body": "b", "properties": {"own": "1"}}
    plain = await service.send({**names, field: value, "dedup_key": "json"})
    query = urlencode({"own": 1, field: value, **({} if field == "dedup_key" else {"dedup_key": "raw"})})
    raw = await service.call("POST", f"/v1/topics/orders/messages?{query}", data=b"b")
    assert (plain.status, raw.status) == (201, 201)
    assert raw.content["state"] == plain.content["state"]
    views = []
    for answer in (plain, raw):
        view = (await service.call("GET", f"/v1/messages/{answer.content['id']}")).content
        views.append({name: view.get(name) for name in ("tags", "keys", "level", "state")})
        assert (field in view["properties"], view["properties"]["own"]) == (False, "1")
    assert views[0] == views[1]
    if field == "dedup_key":
        assert (await service.call("GET", "/v1/topics/orders/keys/close%2017")).status == 200
    if "delay" in field or "deliver" in field:
        assert raw.content["state"] == "scheduled"
        apart_ms = abs(raw.content["due_ms"] - plain.content["due_ms"])
        assert apart_ms == 0 if "deliver" in field else apart_ms < 60_000


async def test_a_raw_send_and_a_json_send_under_one_key_are_the_same_message(service):
    fields = {"delay": "30m", "tags": "a", "keys": "k", "dedup_key": "close-17"}
    first = await service.send({"topic": "orders", "body": "b", **fields})
    path = f"/v1/topics/orders/messages?{urlencode(fields)}"
    again = await service.call("POST", path, data=b"b")
    assert (again.status, again.content) == (200, {**first.content, "duplicate": True})
    same = await service.call("POST", path, data=b"b", headers={"Idempotency-Key": "close-17"})
    assert same.status == 200
    other = await service.call("POST", path, data=b"b", headers={"Idempotency-Key": "other"})
    assert (other.status, other.code) == (400, "conflicting_key")


async def test_a_delay_does_not_count_as_a_property(start_service):
    service = await start_service(properties_max=2)
    two = {"topic": "orders", "properties": {"a": "1", "b": "2"}}
    for delay in ({"delay": "1h"}, {"delay_ms": 5}, {"deliver_at": "2030-01-01T00:00:00Z"}):
        assert (await service.send({**two, **delay})).status == 201
        query = urlencode({"a": 1, "b": 2, **delay})
        answer = await service.call("POST", f"/v1/topics/orders/messages?{query}", data=b"x")
        assert answer.status == 201
    three = {"topic": "orders", "properties": {"a": "1", "b": "2", "c": "3"}, "delay": "1h"}
    assert (await service.send(three)).code == "too_many_properties"


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/v1/topics/orders/messages?TAGS=a&TAGS=b", "invalid_parameter"),
        ("/v1/topics/orders/messages?TAGS=%ff", "invalid_parameter"),
        ("/v1/topics/orders/messages?TAGS=100%", "invalid_parameter"),
        ("/v1/topics/%ff/messages", "invalid_parameter"),
        ("/v1/topics/a%zz/messages", "invalid_parameter"),
        ("/v1/topics/a%2Fb/messages", "illegal_topic"),
        ("/v1/topics/orders/messages?TIMER_DELAY_MS=soon", "illegal_delay"),
        ("/v1/topics/rmq_sys_wheel_timer/messages", "system_topic"),
        ("/v1/topics/orders/messages?TIMER_OUT_MS=1", "reserved_property"),
        ("/v1/topics/orders/messages?SCHEDULE_NAME=n", "reserved_property"),
        ("/v1/topics/%25RETRY%25g/messages", "system_topic"),
        ("/v1/topics/orders/messages?dedup_key=schedule:n:1:2", "reserved_key"),
        ("/v1/topics/orders/messages?after_recall=a", "illegal_key"),
        ("/v1/topics/orders/messages?delay=soon", "illegal_delay"),
        ("/v1/topics/orders/messages?delay=", "illegal_delay"),
        ("/v1/topics/orders/messages?deliver_at=tomorrow", "illegal_delay"),
        ("/v1/topics/orders/messages?delay_level=-1", "illegal_delay"),
        ("/v1/topics/orders/messages?delay_ms=9223372036854775807", "delay_too_long"),
        ("/v1/topics/orders/messages?delay_ms=9223372036854775808", "invalid_parameter"),
        ("/v1/topics/orders/messages?delay_ms=5.5", "invalid_parameter"),
        ("/v1/topics/orders/messages?deliver_at_ms=", "invalid_parameter"),
        ("/v1/topics/orders/messages?delay_ms=1&delay_ms=1", "invalid_parameter"),
        ("/v1/topics/orders/messages?delay=1h&delay_ms=5", "conflicting_delay"),
        ("/v1/topics/orders/messages?delay=1h&TIMER_DELAY_MS=5", "conflicting_delay"),
        ("/v1/topics/orders/messages?delay_level=1&DELAY=2", "conflicting_delay"),
        ("/v1/topics/orders/messages?tags=a&TAGS=a", "conflicting_tags"),
        ("/v1/topics/orders/messages?keys=a&KEYS=a", "conflicting_keys"),
        ("/v1/topics/orders/messages?dedup_key=", "illegal_key"),
        *(
            (f"/v1/topics/orders/messages?{name}=x", "invalid_parameter")
            for name in ("topic", "body", "body_base64", "properties")
        ),
    ],
)
async def test_a_raw_send_that_is_wrong_says_why(service, path, code):
    answer = await service.call("POST", path, data=b"x")
    assert (answer.status, answer.code) == (400, code)
    assert await service.pending() == 0


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ({"delay_ms": 1, "delay": "1s"}, "conflicting_delay"),
        ({"deliver_at_ms": 1, "deliver_at": "2030-01-01T00:00:00Z"}, "conflicting_delay"),
        ({"delay_level": 1, "delay_ms": 1}, "conflicting_delay"),
        ({"delay_ms": 1, "properties": {"TIMER_DELAY_MS": "1"}}, "conflicting_delay"),
        ({"delay_ms": 1, "properties": {"DELAY": "1"}}, "conflicting_delay"),
        ({"tags": "a", "properties": {"TAGS": "a"}}, "conflicting_tags"),
        ({"keys": "a", "properties": {"KEYS": "a"}}, "conflicting_keys"),
        ({"body": "a", "body_base64": "YQ=="}, "conflicting_body"),
        ({"body_base64": "YQ"}, "invalid_field"),
        ({"body_base64": "Y Q="}, "invalid_field"),
        ({"body": None}, "invalid_field"),
        ({"body": 1}, "invalid_field"),
        ({"delay_ms": "1"}, "invalid_field"),
        ({"delay_ms": 1.5}, "invalid_field"),
        ({"delay_ms": True}, "invalid_field"),
        ({"keys": ["a b"]}, "invalid_field"),
        ({"keys": [""]}, "invalid_field"),
        ({"properties": {"a": 1}}, "invalid_field"),
        ({"properties": []}, "invalid_field"),
        ({"surprise": 1}, "invalid_field"),
        ({"topic": 1}, "invalid_field"),
        ({"topic": ""}, "illegal_topic"),
        ({"topic": "a b"}, "illegal_topic"),
        ({"topic": "x" * 128}, "illegal_topic"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, "system_topic"),
        ({"topic": "TBW102"}, "system_topic"),
        ({"topic": "RMQ_SYS_TRACE_TOPIC"}, "system_topic"),
        ({"dedup_key": "schedule:n:1:2"}, "reserved_key"),
        ({"after_recall": "0" * 24}, "illegal_key"),
        ({"dedup_key": "k", "after_recall": 1}, "invalid_field"),
        ({"properties": {"DLQ_ORIGIN_TOPIC": "a"}}, "reserved_property"),
        ({"delay": "soon"}, "illegal_delay"),
        ({"deliver_at": "2030-01-01T00:00:00"}, "illegal_delay"),
        ({"delay_level": -1}, "illegal_delay"),
        ({"delay_ms": 2**63 - 1}, "delay_too_long"),
        ({"properties": {"TIMER_DELAY_MS": "1e3"}}, "illegal_delay"),
        ({"properties": {"REAL_TOPIC": "a"}}, "reserved_property"),
        ({"properties": {str(i): "" for i in range(129)}}, "too_many_properties"),
        ({"properties": {"a": "x" * 40_000}}, "properties_too_large"),
    ],
)
async def test_a_wrong_message_is_refused_with_its_code(service, message, code):
    answer = await service.send({"topic": "orders", **message})
    assert (answer.status, answer.code) == (400, code)
    assert "errors" not in answer.content
    assert await service.topics() == []


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "malformed_json"),
        (b"  ", "malformed_json"),
        (b'{"topic":"a"', "malformed_json"),
        (b'{"topic":"a"} {}', "malformed_json"),
        (b'[{"topic":"a"},', "malformed_json"),
        (b'{"topic":"a","delay_ms":NaN}', "malformed_json"),
        (b'{"topic":"a","delay_ms":Infinity}', "malformed_json"),
        (b'{"topic":"a\xff"}', "malformed_json"),
        (b'{"topic":"a","body":"\\ud800"}', "malformed_json"),
        (b'{"topic":"a","body":"\xed\xa0\x80"}', "malformed_json"),
        (b'\xef\xbb\xbf{"topic":"a"}', "malformed_json"),
        (b'{"topic":"a","delay_ms":9223372036854775808}', "invalid_field"),
        (b'{"topic":"a","delay_ms":1e999}', "invalid_field"),
        (b'{"topic":"a","delay_ms":' + b"9" * 5000 + b"}", "invalid_field"),
        (b'{"topic":"a","surprise":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "invalid_field"),
        (b"[" * 100_000 + b"]" * 100_000, "malformed_json"),
        (b"{}", "invalid_field"),
        (b"7", "invalid_field"),
        (b"null", "invalid_field"),
        (b'"text"', "invalid_field"),
    ],
)
async def test_what_is_not_a_message_is_a_clear_client_error(service, body, code):
    answer = await service.send_bytes(body)
    assert (answer.status, answer.code) == (400, code)
    assert await service.pending() == 0


async def test_the_last_of_two_equal_fields_counts(service):
    answer = await service.send_bytes(b'{"topic":"a","topic":"b"}')
    assert answer.content["topic"] == "b"


MIXED = [
    {"topic": "orders", "delay_ms": 60_000},
    {"topic": "orders", "delay_ms": "soon"},
    {"topic": "orders", "body_base64": "!"},
    {"topic": "bad topic"},
    {"topic": "orders", "delay_ms": 1, "delay": "1s"},
    {"topic": "orders", "delay": "soon"},
    7,
    {"topic": "orders", "delay_ms": 60_000},
    {"topic": "orders", "properties": {"DELAY": "-1"}},
]
MIXED_FAULTS = [
    (1, "invalid_field"),
    (2, "invalid_field"),
    (3, "illegal_topic"),
    (4, "conflicting_delay"),
    (5, "illegal_delay"),
    (6, "invalid_field"),
    (8, "illegal_delay"),
]


@pytest.mark.parametrize("form", ["application/json", "application/x-ndjson"])
async def test_an_array_with_bad_items_lists_every_one_and_stores_nothing(service, form):
    joined = b"\n".join(map(orjson.dumps, MIXED))
    body = joined if form == "application/x-ndjson" else orjson.dumps(MIXED)
    answer = await service.send_bytes(body, form)
    assert (answer.status, answer.code) == (400, "refused")
    assert [(e["index"], e["code"]) for e in answer.content["errors"]] == MIXED_FAULTS
    assert all(e["detail"] for e in answer.content["errors"])
    assert await service.pending() == 0


@pytest.mark.parametrize(
    ("items", "faults"),
    [
        ([{"topic": "a"}, {"topic": "a b"}], [(1, "illegal_topic")]),
        ([{"topic": "a", "delay_ms": 1, "delay": "1s"}], [(0, "conflicting_delay")]),
    ],
)
async def test_an_array_whose_types_are_right_lists_its_faults_too(service, items, faults):
    answer = await service.send(items)
    assert (answer.status, answer.code) == (400, "refused")
    assert [(e["index"], e["code"]) for e in answer.content["errors"]] == faults


async def test_a_broken_line_is_one_of_the_listed_faults(service):
    answer = await service.send_bytes(b'{"topic":"a"}\n{"topic":\n{"topic":"\xff"}', "application/x-ndjson")
    found = [(e["index"], e["code"]) for e in answer.content["errors"]]
    assert found == [(1, "malformed_json"), (2, "malformed_json")]
