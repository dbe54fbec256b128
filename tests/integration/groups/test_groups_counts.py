"""Counting groups: many of them in steps, those that nobody receives from as those in use."""

import pytest

from tests.harness.clock import ManualClock
from tests.harness.consumers import ack, put, receive
from tests.harness.drive import turns_between
from timerwheel.groups import groups as groups_module
from timerwheel.groups.config import GroupConfig
from timerwheel.model.messages import Outgoing

QUEUES = 8
GROUPS = 10


async def open_with(world, kind="leases", *, in_use=True):
    """Groups on a topic with three messages in each queue; if not in use, they are as after a start."""
    engine = await world.open()
    await engine.topics.change("orders", queues=QUEUES)
    await engine.sender.send([Outgoing("orders", b"x", queue=n % QUEUES) for n in range(3 * QUEUES)])
    for number in range(GROUPS):
        await engine.groups.put("orders", f"g{number}", GroupConfig(kind=kind))
    return engine if in_use else await world.restart()


@pytest.mark.parametrize(("kind", "in_use"), [("leases", True), ("leases", False), ("offsets", True)])
@pytest.mark.parametrize("groups_at_once", [1, 2, GROUPS])
async def test_groups_are_counted_in_steps_of_so_many_queues(
    world, monkeypatch, kind, in_use, groups_at_once
):
    engine = await open_with(world, kind, in_use=in_use)
    monkeypatch.setattr(groups_module, "COUNTED_QUEUES", groups_at_once * QUEUES)
    async with turns_between() as turns:
        counts = await engine.groups.counts()
    assert [(one.group, one.lag) for one in counts] == [(f"g{n}", 3 * QUEUES) for n in range(GROUPS)]
    assert turns() == GROUPS // groups_at_once - 1


async def test_groups_are_described_in_steps_of_so_many_queues(world, monkeypatch):
    engine = await open_with(world)
    async with turns_between() as turns:
        await engine.groups.describe_each(engine.groups.names())
    assert turns() == 0
    monkeypatch.setattr(groups_module, "AGED_QUEUES", QUEUES)
    async with turns_between() as turns:
        assert len(await engine.groups.describe_each(engine.groups.names("orders"))) == GROUPS
    assert turns() == GROUPS - 1
    monkeypatch.setattr(groups_module, "AGED_QUEUES", QUEUES // 2)
    async with turns_between() as turns:
        await engine.groups.describe("orders", "g0")
    assert turns() == 1


class BusyClock(ManualClock):
    """A clock on which something happens between two steps of long work, as long as there is something."""

    def __init__(self):
        super().__init__()
        self.between = iter(())

    async def breathe(self):
        if (happen := next(self.between, None)) is not None:
            await happen
        await super().breathe()


async def test_a_group_that_is_deleted_while_others_are_counted_is_left_out(world, monkeypatch):
    world.clock = BusyClock()
    engine = await open_with(world)

    def delete(*names):
        world.clock.between = (engine.groups.delete("orders", name) for name in names)

    monkeypatch.setattr(groups_module, "COUNTED_QUEUES", 1)
    delete("g9", "g8")
    assert [one.group for one in await engine.groups.counts()] == [f"g{n}" for n in range(8)]
    monkeypatch.setattr(groups_module, "AGED_QUEUES", 1)
    delete("g7")
    assert [one.group for one in await engine.groups.describe_each(engine.groups.names())] == [
        f"g{n}" for n in range(7)
    ]


@pytest.mark.parametrize("done", [(), (0,), (0, 1, 2), (1,), (0, 2, 3), (2, 4, 5), tuple(range(6))])
async def test_a_group_that_nobody_receives_from_is_counted_as_one_in_use(world, done):
    engine = await world.open()
    await put(world)
    await engine.sender.send([Outgoing("orders", b"%d" % n, queue=0) for n in range(6)])
    found = await receive(world)
    await ack(world, *[found[n] for n in done])
    engine = await world.crash()
    idle = engine.groups.info("orders", "g"), await engine.groups.counts()
    assert idle[0].lag == 6 - len(done)
    assert await receive(world, wanted=lambda: False) == []
    assert (engine.groups.info("orders", "g"), await engine.groups.counts()) == idle


async def test_of_a_queue_whose_first_messages_are_leased_the_others_are_counted(world):
    engine = await world.open(queues_per_topic=2)
    await put(world)
    await engine.sender.send([Outgoing("orders", b"x", queue=n % 2) for n in range(10)])
    first = await receive(world, 10)
    await ack(world, first[0], first[6])
    await world.restart()
    info = world.engine.groups.info("orders", "g")
    assert ([queue.lag for queue in info.queues], info.lag, info.in_flight) == ([0, 0], 0, 8)
    await world.engine.sender.send([Outgoing("orders", b"x", queue=1) for _ in range(3)])
    assert [queue.lag for queue in world.engine.groups.info("orders", "g").queues] == [0, 3]
