"""A body given as a JSON value: what is stored, its type, and which values are refused."""

import json

import pytest

from timerwheel.client import Client

HOUR_MS = 3_600_000


async def send_text(service, text):
    return await service.send_bytes(text.encode())


async def stored(service, answer):
    assert answer.status == 201, answer.content
    return (await service.call("GET", f"/v1/messages/{answer.content['id']}")).content


@pytest.mark.parametrize(
    ("value", "body"),
    [
        ('{"order": 17, "to": ["a", "b"]}', '{"order":17,"to":["a","b"]}'),
        ('{"z": 1, "a": 2}', '{"z":1,"a":2}'),
        (" [ ] ", "[]"),
        ('"text"', '"text"'),
        ('""', '""'),
        ("null", "null"),
        ("true", "true"),
        ("17", "17"),
        ("18446744073709551615", "18446744073709551615"),
        ("-9223372036854775808", "-9223372036854775808"),
        ("1.10", "1.10"),
        ("1e2", "1E+2"),
        ("-0.0", "-0.0"),
        ("3.14159265358979323846", "3.14159265358979323846"),
        ('"Zo\\u00eb \\u2028 \\n \\""', '"Zoë \u2028 \\n \\""'),
        ('{"a": 1, "a": 2}', '{"a":2}'),
    ],
)
async def test_a_json_value_is_stored_compactly_and_without_loss(service, value, body):
    message = await stored(
        service, await send_text(service, f'{{"topic": "orders", "json": {value}, "delay_ms": 9999}}')
    )
    assert message["body"] == body
    assert message["properties"]["CONTENT_TYPE"] == "application/json"


async def test_a_content_type_that_is_given_stays(service):
    properties = {"CONTENT_TYPE": "application/cloudevents+json"}
    answer = await service.send({"topic": "orders", "json": {}, "properties": properties})
    assert (await stored(service, answer))["properties"]["CONTENT_TYPE"] == "application/cloudevents+json"


async def test_a_body_of_text_gets_no_type(service):
    message = await stored(service, await service.send({"topic": "orders", "body": '{"a":1}'}))
    assert "CONTENT_TYPE" not in message["properties"]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ('"json": 1, "body": "1"', "conflicting_body"),
        ('"json": 1, "body_base64": "MQ=="', "conflicting_body"),
        ('"json": null, "body": ""', "conflicting_body"),
        ('"json": 18446744073709551616', "invalid_field"),
        ('"json": -9223372036854775809', "invalid_field"),
        ('"json": [1e400]', "invalid_field"),
        ('"json": 1e-99999999999999999999', "invalid_field"),
        ('"json": ' + "1" * 5000, "invalid_field"),
        ('"json": NaN', "malformed_json"),
        ('"json": "\\ud800"', "malformed_json"),
        ('"json": ' + "[" * 300 + "]" * 300, "invalid_field"),
        ('"json": ' + "[" * 3000 + "]" * 3000, "malformed_json"),
    ],
)
async def test_what_cannot_be_stored_as_json_is_refused_alone_and_in_arrays(service, fields, code):
    message = f'{{"topic": "orders", {fields}}}'
    answer = await send_text(service, message)
    assert (answer.status, answer.content["code"]) == (400, code)
    array = await send_text(service, f'[{{"topic": "orders"}}, {message}]')
    faults = array.content.get("errors", [{"code": array.content["code"]}])
    assert [fault["code"] for fault in faults] == [code]
    assert (await service.call("GET", "/v1/topics/orders")).status == 404


async def test_a_body_over_its_limit_is_refused_by_the_size_that_is_stored(start_service):
    service = await start_service(body_bytes_max=10)
    assert (await send_text(service, '{"topic": "t", "json": [1,    2,    3,   4]}')).status == 201
    answer = await service.send({"topic": "t", "json": [1, 2, 3, 4, 5]})
    assert (answer.status, answer.content["code"]) == (413, "body_too_large")


async def test_a_large_document_is_taken_and_one_with_too_many_values_is_not(service):
    value = [{"number": number, "text": "x" * 40} for number in range(15_000)]
    message = await stored(
        service, await send_text(service, json.dumps({"topic": "t", "json": value, "delay_ms": HOUR_MS}))
    )
    assert json.loads(message["body"]) == value
    answer = await service.send({"topic": "t", "json": [0] * 150_000})
    assert (answer.status, answer.content["code"]) == (413, "too_many_values")


async def test_a_large_array_of_nested_documents_is_stored_in_its_order(service):
    values = [{"rows": [{"number": number}, {"number": [number] * 20}]} for number in range(6_000)]
    answer = await send_text(service, json.dumps([{"topic": "t", "json": value} for value in values]))
    assert answer.status == 201
    ids = [receipt["id"] for receipt in answer.content]
    for place in (0, 2_999, 5_999):
        message = (await service.call("GET", f"/v1/messages/{ids[place]}")).content
        assert json.loads(message["body"]) == values[place]


async def test_one_key_with_another_spelling_of_the_value_is_the_same_message(service):
    first = await send_text(
        service, '{"topic": "t", "json": {"a": "\\u00eb"}, "dedup_key": "k", "delay_ms": 9999}'
    )
    again = await send_text(
        service, '{"topic": "t", "json": { "a": "ë" }, "dedup_key": "k", "delay_ms": 9999}'
    )
    assert (first.status, again.status) == (201, 200)
    assert again.content["id"] == first.content["id"]


async def test_transactions_and_schedules_take_json(service):
    begun = await service.call("POST", "/v1/transactions", json={"topic": "t", "json": {"a": 1.50}})
    message = (await service.call("GET", f"/v1/messages/{begun.content['id']}")).content
    assert (message["body"], message["properties"]["CONTENT_TYPE"]) == ('{"a":1.5}', "application/json")
    made = await service.call("PUT", "/v1/schedules/s", json={"topic": "t", "json": None, "every": "1h"})
    assert (made.status, made.content["body"]) == (201, "null")
    assert made.content["properties"] == {"CONTENT_TYPE": "application/json"}
    wrong = await service.call(
        "PUT", "/v1/schedules/s", json={"topic": "t", "json": 1, "body": "1", "every": "1h"}
    )
    assert wrong.content["code"] == "conflicting_body"


async def test_a_property_of_a_raw_send_may_be_named_json(service):
    answer = await service.call("POST", "/v1/topics/t/messages?json=1", data=b"x")
    assert (await stored(service, answer))["properties"] == {"json": "1"}


async def test_the_client_sends_and_reads_json(service):
    async with Client(str(service.url)) as client:
        sent = await client.send("t", json={"a": [1, None]}, delay="1h")
        assert (await client.get(sent.id)).json() == {"a": [1, None]}
        many = await client.send_many([{"topic": "t", "json": None}, {"topic": "t"}])
        assert [(await client.get(one.id)).body for one in many] == [b"null", b""]
        schedule = await client.schedules.put("s", "t", json="x", every="1h")
        assert schedule.body == b'"x"'
        begun = await client.begin("t", json=1)
        assert (await client.commit(begun.id)).topic == "t"
