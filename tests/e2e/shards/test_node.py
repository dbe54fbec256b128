"""A node as users start it: one process in front, one for each shard."""

import os
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import orjson
import pytest

from tests.harness.ports import reserved_ports
from tests.harness.processes import PATIENCE_S, RunningService, serving, timerwheel
from timerwheel.client import Client
from timerwheel.model.ids import shard_in

SHARDS = 2
TOPICS = ("a", "d")  # of two shards
URL = "https://example.com/"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with serving(tmp_path_factory.mktemp("node") / "data", "--shards", SHARDS) as found:
        yield found


def pids_of(node: RunningService) -> dict[int, int]:
    """The process of each shard."""
    found: dict[int, int] = {}
    for shard in range(SHARDS):
        lock = orjson.loads((node.data / f"shard-{shard}" / "lock").read_bytes())
        found[shard] = lock["pid"]
    return found


async def test_a_killed_shard_starts_again_and_keeps_its_messages_and_ids(node: RunningService) -> None:
    async with Client(node.url) as client:
        sent = [await client.send(topic, "x", delay="1h") for topic in TOPICS]
        shards = [shard_in(one.id) for one in sent]
        assert sorted(shards, key=str) == [0, 1]
        before = pids_of(node)
        os.kill(before[0], signal.SIGKILL)
        for _ in range(1200):
            try:
                states = [(await client.get(one.id)).state for one in sent]
                break
            except Exception:  # noqa: BLE001 - until it is back
                time.sleep(0.05)
        assert states == ["scheduled", "scheduled"]
        assert pids_of(node)[0] != before[0]
        assert pids_of(node)[1] == before[1]
        assert (await client.recall(sent[0].id)).state == "recalled"


async def test_the_command_line_works_through_a_node(node: RunningService) -> None:
    sent = timerwheel("send", "b", "hello", "--delay", "1h", "--url", node.url, "--json").json
    assert timerwheel("get", sent["id"], "--url", node.url, "--json").json["topic"] == "b"
    shown = timerwheel("cluster", "status", "--url", node.url, "--json").json
    assert [one["shard"] for one in shown["shards"]] == [0, 1]
    told = timerwheel("cluster", "status", "--url", node.url)
    assert "shard  process" in told.out
    listed = timerwheel("topics", "list", "--url", node.url, "--json")
    assert listed.code == 0
    refused = timerwheel("cluster", "move", "--url", node.url)
    assert refused.code == 1
    assert "shard" in refused.err


async def test_the_log_of_a_shard_can_be_read_by_itself(node: RunningService) -> None:
    sent = timerwheel("send", "b", "hello", "--delay", "1h", "--url", node.url, "--json").json
    data = node.data / f"shard-{shard_in(sent['id'])}"
    found = timerwheel("explain", sent["id"], "--data", data)
    assert found.code == 0, found.err
    assert sent["id"] in found.out
    refused = timerwheel("fsck", "--data", node.data)
    assert refused.code == 1
    assert (
        f"is the directory of a node in front of shards; give that of a shard: {data.parent}" in refused.err
    )


async def test_tokens_are_listed_and_made_in_the_directory_of_the_node(tmp_path: Path) -> None:
    (tmp_path / "shard-0").mkdir()
    assert timerwheel("tokens", "list", "--data", tmp_path).code == 0
    given = ("--scope", "send", "--topic", "*", "--data", tmp_path)
    made = timerwheel("tokens", "create", "sender", *given)
    assert made.code == 0
    assert "no service has used" not in made.err


def test_ctrl_c_ends_a_node_and_its_shards_in_order_and_nothing_is_left(tmp_path: Path) -> None:
    with serving(tmp_path / "data", "--shards", SHARDS) as node:
        pids = pids_of(node)
        ended = node.end(signal.SIGINT)
        assert ended.code == 0, ended.err
        assert "Traceback" not in ended.err
        for shard, pid in pids.items():
            assert f"stopping shard={shard}" in ended.err
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)


async def test_shards_of_a_killed_node_stop_and_the_next_one_goes_on_at_their_ports(tmp_path: Path) -> None:
    port = reserved_ports(1 + SHARDS)
    flags = ("--shards", SHARDS, "--port", port)
    with serving(tmp_path / "data", *flags) as node:
        async with Client(node.url) as client:
            sent = await client.send("b", "x", delay="1h")
        former = [os.pidfd_open(pid) for pid in pids_of(node).values()]
        node.end(signal.SIGKILL)
    with serving(tmp_path / "data", *flags) as node:
        for shard in former:
            assert select.select([shard], [], [], PATIENCE_S)[0], "it still runs"
            os.close(shard)
        async with Client(node.url) as client:
            assert (await client.get(sent.id)).state == "scheduled"
        refused = timerwheel("serve", "--port", 0, "--data", tmp_path / "data", "--shards", SHARDS)
        assert refused.code == 1
        assert "is in use by process" in refused.err
        assert "in front of shards" in refused.err
        node.end(signal.SIGTERM)
    refused = timerwheel("serve", "--port", 0, "--data", tmp_path / "data", "--shards", 3)
    assert refused.code != 0
    assert "shard-0 holds shard 0 of 2" in refused.err
    assert "the number of shards never changes" in refused.err
    refused = timerwheel("serve", "--port", 0, "--data", tmp_path / "data")
    assert refused.code == 2
    assert "has shards" in refused.err


def test_a_reload_reaches_every_shard_and_ends_none_that_is_starting(tmp_path: Path) -> None:
    config = tmp_path / "timerwheel.toml"
    config.write_text("")
    with serving(tmp_path / "data", "--shards", SHARDS, "--config", config) as node:
        before = pids_of(node)[0]
        os.kill(before, signal.SIGKILL)
        for _ in range(150):  # through all of its start
            node.process.send_signal(signal.SIGHUP)
            time.sleep(0.01)
        while pids_of(node)[0] == before:
            time.sleep(0.01)
        config.write_text('near = "20s"')
        node.process.send_signal(signal.SIGHUP)
        told: list[str] = []
        while sum("changed: near" in line for line in told) < 1 + SHARDS:
            told.append(node.process.stderr.readline())
    assert sum("the process of shard 0 ended" in line for line in told) == 1


async def test_tokens_of_the_node_hold_in_every_shard(tmp_path: Path) -> None:
    data = tmp_path / "data"
    made = timerwheel(
        "tokens", "create", "sender", "--scope", "send", "--topic", "b", "--data", data, "--json"
    )
    headers = {"Authorization": f"Bearer {made.json['token']}"}
    with serving(data, "--shards", SHARDS) as node:
        async with aiohttp.ClientSession(node.url) as session:
            for topic, status in (("b", 201), ("a", 403)):
                async with session.post("/v1/messages", json={"topic": topic}, headers=headers) as answer:
                    assert answer.status == status
            async with session.post("/v1/messages", json={"topic": "b"}) as answer:
                assert answer.status == 401
            async with session.get("/v1/groups", headers=headers) as answer:
                assert answer.status == 403
            async with session.get("/v1/topics", headers=headers) as answer:
                assert [one["topic"] for one in (await answer.json())["topics"]] == ["b"]


async def test_a_call_by_name_counts_once_for_the_rate_of_its_token(tmp_path: Path) -> None:
    """The shard that has the name is asked for it first, and then gets the call."""
    data = tmp_path / "data"
    schedule = {"topic": "b", "body": "x", "cron": "0 0 * * *"}
    calls: list[tuple[str, str, object]] = [
        ("PUT", "/v1/schedules/s", schedule),
        ("GET", "/v1/schedules/s", None),
        ("POST", "/v1/schedules/s/pause", None),
        ("DELETE", "/v1/schedules/s", None),
        ("POST", "/v1/tasks", {"url": URL, "queue": "b", "cron": "@yearly", "schedule": "t"}),
        ("POST", "/v1/tasks", {"url": URL, "queue": "b"}),
        ("POST", "/v1/subscriptions", {"topic": "b", "url": URL, "id": "hook"}),
    ]
    made = [
        timerwheel(
            *("tokens", "create", f"t{number}", "--scope", "send", "--scope", "receive"),
            *("--topic", "*", "--rate", "1/h", "--data", data, "--json"),
        ).json["token"]
        for number in range(len(calls))
    ]
    with serving(data, "--shards", SHARDS) as node:
        async with aiohttp.ClientSession(node.url) as session:
            for token, (method, path, body) in zip(made, calls, strict=True):
                headers = {"Authorization": f"Bearer {token}"}
                async with session.request(method, path, json=body, headers=headers) as answer:
                    assert answer.status < 300, (method, path, await answer.text())
                async with session.get("/v1/schedules/s", headers=headers) as answer:
                    assert answer.status == 429


def test_backups_of_all_shards_restore_a_node_with_its_tokens(tmp_path: Path) -> None:
    data, backup, again = (tmp_path / name for name in ("data", "backup", "again"))
    names = [f"shard-{number}" for number in range(SHARDS)]
    with serving(data, "--shards", SHARDS) as node:
        made = timerwheel("tokens", "create", "shop", "--scope", "admin", "--data", data, "--json").json
        caller = {"TIMERWHEEL_TOKEN": made["token"]}
        while timerwheel("topics", "list", "--url", node.url).code == 0:
            time.sleep(0.05)
        ids = [
            timerwheel("send", topic, "x", "--delay", "1h", "--url", node.url, "--json", **caller).json["id"]
            for topic in TOPICS
        ]
        for name in names:
            assert timerwheel("backup", "create", backup / name, "--data", data / name).code == 0
    for name in names:
        restored = timerwheel("backup", "restore", backup / name, "--data", again / name)
        assert "tokens   yes" in restored.out
        assert not (again / name / "tokens.json").exists()
        if name != names[-1]:
            early = timerwheel("serve", "--port", 0, "--shards", SHARDS, "--data", again)
            assert (early.code, f"{again / names[-1]} had a log, and now has none" in early.err) == (2, True)
    assert (again / "tokens.json").read_bytes() == (data / "tokens.json").read_bytes()
    with serving(again, "--shards", SHARDS) as node:
        for one in ids:
            assert timerwheel("get", one, "--url", node.url).code == 1
            assert timerwheel("get", one, "--url", node.url, "--json", **caller).json["state"] == "scheduled"


def test_tokens_of_a_node_are_not_made_in_a_shard_where_nobody_reads_them(node: RunningService) -> None:
    shard = node.data / "shard-1"
    done = timerwheel("tokens", "create", "a", "--scope", "admin", "--data", shard)
    assert (done.code, done.out) == (1, "")
    assert f"the tokens are those of its node: {node.data}" in done.err
    assert not (shard / "tokens.json").exists()
