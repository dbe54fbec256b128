"""What the console is told live: when events are made, what they say, how a stream of them ends."""

import asyncio

import aiohttp
import orjson
import pytest

from tests.harness.served import Served
from tests.harness.world import World
from timerwheel.api.app import make_app
from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.service.live import SLOTS_MAX, Live, tick_of, wheel_of
from timerwheel.model.messages import Outgoing, SlotInfo
from timerwheel.push.push import Push
from timerwheel.settings import Settings
from timerwheel.wheel.geometry import Horizons

LIMIT_S = 60  # only keeps a failure from hanging
SECOND_MS = 1_000
DAY_MS = 86_400_000


def events_of(data):
    """Events as (kind, data)."""
    blocks = [block for block in data.decode().split("\n\n") if block]
    lines = [dict(line.split(": ", 1) for line in block.split("\n")) for block in blocks]
    return [(one["event"], orjson.loads(one["data"])) for one in lines]


@pytest.fixture
async def world(tmp_path):
    world = World(tmp_path / "data")
    await world.open()
    yield world
    await world.engine.close()


@pytest.fixture
def live(world):
    handle = EngineHandle(world.engine.settings)
    handle.open(world.engine, Push(world.engine))
    return Live(handle)


async def test_the_first_events_tell_what_there_is(world, live):
    await world.send(30 * SECOND_MS, 40 * DAY_MS)
    with live.listening():
        await world.advance(0)
        number, data = live.after(0)
    (first, tick), (second, wheel) = events_of(data)
    assert (first, second) == ("tick", "wheel")
    assert (tick["status"], tick["pending"], tick["refusing"]) == ("ready", 2, None)
    assert tick["now_ms"] == world.clock.now_ms()
    assert tick["measures"]["accepted_total"] == 2
    due_ms = world.clock.now_ms() + 30 * SECOND_MS
    counts = {level["level"]: [count for _, count in level["slots"]] for level in wheel["levels"]}
    assert counts == {"second": [1], "minute": [], "hour": [], "day": [1]}
    assert wheel["levels"][0]["slots"] == [[due_ms // SECOND_MS * SECOND_MS, 1]]
    assert wheel["overdue"] == 0
    assert live.after(number)[1] == b""


async def test_a_tick_says_why_no_new_messages_are_taken(world):
    assert tick_of(world.engine, "ready").refusing is None
    await world.restart(disk_reserve_bytes=1 << 50)
    await world.engine.watch_once()
    assert "disk" in tick_of(world.engine, "ready").refusing


async def test_a_tick_comes_each_second_and_the_wheel_every_other_second(world, live):
    with live.listening():
        await world.advance(0)
        number, _ = live.after(0)
        kinds = []
        for _ in range(4):
            await world.advance(SECOND_MS)
            number, data = live.after(number)
            kinds.append([kind for kind, _ in events_of(data)])
    assert kinds == [["tick"], ["tick", "wheel"], ["tick"], ["tick", "wheel"]]


async def test_events_are_made_once_for_all_and_not_at_all_while_nobody_listens(world, live):
    with live.listening(), live.listening(), live.listening():
        await world.advance(0)
        assert live.after(0)[0] == 2
    await world.advance(10 * SECOND_MS)
    assert live.after(0) == (2, b"")
    with live.listening():
        await world.advance(0)
        assert [kind for kind, _ in events_of(live.after(2)[1])] == ["tick", "wheel"]


async def test_who_reads_slowly_gets_the_newest_of_each_kind_and_no_more(world, live):
    with live.listening():
        for _ in range(9):
            await world.advance(SECOND_MS)
        events = events_of(live.after(0)[1])
    assert [kind for kind, _ in events] == ["wheel", "tick"] or [kind for kind, _ in events] == [
        "tick",
        "wheel",
    ]
    assert max(data["now_ms"] for _, data in events) == world.clock.now_ms()


async def test_who_waits_is_woken_by_the_next_event(world, live):
    with live.listening():
        await world.advance(0)
        number, _ = live.after(0)
        waiting = asyncio.create_task(live.wait(number, 60 * SECOND_MS))
        await asyncio.sleep(0)
        assert not waiting.done()
        await world.advance(SECOND_MS)
        await asyncio.wait_for(waiting, LIMIT_S)


def test_slots_that_are_over_are_overdue_and_those_beyond_the_limit_a_sum():
    now_ms = 1_800_000_000_500
    own = now_ms // SECOND_MS * SECOND_MS
    found = [SlotInfo("second", start, start + SECOND_MS, 2) for start in range(own - 5_000, own, SECOND_MS)]
    found += [
        SlotInfo("second", own + n * SECOND_MS, own + (n + 1) * SECOND_MS, 1) for n in range(SLOTS_MAX + 7)
    ]
    wheel = wheel_of(found, now_ms, Horizons(1, 2, 3))
    second, *others = wheel.levels
    assert wheel.overdue == 4 * 2
    assert second.slots[0] == (own - SECOND_MS, 2), "its last messages may be firing now"
    assert (len(second.slots), second.later) == (SLOTS_MAX, 8)
    assert [(level.slots, level.later) for level in others] == [([], 0)] * 3
    assert [level.moved_until_ms for level in wheel.levels] == [0, 1, 2, 3]


async def test_the_wheel_says_up_to_where_each_level_has_moved_to_the_finer_one(world, live):
    await world.send(10 * DAY_MS)
    with live.listening():
        await world.advance(0)
        (_, (_, wheel)) = events_of(live.after(0)[1])
    moved = [level["moved_until_ms"] for level in wheel["levels"]]
    assert moved == [0, *world.engine.messages.horizons]
    assert moved == sorted(moved)
    assert world.clock.now_ms() < moved[1]


async def test_an_open_transaction_is_in_no_slot(world, live):
    await world.engine.transactions.begin(Outgoing("orders", b"x", {}))
    await world.send(10 * DAY_MS)
    with live.listening():
        await world.advance(0)
        (_, tick), (_, wheel) = events_of(live.after(0)[1])
    assert tick["pending"] == 2
    assert sum(count for level in wheel["levels"] for _, count in level["slots"]) == 1


async def _read_until(answer, text):
    found = b""
    async with asyncio.timeout(LIMIT_S):
        while text not in found:
            part = await answer.content.readany()
            assert part, f"the stream ended without {text!r}: {found!r}"
            found += part
    return found


async def test_a_stream_goes_on_until_the_service_stops_and_says_why_it_ends(tmp_path, world):
    handle = EngineHandle(Settings(data=tmp_path / "other"))
    server = Served(make_app(handle))
    await server.start_server()
    async with aiohttp.ClientSession() as session:
        async with session.get(server.make_url("/v1/live")) as answer:
            assert answer.status == 503
            assert (await answer.json(content_type=None))["code"] == "not_ready"
        handle.open(world.engine, Push(world.engine))
        async with session.get(server.make_url("/v1/live")) as answer:
            assert answer.headers["Content-Type"] == "text/event-stream"
            assert answer.headers["Cache-Control"] == "no-store"
            await _read_until(answer, b"event: wheel")
            closing = asyncio.create_task(server.close())
            world.clock.advance(SECOND_MS)
            (*_, (kind, problem)) = events_of(await _read_until(answer, b"event: end"))
            assert (kind, problem["code"]) == ("end", "not_ready")
            await closing
