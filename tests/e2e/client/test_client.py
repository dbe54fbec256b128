"""`timerwheel.client` against the real service."""

import asyncio
import datetime as dt
from contextlib import AsyncExitStack
from functools import partial

import pytest
from aiohttp import web

from tests.harness.served import Served
from timerwheel.client import (
    END,
    AddressError,
    Client,
    ClientError,
    ConflictError,
    GroupConfig,
    NotFoundError,
    UnreachableError,
)
from timerwheel.model.messages import State

HOUR_MS = 3_600_000


@pytest.fixture
async def client(service):
    async with Client(str(service.url)) as client:
        yield client


async def test_three_lines_schedule_and_receive(service):
    async with Client(str(service.url)) as c:
        sent = await c.send("orders", "close order 17", delay="20ms")
        message = await anext(c.receive("orders"))
    assert (message.id, message.text, message.state) == (sent.id, "close order 17", State.DELIVERED)
    assert message.delivered_ms >= sent.due_ms
    assert message.lateness_ms == message.delivered_ms - message.due_ms


@pytest.mark.parametrize(
    "when",
    [
        {"delay": "1h"},
        {"delay": dt.timedelta(hours=1)},
        {"delay_ms": HOUR_MS},
        {"properties": {"TIMER_DELAY_SEC": "3600"}},
    ],
)
async def test_a_delay_may_be_said_in_any_way(client, when):
    message = await client.get((await client.send("t", "x", **when)).id)
    assert message.due_ms - message.enqueue_ms == HOUR_MS


@pytest.mark.parametrize(
    "when",
    [
        {"deliver_at": dt.datetime(2030, 12, 24, 18, tzinfo=dt.timezone(dt.timedelta(hours=1)))},
        {"deliver_at": "2030-12-24T18:00:00+01:00"},
        {"deliver_at_ms": 1924362000000},
    ],
)
async def test_a_time_may_be_said_in_any_way(client, when):
    assert (await client.send("t", "x", **when)).due_ms == 1924362000000


async def test_a_time_finer_than_a_millisecond_is_never_early(client):
    at = dt.datetime(2030, 1, 1, 0, 0, 0, 1, tzinfo=dt.UTC)
    sent = await client.send("t", "x", deliver_at=at)
    assert sent.due_ms == dt.datetime(2030, 1, 1, tzinfo=dt.UTC).timestamp() * 1000 + 1


async def test_a_time_without_a_zone_is_refused_before_it_is_sent(client, service):
    with pytest.raises(ValueError, match="zone"):
        await client.send("t", "x", deliver_at=dt.datetime(2030, 1, 1))  # noqa: DTZ001
    assert await service.pending() == 0


async def test_a_message_comes_back_with_all_that_was_sent(client):
    body = bytes(range(256))
    options = {"properties": {"p": "v"}, "tags": "red", "keys": ["k1", "k2"]}
    sent = await client.send("a|b%c", body, delay_level=1, **options)
    message = await client.get(sent.id)
    assert (message.topic, message.body, message.level) == ("a|b%c", body, 1)
    assert (message.tags, message.keys, message.properties["p"]) == ("red", ["k1", "k2"], "v")
    assert (await anext(client.receive("a|b%c"))).body == body


async def test_a_recalled_message_is_final_and_each_error_has_its_kind(client):
    sent = await client.send("t", "x", delay="1h")
    assert (await client.recall(sent.id)).state is State.RECALLED
    with pytest.raises(ConflictError) as caught:
        await client.recall(sent.id)
    assert (caught.value.status, caught.value.code) == (409, "already_recalled")
    with pytest.raises(NotFoundError) as caught:
        await client.get("0" * 24)
    assert (caught.value.status, caught.value.code) == (404, "unknown_message")
    with pytest.raises(ClientError) as caught:
        await client.send("t", "x", delay="11000d")
    assert (caught.value.status, caught.value.code) == (400, "delay_too_long")
    assert caught.value.detail


async def test_a_rescheduled_message_keeps_its_id(client):
    sent = await client.send("t", "x", delay="1h")
    moved = await client.reschedule(sent.id, delay="2h")
    assert (moved.id, (await client.get(sent.id)).due_ms) == (sent.id, moved.due_ms)
    by_property = await client.reschedule(sent.id, properties={"TIMER_DELIVER_MS": "1924362000000"})
    assert by_property.due_ms == 1924362000000


async def test_what_was_changed_since_is_left_as_it_is(client):
    message_id = (await client.send("t", "x", delay="1h", dedup_key="k")).id
    group, url = client.group("t", "g"), "https://example.com/hook"
    await group.put()
    await client.schedules.put("s", "t", every="1h")
    subscription = (await client.subscriptions.add("t", url, paused=True)).id
    changes = [
        (partial(client.etag, message_id), partial(client.reschedule, message_id, delay="2h")),
        (partial(client.etag, message_id), partial(client.reschedule_key, "t", "k", delay="3h")),
        (partial(client.topic_etag, "t"), partial(client.change_topic, "t", queues=2)),
        (group.etag, partial(group.put, GroupConfig(max_attempts=3))),
        (partial(client.schedules.etag, "s"), partial(client.schedules.put, "s", "t", every="2h")),
        (
            partial(client.subscriptions.etag, subscription),
            partial(client.subscriptions.update, subscription, concurrency=3),
        ),
    ]
    for etag, change in changes:
        tag = await etag()
        await change(if_match=tag)
        assert await etag() != tag
        with pytest.raises(ConflictError) as caught:
            await change(if_match=tag)
        assert (caught.value.status, caught.value.code) == (412, "precondition_failed")
    endings = (
        partial(client.recall, message_id),
        partial(client.recall_key, "t", "k"),
        group.delete,
        partial(client.schedules.delete, "s"),
        partial(client.subscriptions.delete, subscription),
        partial(client.delete_topic, "t"),
    )
    for end in endings:
        with pytest.raises(ConflictError, match="has changed"):
            await end(if_match="0")
    assert (await client.recall(message_id, if_match="*")).state == State.RECALLED


async def test_many_messages_are_stored_together_or_not_at_all(client, service):
    drafts = [{"topic": "t", "body": str(n), "delay": "1h"} for n in range(20)]
    sent = await client.send_many(drafts)
    assert len({one.id for one in sent}) == 20
    drafts[3] = {"topic": "bad topic", "body": ""}
    drafts[7] = {"topic": "t", "body": b"", "delay": "soon"}
    with pytest.raises(ClientError) as caught:
        await client.send_many(drafts)
    assert [fault.index for fault in caught.value.errors] == [3, 7]
    assert await service.pending() == 20


async def test_pending_messages_come_in_due_order_over_all_pages(client):
    drafts = [{"topic": "t", "body": str(n), "delay_ms": HOUR_MS + 2500 - n} for n in range(2500)]
    await client.send_many(drafts)
    await client.send("other", "x", delay="1h")
    found = [message async for message in client.pending("t")]
    assert [message.text for message in found] == [str(n) for n in reversed(range(2500))]
    middle_ms = found[1000].due_ms
    late = [message async for message in client.pending("t", due_from_ms=middle_ms)]
    early = [message async for message in client.pending("t", due_to_ms=middle_ms)]
    assert (len(early), len(late)) == (1000, 1500)


async def test_bounds_in_time_are_datetimes_or_milliseconds(client):
    start = dt.datetime(2030, 12, 24, 18, tzinfo=dt.UTC)
    times = [start + dt.timedelta(hours=hour) for hour in range(3)]
    ids = [(await client.send("t", "x", deliver_at=time)).id for time in times]
    bounds = {"due_from": times[0] + dt.timedelta(microseconds=1), "due_to": times[2]}
    for found in (client.pending("t", **bounds), client.messages("t", start=times[1], end=times[2])):
        assert [one.id async for one in found] == ids[1:2]
    day = start.replace(hour=0)
    [slot] = await client.slots("day", start=day, end=day + dt.timedelta(days=1))
    assert slot.count == 3
    shifted = await client.reschedule_where(topic="t", shift="1h", dry_run=True, **bounds)
    recalled = await client.recall_where(topic="t", **bounds)
    assert (shifted.matched, recalled.recalled) == (1, 1)
    in_ms = round(times[2].timestamp() * 1000)
    assert [one.id async for one in client.pending("t", due_from_ms=in_ms)] == ids[2:]
    with pytest.raises(ValueError, match="due_from or due_from_ms, not both"):
        await client.recall_where(due_from=start, due_from_ms=in_ms)
    with pytest.raises(ValueError, match="end needs a time zone"):
        await client.slots(end=dt.datetime(2030, 1, 1))  # noqa: DTZ001


async def test_receiving_goes_on_where_it_was_left(client):
    await client.send_many([{"topic": "t", "body": str(n)} for n in range(1200)])
    first = [message async for message in client.receive("t", follow=False)]
    assert [message.text for message in first] == [str(n) for n in range(1200)]
    rest = [message async for message in client.receive("t", offset=first[999].offset + 1, follow=False)]
    assert [message.text for message in rest] == [str(n) for n in range(1000, 1200)]


async def test_receiving_waits_for_a_topic_that_nothing_was_sent_to_yet(client):
    waiting = asyncio.create_task(anext(client.receive("later")))
    await client.send("later", "here", delay="30ms")
    assert (await waiting).text == "here"


async def test_receiving_from_the_end_leaves_out_what_was_there(client):
    await client.send("t", "old")
    assert [message async for message in client.receive("t", offset=END, follow=False)] == []


async def test_the_wheel_its_slots_levels_and_topics_can_be_looked_at(client):
    await client.send("t", "x", delay="30m")
    await client.send("t", "x", delay="10d")
    wheel = await client.wheel()
    assert (wheel.pending, sum(level.count for level in wheel.levels)) == (2, 2)
    assert sum(slot.count for slot in await client.slots()) == 2
    assert [slot.level for slot in await client.slots("minute")] == ["minute"]
    history = await client.live_history("minute")
    assert len(history.pending) == len(history.at_ms)
    assert [level.text for level in await client.levels()][-1] == "2h"
    assert (await client.topic("t")).pending == 2
    assert "t" in {topic.topic for topic in await client.topics()}


async def test_a_service_that_is_not_there_is_unreachable():
    async with Client("http://127.0.0.1:1") as client:
        with pytest.raises(UnreachableError) as caught:
            await client.wheel()
    assert (caught.value.status, caught.value.code) == (None, "unreachable")


def test_a_url_without_scheme_is_refused_when_the_client_is_made():
    with pytest.raises(AddressError, match=r"did you mean http://localhost:8686\?") as caught:
        Client("localhost:8686")
    assert (caught.value.status, caught.value.code) == (None, "illegal_url")


@pytest.fixture
async def other_server():
    """Starts a server that is no timerwheel: every request gets what `handler` returns."""
    async with AsyncExitStack() as stack:

        async def start(handler):
            app = web.Application()
            app.router.add_route("*", "/{path:.*}", handler)
            server = Served(app)
            await server.start_server()
            stack.push_async_callback(server.close)
            return str(server.make_url("/"))

        yield start


async def test_a_service_that_does_not_answer_is_unreachable_in_time(other_server):
    given_up = asyncio.Event()

    async def never(_request):
        await given_up.wait()
        return web.Response()

    async with Client(await other_server(never), timeout_ms=50) as client:
        with pytest.raises(UnreachableError) as caught:
            await client.wheel()
    given_up.set()
    assert caught.value.code == "timeout"


@pytest.mark.parametrize("status", [200, 302, 404, 500])
async def test_an_answer_that_is_not_ours_is_an_error(other_server, status):
    async def page(_request):
        return web.Response(text="<html>", status=status, headers={"Location": "/"})

    async with Client(await other_server(page)) as client:
        with pytest.raises(ClientError) as caught:
            await client.wheel()
    assert (caught.value.status, caught.value.code) == (status, "illegal_answer")


async def test_a_client_that_is_not_open_says_how_to_open_it():
    with pytest.raises(RuntimeError, match="async with"):
        await Client().wheel()
