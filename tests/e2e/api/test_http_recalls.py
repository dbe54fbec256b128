"""POST /v1/messages/recall: of many ids, and of whatever meets conditions."""

import asyncio

import pytest

from timerwheel.api import engine_handle

DUE_MS = 1_900_000_000_000


async def _recall(service, **content):
    answer = await service.call("POST", "/v1/messages/recall", json=content)
    assert answer.status == 200
    return answer.content


async def _schedule(service, *items):
    sent = await service.send([{"topic": "orders", "deliver_at_ms": DUE_MS, **item} for item in items])
    return [receipt["id"] for receipt in sent.content]


async def test_each_id_is_answered_with_the_truth(service):
    first, second = await _schedule(service, {}, {})
    [delivered] = await _schedule(service, {"deliver_at_ms": 1})
    answer = await _recall(service, ids=[first, "x", delivered, first, second])
    assert answer == {
        "results": [
            {"id": first, "ok": True},
            {"id": "x", "ok": False, "code": "unknown_message"},
            {"id": delivered, "ok": False, "code": "already_delivered"},
            {"id": first, "ok": False, "code": "already_recalled"},
            {"id": second, "ok": True},
        ],
        "recalled": 2,
    }
    assert await service.pending() == 0
    assert await _recall(service, ids=[]) == {"results": [], "recalled": 0}


@pytest.mark.parametrize(
    ("condition", "left"),
    [
        ({"topic": "orders"}, 1),
        ({"topic": "nothing"}, 4),
        ({"tags": "paid"}, 2),
        ({"tags": "paid || new", "topic": "orders"}, 2),
        ({"key_prefix": "order-"}, 2),
        ({"due_from_ms": DUE_MS + 1}, 3),
        ({"due_to_ms": DUE_MS + 1}, 1),
        ({"due_from_ms": DUE_MS, "due_to_ms": DUE_MS}, 4),
    ],
)
async def test_whatever_meets_all_conditions_is_recalled_and_a_dry_run_only_counts(service, condition, left):
    await _schedule(
        service,
        {"tags": "paid", "dedup_key": "order-1"},
        {"tags": "new", "keys": ["a", "order-2"]},
        {"deliver_at_ms": DUE_MS + 1},
        {"tags": "paid", "topic": "other"},
    )
    matched = 4 - left
    count = {"matched": matched, "recalled": 0, "missed": 0, "dry_run": True}
    assert await _recall(service, **condition, dry_run=True) == count
    assert await service.pending() == 4
    count = {"matched": matched, "recalled": matched, "missed": 0, "dry_run": False}
    assert await _recall(service, **condition) == count
    assert await service.pending() == left


@pytest.mark.parametrize(
    ("change", "done", "time"),
    [("recall", "recalled", {}), ("reschedule", "rescheduled", {"shift": "1h"})],
)
async def test_what_the_list_does_not_show_is_changed_only_if_it_is_asked_for(service, change, done, time):
    await _schedule(service, {}, {})
    task = await service.call("POST", "/v1/tasks", json={"url": "https://example.com/", "delay": "30d"})
    assert task.status == 201

    async def count(**more):
        content = {"due_from_ms": 1, **time, **more}
        dry = await service.call("POST", f"/v1/messages/{change}", json=content | {"dry_run": True})
        wet = await service.call("POST", f"/v1/messages/{change}", json=content)
        assert dry.content["matched"] == wet.content["matched"] == wet.content[done]
        return wet.content[done]

    listed = await service.call("GET", "/v1/messages?due_from_ms=1")
    assert await count() == len(listed.content["messages"]) == 2
    listed = await service.call("GET", "/v1/messages?due_from_ms=1&reserved=true")
    assert await count(reserved=True) == len(listed.content["messages"])
    assert await count(topic="%TASK%default") == (change == "reschedule")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{}", "illegal_filter"),
        (b'{"dry_run":true}', "illegal_filter"),
        (b'{"tags":"*"}', "illegal_filter"),
        (b'{"tags":"a || "}', "illegal_filter"),
        (b'{"ids":["x"],"topic":"orders"}', "invalid_field"),
        (b'{"ids":["x"],"dry_run":true}', "invalid_field"),
        (b'{"ids":["x"],"reserved":true}', "invalid_field"),
        (b'{"reserved":true}', "illegal_filter"),
        (b'{"topic":"orders","reserved":1}', "invalid_field"),
        (b'{"ids":"x"}', "invalid_field"),
        (b'{"due_from_ms":-1}', "invalid_field"),
        (b'{"due_from_ms":2,"due_to_ms":1}', "invalid_field"),
        (b'{"topic":"no good"}', "illegal_topic"),
        (b'{"topic":""}', "illegal_topic"),
        (b'{"topic":"orders/workers"}', "illegal_topic"),
        (b'{"topic":"rmq_sys_wheel_timer"}', "system_topic"),
        (b'{"tags":"paid shipped"}', "illegal_filter"),
        (b'{"tag":"a"}', "invalid_field"),
        (b'{"topic":null}', "invalid_field"),
        (b"", "malformed_json"),
    ],
)
async def test_a_wrong_recall_recalls_nothing(service, body, code):
    await _schedule(service, {})
    answer = await service.call("POST", "/v1/messages/recall", data=body)
    assert (answer.status, answer.code) == (400, code)
    assert await service.pending() == 1


async def test_too_many_ids_are_refused_and_hostile_ones_before_they_are_read(start_service):
    service = await start_service(messages_per_request_max=2)
    ids = await _schedule(service, {}, {})
    for content in ([*ids, "x"], ["x"] * 10_000):
        answer = await service.call("POST", "/v1/messages/recall", json={"ids": content})
        assert (answer.status, answer.code) == (413, "too_many_messages")
    assert await service.pending() == 2


async def test_a_recall_takes_no_lines_and_no_parameters(service):
    headers = {"Content-Type": "application/x-ndjson"}
    answer = await service.call("POST", "/v1/messages/recall", data=b'{"ids":[]}', headers=headers)
    assert (answer.status, answer.code) == (415, "unsupported_media_type")
    answer = await service.call("POST", "/v1/messages/recall?dry_run=true", data=b'{"topic":"a"}')
    assert (answer.status, answer.code) == (400, "invalid_parameter")


async def test_a_recall_whose_client_hangs_up_goes_no_further(service):
    await _schedule(service, {}, {})
    body = b'{"topic":"orders"}'
    async with service.engine.bulk_recalls.turn:  # as if another one were under way
        running = asyncio.all_tasks()
        _, writer = await asyncio.open_connection(service.url.host, service.url.port)
        head = f"POST /v1/messages/recall HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        await service.call("GET", "/healthz")  # by now the recall waits
        waiting = asyncio.all_tasks() - running
        writer.close()
        await writer.wait_closed()
        async with asyncio.timeout(20 * engine_handle.LOOK_UP_MS / 1000):
            await asyncio.wait(waiting)
    assert (await _recall(service, topic="orders", dry_run=True))["matched"] == 2
