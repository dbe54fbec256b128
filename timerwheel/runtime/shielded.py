"""Work that runs to its end even if its caller goes away, so nothing stays half done."""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from timerwheel.errors import TimerwheelError
from timerwheel.store.errors import StoreError

logger = logging.getLogger("timerwheel")

T = TypeVar("T")
P = ParamSpec("P")


async def finished(work: Awaitable[T]) -> T:
    """Return the outcome of `work`, which runs on if the caller is cancelled.

    A refusal is dropped then, since nobody is left to hear it; an error that nobody expects is logged.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(_ended_alone)
        raise


def shielded(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Have each call run to its end, as `finished` does."""

    @functools.wraps(function)
    async def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return await finished(function(*args, **kwargs))

    return run


def _ended_alone(task: asyncio.Future[Any]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, (TimerwheelError, StoreError)):
        logger.error("work whose caller had left failed", exc_info=error)
