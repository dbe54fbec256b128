"""Tasks that nobody waits for: what ends one of them is logged when it happens, not when it is collected."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

logger = logging.getLogger("timerwheel")


def in_background(work: Coroutine[Any, Any, None], what: str) -> "asyncio.Task[None]":
    """Start work that goes on until it is cancelled; an error that ends it is logged as that of `what`."""
    task = asyncio.create_task(work, name=f"timerwheel {what}")
    task.add_done_callback(log_failure)
    return task


def log_failure(task: "asyncio.Task[None]") -> None:
    """Log what ended a task, unless it came to its end or was cancelled: a callback for such tasks."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("%s failed", task.get_name().removeprefix("timerwheel "), exc_info=error)
