"""Work that runs to its end even if its caller goes away, so nothing stays half done."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


async def finished(work: Coroutine[Any, Any, T]) -> T:
    """Return the outcome of `work`, which runs on if the caller is cancelled; its error is then dropped."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(_seen)
    return await asyncio.shield(task)


def shielded(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Have each call run to its end, as `finished` does."""

    @functools.wraps(function)
    async def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return await finished(function(*args, **kwargs))

    return run


def _seen(task: asyncio.Future[Any]) -> None:
    """Mark the task's error as retrieved, because nobody may be left to await it."""
    if not task.cancelled():
        task.exception()
