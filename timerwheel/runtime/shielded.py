"""Work that runs to its end even if its caller goes away, so nothing stays half done."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def finished(work: Coroutine[Any, Any, T]) -> T:
    """Return the outcome of `work`, which runs on if the caller is cancelled; its error is then dropped."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(_seen)
    return await asyncio.shield(task)


def _seen(task: asyncio.Future[Any]) -> None:
    """Mark the task's error as retrieved, because nobody may be left to await it."""
    if not task.cancelled():
        task.exception()
