"""Work that goes on to its end though its caller goes away: what is half done must not stay so."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def finished(work: Coroutine[Any, Any, T]) -> T:
    """The outcome of `work`, which runs on if the caller is cancelled; its error is then dropped."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(_seen)
    return await asyncio.shield(task)


def _seen(task: asyncio.Future[Any]) -> None:
    """Have the task's error count as retrieved: nobody may be left who awaits it."""
    if not task.cancelled():
        task.exception()
