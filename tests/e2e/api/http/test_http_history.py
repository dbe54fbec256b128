"""The history of the figures over HTTP: full before anyone looks, by second and by minute."""

import asyncio
import contextlib
import signal

from aiohttp import web

from tests.harness.browser_seed import ask
from tests.harness.clock import ManualClock
from tests.harness.processes import serving
from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.service import figure_file
from timerwheel.api.service.figures import FigureKeeper
from timerwheel.push.push import Push


async def test_figures_are_there_before_anyone_asked(service):
    await service.send([{"topic": "orders", "body": "x", "delay": "1d"}] * 5)
    found = (await service.call("GET", "/v1/live/history")).content
    while sum(found["accepted"]) < 5:
        await service.engine.clock.sleep_for(50)
        found = (await service.call("GET", "/v1/live/history?step=second")).content
    lengths = {len(column) for name, column in found.items() if name != "now_ms"}
    assert len(lengths) == 1
    assert found["pending"][-1] == 5
    assert found["at_ms"] == sorted(found["at_ms"])
    assert found["now_ms"] >= found["at_ms"][-1]
    minutes = (await service.call("GET", "/v1/live/history?step=minute")).content
    assert len(minutes["at_ms"]) <= 1


async def test_another_step_is_refused(service):
    answer = await service.call("GET", "/v1/live/history?step=hour")
    assert (answer.status, answer.code) == (400, "invalid_parameter")


async def test_without_an_engine_no_figures_are_taken_and_the_points_stay(service):
    engine = service.engine
    handle = EngineHandle(engine.settings)
    keeper = FigureKeeper(handle, engine.clock)
    keeper.take()
    assert keeper.newest is None
    handle.open(engine, Push(engine))
    keeper.take()
    await engine.clock.sleep_for(2)
    keeper.take()
    point = keeper.newest
    assert point is not None
    handle.close("the journal is away")
    keeper.take()
    assert keeper.newest == point


async def test_figures_survive_a_restart_and_a_harmed_file_costs_only_them(service):
    engine = service.engine
    handle = EngineHandle(engine.settings)
    handle.open(engine, Push(engine))

    def begun():
        return FigureKeeper(handle, engine.clock)

    first = begun()
    await first.bring_back()
    first.take()
    await engine.clock.sleep_for(2)
    first.take()
    await first.keep()
    second = begun()
    await second.bring_back()
    assert second.newest == first.newest
    path = engine.settings.data / figure_file.NAME
    path.write_bytes(path.read_bytes()[:-9])
    third = begun()
    await third.bring_back()
    assert third.newest is None
    third.take()
    await third.keep()
    assert figure_file.read(engine.settings.data) == ([], [])


def test_charts_are_full_after_an_orderly_restart_with_a_gap_for_the_time_between(tmp_path):
    with serving(tmp_path / "data") as first:
        before = ask(first.url, "GET", "/v1/live/history")
        while len(before["at_ms"]) < 2:
            before = ask(first.url, "GET", "/v1/live/history")
        first.end(signal.SIGTERM)
    with serving(tmp_path / "data") as second:
        after = ask(second.url, "GET", "/v1/live/history")
        while after["at_ms"][: len(before["at_ms"])] != before["at_ms"]:
            after = ask(second.url, "GET", "/v1/live/history")


async def test_the_file_is_written_each_minute_and_not_while_the_engine_is_away(service):
    engine = service.engine
    clock = ManualClock()
    handle = EngineHandle(engine.settings)
    keeper = FigureKeeper(handle, clock)
    path = engine.settings.data / figure_file.NAME
    path.unlink(missing_ok=True)
    handle.open(engine, Push(engine))
    running = keeper.watch(web.Application())
    await anext(running)
    try:
        while not path.exists():
            clock.advance(1_000)
            await asyncio.sleep(0)
        handle.close("the journal is away")
        clock.advance(1_000)
        for _ in range(100):
            await asyncio.sleep(0)
        path.unlink()
        for _ in range(200):
            clock.advance(1_000)
            await asyncio.sleep(0)
        assert not path.exists()
    finally:
        with contextlib.suppress(StopAsyncIteration):
            await anext(running)
    assert not path.exists()
