"""A filter that is given but empty is an error in every call that takes one: it never means everything."""

import pytest

from tests.harness.processes import serving, timerwheel
from timerwheel.client import Client, ClientError

GROUP = "/v1/topics/orders/groups/g"
HOOK = {"topic": "orders", "url": "https://example.com/hook", "paused": True}


@pytest.mark.parametrize("blank", ["", " "])
@pytest.mark.parametrize(
    ("method", "path", "content"),
    [
        ("POST", "/v1/messages/recall", {"topic": "orders"}),
        ("POST", f"{GROUP}/receive", {}),
        ("PUT", GROUP, {}),
        ("POST", "/v1/subscriptions", HOOK),
        ("PATCH", "/v1/subscriptions/known", {}),
    ],
)
async def test_empty_tags_are_refused_by_every_call_that_takes_tags(service, method, path, content, blank):
    await service.send([{"topic": "orders", "delay_ms": 3_600_000}] * 3)
    await service.call("POST", "/v1/subscriptions", json=HOOK | {"id": "known"})
    answer = await service.call(method, path, json=content | {"tags": blank})
    assert (answer.status, answer.code) == (400, "illegal_filter")
    assert "empty" in answer.content["detail"]
    assert await service.pending() == 3
    assert (await service.call("GET", GROUP)).status == 404


async def test_empty_tags_of_a_stream_are_refused(service):
    answer = await service.call("GET", f"{GROUP}/stream?tags=", headers={"X-Requested-With": "tests"})
    assert (answer.status, answer.code) == (400, "illegal_filter")


@pytest.mark.parametrize(
    ("condition", "code"),
    [({"key_prefix": ""}, "illegal_filter"), ({"topic": "", "tags": "a"}, "illegal_topic")],
)
async def test_an_empty_condition_of_a_recall_is_refused_and_recalls_nothing(service, condition, code):
    await service.send([{"topic": "orders", "delay_ms": 3_600_000, "tags": "a", "keys": "k"}] * 3)
    for dry_run in (False, True):
        content = {"topic": "orders", "dry_run": dry_run} | condition
        answer = await service.call("POST", "/v1/messages/recall", json=content)
        assert (answer.status, answer.code) == (400, code)
    assert await service.pending() == 3


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("topic=", "illegal_topic"),
        ("cursor=", "illegal_cursor"),
        ("due_from_ms=", "invalid_parameter"),
        ("due_from_ms=2&due_to_ms=1", "invalid_parameter"),
    ],
)
async def test_an_empty_filter_of_a_listing_is_refused(service, query, code):
    answer = await service.call("GET", f"/v1/messages?{query}")
    assert (answer.status, answer.code) == (400, code)


@pytest.mark.parametrize("query", ["level=", "from_ms=", "from_ms=2&to_ms=1"])
async def test_an_empty_filter_of_slots_is_refused(service, query):
    answer = await service.call("GET", f"/v1/wheel/slots?{query}")
    assert (answer.status, answer.code) == (400, "invalid_parameter")


@pytest.mark.parametrize("field", ["id", "group", "secret"])
async def test_an_empty_field_of_a_subscription_is_not_taken_for_one_left_out(service, field):
    answer = await service.call("POST", "/v1/subscriptions", json=HOOK | {field: ""})
    assert answer.status == 400
    assert (await service.call("GET", "/v1/subscriptions")).content == {"subscriptions": []}


def test_empty_filters_of_the_client_and_the_command_line_are_refused(tmp_path):
    with serving(tmp_path / "data") as service:
        url = {"TIMERWHEEL_URL": service.url}
        for _ in range(3):
            assert timerwheel("send", "orders", "x", "--delay", "1h", **url).code == 0
        for option in ("--tags", "--key-prefix"):
            refused = timerwheel("recall", "--topic", "orders", option, "", "--yes", **url)
            assert (refused.code, refused.out) == (1, "")
            assert "empty" in refused.err
        for arguments in (("receive", "orders", "g"), ("put", "orders", "g")):
            refused = timerwheel("groups", *arguments, "--tags", "", **url)
            assert (refused.code, refused.out) == (1, "")
            assert "empty" in refused.err


async def test_empty_conditions_reach_the_service_through_the_client(service):
    await service.send([{"topic": "orders", "delay_ms": 3_600_000}] * 3)
    async with Client(str(service.url)) as client:
        for condition in ({"tags": ""}, {"key_prefix": ""}):
            with pytest.raises(ClientError) as caught:
                await client.recall_where(topic="orders", **condition)
            assert caught.value.code == "illegal_filter"
    assert await service.pending() == 3
