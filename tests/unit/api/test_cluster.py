"""One node's part in its cluster: hand-overs."""

import asyncio
from pathlib import Path

import pytest

from tests.harness.clock import ManualClock
from tests.harness.memory_election import MemoryElection
from timerwheel.api.cluster import MOVE_MS_MAX, Cluster
from timerwheel.runtime.disk_space import DiskSpace
from timerwheel.runtime.election import Node, NoStandbyError
from timerwheel.settings import Settings
from timerwheel.store.errors import JournalAwayError
from timerwheel.store.files import DiskFiles

OTHER = Node("http://other", is_leader=False, behind=0, has_room=True)


class Elected(MemoryElection):
    """An election that a test can cut off from the brokers."""

    is_away = False

    async def nodes(self) -> list[Node]:
        if self.is_away:
            raise JournalAwayError("the brokers do not answer")
        return await super().nodes()


@pytest.fixture
def election() -> Elected:
    found = Elected()
    found.others = [OTHER]
    found.win()
    return found


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def cluster(election: Elected, clock: ManualClock, tmp_path: Path) -> Cluster:
    return Cluster(election, election.url, clock, DiskSpace(DiskFiles(), Settings(data=tmp_path)))


async def advance(clock: ManualClock, moving: "asyncio.Task[str]", wanted: int) -> None:
    for _ in range(wanted):
        if moving.done():
            return
        clock.advance(100)
        for _ in range(5):
            await asyncio.sleep(0)


async def begun(cluster: Cluster, election: Elected) -> asyncio.Task[str]:
    """A hand-over that has begun, and brokers that went away just then."""
    moving = asyncio.create_task(cluster.move())
    while not cluster.moving.is_set():
        await asyncio.sleep(0)
    election.is_away = True
    return moving


async def test_a_hand_over_that_has_begun_is_not_called_not_ready_when_the_brokers_go_away(
    election: Elected, clock: ManualClock, cluster: Cluster
) -> None:
    """Who hears that nothing was done asks again: the next leader would hand over too."""
    moving = await begun(cluster, election)
    await advance(clock, moving, 5)
    election.is_away = False
    election.lose()
    election.others = [OTHER._replace(is_leader=True)]
    await advance(clock, moving, 5)
    assert await moving == OTHER.url


async def test_a_hand_over_of_which_nobody_hears_says_that_it_has_begun(
    election: Elected, clock: ManualClock, cluster: Cluster
) -> None:
    moving = await begun(cluster, election)
    await advance(clock, moving, MOVE_MS_MAX // 100 + 5)
    with pytest.raises(NoStandbyError, match="the hand-over began"):
        await moving


async def test_a_node_that_lost_the_lead_otherwise_does_not_hand_it_over_when_it_leads_again(
    election: Elected, cluster: Cluster
) -> None:
    cluster.moving.set()
    election.lose()
    await cluster.end()
    assert not cluster.moving.is_set()


async def test_a_node_that_still_is_to_lead_hands_over_with_its_next_engine(cluster: Cluster) -> None:
    cluster.moving.set()
    await cluster.end()
    assert cluster.moving.is_set()
