"""Nodes of a journal whose disks are full: they wait, keep what they have, and go on by themselves."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from tests.harness.faulty import FaultyFiles
from tests.harness.memory_election import MemoryElection
from tests.harness.memory_journal import MemoryJournal
from timerwheel.api.cluster import NODES_LOOK_MS, SEEN_MS_MAX
from timerwheel.api.server import serve
from timerwheel.clock import SystemClock
from timerwheel.engine import Engine, LogOptions
from timerwheel.model.messages import Outgoing
from timerwheel.runtime.election import Node
from timerwheel.runtime.room import AGAIN_BYTES, HAND_OVER_MS_MIN, SHORT_MS, SPARE_BYTES
from timerwheel.settings import Serving, Settings, take_over

PATIENCE_S = 60.0
OTHER = Node("http://other", False, 0, True)
ROOM_BYTES = 1 << 40
MESSAGES = 20


class LeapingClock(SystemClock):
    """A clock that the test moves on; waits take as long as they do."""

    def __init__(self) -> None:
        self.leap_ms = 0

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.leap_ms


class QuotaFiles(FaultyFiles):
    """A disk with a quota, which does not show in what is free."""

    def free_bytes(self, _directory: Path) -> int:
        return ROOM_BYTES


class NodeOfCluster:
    """A node in this process, with a disk in memory for its copy."""

    def __init__(
        self, data: Path, session: aiohttp.ClientSession, journal: MemoryJournal, files: FaultyFiles
    ) -> None:
        self.election = MemoryElection()
        self.files = files
        self.clock = LeapingClock()
        self.settings = Settings(data=data, disk_reserve_bytes=0)
        self.url = ""
        self._session = session
        self.task = asyncio.create_task(
            serve(
                self.settings,
                Serving(port=0),
                journal=journal.leader(files, 1 << 22),
                election=self._made,
                files=files,
                clock=self.clock,
            )
        )

    def _made(self, url: str) -> MemoryElection:
        self.election.url = self.url = url
        return self.election

    async def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        async with self._session.request(method, f"{self.url}{path}", json=body) as answer:
            return answer.status, await answer.json()

    async def send(self, body: str) -> tuple[int, Any]:
        return await self.call("POST", "/v1/messages", {"topic": "a", "body": body, "delay_ms": 3_600_000})

    async def readiness(self) -> str:
        if not self.url:
            return ""
        _, said = await self.call("GET", "/readyz")
        return str(said.get("detail") or said["status"])

    async def until(self, true: Callable[[], Awaitable[object]]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not await true():
                assert not self.task.done(), self.task
                await asyncio.sleep(0.02)

    async def until_it_has_decided(self) -> None:
        """Until it has asked about the others again, and so has looked at its disk before."""
        for _ in range(2):
            asked = self.election.asked
            self.clock.leap_ms += NODES_LOOK_MS

            async def has_asked(before: int = asked) -> bool:
                return self.election.asked > before

            await self.until(has_asked)

    async def until_ready(self) -> None:
        async def is_ready() -> bool:
            return await self.readiness() == "ready"

        await self.until(is_ready)

    async def until_it_says(self, text: str) -> None:
        async def says() -> bool:
            return text in await self.readiness()

        await self.until(says)


Make = Callable[[MemoryJournal, FaultyFiles], NodeOfCluster]


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Make]:
    made: list[NodeOfCluster] = []
    async with aiohttp.ClientSession() as session:

        def make(journal: MemoryJournal, files: FaultyFiles) -> NodeOfCluster:
            made.append(NodeOfCluster(tmp_path / "data", session, journal, files))
            return made[-1]

        yield make
        os.kill(os.getpid(), signal.SIGTERM)
        for one in made:
            await one.task


async def filled(directory: Path) -> MemoryJournal:
    """A journal with the messages of a node that has gone."""
    journal, settings = MemoryJournal(), Settings(data=directory, disk_reserve_bytes=0)
    engine = await Engine.open(settings, log=LogOptions(journal=journal.leader(run_bytes_max=1 << 22)))
    for number in range(MESSAGES):
        await engine.sender.send([Outgoing("a", str(number).encode(), after_ms=3_600_000)])
    await engine.close()
    return journal


async def pending(node: NodeOfCluster) -> int:
    return int((await node.call("GET", "/v1/wheel"))[1]["pending"])


async def test_a_standby_without_room_waits_and_says_who_leads_and_goes_on_by_itself(
    nodes: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FaultyFiles()
    files.space_bytes = SPARE_BYTES
    node = nodes(await filled(tmp_path / "gone"), files)
    node.election.leader_url = OTHER.url
    node.election.others = [OTHER._replace(is_leader=True)]
    await node.until_it_says("waiting: no room: the copy of the log cannot be written")
    status, said = await node.call("GET", "/readyz")
    assert (status, said["role"], said["leader"]) == (503, "standby", OTHER.url)
    assert (await node.send("x"))[0] == 503

    async def is_shown() -> bool:
        _, found = await node.call("GET", "/v1/cluster")
        return {one["url"]: one["has_room"] for one in found["nodes"]} == {node.url: False, OTHER.url: True}

    await node.until(is_shown)
    assert node.election.is_aside, "the other one has room"
    files.space_bytes = AGAIN_BYTES
    await node.until_it_says(f"standby: {OTHER.url} leads")
    assert caplog.text.count("waiting for room on the disk") == 1
    assert "there is room on the disk again" in caplog.text
    files.space_bytes = ROOM_BYTES

    async def stands() -> bool:
        return not node.election.is_aside

    await node.until(stands)
    node.election.win()
    await node.until_ready()
    assert await pending(node) == MESSAGES


async def test_a_standby_whose_disk_fills_up_keeps_what_it_has(nodes: Make, tmp_path: Path) -> None:
    files, journal = FaultyFiles(), await filled(tmp_path / "gone")
    node = nodes(journal, files)
    await node.until_it_says("standby")
    files.space_bytes = SPARE_BYTES
    leader = await Engine.open(
        Settings(data=tmp_path / "leader", disk_reserve_bytes=0),
        log=LogOptions(journal=journal.leader(run_bytes_max=1 << 22)),
    )
    await leader.sender.send([Outgoing("a", b"x" * 2_000_000, after_ms=3_600_000)])
    await node.until_it_says("waiting: no room")
    kept = sum(len(data) for name, data in files.contents().items() if name.endswith(".log"))
    assert kept > 0
    await leader.close()
    node.election.win()  # it is alone: what the journal has still fits
    await node.until_ready()
    assert await pending(node) == MESSAGES + 1


async def test_a_leader_that_could_not_write_its_copy_lets_another_lead_and_loses_nothing(
    nodes: Make, tmp_path: Path
) -> None:
    files = QuotaFiles()
    node = nodes(await filled(tmp_path / "gone"), files)
    node.election.win()
    await node.until_ready()
    files.space_bytes = 0
    node.election.others = [OTHER]
    status, said = await node.send("stored in the journal alone")
    assert (status, said["code"]) == (500, "outcome_unknown")
    await node.until_it_says("waiting: no room: the log is in the journal")

    async def has_left() -> bool:
        return node.election.left == 1 and node.election.is_aside

    await node.until(has_left)
    node.election.others = []  # that one dies

    async def stands() -> bool:
        return not node.election.is_aside

    await node.until(stands)
    files.space_bytes = ROOM_BYTES
    node.election.win()
    await node.until_ready()
    assert await pending(node) == MESSAGES + 1


async def test_a_standby_that_knows_no_leader_but_its_own_url_says_that_it_stands_by_and_names_nobody(
    nodes: Make, tmp_path: Path
) -> None:
    node = nodes(await filled(tmp_path / "gone"), FaultyFiles())
    await node.until_it_says("standby")
    node.election.leader_url = node.url
    status, said = await node.call("GET", "/readyz")
    assert (status, said["role"]) == (503, "standby")
    assert "leader" not in said
    node.election.leader_url = OTHER.url
    assert (await node.call("GET", "/readyz"))[1]["leader"] == OTHER.url


@pytest.mark.parametrize("seen_first", ["in neither group", "aside"])
async def test_a_hand_over_waits_for_a_node_that_is_changing_groups(
    nodes: Make, tmp_path: Path, seen_first: str
) -> None:
    node = nodes(await filled(tmp_path / "gone"), FaultyFiles())
    election = node.election
    election.others = [OTHER._replace(is_aside=True)] if seen_first == "aside" else []
    election.win()
    await node.until_ready()
    asked = election.asked
    moving = asyncio.create_task(node.call("POST", "/v1/cluster/move"))

    async def has_looked() -> bool:
        return election.asked > asked + 1

    await node.until(has_looked)
    assert election.left == 0
    election.others = [OTHER]

    async def has_left() -> bool:
        return election.left == 1

    await node.until(has_left)
    election.others = [OTHER._replace(is_leader=True)]
    assert await moving == (200, {"leader": OTHER.url})


async def test_a_hand_over_does_not_wait_for_ever_for_another_node(nodes: Make, tmp_path: Path) -> None:
    node = nodes(await filled(tmp_path / "gone"), FaultyFiles())
    node.election.win()
    await node.until_ready()
    asked = node.election.asked
    moving = asyncio.create_task(node.call("POST", "/v1/cluster/move"))

    async def has_looked() -> bool:
        return node.election.asked > asked + 1

    await node.until(has_looked)
    node.clock.leap_ms += SEEN_MS_MAX
    status, refused = await moving
    assert (status, refused["code"]) == (409, "no_standby")
    assert "no other node takes part" in refused["detail"]
    assert node.election.left == 0


async def test_a_leader_that_is_short_hands_over_and_not_again_for_a_minute(
    nodes: Make, tmp_path: Path
) -> None:
    files = FaultyFiles()
    node = nodes(await filled(tmp_path / "gone"), files)
    node.election.others = [OTHER._replace(has_room=False)]
    node.election.win()
    await node.until_ready()
    take_over(node.settings, msgspec.structs.replace(node.settings, disk_reserve_bytes=ROOM_BYTES + 1))

    async def refuses() -> bool:
        return (await node.send("x"))[0] == 507

    await node.until(refuses)
    status, refused = await node.call("POST", "/v1/cluster/move")
    assert (status, refused["code"]) == (409, "no_standby")
    assert "no other node has room on its disk: http://other" in refused["detail"]
    node.clock.leap_ms += 10 * SHORT_MS
    await node.until_it_has_decided()
    assert node.election.left == 0, "nobody who has room could lead"
    node.election.others = [OTHER]

    async def has_left() -> bool:
        return node.election.left == 1 and node.election.is_aside

    await node.until(has_left)
    await node.until_it_says("standby")
    node.election.others = []

    async def stands() -> bool:
        return not node.election.is_aside

    await node.until(stands)
    node.election.win()
    await node.until_ready()
    node.election.others = [OTHER]
    node.clock.leap_ms += 2 * SHORT_MS
    await node.until_it_has_decided()
    assert node.election.left == 1, "not so soon again"
    node.clock.leap_ms += HAND_OVER_MS_MIN
    node.election.others = [OTHER]

    async def has_left_again() -> bool:
        return node.election.left == 2

    await node.until(has_left_again)
