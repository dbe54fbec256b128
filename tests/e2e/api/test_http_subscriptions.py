"""Push subscriptions over HTTP, with a real endpoint on loopback."""

import pytest
from standardwebhooks import Webhook

from tests.harness.receiver import Receiver

AT = "/v1/subscriptions/s"


@pytest.fixture
async def receiver():
    async with Receiver() as receiver:
        yield receiver


@pytest.fixture
async def service(start_service, receiver):
    yield await start_service(push_private_targets=True)
    receiver.release()


async def _create(service, receiver, **fields):
    content = {"id": "s", "topic": "orders", "url": receiver.url(), **fields}
    answer = await service.call("POST", "/v1/subscriptions", json=content)
    assert answer.status == 201, answer.content
    return answer.content


async def test_a_subscription_shows_its_secret_once_and_delivers_signed_messages(service, receiver):
    created = await _create(service, receiver, headers={"X-Token": "hush"})
    secret = created.pop("secret")
    assert created == {
        "id": "s",
        "topic": "orders",
        "group": "push-s",
        "url": receiver.url(),
        "status": "active",
        "disabled": None,
        "start": "tail",
        "tags": "*",
        "max_attempts": 16,
        "backoff": {"type": "ladder"},
        "max_age_ms": None,
        "expired": "drop",
        "concurrency": 8,
        "rate_limit": None,
        "timeout_ms": 15_000,
        "header_names": ["X-Token"],
        "cloudevents": False,
        "secrets_valid": 1,
        "failing_since_ms": None,
        "failures_in_row": 0,
        "last_status": None,
        "last_error": None,
        "last_attempt_ms": None,
        "next_attempt_ms": None,
    }
    assert (await service.call("GET", AT)).content == created
    assert (await service.call("GET", "/v1/subscriptions")).content == {"subscriptions": [created]}
    await service.send({"topic": "orders", "body": '{"order":17}'})
    await receiver.arrived(1)
    [got] = receiver.got
    assert got.headers["X-Token"] == "hush"
    assert Webhook(secret).verify(got.body, dict(got.headers)) == {"order": 17}


async def test_a_subscription_gets_a_name_unless_it_is_given_one(service, receiver):
    content = {"topic": "orders", "url": receiver.url(), "group": "mine", "secret": "whsec_" + "A" * 32}
    answer = await service.call("POST", "/v1/subscriptions", json=content)
    assert (answer.status, answer.content["group"], answer.content["secret"]) == (
        201,
        "mine",
        content["secret"],
    )
    assert answer.content["id"].startswith("sub_")
    assert (await service.call("GET", "/v1/topics/orders/groups/mine")).status == 200


async def test_a_subscription_is_changed_paused_and_resumed(service, receiver):
    await _create(service, receiver, paused=True)
    assert (await service.call("GET", AT)).content["status"] == "paused"
    changed = await service.call("PATCH", AT, json={"concurrency": 2, "url": receiver.url("other")})
    assert (changed.status, changed.content["concurrency"]) == (200, 2)
    for limit in (2.5, None):
        changed = await service.call("PATCH", AT, json={"rate_limit": limit})
        assert (changed.status, changed.content["rate_limit"]) == (200, limit)
    assert (changed.content["status"], changed.content["timeout_ms"]) == ("paused", 15_000)
    await service.send({"topic": "orders", "body": "b"})
    resumed = await service.call("POST", f"{AT}/resume")
    assert (resumed.status, resumed.content["status"]) == (200, "active")
    await receiver.arrived(1, "other")
    paused = await service.call("POST", f"{AT}/pause")
    assert (paused.status, paused.content["status"]) == (200, "paused")


async def test_a_test_tells_what_came_of_it(service, receiver):
    receiver.behave["hook"] = [200, 503, 410]
    await _create(service, receiver, paused=True)
    for kind, status in (("delivered", 200), ("failed", 503), ("gone", 410)):
        answer = await service.call("POST", f"{AT}/test")
        assert (answer.status, answer.content["kind"], answer.content["status"]) == (200, kind, status)
        assert set(answer.content) == {"kind", "reason", "status", "retry_after_ms", "latency_ms", "answer"}
    assert (await service.call("GET", f"{AT}/stats")).content["delivered"] == 0


async def test_statistics_count_attempts(service, receiver):
    await _create(service, receiver)
    await service.send({"topic": "orders"})
    await receiver.arrived(1)
    while (stats := (await service.call("GET", f"{AT}/stats")).content)["delivered"] < 1:
        pass
    assert set(stats) == {
        *("delivered", "failed", "in_flight", "failures_in_row", "last_status", "last_error"),
        *("last_attempt_ms", "latency_p50_ms", "latency_p99_ms"),
    }
    assert (stats["failed"], stats["last_status"]) == (0, 200)


async def test_a_secret_is_rotated_in_two_steps(service, receiver):
    old = (await _create(service, receiver, paused=True))["secret"]
    answer = await service.call("POST", f"{AT}/finish-rotation")
    assert (answer.status, answer.code) == (409, "secret_rotation")
    rotated = await service.call("POST", f"{AT}/rotate-secret")
    assert (rotated.status, rotated.content["secrets_valid"]) == (200, 2)
    new = rotated.content["secret"]
    answer = await service.call("POST", f"{AT}/rotate-secret", json={"secret": "whsec_" + "A" * 32})
    assert (answer.status, answer.code) == (409, "secret_rotation")
    await service.call("POST", f"{AT}/test")
    for secret in (old, new):
        Webhook(secret).verify(receiver.got[-1].body, dict(receiver.got[-1].headers))
    finished = await service.call("POST", f"{AT}/finish-rotation")
    assert (finished.status, finished.content["secrets_valid"]) == (200, 1)
    assert "secret" not in finished.content
    own = await service.call("POST", f"{AT}/rotate-secret", json={"secret": "whsec_" + "B" * 32})
    assert own.content["secret"] == "whsec_" + "B" * 32


async def test_a_deleted_subscription_is_gone_with_its_group(service, receiver):
    created = await _create(service, receiver)
    del created["secret"]
    deleted = await service.call("DELETE", AT)
    assert (deleted.status, deleted.content) == (200, created)
    assert (await service.call("GET", "/v1/groups")).content == {"groups": []}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "", None),
        ("PATCH", "", b"{}"),
        ("DELETE", "", None),
        ("GET", "/stats", None),
        *(
            ("POST", f"/{verb}", None)
            for verb in ("pause", "resume", "test", "rotate-secret", "finish-rotation")
        ),
    ],
)
async def test_an_unknown_subscription_is_not_found(service, method, path, body):
    answer = await service.call(method, AT + path, data=body)
    assert (answer.status, answer.code) == (404, "unknown_subscription")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"url": "ftp://example.com"}, "illegal_subscription"),
        ({"url": "hook"}, "illegal_subscription"),
        ({"topic": "a b"}, "illegal_topic"),
        ({"group": "a b"}, "illegal_group"),
        ({"id": "a b"}, "invalid_field"),
        ({"secret": "hush"}, "invalid_field"),
        ({"tags": "a ||"}, "illegal_filter"),
        ({"concurrency": 0}, "invalid_field"),
        ({"timeout_ms": 99}, "invalid_field"),
        ({"max_attempts": 0}, "invalid_field"),
        ({"headers": {"Host": "x"}}, "invalid_field"),
        ({"topic": "rmq_sys_wheel_timer"}, "system_topic"),
        ({"topic": "TBW102"}, "system_topic"),
        ({"url": None}, "invalid_field"),
        ({"secret": None}, "invalid_field"),
        ({"concurrency": "8"}, "invalid_field"),
        ({"surprise": 1}, "invalid_field"),
    ],
)
async def test_a_wrong_subscription_is_refused(service, receiver, fields, code):
    content = {"topic": "orders", "url": receiver.url(), **fields}
    answer = await service.call("POST", "/v1/subscriptions", json=content)
    assert (answer.status, answer.code) == (400, code)
    assert (await service.call("GET", "/v1/subscriptions")).content == {"subscriptions": []}


async def test_a_wrong_change_is_refused(service, receiver):
    created = await _create(service, receiver)
    del created["secret"]
    for body, code in (
        (b'{"concurrency":0}', "invalid_field"),
        (b'{"topic":"other"}', "invalid_field"),
        (b'{"url":null}', "invalid_field"),
        (b"", "malformed_json"),
    ):
        answer = await service.call("PATCH", AT, data=body)
        assert (answer.status, answer.code) == (400, code)
    assert (await service.call("GET", AT)).content == created


async def test_an_id_is_taken_once(service, receiver):
    await _create(service, receiver)
    content = {"id": "s", "topic": "orders", "url": receiver.url()}
    answer = await service.call("POST", "/v1/subscriptions", json=content)
    assert (answer.status, answer.code) == (409, "subscription_exists")


async def test_a_group_that_exists_is_shared_and_not_changed(service, receiver):
    group = "/v1/topics/orders/groups/mine"
    await service.call("PUT", group, json={"tags": "a", "max_attempts": 3})
    content = {"id": "s", "topic": "orders", "url": receiver.url(), "group": "mine"}
    answer = await service.call("POST", "/v1/subscriptions", json={**content, "tags": "b"})
    assert (answer.status, answer.code) == (409, "group_differs")
    assert answer.content["detail"].startswith("tags: ")
    created = await _create(service, receiver, group="mine")
    assert (created["tags"], created["max_attempts"]) == ("a", 3)
    answer = await service.call("PATCH", AT, json={"max_attempts": 4})
    assert (answer.status, answer.code) == (409, "group_differs")
    assert (await service.call("GET", group)).content["config"]["max_attempts"] == 3


async def test_the_group_of_a_subscription_is_not_deleted(service, receiver):
    await _create(service, receiver, group="mine")
    answer = await service.call("DELETE", "/v1/topics/orders/groups/mine")
    assert (answer.status, answer.code) == (409, "group_in_use")
    assert "subscription 's'" in answer.content["detail"]
    assert (await service.call("DELETE", AT)).status == 200
    assert (await service.call("DELETE", "/v1/topics/orders/groups/mine")).status == 200
    answer = await service.call("DELETE", "/v1/topics/orders/groups/mine")
    assert (answer.status, answer.code) == (404, "unknown_group")


async def test_private_targets_are_refused_unless_they_are_allowed(start_service, receiver):
    service = await start_service()
    for url in (receiver.url(), "http://localhost/hook", "http://[::1]/hook", "http://169.254.169.254/"):
        answer = await service.call("POST", "/v1/subscriptions", json={"topic": "orders", "url": url})
        assert (answer.status, answer.code) == (400, "illegal_subscription")
        assert "url" in answer.content["detail"]
    assert (await service.call("GET", "/v1/groups")).content == {"groups": []}


async def test_the_last_attempts_say_what_was_answered_and_when_the_next_one_comes(service, receiver):
    await _create(service, receiver, backoff={"type": "exponential", "initial_ms": 60_000})
    assert (await service.call("GET", f"{AT}/attempts")).content == {"attempts": []}
    receiver.behave["hook"] = 503
    sent = await service.send({"topic": "orders", "body": "x"})
    await receiver.arrived(1)
    while not (attempts := (await service.call("GET", f"{AT}/attempts")).content["attempts"]):
        await service.engine.clock.sleep_for(10)
    [one] = attempts
    assert (one["message_id"], one["attempt"], one["kind"], one["status"]) == (
        sent.content["id"],
        1,
        "failed",
        503,
    )
    assert one["answer"] == "answer"
    assert one["next_attempt_ms"] == one["at_ms"] + 60_000


async def test_a_message_is_sent_again_by_hand_and_its_group_does_not_notice(service, receiver):
    await _create(service, receiver)
    sent = await service.send({"topic": "orders", "body": "x"})
    await receiver.arrived(1)
    answer = await service.call("POST", f"{AT}/attempts", json={"message_id": sent.content["id"]})
    assert (answer.status, answer.content["kind"], answer.content["attempt"]) == (200, "delivered", 0)
    await receiver.arrived(2)
    first, second = receiver.got
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    listed = (await service.call("GET", f"{AT}/attempts")).content["attempts"]
    assert listed[0] == answer.content
    assert (await service.call("GET", f"{AT}/stats")).content["delivered"] == 1


async def test_only_a_delivered_message_of_its_topic_is_sent_again(service, receiver):
    await _create(service, receiver)
    waiting = await service.send({"topic": "orders", "body": "x", "delay": "1h"})
    other = await service.send({"topic": "mail", "body": "x"})
    for message_id in (waiting.content["id"], other.content["id"], "0" * 24):
        answer = await service.call("POST", f"{AT}/attempts", json={"message_id": message_id})
        assert (answer.status, answer.code) == (404, "unknown_message")
    answer = await service.call("GET", "/v1/subscriptions/nobody/attempts")
    assert (answer.status, answer.code) == (404, "unknown_subscription")
