"""`backup create|verify|restore` beside a real service that takes messages all the while."""

import asyncio
import shutil
import signal
from pathlib import Path

import pytest

from tests.harness.processes import ROOT, serving, timerwheel
from timerwheel.client import Client

ARRAY = 20
PAUSE_S = 0.01
YEAR_MS = 365 * 86_400_000


async def send_until(stop: asyncio.Event, url: str, acknowledged: list[str]) -> None:
    """Send arrays one after the other; what was acknowledged is noted at once."""
    drafts = [{"topic": "orders", "body": "b" * 300, "delay_ms": YEAR_MS} for _ in range(ARRAY)]
    async with Client(url) as client:
        while not stop.is_set():
            acknowledged += [sent.id for sent in await client.send_many(drafts)]
            await asyncio.sleep(PAUSE_S)


async def at_least(acknowledged: list[str], count: int) -> None:
    while len(acknowledged) < count:
        await asyncio.sleep(0.001)


async def test_under_load_a_backup_has_all_that_was_acknowledged_before_it_began(tmp_path):
    target, restored = tmp_path / "b", tmp_path / "new"

    async def run(*arguments):
        return await asyncio.to_thread(timerwheel, *arguments, "--json")

    with serving(tmp_path / "d", "--segment-size", "32KiB") as service:
        stop, acknowledged, taken = asyncio.Event(), [], []
        load = asyncio.create_task(send_until(stop, service.url, acknowledged))
        for number in range(1, 3):
            await at_least(acknowledged, number * 12 * ARRAY)
            before = set(acknowledged)
            taken.append((await run("backup", "create", target, "--data", tmp_path / "d")).json)
        stop.set()
        await load
        assert service.end(signal.SIGKILL).code == -signal.SIGKILL
    assert [one["linked_segments"] > 0 for one in taken] == [False, True]
    assert taken[1]["copied_segments"] < taken[1]["segments"]
    assert (await run("backup", "restore", target, "--data", restored)).json["until"] == taken[1]["until"]
    findings = (await run("fsck", "--data", restored)).json["findings"]
    assert {one["code"] for one in findings} <= {"index_missing", "sidecar_stale"}
    with serving(restored) as again:
        async with Client(again.url) as client:
            assert before <= {message.id async for message in client.pending("orders")}
        assert again.end(signal.SIGTERM).code == 0
    assert timerwheel("fsck", "--data", restored).code == 0


@pytest.fixture
def backed_up(tmp_path) -> Path:
    """A backup, and beside it the data directory that it is of."""
    shutil.copytree(ROOT / "tests" / "golden" / "v1" / "service", tmp_path / "d")
    shown = timerwheel("backup", "create", tmp_path / "b", "--data", tmp_path / "d")
    assert (shown.code, shown.err) == (0, "")
    assert "2 segment(s)" in shown.out
    return tmp_path / "b"


def test_the_result_is_printed_for_people_and_for_programs(backed_up):
    found = timerwheel("backup", "verify", backed_up, "--json").json
    assert len(found["segments"]) == 2
    assert found["until"] > found["start"] > 0
    assert "the backup is intact" in timerwheel("backup", "verify", backed_up).out
    new = backed_up.with_name("new")
    assert f"restored to {new}" in timerwheel("backup", "restore", backed_up, "--data", new).out


def test_refusals_are_one_line(backed_up):
    data = backed_up.with_name("d")
    damaged = min((backed_up / "log").glob("*.log"))
    for code, named, arguments in (
        (2, "outside", ("backup", "create", data / "b", "--data", data)),
        (1, "is not new", ("backup", "restore", backed_up, "--data", data)),
        (1, "backup restore", ("serve", "--port", 0, "--data", backed_up)),
        (1, "does not contain a finished backup", ("backup", "verify", data)),
    ):
        refused = timerwheel(*arguments)
        assert (refused.code, refused.out, len(refused.err.splitlines())) == (code, "", 1)
        assert named in refused.err
    damaged.write_bytes(damaged.read_bytes()[:-1])
    found = timerwheel("backup", "verify", backed_up)
    assert (found.code, len(found.err.splitlines())) == (1, 1)
    for words in (f"{damaged} is not what was backed up: it has", "Delete that file", "backup create"):
        assert words in found.err
    assert "fsck" not in found.err
