"""The topics of a token: they hold wherever a topic stands, in path, body, query, answer, or behind an id."""

import asyncio

import pytest

from tests.harness.guarded import code, grant, guarded
from timerwheel.push.signing import new_secret
from timerwheel.tokens import Scope


@pytest.fixture
def data(tmp_path):
    return tmp_path / "data"


class Caller:
    """Somebody with a token; each call has one outcome that is expected."""

    def __init__(self, service, headers):
        self._service = service
        self._headers = headers

    async def does(self, method, path, content=None):
        status, answer = await self._service.call(method, path, self._headers, json=content)
        assert status < 300, (method, path, answer)
        return answer

    async def may_not(self, method, path, content=None):
        assert await self.fails(method, path, content) == "forbidden", (method, path)

    async def fails(self, method, path, content=None):
        return code(await self._service.call(method, path, self._headers, json=content))


@pytest.fixture
async def admin_and_owner(data):
    """An admin, and somebody who has the topics that begin with `orders` and the dead letters of `mine`."""
    admin = grant(data, "admin", Scope.ADMIN)
    owner = grant(data, "owner", Scope.SEND, Scope.RECEIVE, topics=("orders*", "%DLQ%mine"))
    async with guarded(data) as service:
        yield Caller(service, admin), Caller(service, owner)


async def test_messages_of_other_topics_can_neither_be_sent_nor_seen_nor_recalled(admin_and_owner):
    admin, owner = admin_and_owner
    theirs = await admin.does("POST", "/v1/messages", {"topic": "bills", "delay": "1h", "dedup_key": "k"})
    own = await owner.does("POST", "/v1/messages", {"topic": "orders-eu", "delay": "1h", "dedup_key": "k"})
    await owner.may_not("POST", "/v1/messages", {"topic": "bills"})
    await owner.may_not("POST", "/v1/messages", {"topic": "Orders"})
    await owner.may_not("POST", "/v1/messages", [{"topic": "orders-us"}, {"topic": "bills"}])
    await owner.may_not("POST", "/v1/topics/bills/messages")
    for method in ("GET", "DELETE", "PATCH"):
        content = {"delay": "2h"} if method == "PATCH" else None
        await owner.may_not(method, f"/v1/messages/{theirs['id']}", content)
        await owner.may_not(method, "/v1/topics/bills/keys/k", content)
    await owner.may_not("GET", f"/v1/messages/{theirs['id']}/history")
    await owner.may_not("GET", f"/v1/messages/{theirs['id']}/story")
    await owner.may_not("GET", "/v1/messages")
    await owner.may_not("GET", "/v1/messages?topic=bills")
    await owner.may_not("POST", "/v1/messages/recall", {"key_prefix": "k"})
    await owner.may_not("POST", "/v1/messages/recall", {"topic": "bills"})
    assert await owner.fails("GET", "/v1/messages/0000") == "unknown_message"

    assert (await owner.does("GET", f"/v1/messages/{own['id']}"))["topic"] == "orders-eu"
    assert len((await owner.does("GET", "/v1/messages?topic=orders-eu"))["messages"]) == 1
    ids = [theirs["id"], own["id"], "x", theirs["id"]]
    found = (await owner.does("POST", "/v1/messages/recall", {"ids": ids}))["results"]
    assert [one.get("code") for one in found] == ["forbidden", None, "unknown_message", "forbidden"]
    assert [one["id"] for one in found] == ids
    assert (await admin.does("GET", f"/v1/messages/{theirs['id']}"))["state"] == "scheduled"
    assert await owner.fails("GET", "/v1/topics/orders-us") == "unknown_topic", "the array stored nothing"


async def test_a_message_of_a_deleted_topic_still_belongs_to_it(admin_and_owner):
    admin, owner = admin_and_owner
    theirs = (await admin.does("POST", "/v1/messages", {"topic": "bills"}))["id"]
    own = (await owner.does("POST", "/v1/messages", {"topic": "orders-eu"}))["id"]
    await owner.may_not("DELETE", "/v1/topics/orders-eu")
    await owner.may_not("DELETE", "/v1/topics/orders-eu?dry_run=true")
    for topic in ("bills", "orders-eu"):
        await admin.does("DELETE", f"/v1/topics/{topic}?wait_ms=5000")
    await owner.may_not("GET", f"/v1/messages/{theirs}")
    assert await owner.fails("GET", f"/v1/messages/{own}") == "message_deleted"
    found = (await owner.does("POST", "/v1/messages/recall", {"ids": [theirs, own]}))["results"]
    assert [one["code"] for one in found] == ["forbidden", "message_deleted"]


async def test_queues_and_groups_of_other_topics_and_of_the_service_itself_are_closed(admin_and_owner):
    admin, owner = admin_and_owner
    for topic in ("bills", "orders"):
        await admin.does("POST", "/v1/messages", {"topic": topic, "delay": "1h"})
        await admin.does("PUT", f"/v1/topics/{topic}/groups/g", {})
    await owner.may_not("GET", "/v1/topics/bills")
    for topic in ("bills", "rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX", "%25DLQ%25g"):
        await owner.may_not("GET", f"/v1/topics/{topic}/queues/0/messages")
    for topic in (
        "orders%2Fg",
        "orders%2F..%2Fbills",
    ):  # the first is the service's own, by a name of no topic
        assert await owner.fails("GET", f"/v1/topics/{topic}/queues/0/messages") == "illegal_topic"
    await owner.may_not("GET", "/v1/topics/bills/groups")
    await owner.may_not("GET", "/v1/topics/bills/groups/g")
    for verb in ("receive", "ack", "nack", "extend"):
        await owner.may_not("POST", f"/v1/topics/bills/groups/g/{verb}", {})
    await owner.may_not("GET", "/v1/topics/bills/groups/g/stream")
    await owner.may_not("GET", "/v1/groups/g/dead-letters")
    assert await owner.fails("GET", "/v1/groups/mine/dead-letters") == "unknown_group"
    assert [one["topic"] for one in (await owner.does("GET", "/v1/topics"))["topics"]] == ["orders"]
    assert [one["topic"] for one in (await owner.does("GET", "/v1/groups"))["groups"]] == ["orders"]


async def test_a_schedule_belongs_to_the_topic_that_it_sends_to(admin_and_owner):
    admin, owner = admin_and_owner
    await admin.does("PUT", "/v1/schedules/theirs", {"topic": "bills", "every": "1h"})
    await owner.does("PUT", "/v1/schedules/own", {"topic": "orders", "every": "1h"})
    await owner.may_not("PUT", "/v1/schedules/new", {"topic": "bills", "every": "1h"})
    await owner.may_not("PUT", "/v1/schedules/own", {"topic": "bills", "every": "1h"})
    await owner.may_not("PUT", "/v1/schedules/theirs", {"topic": "orders", "every": "1h"})
    for method, path in (
        ("GET", ""),
        ("DELETE", ""),
        ("POST", "/pause"),
        ("POST", "/resume"),
        ("GET", "/runs"),
    ):
        await owner.may_not(method, f"/v1/schedules/theirs{path}")
    assert [one["name"] for one in (await owner.does("GET", "/v1/schedules"))["schedules"]] == ["own"]


async def test_what_is_created_for_another_topic_while_a_body_comes_in_is_not_overwritten(data):
    admin = grant(data, "admin", Scope.ADMIN)
    owner = grant(data, "owner", Scope.SEND, topics=("orders",))
    async with guarded(data) as service:
        path, arriving = "/v1/schedules/s", asyncio.Event()

        async def slowly():
            yield b'{"topic": "orders",'
            arriving.set()
            while (await service.call("GET", path, admin))[0] != 200:
                await asyncio.sleep(0)
            yield b' "every": "1h"}'

        headers = {**owner, "Content-Type": "application/json"}
        put = asyncio.create_task(service.call("PUT", path, headers, data=slowly()))
        await arriving.wait()
        await service.call("PUT", path, admin, json={"topic": "bills", "every": "1h"})
        assert code(await put) == "forbidden"
        assert (await service.call("GET", path, admin))[1]["topic"] == "bills"


async def test_a_listing_by_key_shows_a_token_only_messages_of_its_topics(data):
    admin = grant(data, "admin", Scope.ADMIN)
    owner = grant(data, "owner", Scope.SEND, topics=("orders*",))
    async with guarded(data) as service:
        for topic in ("orders", "bills", "orders-late"):
            new = {"topic": topic, "keys": "4711", "body": topic}
            assert (await service.call("POST", "/v1/messages", admin, json=new))[0] == 201
        for caller, expected in (
            (admin, ["orders", "bills", "orders-late"]),
            (owner, ["orders", "orders-late"]),
        ):
            _, listed = await service.call("GET", "/v1/messages?key=4711", caller)
            assert [one["body"] for one in listed["messages"]] == expected
        for query in ("topic=bills&key=4711", "topic=bills&state=delivered", "tag=vip", "state=scheduled"):
            assert code(await service.call("GET", f"/v1/messages?{query}", owner)) == "forbidden"


async def test_a_subscription_belongs_to_its_topic(data):
    admin = grant(data, "admin", Scope.ADMIN)
    mine = grant(data, "mine", Scope.RECEIVE, topics=("orders",))
    async with guarded(data) as service:
        for topic in ("orders", "bills"):
            wanted = {"id": topic, "topic": topic, "url": "https://shop.example/"}
            assert (await service.call("POST", "/v1/subscriptions", admin, json=wanted))[0] == 201
        _, listed = await service.call("GET", "/v1/subscriptions", mine)
        assert [one["id"] for one in listed["subscriptions"]] == ["orders"]
        assert (await service.call("POST", "/v1/subscriptions/orders/pause", mine))[0] == 200
        for method, path, content in (
            ("GET", "", None),
            ("GET", "/stats", None),
            ("PATCH", "", {"concurrency": 1}),
            ("POST", "/pause", None),
            ("POST", "/test", None),
            ("POST", "/rotate-secret", {"secret": new_secret(b"s" * 32)}),
            ("DELETE", "", None),
        ):
            answer = await service.call(method, f"/v1/subscriptions/bills{path}", mine, json=content)
            assert code(answer) == "forbidden", (method, path)


async def test_tasks_of_other_queues_can_neither_be_created_nor_seen_nor_cancelled(data):
    admin = grant(data, "admin", Scope.ADMIN)
    owner = grant(data, "owner", Scope.SEND, Scope.RECEIVE, topics=("%TASK%mine",))
    sender = grant(data, "sender", Scope.SEND, topics=("*",))
    receiver = grant(data, "receiver", Scope.RECEIVE, topics=("*",))
    async with guarded(data) as service:
        admin, owner = Caller(service, admin), Caller(service, owner)
        sender, receiver = Caller(service, sender), Caller(service, receiver)
        task = {"url": "https://example.com/", "delay": "1h"}
        theirs = await admin.does("POST", "/v1/tasks", task)
        own = await owner.does("POST", "/v1/tasks", task | {"queue": "mine"})
        await owner.may_not("POST", "/v1/tasks", task)
        await sender.may_not("POST", "/v1/tasks", task)
        await receiver.may_not("POST", "/v1/tasks", task)
        for method, path, content in (
            ("GET", "", None),
            ("DELETE", "", None),
            ("PATCH", "", {"delay": "2h"}),
            ("POST", "/run", None),
        ):
            await owner.may_not(method, f"/v1/tasks/{theirs['id']}{path}", content)
        await owner.may_not("GET", "/v1/tasks")
        await owner.may_not("GET", "/v1/task-queues/default")
        await owner.may_not("PUT", "/v1/task-queues/other", {})
        await owner.may_not("POST", "/v1/task-queues/default/rotate-secret")
        assert [one["id"] for one in (await owner.does("GET", "/v1/tasks?queue=mine"))["tasks"]] == [
            own["id"]
        ]
        queues = (await owner.does("GET", "/v1/task-queues"))["queues"]
        assert [one["queue"] for one in queues] == ["mine"]
        assert (await receiver.does("GET", f"/v1/tasks/{theirs['id']}"))["state"] == "scheduled"
        assert (await owner.does("DELETE", f"/v1/tasks/{own['id']}"))["state"] == "cancelled"


async def test_a_task_with_cron_does_not_take_over_a_schedule_of_another_topic(data):
    admin = grant(data, "admin", Scope.ADMIN)
    owner = grant(data, "owner", Scope.SEND, Scope.RECEIVE, topics=("%TASK%mine",))
    async with guarded(data) as service:
        admin, owner = Caller(service, admin), Caller(service, owner)
        await admin.does("PUT", "/v1/schedules/theirs", {"topic": "bills", "every": "1h"})
        task = {"url": "https://example.com/", "queue": "mine", "cron": "@yearly"}
        await owner.may_not("POST", "/v1/tasks", task | {"schedule": "theirs"})
        assert (await admin.does("GET", "/v1/schedules/theirs"))["topic"] == "bills"
        assert (await admin.does("GET", "/v1/task-queues"))["queues"] == [], "a refusal made a queue"
        for cron in ("@yearly", "@monthly"):
            await owner.does("POST", "/v1/tasks", task | {"schedule": "own", "cron": cron})
        assert (await owner.does("GET", "/v1/schedules/own"))["cron"] == "@monthly"
