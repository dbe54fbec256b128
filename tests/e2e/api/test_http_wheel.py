"""The wheel, its slots, the delay levels, and the two health calls."""

import pytest

HOUR_MS = 3_600_000


async def test_the_wheel_counts_what_waits(service):
    sent = (await service.send([{"topic": "a", "delay_ms": n * HOUR_MS} for n in (1, 2, 900)])).content
    wheel = (await service.call("GET", "/v1/wheel")).content
    assert (wheel["pending"], wheel["overdue"], wheel["set_aside"]) == (3, 0, [])
    assert wheel["next_due_ms"] == sent[0]["due_ms"]
    assert [level["level"] for level in wheel["levels"]] == ["second", "minute", "hour", "day"]
    assert sum(level["count"] for level in wheel["levels"]) == 3


async def test_slots_say_what_fires_when(service):
    sent = (await service.send([{"topic": "a", "delay_ms": n * HOUR_MS} for n in (1, 1, 900)])).content
    slots = (await service.call("GET", "/v1/wheel/slots")).content["slots"]
    assert sum(slot["count"] for slot in slots) == 3
    for receipt in sent:
        assert any(slot["start_ms"] <= receipt["due_ms"] < slot["end_ms"] for slot in slots)
    far = (await service.call("GET", "/v1/wheel/slots?level=day")).content["slots"]
    assert [(slot["level"], slot["count"]) for slot in far] == [("day", 1)]
    window = f"from_ms={far[0]['start_ms']}&to_ms={far[0]['start_ms'] + 1}"
    inside = (await service.call("GET", f"/v1/wheel/slots?{window}")).content["slots"]
    assert [slot["count"] for slot in inside] == [1]


async def test_the_peak_is_the_second_in_which_most_messages_fall_due(service):
    assert (await service.call("GET", "/v1/wheel/peak")).content == {"peak": None}
    rush = {
        "topic": "a",
        "deliver_at_ms": service.engine.core.clock.now_ms() // 1000 * 1000 + 5 * HOUR_MS + 250,
    }
    await service.send([rush] * 20 + [{"topic": "a", "delay_ms": n * 60_000} for n in range(1, 300)])
    peak = (await service.call("GET", "/v1/wheel/peak")).content["peak"]
    start_ms = rush["deliver_at_ms"] - 250
    assert peak == {"level": "second", "start_ms": start_ms, "end_ms": start_ms + 1000, "count": 20}


@pytest.mark.parametrize(
    "query", ["level=week", "from_ms=x", "to_ms=1e3", "from_ms=-1", "at=1", "level=day&level=day"]
)
async def test_a_wrong_query_of_slots_is_refused(service, query):
    answer = await service.call("GET", f"/v1/wheel/slots?{query}")
    assert (answer.status, answer.code) == (400, "invalid_parameter")


async def test_levels_show_what_waits_in_each(service):
    sent = (await service.send({"topic": "a", "delay_level": 18})).content
    levels = (await service.call("GET", "/v1/levels")).content["levels"]
    assert [level["level"] for level in levels] == list(range(1, 19))
    assert levels[17]["text"] == "2h"
    assert (levels[17]["delay_ms"], levels[17]["pending"]) == (2 * HOUR_MS, 1)
    assert levels[17]["next_due_ms"] == sent["due_ms"]
    assert levels[0]["next_due_ms"] is None


async def test_a_ready_service_is_alive_and_ready(service):
    for path, status in (("/healthz", "alive"), ("/readyz", "ready")):
        answer = await service.call("GET", path)
        assert (answer.status, answer.content) == (200, {"status": status})


async def test_a_stopped_engine_is_alive_but_not_ready(service):
    await service.engine.close()
    assert (await service.call("GET", "/healthz")).status == 200
    answer = await service.call("GET", "/readyz")
    assert (answer.status, answer.code) == (503, "not_ready")
    answer = await service.send({"topic": "a"})
    assert (answer.status, answer.code) == (503, "not_ready")
