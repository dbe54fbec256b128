"""POST /v1/messages/reschedule: which messages, to which time, and the answers."""

import pytest

HOUR_MS = 3_600_000
PATH = "/v1/messages/reschedule"


async def send(service, **fields):
    return (await service.send({"topic": "orders", "delay_ms": HOUR_MS, **fields})).content


async def due(service, message_id):
    return (await service.call("GET", f"/v1/messages/{message_id}")).content["due_ms"]


@pytest.mark.parametrize(
    ("shift", "by_ms"),
    [
        ({"shift": "+2h"}, 2 * HOUR_MS),
        ({"shift": "2h"}, 2 * HOUR_MS),
        ({"shift": "-30m"}, -HOUR_MS // 2),
        ({"shift_ms": -1}, -1),
        ({"shift": "+PT1M"}, 60_000),
    ],
)
async def test_messages_that_meet_conditions_are_shifted(service, shift, by_ms):
    first, second = await send(service, tags="a"), await send(service, tags="b")
    wanted = {"topic": "orders", "tags": "a", **shift}
    answer = await service.call("POST", PATH, json={**wanted, "dry_run": True})
    assert answer.content == {"matched": 1, "rescheduled": 0, "missed": 0, "refused": 0, "dry_run": True}
    answer = await service.call("POST", PATH, json=wanted)
    assert answer.content == {"matched": 1, "rescheduled": 1, "missed": 0, "refused": 0, "dry_run": False}
    assert await due(service, first["id"]) == first["due_ms"] + by_ms
    assert await due(service, second["id"]) == second["due_ms"]


async def test_ids_get_one_time_and_a_result_each(service):
    first, second = await send(service), await send(service)
    ids = [first["id"], "0" * 24, second["id"]]
    answer = await service.call("POST", PATH, json={"ids": ids, "deliver_at_ms": 1_900_000_000_000})
    assert answer.status == 200
    assert answer.content == {
        "results": [
            {"id": first["id"], "ok": True, "due_ms": 1_900_000_000_000},
            {"id": "0" * 24, "ok": False, "code": "unknown_message"},
            {"id": second["id"], "ok": True, "due_ms": 1_900_000_000_000},
        ],
        "rescheduled": 2,
    }
    assert await due(service, second["id"]) == 1_900_000_000_000


async def test_an_id_that_is_given_twice_is_rescheduled_and_counted_once(service):
    first = await send(service)
    answer = await service.call("POST", PATH, json={"ids": [first["id"]] * 2, "shift": "1h"})
    due_ms = first["due_ms"] + 3_600_000
    assert answer.content["results"] == [{"id": first["id"], "ok": True, "due_ms": due_ms}] * 2
    assert answer.content["rescheduled"] == 1


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ({"topic": "orders"}, "invalid_field"),
        ({"shift": "2h"}, "illegal_filter"),
        ({"topic": "orders", "shift": "2h", "shift_ms": 1}, "conflicting_delay"),
        ({"topic": "orders", "shift": "2h", "delay": "2h"}, "conflicting_delay"),
        ({"topic": "orders", "delay_ms": 1, "delay": "2h"}, "conflicting_delay"),
        ({"topic": "orders", "shift": "soon"}, "illegal_delay"),
        ({"topic": "orders", "shift": "--2h"}, "illegal_delay"),
        ({"topic": "orders", "shift_ms": "1"}, "invalid_field"),
        ({"topic": "orders", "delay_ms": 9_000_000_000_000_000}, "delay_too_long"),
        ({"topic": "no good", "shift": "2h"}, "illegal_topic"),
        ({"topic": "orders", "tags": "", "shift": "2h"}, "illegal_filter"),
        ({"ids": ["a"], "topic": "orders", "shift": "2h"}, "invalid_field"),
        ({"ids": ["a"], "dry_run": True, "shift": "2h"}, "invalid_field"),
        ({"topic": "orders", "due_from_ms": 2, "due_to_ms": 1, "shift": "2h"}, "invalid_field"),
    ],
)
async def test_what_is_wrong_is_refused_and_changes_nothing(service, content, code):
    sent = await send(service)
    answer = await service.call("POST", PATH, json=content)
    assert (answer.status, answer.code) == (400, code)
    assert await due(service, sent["id"]) == sent["due_ms"]
