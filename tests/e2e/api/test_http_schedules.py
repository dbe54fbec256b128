"""Recurring schedules over HTTP."""

import base64

import pytest

HOUR_MS = 3_600_000
AT = "/v1/schedules/daily"
DAILY = {"topic": "reports", "body": "daily", "cron": "30 2 * * *", "zone": "Europe/Berlin"}


async def test_a_schedule_is_shown_with_its_rules_and_its_next_run(service):
    answer = await service.call("PUT", AT, json={**DAILY, "tags": "t", "keys": ["a", "b"]})
    assert answer.status == 201
    told = answer.content
    assert told["made_ms"] > 0
    assert told["generation"] > 0
    assert told["next_run_ms"] > service.engine.clock.now_ms()
    assert {name: told[name] for name in told if name not in {"made_ms", "generation", "next_run_ms"}} == {
        "name": "daily",
        "topic": "reports",
        "body": "daily",
        "properties": {"TAGS": "t", "KEYS": "a b"},
        "tags": "t",
        "keys": ["a", "b"],
        "cron": "30 2 * * *",
        "zone": "Europe/Berlin",
        "jitter_ms": 0,
        "missed": "once",
        "skipped_hour": "auto",
        "repeated_hour": "auto",
        "paused": False,
    }
    assert (await service.call("GET", AT)).content == told
    assert (await service.call("GET", "/v1/schedules")).content == {"schedules": [told]}
    assert (await service.call("PUT", AT, json={**DAILY, "tags": "t", "keys": "a b"})).content == told


async def test_the_next_run_waits_as_an_ordinary_message(service):
    told = (await service.call("PUT", AT, json=DAILY)).content
    [waiting] = (await service.call("GET", "/v1/messages?topic=reports")).content["messages"]
    assert (waiting["body"], waiting["due_ms"]) == ("daily", told["next_run_ms"])
    assert waiting["properties"]["SCHEDULE_NAME"] == "daily"
    assert waiting["dedup_key"] == f"schedule:daily:{told['generation']}:{told['next_run_ms']}"
    assert not waiting["properties"].keys() & {"DEDUP_HASH", "DEDUP_DOMAIN"}
    where = f"/v1/topics/reports/keys/{waiting['dedup_key']}"
    assert (await service.call("GET", where)).content["id"] == waiting["id"]
    answer = await service.call("DELETE", where)
    assert (answer.status, answer.content["state"]) == (200, "recalled")


async def test_an_interval_may_be_written_in_several_ways(service):
    start = {"start": "2026-01-01T00:00:00Z"}
    told = [
        (await service.call("PUT", f"/v1/schedules/{name}", json={"topic": "a", **spec})).content
        for name, spec in (
            ("1", {"every_ms": HOUR_MS, "start_ms": 1_767_225_600_000}),
            ("2", {"every": "1h", **start}),
            ("3", {"every": "PT1H", **start}),
        )
    ]
    assert {(one["every_ms"], one["start_ms"], one["next_run_ms"]) for one in told} == {
        (HOUR_MS, 1_767_225_600_000, told[0]["next_run_ms"])
    }


async def test_a_body_may_be_any_bytes(service):
    body = base64.b64encode(b"\xff\x00").decode()
    told = (await service.call("PUT", AT, json={"topic": "a", "cron": "@daily", "body_base64": body})).content
    assert told["body_base64"] == body
    assert "body" not in told


async def test_the_next_runs_are_listed(service):
    spec = {"topic": "a", "every_ms": 60_000, "jitter_ms": 1000, "start_ms": 0}
    await service.call("PUT", AT, json=spec)
    runs = (await service.call("GET", f"{AT}/runs?count=3")).content["runs"]
    assert [run["run_ms"] - runs[0]["run_ms"] for run in runs] == [0, 60_000, 120_000]
    assert all(0 <= run["due_ms"] - run["run_ms"] <= 1000 for run in runs)
    assert len((await service.call("GET", f"{AT}/runs")).content["runs"]) == 10
    for query in ("count=0", "count=1001", "count=x", "from=1"):
        answer = await service.call("GET", f"{AT}/runs?{query}")
        assert (answer.status, answer.code) == (400, "invalid_parameter")


async def test_a_schedule_that_is_over_has_no_next_run(service):
    spec = {"topic": "a", "every": "1h", "start": "2020-01-01T00:00:00Z", "end": "2020-02-01T00:00:00Z"}
    told = (await service.call("PUT", AT, json=spec)).content
    assert told["next_run_ms"] is None
    assert (await service.call("GET", f"{AT}/runs")).content == {"runs": []}


async def test_a_paused_schedule_sends_nothing_until_it_is_resumed(service):
    await service.call("PUT", AT, json=DAILY)
    paused = await service.call("POST", f"{AT}/pause")
    assert (paused.status, paused.content["paused"], paused.content["next_run_ms"]) == (200, True, None)
    assert await service.pending() == 0
    resumed = await service.call("POST", f"{AT}/resume")
    assert (resumed.status, resumed.content["paused"]) == (200, False)
    assert resumed.content["next_run_ms"] is not None
    assert await service.pending() == 1


async def test_a_deleted_schedule_is_gone_with_what_it_sent_ahead(service):
    told = (await service.call("PUT", AT, json=DAILY)).content
    deleted = await service.call("DELETE", AT)
    assert (deleted.status, deleted.content) == (200, told)
    assert await service.pending() == 0
    assert (await service.call("GET", "/v1/schedules")).content == {"schedules": []}


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", ""), ("DELETE", ""), ("POST", "/pause"), ("POST", "/resume"), ("GET", "/runs")],
)
async def test_an_unknown_schedule_is_not_found(service, method, path):
    answer = await service.call(method, AT + path)
    assert (answer.status, answer.code) == (404, "unknown_schedule")


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"cron": "* * * *"}, "illegal_schedule"),
        ({"cron": "0 0 30 2 *"}, "illegal_schedule"),
        ({"every_ms": 60_000}, "invalid_field"),
        ({"every": "1m"}, "invalid_field"),
        ({"every": "1m", "every_ms": 60_000}, "invalid_field"),
        ({"zone": "Mars"}, "illegal_schedule"),
        ({"start_ms": 1, "start": "2026-01-01T00:00:00Z"}, "invalid_field"),
        ({"end_ms": 1, "end": "2026-01-01T00:00:00Z"}, "invalid_field"),
        ({"jitter_ms": 86_400_001}, "invalid_field"),
        ({"properties": {"SCHEDULE_NAME": "x"}}, "reserved_property"),
        ({"properties": {"DLQ_REASON": "x"}}, "reserved_property"),
        ({"topic": "TBW102"}, "system_topic"),
        ({"properties": {"DELAY": "1"}}, "reserved_property"),
        ({"body": "b" * 262_145}, "body_too_large"),
        ({"every": "often"}, "illegal_delay"),
        ({"start": "yesterday"}, "illegal_delay"),
        ({"topic": "a b"}, "illegal_topic"),
        ({"body_base64": ""}, "conflicting_body"),
        ({"tags": "a", "properties": {"TAGS": "a"}}, "conflicting_tags"),
        ({"keys": "a", "properties": {"KEYS": "a"}}, "conflicting_keys"),
        ({"missed": "some"}, "invalid_field"),
        ({"skipped_hour": "maybe"}, "invalid_field"),
        ({"paused": 1}, "invalid_field"),
        ({"surprise": 1}, "invalid_field"),
    ],
)
async def test_a_wrong_schedule_is_refused_and_changes_nothing(service, changed, code):
    told = (await service.call("PUT", AT, json=DAILY)).content
    answer = await service.call("PUT", AT, json={**DAILY, **changed})
    assert (answer.status, answer.code) == (413 if code == "body_too_large" else 400, code)
    assert (await service.call("GET", AT)).content == told


async def test_a_put_that_makes_a_schedule_says_where_it_lies_and_one_that_changes_it_does_not(service):
    made = await service.call("PUT", AT, json=DAILY)
    assert (made.status, made.headers["Location"]) == (201, AT)
    for content in (DAILY, DAILY | {"body": "other"}):
        again = await service.call("PUT", AT, json=content)
        assert (again.status, "Location" in again.headers) == (200, False)
    await service.call("DELETE", AT)
    assert (await service.call("PUT", AT, json=DAILY)).status == 201


async def test_a_wrong_name_is_refused(service):
    for name in ("a%20b", "n" * 128):
        answer = await service.call("PUT", f"/v1/schedules/{name}", json=DAILY)
        assert (answer.status, answer.code) == (400, "illegal_schedule")


async def test_a_schedule_needs_a_body(service):
    answer = await service.call("PUT", AT, data=b"")
    assert (answer.status, answer.code) == (400, "malformed_json")


async def test_a_run_on_demand_is_delivered_at_once_and_leaves_the_planned_ones(service):
    planned = (await service.call("PUT", AT, json=DAILY)).content
    answer = await service.call("POST", f"{AT}/run")
    assert (answer.status, answer.content["topic"]) == (201, "reports")
    [message] = (await service.read("reports")).content["messages"]
    assert (message["id"], message["body"]) == (answer.content["id"], "daily")
    assert message["properties"]["SCHEDULE_NAME"] == "daily"
    assert "SCHEDULE_RUN_MS" not in message["properties"]
    assert (await service.call("GET", AT)).content == planned
    again = await service.call("POST", f"{AT}/run")
    assert again.status == 201
    assert again.content["id"] != message["id"]


async def test_a_run_on_demand_with_a_key_is_sent_once_though_it_is_asked_for_again_or_after_a_pause(service):
    await service.call("PUT", AT, json=DAILY)
    first = await service.call("POST", f"{AT}/run", json={"key": "ticket-17"})
    await service.call("POST", f"{AT}/pause")
    again = await service.call("POST", f"{AT}/run", json={"key": "ticket-17"})
    assert (first.status, again.status) == (201, 200)
    assert again.content["duplicate"]
    assert again.content["id"] == first.content["id"]
    [message] = (await service.read("reports")).content["messages"]
    assert message["properties"]["SCHEDULE_RUN_KEY"] == "ticket-17"
    await service.call("PUT", AT, json={**DAILY, "body": "other"})
    changed = await service.call("POST", f"{AT}/run", json={"key": "ticket-17"})
    assert (changed.status, changed.code) == (422, "key_reused")
    assert (await service.call("POST", f"{AT}/run", json={"key": "ticket-18"})).status == 201


@pytest.mark.parametrize(
    ("name", "content", "status", "code"),
    [
        ("nobody", {}, 404, "unknown_schedule"),
        ("daily", {"key": ""}, 400, "invalid_field"),
        ("daily", {"key": "x" * 101}, 400, "invalid_field"),
        ("daily", {"key": "\u0007"}, 400, "illegal_key"),
        ("daily", {"at": 5}, 400, "invalid_field"),
    ],
)
async def test_a_run_on_demand_that_cannot_be_is_refused(service, name, content, status, code):
    await service.call("PUT", AT, json=DAILY)
    answer = await service.call("POST", f"/v1/schedules/{name}/run", json=content)
    assert (answer.status, answer.code) == (status, code)
    assert (await service.read("reports", "offset=0")).content["messages"] == []


@pytest.mark.parametrize("number", ["9" * 5_000, "9" * 21, "-1", "x"])
async def test_a_cursor_that_somebody_made_up_is_refused(service, number):
    await service.call("PUT", AT, json=DAILY)
    cursor = base64.urlsafe_b64encode(f'["{number}"]'.encode()).decode().rstrip("=")
    answer = await service.call("GET", f"{AT}/runs?cursor={cursor}")
    assert (answer.status, answer.code) == (400, "illegal_cursor")


@pytest.mark.parametrize("number", ["9" * 5_000, "9" * 20, "-" + "9" * 20])
async def test_a_number_that_is_too_large_is_out_of_range(service, number):
    await service.call("PUT", AT, json=DAILY)
    answer = await service.call("GET", f"{AT}/runs?limit={number}")
    assert (answer.status, answer.code) == (400, "invalid_parameter")
    assert answer.content["detail"].endswith("out of range")
    assert len(answer.content["detail"]) < 100
