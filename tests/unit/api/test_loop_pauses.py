"""The service notices when its event loop is held up."""

import asyncio
from time import perf_counter

from aiohttp import web

from timerwheel.api.service.loop_pauses import INTERVAL_S, LoopPauses

HELD_S = 0.05


async def test_a_loop_that_is_held_up_is_noticed_with_how_long_it_was():
    pauses = LoopPauses()
    watching = pauses.watch(web.Application())
    await anext(watching)
    until_s = perf_counter() + INTERVAL_S + HELD_S
    while perf_counter() < until_s:
        pass
    async with asyncio.timeout(60):
        while not pauses.longest_s:
            await asyncio.sleep(0)
    assert pauses.longest_s >= HELD_S
    assert sum(pauses.seconds.counts) == 1
    assert pauses.seconds.sum == pauses.longest_s
    assert await anext(watching, None) is None
