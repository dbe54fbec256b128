"""A node in front of real shards: each call goes to one of them or to all, and the answers are one."""

import asyncio
import os
import resource
import socket
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from multidict import CIMultiDict
from yarl import URL

from tests.harness.clock import ManualClock
from tests.harness.route_table import route_table
from tests.harness.shards import Node, Shards
from tests.unit.test_tokens import make
from timerwheel import tokens
from timerwheel.api.connection_limit import FILES_MIN, OWN_FILES, FileLimitError, connections_in_front
from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.http import bodies
from timerwheel.clock import SystemClock
from timerwheel.groups.config import GroupConfig
from timerwheel.model.ids import shard_in
from timerwheel.model.shards import shard_of_topic
from timerwheel.push.ack_urls import AckUrls, Attempted
from timerwheel.settings import Serving, Settings
from timerwheel.shards import sends
from timerwheel.shards.calls import Calls
from timerwheel.shards.connection_pool import ConnectionPool
from timerwheel.shards.forwarder import Call, Forwarder
from timerwheel.shards.layout import data_of
from timerwheel.shards.leaders import HUNG_MS, Leaders, Place, ShardNotReadyError
from timerwheel.shards.sends import Sends
from timerwheel.wire.arrow import MEDIA_TYPE, stream_of

COUNT = 3
OWN = {"getToken", "getHealth", "getReadiness", "getCluster", "moveLeader", "getMetrics", "live"}
TOPICS = {shard_of_topic(name, COUNT): name for name in ("a", "b", "invoices")}
"""A topic of each shard."""
JSON = {"Content-Type": "application/json"}
AWAY = "http://127.0.0.1:1"
"""Where nothing listens."""


class Answer:
    def __init__(self, status: int, headers: Any, raw: bytes) -> None:
        self.status, self.headers, self.raw = status, headers, raw

    @property
    def content(self) -> Any:
        return orjson.loads(self.raw)


@pytest.fixture
async def shards(tmp_path: Path) -> AsyncIterator[Shards]:
    async with Shards(tmp_path / "home", COUNT) as found:
        yield found


@pytest.fixture
async def node(shards: Shards) -> Node:
    return await shards.node()


async def call(node: Node, method: str, path: str, **request: Any) -> Answer:
    url = URL(str(node.url).rstrip("/") + path, encoded=True)
    async with node.session.request(method, url, **request) as response:
        return Answer(response.status, response.headers, await response.read())


async def send(node: Node, topic: str, **more: Any) -> Any:
    answer = await call(node, "POST", "/v1/messages", json={"topic": topic, **more})
    assert answer.status == 201, answer.raw
    return answer.content


def test_each_shard_has_a_topic_of_these_tests() -> None:
    assert set(TOPICS) == {0, 1, 2}


async def test_a_process_that_does_not_know_the_callers_of_the_node_is_named_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As when `tokens.json` was not copied to all nodes: callers see a 401 that nothing explains."""
    data = data_of(tmp_path, 2)
    data.mkdir(parents=True)
    tokens.create(data, make(topics=("*",)))
    async with Shards(tmp_path, COUNT) as shards:
        node = await shards.node()
        await send(node, TOPICS[1])
        assert "tokens.json" not in caplog.text
        for _ in range(2):
            assert (await call(node, "POST", "/v1/messages", json={"topic": TOPICS[2]})).status == 401
        [said] = [one.getMessage() for one in caplog.records if "tokens.json" in one.getMessage()]
        assert said.startswith(f"shard 2 at {shards.urls[2]} rejected a token")


async def test_every_call_of_the_api_has_a_rule(tmp_path: Path) -> None:
    leaders = Leaders([Place(0, "", ""), Place(1, "", "")], None, SystemClock())  # type: ignore[arg-type]
    forwarder = Forwarder(leaders, None)  # type: ignore[arg-type]
    handle = EngineHandle(Settings(data=tmp_path))
    calls = Calls(forwarder, Sends(handle, forwarder, SystemClock()))
    for route in route_table(tmp_path):
        if route.described and route.name not in OWN:
            assert calls.handler_of(route)


async def test_any_node_takes_any_call_and_an_id_leads_to_its_shard(shards: Shards, node: Node) -> None:
    other = await shards.node()
    for shard, topic in TOPICS.items():
        sent = await send(node, topic, delay="1h", body=topic)
        assert shard_in(sent["id"]) == shard
        found = await call(other, "GET", f"/v1/messages/{sent['id']}")
        assert (found.status, found.content["body"]) == (200, topic)
        moved = await call(other, "PATCH", f"/v1/messages/{sent['id']}", json={"delay": "2h"})
        assert moved.content["id"] == sent["id"]
        history = await call(node, "GET", f"/v1/messages/{sent['id']}/history")
        assert history.status == 200
        recalled = await call(other, "DELETE", f"/v1/messages/{sent['id']}")
        assert recalled.content["state"] == "recalled"


@pytest.mark.parametrize("text", ["00ff00000000004012345678", "zz", "0" * 24, "0" * 25])
async def test_an_id_of_no_shard_is_unknown(node: Node, text: str) -> None:
    answer = await call(node, "GET", f"/v1/messages/{text}")
    assert (answer.status, answer.content["code"]) == (404, "unknown_message")


async def test_an_array_for_one_shard_is_one_unit_and_one_for_several_is_refused(node: Node) -> None:
    own = await call(node, "POST", "/v1/messages", json=[{"topic": "a"}, {"topic": "a"}])
    assert own.status == 201
    several = [{"topic": TOPICS[0]}, {"topic": TOPICS[1]}]
    refused = await call(node, "POST", "/v1/messages", json=several)
    assert (refused.status, refused.content["code"]) == (400, "several_shards")
    lines = b"".join(orjson.dumps(one) + b"\n" for one in several)
    headers = {"Content-Type": "application/x-ndjson"}
    refused = await call(node, "POST", "/v1/messages", data=lines, headers=headers)
    assert refused.content["code"] == "several_shards"
    topics = (await call(node, "GET", "/v1/topics")).content["topics"]
    assert {one["topic"] for one in topics if not one["system"]} == {"a"}


async def test_with_atomic_false_each_shard_stores_its_part_and_the_answer_is_in_order(node: Node) -> None:
    messages = [{"topic": TOPICS[number % 3], "body": str(number)} for number in range(7)]
    answer = await call(node, "POST", "/v1/messages?atomic=false", json=messages)
    assert answer.status == 201
    assert [one["topic"] for one in answer.content] == [one["topic"] for one in messages]
    messages[1]["delay"] = "soon"
    answer = await call(node, "POST", "/v1/messages?atomic=false", json=messages)
    assert answer.status == 207
    stored = ["id" in one for one in answer.content]
    assert stored == [number % 3 != 1 for number in range(7)]
    assert answer.content[1]["code"] == "refused"
    assert answer.content[1]["detail"].startswith("illegal_delay: 'soon'")
    assert answer.content[4]["detail"].endswith("refused others of the array: 1")


@pytest.mark.parametrize("form", ["json", "x-ndjson"])
async def test_a_large_body_is_split_in_steps_and_each_message_goes_to_its_shard(
    node: Node, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def at_once(*_: object) -> None:
        raise AssertionError("the body was decoded at once")

    monkeypatch.setattr(sends, "raws_of", at_once)
    messages = [{"topic": TOPICS[number % 3], "body": f"{number}" + "x" * 9_000} for number in range(100)]
    messages[50]["delay"] = "soon"
    texts = [orjson.dumps(one) for one in messages]
    data = b"[%b]" % b",".join(texts) if form == "json" else b"\n".join(texts)
    headers = {"Content-Type": f"application/{form}"}
    answer = await call(node, "POST", "/v1/messages?atomic=false", data=data, headers=headers)
    assert answer.status == 207
    stored = ["id" in one for one in answer.content]
    assert stored == [number % 3 != 50 % 3 for number in range(100)]
    assert answer.content[50]["detail"].startswith("illegal_delay: 'soon'")


async def test_what_is_no_message_of_an_array_does_not_send_the_others_to_a_wrong_shard(node: Node) -> None:
    wrong = [{"topic": TOPICS[0]}, {"topic": TOPICS[1]}, 5, {"topic": 7}]
    whole = await call(node, "POST", "/v1/messages", json=wrong)
    assert (whole.status, whole.content["code"]) == (400, "several_shards")
    parts = await call(node, "POST", "/v1/messages?atomic=false", json=wrong)
    assert parts.status == 207
    assert [one.get("topic") for one in parts.content] == [None, TOPICS[1], None, None]
    assert parts.content[0]["detail"].endswith("refused others of the array: 2, 3")
    assert parts.content[2]["detail"].startswith("invalid_field: ")
    only = await call(node, "POST", "/v1/messages", json=[{"topic": TOPICS[1]}, 5])
    assert [one["code"] for one in only.content["errors"]] == ["invalid_field"]
    raw = b'[{"topic": "%b", "body": "\xff"}, {"topic": "%b"}]' % (TOPICS[0].encode(), TOPICS[1].encode())
    headers = {"Content-Type": "application/json"}
    parts = await call(node, "POST", "/v1/messages?atomic=false", data=raw, headers=headers)
    assert [one.get("code") for one in parts.content] == ["refused", None]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "malformed_json"),
        (b"[", "malformed_json"),
        (b'{"topic": 5}', "invalid_field"),
        (b"{}", "invalid_field"),
    ],
)
async def test_what_cannot_be_read_is_explained_by_a_shard(node: Node, body: bytes, code: str) -> None:
    answer = await call(node, "POST", "/v1/messages", data=body, headers={"Content-Type": "application/json"})
    assert (answer.status, answer.content["code"]) == (400, code)


async def test_arrow_goes_to_its_shard_as_it_came(node: Node) -> None:
    pa = pytest.importorskip("pyarrow")
    headers = {"Content-Type": MEDIA_TYPE, "Accept": MEDIA_TYPE}
    table = pa.table({"topic": ["b", "b"], "body": [b"1", b"2"], "delay_ms": [0, 0]})
    answer = await call(node, "POST", "/v1/messages", data=stream_of(table), headers=headers)
    assert answer.status == 201
    assert pa.ipc.open_stream(answer.raw).read_all().num_rows == 2
    table = pa.table({"topic": ["a", "b"], "body": [b"1", b"2"]})
    answer = await call(node, "POST", "/v1/messages", data=stream_of(table), headers=headers)
    assert answer.content["code"] == "several_shards"
    answer = await call(
        node, "GET", "/v1/topics/b/queues/0/messages?offset=0", headers={"Accept": MEDIA_TYPE}
    )
    assert pa.ipc.open_stream(answer.raw).read_all().column("body").to_pylist() == [b"1", b"2"]


@pytest.mark.parametrize("name", ["cursor", "c%75rsor"])
async def test_scheduled_messages_of_all_shards_come_in_due_order_page_by_page(node: Node, name: str) -> None:
    for number in range(12):
        await send(
            node, TOPICS[number % 3], delay_ms=3_600_000 + (number * 7919) % 12 * 1000, body=str(number)
        )
    found: list[Any] = []
    query = "limit=5"
    while True:
        page = (await call(node, "GET", f"/v1/messages?{query}")).content
        found += page["messages"]
        if page["cursor"] is None:
            break
        query = f"limit=5&{name}={page['cursor']}"
    dues = [one["due_ms"] for one in found]
    assert len(found) == len({one["id"] for one in found}) == 12
    assert dues == sorted(dues)
    assert (await call(node, "GET", "/v1/messages?cursor=1.2")).content["code"] == "illegal_cursor"
    assert (await call(node, "GET", "/v1/wheel")).content["pending"] == 12


async def test_messages_with_a_key_are_found_in_all_shards_in_the_order_in_which_they_were_sent(
    node: Node,
) -> None:
    for number in range(12):
        topic, delay_ms = TOPICS[number % 3], 3_600_000 if number % 2 else 0
        await send(node, topic, delay_ms=delay_ms, keys="4711", body=str(number))
        await asyncio.sleep(0.002)  # each is accepted in a millisecond of its own
    for order, expected in (("oldest", range(12)), ("newest", range(11, -1, -1))):
        found: list[str] = []
        query = f"key=4711&limit=5&order={order}"
        while True:
            page = (await call(node, "GET", f"/v1/messages?{query}")).content
            assert len(page["messages"]) <= 5
            found += [one["body"] for one in page["messages"]]
            if page["cursor"] is None:
                break
            query = f"key=4711&limit=5&order={order}&cursor={page['cursor']}"
        assert found == [str(number) for number in expected]
    answer = await call(node, "GET", f"/v1/messages?topic={TOPICS[1]}&state=delivered&limit=1")
    assert [one["body"] for one in answer.content["messages"]] == ["4"]
    assert (await call(node, "GET", "/v1/messages?state=delivered")).content["code"] == "illegal_filter"


async def test_groups_work_through_any_node_and_dead_letters_of_all_shards_are_one_list(
    shards: Shards, node: Node
) -> None:
    other = await shards.node()
    for topic in TOPICS.values():
        await send(node, topic, body=topic)
        group = f"/v1/topics/{topic}/groups/w"
        config = {"start": "head", "max_attempts": 1}
        assert (await call(node, "PUT", group, json=config)).status == 201
        got = (await call(other, "POST", f"{group}/receive", json={"wait_ms": 5000})).content["messages"]
        receipt = got[0]["receipt"]
        gave = await call(node, "POST", f"{group}/nack", json={"receipts": [receipt], "reason": "no"})
        assert gave.content["results"][0]["ok"]
    dead = "/v1/groups/w/dead-letters"
    listed: list[Any] = []
    for _ in range(200):
        listed = (await call(node, "GET", f"{dead}?limit=2")).content["letters"]
        if len(listed) == 2:
            break
        await asyncio.sleep(0.05)
    first = (await call(node, "GET", f"{dead}?limit=2")).content
    rest = (await call(node, "GET", f"{dead}?from={first['next_offset']}")).content
    letters = first["letters"] + rest["letters"]
    assert sorted(one["origin_topic"] for one in letters) == sorted(TOPICS.values())
    assert len({one["offset"] for one in letters}) == 3
    for query, count in (
        ("reason=NO&limit=1000", 3),
        ("reason=yes", 0),
        (f"reason=no&from={letters[-1]['offset']}", 1),
    ):
        assert len((await call(node, "GET", f"{dead}?{query}")).content["letters"]) == count
    kept = {"all": True, "topics": list(TOPICS.values()), "reason": "yes"}
    assert (await call(node, "POST", f"{dead}/drop", json=kept)).content == {"dropped": 0}
    of_b = [one for one in letters if one["origin_topic"] == "b"]
    own = (await call(node, "GET", "/v1/topics/b/groups/w/dead-letters")).content["letters"]
    assert [one["offset"] for one in own] == [one["offset"] for one in of_b]
    done = await call(node, "POST", f"{dead}/redrive", json={"offsets": [of_b[0]["offset"]]})
    assert done.content == {"redriven": 1, "left": 0}
    done = await call(node, "POST", f"{dead}/drop", json={"all": True, "topics": list(TOPICS.values())})
    assert done.content == {"dropped": 2}
    named = (await call(node, "GET", "/v1/groups")).content["groups"]
    assert [one["topic"] for one in named] == sorted(TOPICS.values())


async def test_offsets_without_letters_find_a_group_that_another_shard_has(node: Node) -> None:
    await send(node, "a", body="a")
    assert (await call(node, "PUT", "/v1/topics/a/groups/w", json={"start": "head"})).status == 201
    for offset in range(3):
        for what, none in (("redrive", {"redriven": 0, "left": 0}), ("drop", {"dropped": 0})):
            done = await call(node, "POST", f"/v1/groups/w/dead-letters/{what}", json={"offsets": [offset]})
            assert (done.status, done.content) == (200, none)
    unknown = await call(node, "POST", "/v1/groups/x/dead-letters/drop", json={"offsets": [0]})
    assert unknown.content["code"] == "unknown_group"


async def test_names_of_schedules_and_subscriptions_are_unique_over_the_shards(node: Node) -> None:
    put = await call(node, "PUT", "/v1/schedules/daily", json={"topic": "a", "every": "1h"})
    assert put.status == 201
    again = await call(node, "PUT", "/v1/schedules/daily", json={"topic": "b", "every": "1h"})
    assert (again.status, again.content["code"]) == (409, "name_in_use")
    assert (await call(node, "GET", "/v1/schedules/daily")).content["topic"] == "a"
    assert (await call(node, "POST", "/v1/schedules/daily/pause")).content["paused"]
    assert len((await call(node, "GET", "/v1/schedules")).content["schedules"]) == 1
    assert (await call(node, "DELETE", "/v1/schedules/daily")).status == 200
    assert (await call(node, "PUT", "/v1/schedules/daily", json={"topic": "b", "every": "1h"})).status == 201
    draft = {"topic": "a", "url": "https://example.com/", "id": "hook"}
    made = await call(node, "POST", "/v1/subscriptions", json=draft)
    assert made.status == 201, made.raw
    again = await call(node, "POST", "/v1/subscriptions", json={**draft, "topic": "b"})
    assert (again.status, again.content["code"]) == (409, "name_in_use")
    assert (await call(node, "GET", made.headers["Location"])).content["topic"] == "a"
    assert (await call(node, "POST", "/v1/subscriptions/hook/pause")).status == 200
    assert (await call(node, "GET", "/v1/subscriptions/none")).content["code"] == "unknown_subscription"


async def test_tasks_are_in_the_shard_of_their_queue(node: Node) -> None:
    for queue in ("a", "b", "default"):
        task = {"url": "https://example.com/", "delay": "1h"} | (
            {} if queue == "default" else {"queue": queue}
        )
        made = await call(node, "POST", "/v1/tasks", json=task)
        assert made.status == 201, made.raw
        assert shard_in(made.content["id"]) == shard_of_topic(queue, COUNT)
        assert (await call(node, "GET", made.headers["Location"])).content["queue"] == queue
        listed = (await call(node, "GET", f"/v1/tasks?queue={queue}")).content["tasks"]
        assert [one["id"] for one in listed] == [made.content["id"]]
        assert (await call(node, "DELETE", made.headers["Location"])).status == 200
    queues = (await call(node, "GET", "/v1/task-queues")).content["queues"]
    assert [one["queue"] for one in queues] == ["a", "b", "default"]


async def test_transactions_and_bulk_recalls_go_over_all_shards(node: Node) -> None:
    begun = [
        (await call(node, "POST", "/v1/transactions", json={"topic": topic})).content["id"]
        for topic in TOPICS.values()
    ]
    page = (await call(node, "GET", "/v1/transactions?limit=2")).content
    rest = (await call(node, "GET", f"/v1/transactions?limit=2&cursor={page['cursor']}")).content
    assert [one["id"] for one in page["transactions"] + rest["transactions"]] == begun
    assert (await call(node, "POST", f"/v1/transactions/{begun[1]}/commit")).status == 200
    assert (await call(node, "POST", f"/v1/transactions/{begun[2]}/rollback")).status == 200
    ids = [(await send(node, topic, delay="1h"))["id"] for topic in TOPICS.values()]
    done = (await call(node, "POST", "/v1/messages/recall", json={"ids": [ids[2], "zz", ids[0]]})).content
    assert [one["id"] for one in done["results"]] == [ids[2], "zz", ids[0]]
    assert [one["ok"] for one in done["results"]] == [True, False, True]
    assert done["recalled"] == 2
    where = await call(node, "POST", "/v1/messages/recall", json={"due_from_ms": 1, "due_to_ms": 1 << 44})
    assert where.content["recalled"] == 1


async def test_bulk_recalls_in_all_shards_take_tasks_only_if_they_are_asked_for(node: Node) -> None:
    queues = [f"q{number}" for number in range(8)]  # of several shards
    for queue in queues:
        task = {"url": "https://example.com/", "delay": "30d", "queue": queue}
        assert (await call(node, "POST", "/v1/tasks", json=task)).status == 201
    for topic in TOPICS.values():
        await send(node, topic, delay="1h")
    where: dict[str, object] = {"due_from_ms": 1, "due_to_ms": 1 << 44}
    path = "/v1/messages/recall"
    counted = await call(node, "POST", path, json=where | {"reserved": True, "dry_run": True})
    assert counted.content["matched"] == len(queues) + len(TOPICS)
    assert (await call(node, "POST", path, json=where)).content["recalled"] == len(TOPICS)
    done = await call(node, "POST", path, json=where | {"reserved": True})
    assert done.content["recalled"] == len(queues)


async def test_bulk_reschedules_go_over_all_shards(node: Node) -> None:
    path = "/v1/messages/reschedule"
    sent = [await send(node, topic, delay="1h") for topic in TOPICS.values()]
    ids = [one["id"] for one in sent]
    wanted = {"ids": [ids[2], "zz", ids[0]], "shift": "+1h"}
    done = (await call(node, "POST", path, json=wanted)).content
    assert [one["id"] for one in done["results"]] == wanted["ids"]
    assert [one["ok"] for one in done["results"]] == [True, False, True]
    assert done["results"][0]["due_ms"] == sent[2]["due_ms"] + 3_600_000
    where = await call(node, "POST", path, json={"due_from_ms": 1, "due_to_ms": 1 << 44, "shift_ms": -1})
    assert (where.content["matched"], where.content["rescheduled"]) == (3, 3)


async def test_a_reschedule_counts_a_message_once_however_often_it_is_named(node: Node) -> None:
    ids = [(await send(node, topic, delay="1h"))["id"] for topic in TOPICS.values()]
    wanted = {"ids": [*ids, ids[0], *ids], "delay": "2h"}
    done = (await call(node, "POST", "/v1/messages/reschedule", json=wanted)).content
    assert [one["ok"] for one in done["results"]] == [True] * 7
    assert done["rescheduled"] == 3


async def test_a_task_with_cron_does_not_take_a_name_that_another_shard_has(node: Node) -> None:
    task = {"url": "https://example.com/", "cron": "@yearly", "schedule": "yearly"}
    for queue, status in (("a", 201), ("b", 409), ("a", 201)):
        made = await call(node, "POST", "/v1/tasks", json=task | {"queue": queue})
        assert made.status == status, made.raw
    refused = await call(node, "PUT", "/v1/schedules/yearly", json={"topic": "b", "every": "1h"})
    assert (refused.status, refused.content["code"]) == (409, "name_in_use")
    assert len((await call(node, "GET", "/v1/schedules")).content["schedules"]) == 1
    for unnamed in ({"schedule": None}, {"schedule": "a/b"}, {"cron": None}):
        wrong = await call(node, "POST", "/v1/tasks", json=task | {"queue": "b"} | unnamed)
        assert (wrong.status, wrong.content["code"]) in {(400, "invalid_field"), (400, "illegal_schedule")}
    own = await call(node, "POST", "/v1/tasks", json={"url": task["url"], "cron": "@yearly", "queue": "b"})
    assert own.status == 201


@pytest.mark.parametrize("field", ["cron", "schedule", "queue"])
async def test_a_field_of_a_task_that_is_no_string_is_not_built_on_the_node(node: Node, field: str) -> None:
    """It would hold up every other call of the node: a million lists take a tenth of a second."""
    hostile = b"[" + b"[]," * 300_000 + b"[]]"
    rest = b"".join(b'"%b": "x", ' % name for name in (b"cron", b"schedule") if name != field.encode())
    body = b'{"url": "https://example.com/", %b"%b": %b}' % (rest, field.encode(), hostile)
    tracemalloc.start()
    try:
        answer = await call(node, "POST", "/v1/tasks", data=body, headers=JSON)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (answer.status, answer.content["code"]) == (413, "too_many_values")
    assert peak_bytes < 8 * len(body), "copies of the body, and nothing that was built of it"


@pytest.mark.parametrize("shard", range(COUNT))
async def test_a_large_body_is_read_as_far_as_its_shard_would_read_it(node: Node, shard: int) -> None:
    """Else it would go to a shard that refuses it, or that makes another queue of the same name."""
    large = {"json": list(range(bodies.JSON_BODY_VALUES_MAX - 100))}
    await send(node, TOPICS[shard], **large)
    task = {"url": "https://example.com/", "queue": TOPICS[shard], "delay": "1h", **large}
    made = await call(node, "POST", "/v1/tasks", json=task)
    assert (made.status, shard_in(made.content["id"])) == (201, shard)


async def test_calls_to_a_process_that_was_replaced_end_and_so_do_streams(
    shards: Shards, node: Node, hung: str
) -> None:
    """A stopped leader answers nothing. A reader that waits for it must be sent to its successor."""
    place = node.leaders.places[2]
    place.leader = place.served_by = place.own_url = place.public_url = hung
    topic = TOPICS[2]
    waiting = [
        asyncio.create_task(call(node, "POST", "/v1/messages", json={"topic": topic})),
        asyncio.create_task(call(node, "GET", f"/v1/topics/{topic}")),
        asyncio.create_task(
            call(node, "GET", f"/v1/topics/{topic}/groups/s/stream", headers={"X-Requested-With": "x"})
        ),
    ]
    while len(place.calls) < len(waiting):
        assert not [one.result() for one in waiting if one.done()]
        await asyncio.sleep(0.01)
    place.own_url = place.public_url = shards.urls[2]
    watching = asyncio.create_task(node.leaders.watch())
    sent, read, stream = [await one for one in waiting]
    assert (sent.status, sent.content["code"]) == (500, "outcome_unknown")
    assert (read.status, read.content["code"]) == (503, "not_ready")
    assert (stream.status, stream.content["code"]) == (503, "not_ready")
    assert (await send(node, topic))["topic"] == topic
    watching.cancel()


async def test_a_change_of_the_leader_ends_calls_to_others_and_not_those_to_the_next_one() -> None:
    """A call may hear of the next leader, and be there, before the node looks."""
    place = Place(0, "http://next:80", "http://next:80")
    leaders = Leaders([place], None, SystemClock())  # type: ignore[arg-type]
    at_next = asyncio.Event()

    async def wait_for(url: str) -> None:
        async with leaders.serving(0, url):
            await at_next.wait()

    before, after = (asyncio.create_task(wait_for(url)) for url in ("http://old:1/v1", "http://next/v1"))
    while len(place.calls) < 2:
        await asyncio.sleep(0)
    place.give_up(0, but="http://next:80")
    with pytest.raises(TimeoutError):
        await before
    at_next.set()
    await after
    assert not place.calls


@pytest.mark.parametrize("code", [None, "no_space"])
async def test_a_node_is_not_ready_to_send_if_the_leader_on_another_node_takes_nothing(
    node: Node, free_process: Callable[[str, int, object], str], code: str | None
) -> None:
    """A process of an older version does not say with which code it refuses."""
    refusal, damage = "only 5 bytes are free", "1 due message(s) cannot be read"
    place = node.leaders.places[2]
    says = {"status": "ready", "refusing": refusal, "refusing_code": code, "set_aside": damage}
    leads = free_process("leads", 200, {name: text for name, text in says.items() if text})
    place.own_url = place.public_url = free_process(
        "stands by", 503, {"code": "not_ready", "role": "standby", "leader": leads}
    )
    watching = asyncio.create_task(node.leaders.watch())
    while place.leader != leads:
        await asyncio.sleep(0.01)
    watching.cancel()
    answer = await call(node, "GET", "/readyz?for=send")
    assert (answer.status, answer.content["code"]) == (507, code or "disk_reserve")
    assert answer.content["detail"] == refusal
    shown = (await call(node, "GET", "/readyz")).content
    assert (shown["refusing"], shown["refusing_code"]) == (refusal, code or "disk_reserve")
    assert shown["set_aside"] == f"shard 2: {damage}"


async def test_calls_to_a_leader_on_another_node_that_hangs_are_given_up(
    free_process: Callable[[str, int, object], str],
) -> None:
    """The node's own process answers all the time, and says who leads."""
    own = free_process("stands by", 503, {"code": "not_ready", "role": "standby", "leader": AWAY})
    place, clock = Place(0, own, own), ManualClock()
    async with ConnectionPool(Serving(), [own]) as pool:
        leaders = Leaders([place], pool, clock)

        async def wait() -> None:
            async with leaders.serving(0, AWAY):
                await asyncio.Event().wait()

        waiting, watching = asyncio.create_task(wait()), asyncio.create_task(leaders.watch())
        while "leads and is not ready" not in place.why:
            await asyncio.sleep(0.01)
        assert not waiting.done()
        clock.advance(HUNG_MS)
        with pytest.raises(TimeoutError):
            await waiting
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


@pytest.fixture
async def free_process() -> AsyncIterator[Callable[[str, int, object], str]]:
    """Makes processes that answer every call in one way, each at a path of its own; returns their URLs."""
    answers: dict[str, tuple[int, object]] = {}

    async def say(request: web.Request) -> web.Response:
        status, content = answers[request.match_info["name"]]
        return web.json_response(content, status=status)

    app = web.Application()
    app.router.add_route("*", "/{name}/{path:.*}", say)
    server = TestServer(app)
    await server.start_server()

    def make(name: str, status: int, content: object) -> str:
        answers[name] = (status, content)
        return str(server.make_url("/")) + name.replace(" ", "%20")

    yield make
    await server.close()


@pytest.fixture
async def hung() -> AsyncIterator[str]:
    """The URL of a process that sleeps: the system takes connections for it, and it says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize("status", [200, 503])
async def test_an_answer_that_stops_in_the_middle_is_given_up(shards: Shards, status: int) -> None:
    """The process hangs between the headers and the body, and the next look finds nothing wrong."""

    writers: list[asyncio.StreamWriter] = []

    async def begin(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        writer.write(b"HTTP/1.1 %d Begun\r\nContent-Type: application/json\r\n" % status)
        writer.write(b"Content-Length: 50\r\n\r\n{")

    node = await shards.node(rest_s_max=0.1)
    async with await asyncio.start_server(begin, "127.0.0.1", 0) as hanging, asyncio.timeout(60):
        host, port = hanging.sockets[0].getsockname()
        node.leaders.places[2].leader = f"http://{host}:{port}"
        topic = TOPICS[2]
        sent = await call(node, "POST", "/v1/messages", json={"topic": topic})
        assert (sent.status, sent.content["code"]) == (500, "outcome_unknown")
        read = await call(node, "GET", f"/v1/topics/{topic}")
        assert (read.status, read.content["code"]) == (503, "not_ready")
        merged = await call(node, "GET", "/v1/topics")
        assert (merged.status, merged.content["code"]) == (503, "not_ready")
        close(writers)


async def test_a_long_answer_that_pauses_for_too_long_is_cut_off(shards: Shards) -> None:
    """What was passed on is not all of it, so it must not look so."""

    writers: list[asyncio.StreamWriter] = []

    async def begin(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
        writer.write(b"Content-Length: 100000\r\n\r\n{")

    node = await shards.node(rest_s_max=0.1)
    async with await asyncio.start_server(begin, "127.0.0.1", 0) as hanging, asyncio.timeout(60):
        host, port = hanging.sockets[0].getsockname()
        node.leaders.places[2].leader = f"http://{host}:{port}"
        with pytest.raises(aiohttp.ClientPayloadError):
            await call(node, "GET", f"/v1/topics/{TOPICS[2]}")
        close(writers)


@pytest.mark.parametrize("has_half", [False, True])
async def test_a_stream_whose_process_breaks_ends_with_a_problem_unless_in_the_middle_of_an_event(
    node: Node, has_half: bool
) -> None:
    event = b"event: message\ndata: {}\n\n" + (b"event: mess" if has_half else b"")

    async def begin(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n")
        writer.write(b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(event), event))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(begin, "127.0.0.1", 0) as breaking, asyncio.timeout(60):
        host, port = breaking.sockets[0].getsockname()
        node.leaders.places[2].leader = f"http://{host}:{port}"
        path = f"/v1/topics/{TOPICS[2]}/groups/s/stream"
        if has_half:
            with pytest.raises(aiohttp.ClientPayloadError):
                await call(node, "GET", path, headers={"X-Requested-With": "x"})
            return
        answer = await call(node, "GET", path, headers={"X-Requested-With": "x"})
        assert answer.raw.startswith(event + b"event: end\ndata: ")
        assert orjson.loads(answer.raw.rpartition(b"data: ")[2])["code"] == "not_ready"


def close(writers: list[asyncio.StreamWriter]) -> None:
    for writer in writers:
        writer.close()


async def test_a_change_by_id_tells_which_part_a_missing_shard_has_not_done(
    shards: Shards, node: Node
) -> None:
    sent = {shard: await send(node, topic, delay="1h") for shard, topic in TOPICS.items()}
    await shards.end(2)
    wanted = {"ids": [sent[2]["id"], sent[0]["id"]], "shift": "+1h"}
    done = await call(node, "POST", "/v1/messages/reschedule", json=wanted)
    assert done.status == 200
    assert [(one["id"], one["ok"], one.get("code")) for one in done.content["results"]] == [
        (sent[2]["id"], False, "not_ready"),
        (sent[0]["id"], True, None),
    ]
    assert done.content["rescheduled"] == 1
    done = await call(node, "POST", "/v1/messages/recall", json={"ids": [sent[1]["id"], sent[2]["id"]]})
    assert [one.get("code") for one in done.content["results"]] == [None, "not_ready"]
    only = await call(node, "POST", "/v1/messages/recall", json={"ids": [sent[2]["id"]]})
    assert (only.status, only.content["code"]) == (503, "not_ready")


async def test_a_change_by_condition_begins_only_if_all_shards_are_served(shards: Shards, node: Node) -> None:
    sent = await send(node, TOPICS[0], delay="1h")
    await shards.end(2)
    await until_missing(node, 2)
    wanted = {"due_from_ms": 1, "due_to_ms": 1 << 44, "shift": "+1h"}
    refused = await call(node, "POST", "/v1/messages/reschedule", json=wanted)
    assert (refused.status, refused.content["code"]) == (503, "not_ready")
    assert (await call(node, "GET", f"/v1/messages/{sent['id']}")).content["due_ms"] == sent["due_ms"]


async def until_missing(node: Node, shard: int) -> None:
    """Return once the node has noticed that nobody serves a shard."""
    while node.leaders.places[shard].leader is not None:
        await call(node, "GET", "/v1/wheel", headers={"Timerwheel-Shard": str(shard)})


async def test_a_change_that_one_shard_refuses_after_another_has_done_it_is_never_called_not_done(
    node: Node, stand_in: Callable[..., str]
) -> None:
    """A client repeats what was refused for the moment, and a repeated shift would move messages twice."""
    sent = await send(node, TOPICS[0], delay="1h")
    place = node.leaders.places[2]
    place.leader = place.own_url = stand_in(429, {"code": "rate_limited", "detail": "slower"})
    wanted = {"due_from_ms": 1, "due_to_ms": 1 << 44, "shift": "+1h"}
    half = await call(node, "POST", "/v1/messages/reschedule", json=wanted)
    assert (half.status, half.content["code"]) == (500, "outcome_unknown")
    assert half.content["detail"].startswith(
        "done in shard 0, 1, but in shard 2 the answer was 429 rate_limited: slower"
    )
    moved = (await call(node, "GET", f"/v1/messages/{sent['id']}")).content
    assert moved["due_ms"] == sent["due_ms"] + 3_600_000


async def test_a_change_of_which_a_shard_does_not_know_whether_it_is_done_is_never_called_not_done(
    node: Node, stand_in: Callable[..., str]
) -> None:
    """Another shard, which was not asked at all, must not speak for it."""
    url = stand_in(500, {"code": "outcome_unknown", "detail": "the log has failed"})
    for shard, leader in ((0, AWAY), (1, url), (2, url)):
        place = node.leaders.places[shard]
        place.leader = place.own_url = leader
    every = {"due_from_ms": 1, "due_to_ms": 1 << 44}
    ids = [f"{shard:04x}{'0' * 20}" for shard in range(COUNT)]
    for path, wanted in (
        ("/v1/messages/reschedule", {**every, "shift": "+1h"}),
        ("/v1/messages/reschedule", {"ids": ids, "shift": "+1h"}),
        ("/v1/messages/recall", every),
        ("/v1/groups/w/dead-letters/redrive", {"all": True}),
    ):
        node.leaders.places[0].leader = AWAY
        answer = await call(node, "POST", path, json=wanted)
        assert (answer.status, answer.content["code"]) == (500, "outcome_unknown"), path


async def test_a_shard_that_cannot_say_whether_it_has_a_name_is_not_taken_for_one_without_it(
    node: Node, stand_in: Callable[..., str]
) -> None:
    place = node.leaders.places[shard_of_topic("a", COUNT) or 0]
    place.leader = place.own_url = stand_in(429, {"code": "rate_limited"}, {"Retry-After": "3"})
    for method, path, body in (
        ("PUT", "/v1/schedules/daily", {"topic": "b", "every": "1h"}),
        ("DELETE", "/v1/schedules/daily", None),
        ("POST", "/v1/subscriptions", {"topic": "b", "url": "https://example.com/", "id": "hook"}),
    ):
        answer = await call(node, method, path, json=body)
        assert (answer.status, answer.content["code"]) == (429, "rate_limited")
        assert answer.headers["Retry-After"] == "3"


async def test_one_name_does_not_wait_for_another(node: Node) -> None:
    asked, go_on = asyncio.Semaphore(0), asyncio.Event()

    async def answer(_: web.Request) -> web.Response:
        asked.release()
        await go_on.wait()
        return web.json_response({"code": "unknown_schedule"}, status=404)

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    async with TestServer(app) as slow:
        place = node.leaders.places[2]
        place.leader = place.own_url = str(slow.make_url("")).rstrip("/")
        wanted = {"topic": TOPICS[0], "every": "1h"}
        puts = [asyncio.create_task(call(node, "PUT", f"/v1/schedules/{name}", json=wanted)) for name in "ab"]
        async with asyncio.timeout(30):  # only keeps a failure from hanging
            for _ in puts:
                await asked.acquire()
        go_on.set()
        assert [(await put).status for put in puts] == [201, 201]


@pytest.fixture
async def stand_in() -> AsyncIterator[Callable[..., str]]:
    """Starts a process that answers every call in one way; returns its URL."""
    answer: dict[str, Any] = {}

    async def say(_: web.Request) -> web.Response:
        return web.json_response(answer["content"], status=answer["status"], headers=answer["headers"])

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", say)
    server = TestServer(app)
    await server.start_server()

    def start(status: int, content: object, headers: object = None) -> str:
        answer.update(status=status, content=content, headers=headers)
        return str(server.make_url("")).rstrip("/")

    yield start
    await server.close()


async def test_streams_pass_through_as_they_come(node: Node) -> None:
    await send(node, "b", body="first")
    headers = {"X-Requested-With": "test"}
    url = node.url.join(URL("/v1/topics/b/groups/s/stream?create=true&start=head&ack=auto"))
    async with node.session.get(url, headers=headers) as response:
        assert response.content_type == "text/event-stream"
        await _has(response, b"first")
        await send(node, "b", body="second")
        await _has(response, b"second")
    async with node.session.get(node.url.join(URL("/v1/live"))) as response:
        await _has(response, b"event: tick")


async def test_the_live_view_ends_with_a_problem_once_no_shard_answers(shards: Shards, node: Node) -> None:
    async with node.session.get(node.url.join(URL("/v1/live"))) as response:
        await _has(response, b"event: tick")
        for shard in range(COUNT):
            await shards.end(shard)
        await _has(response, b"event: end")
        await _has(response, b'"code":"not_ready"')


async def _has(response: aiohttp.ClientResponse, wanted: bytes) -> None:
    async for line in response.content:
        if wanted in line:
            return
    raise AssertionError(f"the stream ended without {wanted!r}")


async def test_a_long_poll_ends_with_the_message_that_comes(node: Node) -> None:
    path = "/v1/topics/b/queues/0/messages?offset=0&wait_ms=30000"
    waiting = asyncio.create_task(call(node, "GET", path))
    await send(node, "b", delay_ms=200, body="came")
    assert (await waiting).content["messages"][0]["body"] == "came"


@pytest.mark.parametrize("cursor", ["a%20b", "%C3%A9", "1.2%26limit=1", "%0d%0aX: 1", "%23", "%25"])
async def test_a_cursor_that_was_made_up_is_refused_and_asks_no_shard_for_anything_else(
    node: Node, cursor: str
) -> None:
    answer = await call(node, "GET", f"/v1/messages?cursor={cursor}_x_x".replace(" ", "%20"))
    assert (answer.status, answer.content["code"]) == (400, "illegal_cursor")


@pytest.mark.parametrize("topic", ["%DLQ%w", "%RETRY%w"])
async def test_a_subscription_to_what_is_in_every_shard_needs_the_name_of_one(node: Node, topic: str) -> None:
    """It would push what is in the first shard, and nobody would hear of the rest."""
    wanted = {"topic": topic, "url": "https://example.com/"}
    refused = await call(node, "POST", "/v1/subscriptions", json=wanted)
    assert (refused.status, refused.content["code"]) == (400, "shard_required")
    for shard in range(COUNT):
        headers = {"Timerwheel-Shard": str(shard)}
        own = {**wanted, "id": f"dead-{shard}"}
        assert (await call(node, "POST", "/v1/subscriptions", json=own, headers=headers)).status == 201
    listed = (await call(node, "GET", "/v1/subscriptions")).content["subscriptions"]
    assert [one["id"] for one in listed] == ["dead-0", "dead-1", "dead-2"]
    assert (await call(node, "DELETE", "/v1/subscriptions/dead-1")).status == 200


async def test_topics_of_every_shard_need_the_name_of_one(node: Node) -> None:
    dead = "/v1/topics/%25DLQ%25w/queues/0/messages"
    refused = await call(node, "GET", dead)
    assert (refused.status, refused.content["code"]) == (400, "shard_required")
    chosen = await call(node, "GET", dead, headers={"Timerwheel-Shard": "1"})
    assert chosen.content["code"] == "unknown_topic"
    for wrong in ("3", "-1", "x", "1" * 9):
        refused = await call(node, "GET", "/v1/topics", headers={"Timerwheel-Shard": wrong})
        assert refused.content["code"] == "invalid_parameter"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/messages", {"topic": "a"}),
        ("POST", "/v1/messages", [{"topic": "a"}, {"topic": "a"}]),
        ("POST", "/v1/topics/a/messages", None),
        ("POST", "/v1/topics/a/groups/w/receive", {"create": True}),
        ("PUT", "/v1/topics/a/groups/w", {}),
        ("PATCH", "/v1/topics/a", {"queues": 2}),
        ("POST", "/v1/transactions", {"topic": "a"}),
        ("PUT", "/v1/schedules/s", {"topic": "a", "every": "1h"}),
        ("POST", "/v1/subscriptions", {"topic": "a", "url": "https://example.com/"}),
        ("GET", "/v1/topics/a/queues/0/messages", None),
    ],
)
async def test_a_shard_refuses_topics_of_others_and_says_whose_they_are(
    shards: Shards, node: Node, method: str, path: str, body: object
) -> None:
    wrong = (shard_of_topic("a", COUNT) + 1) % COUNT
    url = URL(shards.urls[wrong] + path, encoded=True)
    async with node.session.request(method, url, json=body) as response:
        content = await response.json(content_type=None)
    codes = {content["code"], *(one["code"] for one in content.get("errors", []))}
    assert response.status == 421
    assert "wrong_shard" in codes
    assert len((await call(node, "GET", "/v1/topics")).content["topics"]) == 2  # the service's own


async def test_without_one_shard_its_calls_are_503_and_the_others_go_on(shards: Shards, node: Node) -> None:
    gone = shard_of_topic("a", COUNT)
    assert gone is not None
    await shards.end(gone)
    refused = await call(node, "POST", "/v1/messages", json={"topic": "a"})
    assert (refused.status, refused.content["code"], refused.headers["Retry-After"]) == (
        503,
        "not_ready",
        "1",
    )
    assert refused.content["shard"] == gone
    assert (await send(node, "b"))["topic"] == "b"
    assert (await call(node, "GET", "/v1/topics")).status == 503
    ready = await call(node, "GET", "/readyz")
    assert (ready.status, ready.content["status"]) == (200, f"ready, but for shard {gone}")
    assert [one["role"] for one in ready.content["shards"]].count("waiting") == 1
    assert (await call(node, "GET", "/readyz?for=send")).status == 503
    stored = await call(node, "POST", "/v1/messages?atomic=false", json=[{"topic": "a"}, {"topic": "b"}])
    assert stored.status == 207
    assert stored.content[0]["code"] == "not_ready"
    assert stored.content[1]["topic"] == "b"


async def test_a_node_without_file_descriptors_does_not_take_its_shards_for_gone(node: Node) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    with ExitStack() as taken:
        taken.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, before[1]))
        with suppress(OSError):
            while True:
                taken.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        with pytest.raises(ShardNotReadyError, match="no file descriptor left"):
            await node.forwarder.open(0, Call("GET", "/v1/topics", CIMultiDict()))
    assert node.leaders.missing == []


def test_a_process_in_front_has_a_descriptor_for_the_call_of_each_connection() -> None:
    assert connections_in_front(1024) * 2 + OWN_FILES <= 1024
    with pytest.raises(FileLimitError):
        connections_in_front(FILES_MIN - 1)


async def test_a_call_at_a_process_that_leads_no_longer_goes_once_to_the_one_that_does(
    node: Node, free_leader: Callable[[str], str]
) -> None:
    place = node.leaders.places[shard_of_topic("b", COUNT) or 0]
    leader, place.own_url, place.public_url = place.own_url, "http://127.0.0.1:1", "http://127.0.0.1:1"
    place.leader = free_leader(leader)  # a process of another node
    sent = await send(node, "b", body="x")
    assert sent["topic"] == "b"
    assert node.forwarder.repeated == 1
    assert place.leader == leader


@pytest.fixture
async def free_leader() -> AsyncIterator[Callable[[str], str]]:
    """Starts a process that stands by, and names a leader."""
    leader = ""

    async def refuse(_: web.Request) -> web.Response:
        content = {"code": "not_ready", "role": "standby", "leader": leader}
        return web.json_response(content, status=503)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", refuse)
    server = TestServer(app)
    await server.start_server()

    def start(named: str) -> str:
        nonlocal leader
        leader = named
        return str(server.make_url("")).rstrip("/")

    yield start
    await server.close()


async def test_metrics_have_the_shard_of_each_sample_and_one_group_for_each_family(node: Node) -> None:
    await send(node, "b", delay="1h")
    text = (await call(node, "GET", "/metrics")).raw.decode()
    heads = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(heads) == len(set(heads))
    assert 'timerwheel_ready{shard="front"} 1' in text
    assert 'timerwheel_ready{shard="2"} 1.0' in text
    assert 'timerwheel_forward_calls_total{shard="front"}' in text


async def test_the_map_names_the_process_of_each_shard(shards: Shards, node: Node) -> None:
    found = (await call(node, "GET", "/v1/cluster")).content
    assert [one["leader"] for one in found["shards"]] == shards.urls
    for shard in found["shards"]:
        topic = TOPICS[shard["shard"]]
        async with node.session.post(f"{shard['leader']}/v1/messages", json={"topic": topic}) as response:
            assert response.status == 201
    refused = await call(node, "POST", "/v1/cluster/move")
    assert refused.content["code"] == "invalid_parameter"
    refused = await call(node, "POST", "/v1/cluster/move?shard=1")
    assert refused.content["code"] == "no_standby"


async def test_an_acknowledgement_by_url_goes_to_the_shard_of_its_token(node, shards):
    for shard, topic in TOPICS.items():
        await send(node, topic)
        engine = shards.engines[shard]
        await engine.groups.put(topic, "g", GroupConfig(start="head"))
        (held,) = await engine.groups.receive(topic, "g")
        urls = AckUrls(engine.core.log.log_id, engine.shard.number, "http://node")
        token = urls.token(Attempted(topic, "g", held.receipt))
        answer = await call(node, "POST", f"/v1/acks/{token}/extend", json={"invisible_ms": 1_000})
        assert (answer.status, answer.content["result"]) == (200, "extended"), answer.raw
        answer = await call(node, "POST", f"/v1/acks/{token}")
        assert (answer.status, answer.content) == (200, {"result": "acknowledged"})
        assert engine.groups.info(topic, "g").in_flight == 0
    for strange in ("x", token[:-1]):
        assert (await call(node, "POST", f"/v1/acks/{strange}")).content["code"] == "unknown_ack"
