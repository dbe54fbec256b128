"""Calling the service from a command that is not async."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from timerwheel.client import Client

_Answer = TypeVar("_Answer")


def ask(url: str, work: Callable[[Client], Awaitable[_Answer]]) -> _Answer:
    """Run `work` with an open client; Ctrl-C ends it with KeyboardInterrupt."""

    async def run() -> _Answer:
        async with Client(url) as client:
            return await work(client)

    return asyncio.run(run())
