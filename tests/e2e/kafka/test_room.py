"""Real nodes on small disks: a full one hands over or waits, and goes on by itself once there is room."""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka")

from tests.e2e.kafka.test_cluster import Team, has, send, until
from tests.e2e.kafka.test_shards import SHARDS, TOPICS, Nodes
from tests.harness.kafka.clients import Clients
from tests.harness.processes import timerwheel
from tests.torture.process import Service

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a small disk")

DISK_MIB = 128
RESERVE_MIB = 32
BODY = "x" * 2_000_000
HALF = "x" * 900_000


class SmallDisk:
    """A file system of its own, and a file that fills it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def leave(self, free_mib: int) -> None:
        """Fill it, so that so much is free."""
        self.clear()
        found = os.statvfs(self.path)
        size = found.f_bavail * found.f_frsize - (free_mib << 20)
        with self._ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)

    def clear(self) -> None:
        """Free what fills it."""
        self._ballast.unlink(missing_ok=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    path = tmp_path / "first"
    path.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", path], check=False)
    if made.returncode:
        pytest.skip("needs the right to mount a small disk")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "-l", path], check=True)


async def small_pair(team: Team) -> tuple[Service, Service]:
    """A node that leads, on a small disk, and one that stands by."""
    first = team.start("first", "--disk-reserve", f"{RESERVE_MIB}MiB")
    await until(lambda: team.leads(first))
    second = team.start("second")
    await until(lambda: team.stands_by(second))
    return first, second


async def rooms(team: Team, node: Service) -> dict[str, bool | None]:
    found = await team.call(node, "GET", "/v1/cluster")
    return {one["url"]: one["has_room"] for one in found.content.get("nodes", [])}


async def says(team: Team, node: Service, text: str) -> bool:
    return text in str((await team.call(node, "GET", "/readyz")).content)


async def test_a_leader_whose_disk_fills_up_hands_over_and_is_not_handed_the_lead(
    tmp_path: Path, kafka: Clients, disk: SmallDisk
) -> None:
    async with Team(tmp_path, kafka) as team:
        first, second = await small_pair(team)
        await send(first, "one", "two")
        disk.leave(RESERVE_MIB // 2)
        await until(lambda: team.leads(second))
        await until(lambda: team.stands_by(first))

        async def is_shown() -> bool:
            return await rooms(team, second) == {first.url: False, second.url: True}

        await until(is_shown)
        shown = await asyncio.to_thread(timerwheel, "cluster", "status", "--url", second.url)
        assert {line.split()[0]: line.split()[-1] for line in shown.out.splitlines()[1:]} == {
            first.url: "no",
            second.url: "yes",
        }
        refused = await team.call(second, "POST", "/v1/cluster/move")
        assert (refused.status, refused.content["code"]) == (409, "no_standby")
        assert f"no other node has room on its disk: {first.url}" in refused.content["detail"]
        await has(team, second, "one", "two")


@pytest.mark.torture
async def test_a_standby_whose_disk_is_full_waits_and_can_lead_once_there_is_room(
    tmp_path: Path, kafka: Clients, disk: SmallDisk
) -> None:
    async with Team(tmp_path, kafka) as team:
        second = team.start("second")
        await until(lambda: team.leads(second))
        first = team.start("first", "--disk-reserve", f"{RESERVE_MIB}MiB")
        await until(lambda: team.stands_by(first))
        await send(second, "one", "two")
        await send(second, "later", delay="20s")
        disk.leave(9)
        await send(second, BODY)
        await until(lambda: says(team, first, "waiting: no room"))
        assert second.url in str((await team.call(first, "GET", "/readyz")).content)
        disk.clear()
        await until(lambda: team.stands_by(first))

        async def is_over() -> bool:
            nodes = (await team.call(second, "GET", "/v1/cluster")).content["nodes"]
            return [(one["behind"], one["has_room"]) for one in nodes] == [(0, True), (0, True)]

        await until(is_over)

        async def moves() -> bool:  # it may leave the group for a moment just when the lead is given away
            return (await team.call(second, "POST", "/v1/cluster/move")).content == {"leader": first.url}

        await until(moves)
        await until(lambda: team.leads(first))
        await has(team, first, "one", "two", BODY, "later")
        assert first.errors().count("waiting for room on the disk") == 1


@pytest.mark.torture
async def test_a_node_that_is_alone_leads_on_a_full_disk_and_delivers_what_is_due(
    tmp_path: Path, kafka: Clients, disk: SmallDisk
) -> None:
    async with Team(tmp_path, kafka) as team:
        first, second = await small_pair(team)
        await send(first, "one")
        disk.leave(RESERVE_MIB // 2)
        await until(lambda: team.leads(second))
        await until(lambda: team.stands_by(first))
        await send(second, "due", delay="10s")
        second.signal(9)
        await second.killed()

        async def leads() -> bool:
            return (await team.call(first, "GET", "/readyz")).status == 200

        await until(leads)
        refused = await team.call(first, "POST", "/v1/messages", {"topic": "orders", "body": "x"})
        assert (refused.status, refused.content["code"]) == (507, "disk_reserve")
        await has(team, first, "one", "due")
        disk.clear()

        async def takes() -> bool:
            sent = await team.call(first, "POST", "/v1/messages", {"topic": "orders", "body": "free"})
            return sent.status == 201

        await until(takes)
        await has(team, first, "one", "due", "free")


@pytest.mark.torture
async def test_a_node_that_is_alone_and_was_killed_on_a_disk_without_a_free_byte_goes_on_once_there_is_room(
    tmp_path: Path, kafka: Clients, disk: SmallDisk
) -> None:
    async with Team(tmp_path, kafka) as team:
        only = team.start("first")
        await until(lambda: team.leads(only))
        await send(only, "one")
        await send(only, "later", delay="3s")
        disk.leave(0)

        async def refuses() -> bool:
            sent = await team.call(only, "POST", "/v1/messages", {"topic": "orders", "body": "never"})
            return sent.status == 507

        await until(refuses)
        await asyncio.sleep(4)  # by then one is due, for which there is no space
        only.signal(9)
        await only.killed()
        team.start("first")
        await until(lambda: says(team, only, "waiting: no room"))
        await only.running(3)
        disk.clear()
        await until(lambda: team.leads(only))
        await has(team, only, "one", "later")


@pytest.mark.torture
async def test_all_shards_of_a_node_whose_disk_is_full_hand_over_and_it_still_takes_any_call(
    tmp_path: Path, kafka: Clients, disk: SmallDisk
) -> None:
    async with Nodes(tmp_path, kafka) as nodes:
        first = nodes.start("first", "--disk-reserve", f"{RESERVE_MIB}MiB")
        await until(lambda: nodes.ready(first))
        second = nodes.start("second")
        await until(lambda: nodes.has_standby(second))
        disk.leave(RESERVE_MIB // 2)

        async def leads_all() -> bool:
            return await nodes.leaders(first) == [second.url] * SHARDS and await nodes.ready(first)

        await until(leads_all)
        disk.leave(4)
        for topic in (*TOPICS, *TOPICS):
            sent = await nodes.call(second, "POST", "/v1/messages", {"topic": topic, "body": HALF})
            assert sent.status == 201

        async def all_wait() -> bool:
            return first.errors().count("waiting for room on the disk") == SHARDS

        await until(all_wait)
        for topic in TOPICS:
            sent = await nodes.call(first, "POST", "/v1/messages", {"topic": topic, "body": "any node"})
            assert sent.status == 201, sent
        assert await nodes.ready(first)
        shown = await nodes.call(first, "GET", "/v1/cluster")
        assert {one["url"]: one["has_room"] for one in shown.content["nodes"]} == {
            first.url: False,
            second.url: True,
        }
        refused = await nodes.call(first, "POST", "/v1/cluster/move?shard=1")
        assert (refused.status, refused.content["code"]) == (409, "no_standby")
        disk.clear()
        await until(lambda: nodes.has_standby(second))
        for topic in TOPICS:
            last = await nodes.call(first, "GET", f"/v1/topics/{topic}/queues/0/messages?offset=2")
            assert [one["body"] for one in last.content["messages"]] == ["any node"]
