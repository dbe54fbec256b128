"""Long work for one request, which ends early if its client disconnects: that is the way to stop it."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from aiohttp import web

from timerwheel.api.engine_handle import LOOK_UP_MS, EngineHandle

T = TypeVar("T")


async def while_connected(request: web.Request, handle: EngineHandle, work: Coroutine[Any, Any, T]) -> T:
    """Return what the work returns; cancels it and raises ConnectionResetError if the client disconnects."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(work)
    task.add_done_callback(lambda _: _settle(done))
    try:
        while not task.done():
            await handle.engine.clock.wait_for(done, LOOK_UP_MS)
            if request.transport is None and not task.done():
                raise ConnectionResetError("the client of a long call disconnected")
    finally:
        task.cancel()
    return await task


def _settle(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
