"""`ETag`, `If-Match` and `If-None-Match`: a change of what was seen, or none."""

import asyncio

import pytest

HOUR_MS = 3_600_000
URL = "https://93.184.216.34/hook"


async def _message(service):
    sent = await service.send({"topic": "orders", "delay_ms": HOUR_MS, "dedup_key": "k"})
    return f"/v1/messages/{sent.content['id']}", "PATCH", {"delay_ms": 2 * HOUR_MS}, {"delay_ms": 3 * HOUR_MS}


async def _keyed(service):
    await _message(service)
    return "/v1/topics/orders/keys/k", "PATCH", {"delay_ms": 2 * HOUR_MS}, {"delay_ms": 3 * HOUR_MS}


async def _topic(service):
    await service.call("PATCH", "/v1/topics/orders", json={"ordered": True})
    return "/v1/topics/orders", "PATCH", {"queues": 2}, {"queues": 3}


async def _group(service):
    path = "/v1/topics/orders/groups/workers"
    await service.call("PUT", path, json={})
    return path, "PUT", {"max_attempts": 2}, {"max_attempts": 3}


async def _schedule(service):
    path = "/v1/schedules/daily"
    await service.call("PUT", path, json={"topic": "orders", "every": "1h"})
    first = {"topic": "orders", "every": "2h"}
    return path, "PUT", first, {**first, "every": "3h"}


async def _subscription(service):
    made = await service.call(
        "POST", "/v1/subscriptions", json={"topic": "orders", "url": URL, "paused": True}
    )
    assert made.status == 201, made.content
    return f"/v1/subscriptions/{made.content['id']}", "PATCH", {"concurrency": 2}, {"concurrency": 3}


RESOURCES = [_message, _keyed, _topic, _group, _schedule, _subscription]


def condition(tag):
    return {"If-Match": tag}


@pytest.mark.parametrize("make", RESOURCES)
async def test_a_change_of_what_was_seen_is_done_and_a_stale_one_is_refused(service, make):
    path, method, first, second = await make(service)
    seen = (await service.call("GET", path)).headers["ETag"]
    assert seen == (await service.call("GET", path)).headers["ETag"]
    changed = await service.call(method, path, json=first, headers=condition(seen))
    assert changed.status == 200
    assert changed.headers["ETag"] != seen
    assert (await service.call("GET", path)).headers["ETag"] == changed.headers["ETag"]
    for stale_method, content in ((method, second), ("DELETE", None)):
        stale = await service.call(stale_method, path, json=content, headers=condition(seen))
        assert (stale.status, stale.code) == (412, "precondition_failed")
        assert changed.headers["ETag"] in stale.content["detail"]
    assert (await service.call("GET", path)).headers["ETag"] == changed.headers["ETag"]
    several = condition(f'"none", {changed.headers["ETag"]}')
    assert (await service.call(method, path, json=second, headers=several)).status == 200
    assert (await service.call("DELETE", path, headers=condition("*"))).status == 200


@pytest.mark.parametrize("make", RESOURCES)
async def test_of_many_clients_that_saw_the_same_one_changes_it(service, make):
    path, method, first, _ = await make(service)
    seen = (await service.call("GET", path)).headers["ETag"]
    answers = await asyncio.gather(
        *(service.call(method, path, json=first, headers=condition(seen)) for _ in range(8))
    )
    assert sorted(answer.status for answer in answers) == [200] + [412] * 7


@pytest.mark.parametrize("make", [_topic, _group, _schedule])
async def test_counts_do_not_change_a_tag(service, make):
    path, *_ = await make(service)
    seen = (await service.call("GET", path)).headers["ETag"]
    await service.send([{"topic": "orders", "queue": 0}] * 3)
    assert (await service.call("GET", path)).headers["ETag"] == seen


async def test_the_end_of_a_message_changes_its_tag(service):
    path, *_ = await _message(service)
    seen = (await service.call("GET", path)).headers["ETag"]
    recalled = await service.call("DELETE", path, headers=condition(seen))
    assert recalled.headers["ETag"] == (await service.call("GET", path)).headers["ETag"] != seen
    again = await service.call("DELETE", path, headers=condition(seen))
    assert (again.status, again.code) == (409, "already_recalled")


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/v1/topics/t/groups/g", {}),
        ("/v1/schedules/s", {"topic": "t", "every": "1h"}),
    ],
)
async def test_a_put_may_be_limited_to_creating_or_to_changing(service, path, content):
    missing = await service.call("PUT", path, json=content, headers=condition("*"))
    assert (missing.status, missing.code) == (412, "precondition_failed")
    assert (await service.call("GET", path)).status == 404
    new = {"If-None-Match": "*"}
    made = await asyncio.gather(*(service.call("PUT", path, json=content, headers=new) for _ in range(6)))
    assert sorted(answer.status for answer in made) == [201] + [412] * 5
    assert (await service.call("PUT", path, json=content, headers=condition("*"))).status == 200


async def test_a_topic_that_does_not_exist_matches_nothing(service):
    answer = await service.call("PATCH", "/v1/topics/new", json={"ordered": True}, headers=condition("*"))
    assert (answer.status, answer.code) == (412, "precondition_failed")
    assert (await service.call("GET", "/v1/topics/new")).status == 404


async def test_a_weak_tag_matches_nothing(service):
    path, method, first, _ = await _message(service)
    seen = (await service.call("GET", path)).headers["ETag"]
    answer = await service.call(method, path, json=first, headers=condition(f"W/{seen}"))
    assert (answer.status, answer.code) == (412, "precondition_failed")


@pytest.mark.parametrize(
    "headers",
    [
        {"If-Match": "bare"},
        {"If-Match": ""},
        {"If-Match": '"open'},
        {"If-Match": '*, "a"'},
        {"If-None-Match": "*"},
        {"If-None-Match": '"a"'},
    ],
)
async def test_a_malformed_condition_is_refused(service, headers):
    path, method, first, _ = await _message(service)
    answer = await service.call(method, path, json=first, headers=headers)
    assert (answer.status, answer.code) == (400, "invalid_field")
    message = (await service.call("GET", path)).content
    assert message["due_ms"] - message["enqueue_ms"] == HOUR_MS


async def test_a_tag_may_have_commas_and_one_of_several_is_enough(service):
    path, method, first, _ = await _message(service)
    seen = (await service.call("GET", path)).headers["ETag"]
    other = await service.call(method, path, json=first, headers={"If-Match": '"a,b","c"'})
    assert (other.status, other.code) == (412, "precondition_failed")
    answer = await service.call(method, path, json=first, headers={"If-Match": f'"a,b" ,W/"c,",  {seen}'})
    assert answer.status == 200


@pytest.mark.parametrize("name", ["If-Match", "If-None-Match"])
async def test_a_change_that_has_no_conditions_refuses_them(service, name):
    for method, path in (
        ("PATCH", "/v1/tasks/0"),
        ("DELETE", "/v1/tasks/0"),
        ("PUT", "/v1/task-queues/mail"),
    ):
        answer = await service.call(method, path, headers={name: "*"}, json={})
        assert (answer.status, answer.content["code"]) == (400, "invalid_field")
        assert name in answer.content["detail"]
    assert (await service.call("GET", "/v1/task-queues/mail")).status == 404
