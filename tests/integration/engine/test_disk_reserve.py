"""Below the disk reserve new messages are refused, but not changes of settings: they may stop what fills it.

Nor is anything refused by which messages get done: receiving, acknowledging, giving back, giving up.
"""

import pytest

from tests.harness.consumers import ack, bodies, items, put, receive, send
from tests.integration.schedules.test_schedules import MINUTE_MS, every, rest, run_moments
from timerwheel.errors import DiskReserveError, NotReadyError
from timerwheel.groups.config import GroupConfig
from timerwheel.model.messages import Outgoing
from timerwheel.push.push import Push
from timerwheel.push.subscription import Changes, Draft
from timerwheel.state.config_table import Put

RESERVE_BYTES = 1 << 20
PLENTY_BYTES = 1 << 40
STARTS = ["restart", "lose_index"]


async def fill_up(world):
    """Have less free than the reserve; sends are refused from now on."""
    world.files.space_bytes = RESERVE_BYTES - 1
    await world.engine.watch_once()
    await expect_refused(world)


async def expect_refused(world):
    with pytest.raises(DiskReserveError):
        await world.send(0)


async def have_room(world):
    """Have space again, as after somebody cleared the disk; sends are taken from now on."""
    world.files.space_bytes = PLENTY_BYTES
    await world.engine.watch_once()
    await world.send(0, topic="taken")


async def test_a_fast_sender_does_not_use_up_the_reserve_before_the_disk_is_looked_at_again(world):
    await world.open(disk_reserve_bytes=RESERVE_BYTES)
    room_bytes = 10_000
    world.files.space_bytes = RESERVE_BYTES + room_bytes
    await world.engine.watch_once()
    before = world.engine.core.log.tail
    while world.engine.disk.refusal is None:
        await world.send(60_000, body=bytes(1_000))
    await expect_refused(world)
    assert room_bytes < world.engine.core.log.tail - before < room_bytes + 2_000


@pytest.mark.parametrize("start", STARTS)
async def test_groups_are_made_changed_and_deleted_while_sends_are_refused(world, start):
    await world.open(disk_reserve_bytes=RESERVE_BYTES)
    await put(world, max_attempts=3)
    await put(world, group="leaves")
    await fill_up(world)
    await put(world, max_attempts=7)
    await put(world, group="made", tags="A")
    await world.engine.groups.delete("orders", "leaves")
    await world.engine.topics.change("orders", ordered=True)
    await expect_refused(world)
    await getattr(world, start)()
    await expect_refused(world)
    infos = {info.group: info for info in world.engine.groups.all()}
    assert infos.keys() == {"g", "made"}
    assert infos["g"].config["max_attempts"] == 7
    assert infos["made"].config["tags"] == "A"
    assert infos["g"].ordered


@pytest.mark.parametrize("start", STARTS)
async def test_a_subscription_is_paused_changed_and_deleted_while_sends_are_refused(world, start):
    await world.open(disk_reserve_bytes=RESERVE_BYTES)
    push = Push(world.engine, allow_private=True)
    await push.start()
    for name in ("paused", "deleted"):
        await push.create(Draft(id=name, topic="orders", url="http://127.0.0.1:9/hook"))
    await fill_up(world)
    await push.pause("paused")
    await push.update("paused", Changes(url="http://127.0.0.1:9/other"))
    await push.delete("deleted")
    await expect_refused(world)
    await push.close()
    await getattr(world, start)()
    push = Push(world.engine, allow_private=True)
    await push.start()
    [view] = push.all()
    await push.close()
    assert (view.id, view.status, view.url) == ("paused", "paused", "http://127.0.0.1:9/other")


async def test_what_is_in_a_group_is_worked_off_while_sends_are_refused(world):
    await world.open(disk_reserve_bytes=RESERVE_BYTES)
    await put(world, max_attempts=2, invisible_ms=1_000)
    await send(world, *"abcd")
    await fill_up(world)
    got = await receive(world, 3)
    assert await ack(world, got[0]) == [True]
    extended = await world.engine.groups.extend("orders", "g", [got[1].receipt], 60_000)
    given_back = await world.engine.groups.nack("orders", "g", [got[2].receipt], 1_000, "busy")
    assert [extended[0].ok, given_back[0].ok] == [True, True]
    await world.advance(1_000)
    again = await receive(world)
    assert bodies(again) == ["c", "d"]
    await world.engine.groups.nack("orders", "g", [again[0].receipt], None, "no use")
    assert await ack(world, again[1]) == [True]
    assert world.engine.groups.info("orders", "g").dead_letters == 1
    assert (await world.engine.groups.dead.redrive("g")).redriven == 1
    await world.advance(0)
    assert bodies(await receive(world)) == ["c"]
    assert len(items(world)) == 1
    assert world.engine.groups.info("orders", "g").in_flight == 2
    await expect_refused(world)


async def test_settings_that_come_with_messages_are_refused_with_them_and_have_no_effect(world):
    engine = await world.open(disk_reserve_bytes=RESERVE_BYTES)
    await fill_up(world)
    tail = engine.core.log.tail
    change = [Put("topic", "orders", {"ordered": True})]
    with pytest.raises(DiskReserveError):
        await engine.sender.send([Outgoing("orders", b"x")], puts=change)
    assert engine.core.log.tail == tail
    assert engine.control.get("topic", "orders") is None
    await engine.control.put(change)
    assert engine.control.get("topic", "orders") == {"ordered": True}


async def test_a_schedule_is_paused_while_sends_are_refused_and_one_that_is_not_goes_on_later(world):
    engine = await world.open(disk_reserve_bytes=RESERVE_BYTES)
    for name in ("stays", "stops"):
        await engine.schedules.put(name, every(MINUTE_MS, missed="all"))
    await rest(engine)
    await fill_up(world)
    assert (await engine.schedules.pause("stops")).spec.paused
    for _ in range(40):
        await world.advance(MINUTE_MS)
        await rest(engine)
    assert await run_moments(engine, "stops") == []
    before = await run_moments(engine, "stays")
    assert "disk_reserve = " in ((await engine.schedules.get("stays")).problem or "")
    await have_room(world)
    for _ in range(3):
        await world.advance(MINUTE_MS)
        await rest(engine)
    assert (await engine.schedules.get("stays")).problem is None
    runs = await run_moments(engine, "stays")
    assert runs[: len(before)] == before
    assert runs == [runs[0] + n * MINUTE_MS for n in range(len(runs))]
    assert len(runs) > len(before)


async def test_a_service_that_is_stopped_takes_no_settings_either(world):
    engine = await world.open(disk_reserve_bytes=RESERVE_BYTES)
    await fill_up(world)
    await engine.close()
    with pytest.raises(NotReadyError):
        await engine.control.put([Put("topic", "orders", {"ordered": True})])
    with pytest.raises(NotReadyError):
        await engine.groups.put("orders", "g", GroupConfig())


async def test_without_a_reserve_what_is_free_by_estimate_refuses_nothing(world):
    """The disk may have been cleared since it was looked at; if it was not, the write says so."""
    await world.open(disk_reserve_bytes=0)
    world.files.space_bytes = 1_000
    await world.engine.watch_once()
    world.files.space_bytes = PLENTY_BYTES
    for _ in range(3):
        await world.send(60_000, body=bytes(1_000))
    assert len(await world.pending_ids()) == 3
