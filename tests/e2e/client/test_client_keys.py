"""Deduplication keys, bulk recall, schedules and subscriptions through `timerwheel.client`."""

import datetime as dt

import pytest

from tests.harness.receiver import Receiver
from timerwheel.client import Client, ClientError, ConflictError, Exponential, NotFoundError
from timerwheel.model.messages import State

HOUR_MS = 3_600_000


@pytest.fixture
async def service(start_service):
    return await start_service(push_private_targets=True, redelivery_delay_ms=0)


@pytest.fixture
async def client(service):
    async with Client(str(service.url)) as client:
        yield client


# ---------------------------------------------------------------------- keys


async def test_the_same_send_under_one_key_is_stored_once(client, service):
    first = await client.send("t", "x", delay="1h", dedup_key="order-1")
    again = await client.send("t", "x", delay="1h", dedup_key="order-1")
    assert (first.duplicate, again.duplicate) == (False, True)
    assert again.id == first.id
    assert await service.pending() == 1
    with pytest.raises(ClientError) as caught:
        await client.send("t", "other", delay="1h", dedup_key="order-1")
    assert (caught.value.status, caught.value.code) == (422, "key_reused")


@pytest.mark.parametrize("key", ["order-1", "a/b c%2F?#", "ключ"])
async def test_a_message_is_found_rescheduled_and_recalled_by_its_key(client, key):
    sent = await client.send("t", "x", delay="1h", dedup_key=key)
    message = await client.get_key("t", key)
    assert (message.id, message.dedup_key) == (sent.id, key)
    moved = await client.reschedule_key("t", key, delay="2h")
    assert moved.id == sent.id
    assert moved.due_ms > sent.due_ms
    assert (await client.recall_key("t", key)).state is State.RECALLED
    with pytest.raises(ConflictError) as caught:
        await client.recall_key("t", key)
    assert caught.value.code == "already_recalled"


async def test_a_recalled_message_is_sent_again_by_naming_it(client, service):
    sent = await client.send("t", "x", delay="1h", dedup_key="order-1")
    recalled = await client.recall_key("t", "order-1")
    with pytest.raises(ConflictError) as caught:
        await client.send("t", "x", delay="1h", dedup_key="order-1")
    assert (caught.value.code, sent.id in caught.value.detail) == ("key_recalled", True)
    again = await client.send("t", "x", delay="1h", dedup_key="order-1", after_recall=recalled.id)
    assert (again.duplicate, again.id == sent.id) == (False, False)
    await client.recall(again.id)
    [other] = await client.send_many([{"topic": "t", "body": "y", "delay": "1h", "dedup_key": "order-1"}])
    assert not other.duplicate
    assert await service.pending() == 1


async def test_names_of_the_service_are_refused(client):
    for topic, options, code in (
        ("%RETRY%g", {}, "system_topic"),
        ("t", {"dedup_key": "schedule:n:1:2"}, "reserved_key"),
        ("t", {"properties": {"SCHEDULE_NAME": "n"}}, "reserved_property"),
    ):
        with pytest.raises(ClientError) as caught:
            await client.send(topic, "x", **options)
        assert (caught.value.status, caught.value.code) == (400, code)


async def test_a_key_that_was_never_used_is_not_found(client):
    for call in (client.get_key, client.recall_key):
        with pytest.raises(NotFoundError) as caught:
            await call("t", "nothing")
        assert caught.value.code == "unknown_message"


# ---------------------------------------------------------------------- bulk


async def test_many_messages_are_recalled_and_each_is_answered_for(client, service):
    sent = await client.send_many([{"topic": "t", "body": str(n), "delay": "1h"} for n in range(3)])
    results = await client.recall_many([sent[0].id, "nonsense", sent[1].id])
    assert [(result.ok, result.code) for result in results] == [
        (True, None),
        (False, "unknown_message"),
        (True, None),
    ]
    assert await service.pending() == 1


async def test_what_meets_conditions_is_counted_and_recalled(client, service):
    drafts = [
        {"topic": "a", "body": "1", "delay": "1h", "tags": "red", "dedup_key": "run-1"},
        {"topic": "a", "body": "2", "delay": "1h", "tags": "blue", "dedup_key": "run-2"},
        {"topic": "b", "body": "3", "delay": "3h", "tags": "red"},
    ]
    sent = await client.send_many(drafts)
    counted = await client.recall_where(tags="red", dry_run=True)
    assert (counted.matched, counted.recalled, counted.dry_run) == (2, 0, True)
    assert await service.pending() == 3
    done = await client.recall_where(topic="a", key_prefix="run-", due_to_ms=sent[2].due_ms)
    assert (done.matched, done.recalled, done.missed, done.dry_run) == (2, 2, 0, False)
    assert await service.pending() == 1
    await client.tasks.create("https://example.com/", delay="1h")
    left = 1
    for reserved, matched in ((False, left), (True, left + 1)):
        counted = await client.recall_where(due_from_ms=1, reserved=reserved, dry_run=True)
        moved = await client.reschedule_where(due_from_ms=1, reserved=reserved, shift="1h", dry_run=True)
        assert counted.matched == moved.matched == matched
    with pytest.raises(ClientError) as caught:
        await client.recall_where()
    assert caught.value.status == 400


# ---------------------------------------------------------------------- schedules


async def test_a_schedule_is_put_paused_resumed_and_deleted(client):
    start = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
    made = await client.schedules.put(
        "report", "t", body=b"\xff", every=dt.timedelta(hours=1), start=start, tags="x", properties={"p": "v"}
    )
    start_ms = round(start.timestamp() * 1000)
    assert (made.name, made.topic, made.body, made.every_ms) == ("report", "t", b"\xff", HOUR_MS)
    assert (made.next_run_ms, made.tags, made.properties["p"]) == (start_ms, "x", "v")
    runs = await client.schedules.runs("report", 3)
    assert [run.run_ms for run in runs] == [start_ms, start_ms + HOUR_MS, start_ms + 2 * HOUR_MS]
    assert (await client.schedules.pause("report")).paused
    assert await client.schedules.runs("report") == []
    assert not (await client.schedules.resume("report")).paused
    assert [schedule.name for schedule in await client.schedules.all()] == ["report"]
    assert (await client.schedules.delete("report")).name == "report"
    with pytest.raises(NotFoundError) as caught:
        await client.schedules.get("report")
    assert caught.value.code == "unknown_schedule"


async def test_a_cron_schedule_keeps_its_zone_and_one_that_is_wrong_is_refused(client):
    made = await client.schedules.put("daily", "t", cron="0 9 * * *", zone="Europe/Berlin", body="text")
    assert (made.cron, made.zone, made.body) == ("0 9 * * *", "Europe/Berlin", b"text")
    with pytest.raises(ClientError) as caught:
        await client.schedules.put("wrong", "t", cron="61 * * * *")
    assert caught.value.code == "illegal_schedule"
    with pytest.raises(ValueError, match="start needs a time zone"):
        await client.schedules.put("wrong", "t", every="1h", start=dt.datetime(2030, 1, 1))  # noqa: DTZ001


# ---------------------------------------------------------------------- subscriptions


async def test_a_subscription_is_made_changed_tested_rotated_and_deleted(client):
    async with Receiver() as receiver:
        made = await client.subscriptions.add("t", receiver.url(), headers={"X-Key": "k"}, start="tail")
        assert made.secret.startswith("whsec_")
        assert (made.status, made.header_names) == ("active", ["X-Key"])
        changed = await client.subscriptions.update(
            made.id, concurrency=2, backoff=Exponential(initial_ms=5_000)
        )
        assert (changed.concurrency, changed.backoff.initial_ms) == (2, 5_000)
        assert (await client.subscriptions.test(made.id)).kind == "delivered"
        await client.send("t", "pushed")
        await receiver.until(lambda: b"pushed" in receiver.bodies())
        rotated = await client.subscriptions.rotate_secret(made.id)
        assert rotated.secret != made.secret
        assert rotated.secrets_valid == 2
        with pytest.raises(ClientError):
            await client.subscriptions.rotate_secret(made.id)
        assert (await client.subscriptions.finish_rotation(made.id)).secrets_valid == 1
        assert (await client.subscriptions.pause(made.id)).status == "paused"
        assert (await client.subscriptions.resume(made.id)).status == "active"
        assert (await client.subscriptions.get(made.id)).id == made.id
        assert [one.id for one in await client.subscriptions.all()] == [made.id]
        assert (await client.subscriptions.stats(made.id)).failed == 0
        assert (await client.subscriptions.delete(made.id)).id == made.id
    with pytest.raises(NotFoundError) as caught:
        await client.subscriptions.get(made.id)
    assert caught.value.code == "unknown_subscription"
