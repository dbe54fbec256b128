"""One-call tasks over HTTP, with a real endpoint on loopback."""

import pytest
from standardwebhooks import Webhook

from tests.harness.receiver import Receiver


@pytest.fixture
async def receiver():
    async with Receiver() as receiver:
        yield receiver


@pytest.fixture
async def service(start_service, receiver):
    yield await start_service(push_private_targets=True)
    receiver.release()


async def _ended(service, task_id: str) -> dict:
    for _ in range(2_000):
        view = (await service.call("GET", f"/v1/tasks/{task_id}")).content
        if view["state"] in {"succeeded", "failed", "cancelled"}:
            return view
    raise AssertionError(view)


async def test_a_task_is_created_called_and_shown(service, receiver):
    made = await service.call("PUT", "/v1/task-queues/mail", json={"host_concurrency": 2})
    assert (made.status, made.headers["Location"]) == (201, "/v1/task-queues/mail")
    content = {"url": receiver.url(), "json": {"n": 1}, "queue": "mail", "headers": {"X-Token": "hush"}}
    created = await service.call("POST", "/v1/tasks", json=content)
    assert created.status == 201, created.content
    assert created.headers["Location"] == f"/v1/tasks/{created.content['id']}"
    view = await _ended(service, created.content["id"])
    assert (view["state"], view["last_status"], view["header_names"]) == ("succeeded", 200, ["X-Token"])
    (got,) = receiver.got
    assert got.headers["Content-Type"] == "application/json"
    assert Webhook(made.content["secret"]).verify(got.body, dict(got.headers)) == {"n": 1}
    listed = (await service.call("GET", "/v1/tasks?queue=mail&state=succeeded&host=127.0.0.1")).content
    assert listed == {"tasks": [view], "cursor": None}
    shown = (await service.call("GET", f"/v1/messages/{view['id']}")).content
    assert "hush" not in str(shown)
    queue = (await service.call("PUT", "/v1/task-queues/mail", json={"rate_limit": 5})).content
    assert "secret" not in queue
    assert (queue["rate_limit"], queue["host_concurrency"]) == (5, 2)
    assert (await service.call("GET", "/v1/task-queues")).content == {"queues": [queue]}


async def test_a_waiting_task_is_moved_run_and_cancelled(service, receiver):
    first = (await service.call("POST", "/v1/tasks", json={"url": receiver.url(), "delay": "1h"})).content
    at = f"/v1/tasks/{first['id']}"
    moved = (await service.call("PATCH", at, json={"delay": "2h"})).content
    assert moved["due_ms"] > first["due_ms"] + 3_000_000
    assert (await service.call("POST", f"{at}/run")).status == 200
    assert (await _ended(service, first["id"]))["state"] == "succeeded"
    refused = await service.call("DELETE", at)
    assert (refused.status, refused.code, refused.content["state"]) == (409, "task_state", "succeeded")
    other = (await service.call("POST", "/v1/tasks", json={"url": receiver.url(), "delay": "1h"})).content
    assert (await service.call("DELETE", f"/v1/tasks/{other['id']}")).content["state"] == "cancelled"
    assert len(receiver.got) == 1


async def test_a_key_makes_one_task(service, receiver):
    content = {"url": receiver.url(), "delay": "1h"}
    headers = {"Idempotency-Key": '"k"'}
    first = await service.call("POST", "/v1/tasks", json=content, headers=headers)
    again = await service.call("POST", "/v1/tasks", json=content | {"dedup_key": "k"})
    assert (first.status, again.status, again.content["duplicate"]) == (201, 200, True)
    other = await service.call("POST", "/v1/tasks", json=content | {"dedup_key": "k", "method": "PUT"})
    assert (other.status, other.code) == (422, "key_reused")


async def test_cron_makes_a_schedule_whose_runs_are_tasks(service, receiver):
    content = {
        "url": receiver.url(),
        "cron": "* * * * *",
        "zone": "Europe/Berlin",
        "schedule": "every-minute",
    }
    content |= {"headers": {"X-Token": "hush"}}
    made = await service.call("POST", "/v1/tasks", json=content)
    assert made.status == 201, made.content
    assert (made.content["schedule"], made.headers["Location"]) == (
        "every-minute",
        "/v1/schedules/every-minute",
    )
    shown = (await service.call("GET", "/v1/schedules/every-minute")).content
    assert (shown["topic"], shown["zone"]) == ("%TASK%default", "Europe/Berlin")
    assert "hush" not in str(shown)
    listed = (await service.call("GET", "/v1/tasks?state=scheduled")).content["tasks"]
    assert listed[0]["schedule"] == "every-minute"
    run = await service.call("POST", f"/v1/tasks/{listed[0]['id']}/run")
    assert run.status == 200, run.content
    assert (await _ended(service, listed[0]["id"]))["state"] == "succeeded"
    assert (await service.call("POST", "/v1/schedules/every-minute/pause")).content["paused"]


async def test_the_same_call_after_a_cancelled_one_needs_another_key(service):
    content = {"url": "http://127.0.0.1:9/", "delay": "1h", "dedup_key": "k"}
    task = (await service.call("POST", "/v1/tasks", json=content)).content
    await service.call("DELETE", f"/v1/tasks/{task['id']}")
    again = await service.call("POST", "/v1/tasks", json=content)
    assert (again.status, again.content["code"]) == (409, "key_recalled")
    assert "give another dedup_key" in again.content["detail"]
    assert (await service.call("POST", "/v1/tasks", json=content | {"dedup_key": "k2"})).status == 201


async def test_a_run_on_demand_of_a_task_with_cron_is_called_once_for_each_key(service, receiver):
    content = {"url": receiver.url(), "cron": "@yearly", "schedule": "yearly", "json": {"year": 1}}
    assert (await service.call("POST", "/v1/tasks", json=content)).status == 201
    ids = []
    for body in ({}, {"key": "k"}, {"key": "k"}):
        run = await service.call("POST", "/v1/schedules/yearly/run", json=body)
        assert run.status in (200, 201), run.content
        ids.append(run.content["id"])
    assert ids[0] != ids[1] == ids[2]
    for task in ids[:2]:
        assert (await _ended(service, task))["state"] == "succeeded"
    assert receiver.bodies() == [b'{"year":1}'] * 2


@pytest.mark.parametrize(
    ("content", "status", "code"),
    [
        ({"url": "ftp://example.com/"}, 400, "illegal_task"),
        ({"url": "http://example.com/", "failure_callback": "x"}, 400, "illegal_task"),
        ({"url": "http://example.com/", "method": "TRACE"}, 400, "invalid_field"),
        ({"url": "http://example.com/", "method": "GET", "body": "x"}, 400, "invalid_field"),
        ({"url": "http://example.com/", "body": "x", "json": 1}, 400, "conflicting_body"),
        ({"url": "http://example.com/", "delay": "1h", "delay_ms": 1}, 400, "conflicting_delay"),
        ({"url": "http://example.com/", "delay": "100000d"}, 400, "delay_too_long"),
        ({"url": "http://example.com/", "queue": "a/b"}, 400, "illegal_task_queue"),
        ({"url": "http://example.com/", "cron": "x"}, 400, "illegal_schedule"),
        ({"url": "http://example.com/", "cron": "@daily", "delay": "1s"}, 400, "invalid_field"),
        ({"url": "http://example.com/", "zone": "UTC"}, 400, "invalid_field"),
        ({"url": "http://example.com/", "headers": {"Connection": "x"}}, 400, "invalid_field"),
        ({"url": "http://example.com/", "max_attempts": 0}, 400, "invalid_field"),
        ({"url": "http://example.com/", "attempts": 1}, 400, "invalid_field"),
    ],
)
async def test_a_wrong_task_is_refused_and_makes_no_queue(service, content, status, code):
    refused = await service.call("POST", "/v1/tasks", json=content)
    assert (refused.status, refused.code) == (status, code), refused.content
    assert (await service.call("GET", "/v1/task-queues")).content == {"queues": []}


async def test_what_is_not_there_is_not_found(service):
    for method, path, code in (
        ("GET", f"/v1/tasks/{'0' * 24}", "unknown_task"),
        ("DELETE", "/v1/tasks/x", "unknown_task"),
        ("POST", "/v1/tasks/x/run", "unknown_task"),
        ("GET", "/v1/task-queues/none", "unknown_task_queue"),
        ("POST", "/v1/task-queues/none/rotate-secret", "unknown_task_queue"),
    ):
        refused = await service.call(method, path)
        assert (refused.status, refused.code) == (404, code)


async def test_nobody_sends_to_the_topic_of_a_queue(service):
    for topic in ("%TASK%default", "%TASKLOG%default"):
        refused = await service.call("POST", "/v1/messages", json={"topic": topic, "body": "x"})
        assert (refused.status, refused.code) == (400, "system_topic")
        schedule = {"topic": topic, "cron": "@daily"}
        refused = await service.call("PUT", "/v1/schedules/s", json=schedule)
        assert (refused.status, refused.code) == (400, "system_topic")


async def test_the_topic_of_a_queue_is_deleted_with_its_tasks(service, receiver):
    made = (await service.call("POST", "/v1/tasks", json={"url": receiver.url(), "delay": "1h"})).content
    gone = await service.call("DELETE", "/v1/topics/%25TASK%25default?wait_ms=5000")
    assert gone.content["state"] == "deleted"
    assert (await service.call("GET", "/v1/task-queues")).content == {"queues": []}
    assert (await service.call("GET", f"/v1/tasks/{made['id']}")).status == 404
    again = await service.call("POST", "/v1/tasks", json={"url": receiver.url()})
    assert (await _ended(service, again.content["id"]))["state"] == "succeeded"


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("http://127.0.0.1:9/x", ["127.0.0.1", "127.0.0.1:9"]),
        ("http://[::1]:9/", ["::1", "::1:9"]),
        ("http://bücher.example/", ["bücher.example", "xn--bcher-kva.example", "xn--bcher-kva.example:80"]),
        ("http://xn--/", ["xn--"]),  # looks encoded and is not
    ],
)
async def test_tasks_are_listed_by_their_host_however_it_is_written(service, url, hosts):
    made = await service.call("POST", "/v1/tasks", json={"url": url, "delay": "1h"})
    assert made.status == 201, made.content
    for host in hosts:
        listed = await service.call("GET", "/v1/tasks", params={"host": host})
        assert [task["id"] for task in listed.content["tasks"]] == [made.content["id"]], host
    none = await service.call("GET", "/v1/tasks", params={"host": "other.example"})
    assert none.content == {"tasks": [], "cursor": None}
    assert (await service.call("GET", "/v1/tasks", params={"host": ""})).status == 400


async def test_retries_and_timeout_are_other_names_of_attempts_and_milliseconds(service, receiver):
    content = {"url": receiver.url(), "delay": "1h"}
    made = await service.call("POST", "/v1/tasks", json={**content, "retries": 0, "timeout": "10s"})
    view = (await service.call("GET", f"/v1/tasks/{made.content['id']}")).content
    assert (view["max_attempts"], view["timeout_ms"]) == (1, 10_000)
    for fields, said in (
        ({"retries": 2, "max_attempts": 3}, "give only one of retries and max_attempts"),
        ({"timeout": "1s", "timeout_ms": 1_000}, "give only one of timeout and timeout_ms"),
        ({"retries": 100}, "retries: 100 is not from 0 to 99"),
        ({"retries": -1}, "retries"),
        ({"timeout": "soon"}, "timeout"),
        ({"timeout": "1h"}, "timeout_ms"),
    ):
        refused = await service.call("POST", "/v1/tasks", json={**content, **fields})
        assert (refused.status, refused.code) == (400, "invalid_field")
        assert said in refused.content["detail"]
