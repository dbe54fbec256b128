"""Returns freed memory to the system.

glibc keeps the memory of large requests: once it has freed a large block, it takes such blocks from its heap,
and a small block that lives on keeps everything below it. So large blocks are always mapped separately, and
the heap is trimmed after a peak. Without glibc, nothing is done.
"""

import asyncio
import ctypes
import logging
from collections.abc import Callable

from timerwheel.api.http.budget import Budgets

MMAP_THRESHOLD_BYTES = 1 << 18
TRIM_BYTES = 16 << 20
"""The heap is trimmed after at least this much was in progress and is gone."""
_M_MMAP_THRESHOLD = -3

logger = logging.getLogger(__name__)


def _call(name: str) -> Callable[..., int] | None:
    try:
        found: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError):
        return None
    return found


def map_large_blocks() -> None:
    """Make malloc map blocks from MMAP_THRESHOLD_BYTES on, and unmap them when they are freed."""
    mallopt = _call("mallopt")
    if mallopt is not None and not mallopt(_M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES):
        logger.warning("the C library does not support M_MMAP_THRESHOLD")


class MemoryKeeper:
    """Trims the heap once large requests have finished. Event loop only."""

    def __init__(self, budgets: Budgets) -> None:
        self._budgets = budgets
        self._trim = _call("malloc_trim")
        self._trimming: asyncio.Future[int] | None = None

    def look(self) -> None:
        """Start trimming, in another thread, if it is worth the time; called every second."""
        most = sum(budget.most_bytes for budget in self._budgets)
        freed = most - sum(budget.used_bytes for budget in self._budgets)
        if freed < TRIM_BYTES or freed < most // 2:
            return
        if self._trim is None or (self._trimming is not None and not self._trimming.done()):
            return
        for budget in self._budgets:
            budget.most_bytes = budget.used_bytes
        # `ctypes` gives up the interpreter's lock while it calls.
        self._trimming = asyncio.get_running_loop().run_in_executor(None, self._trim, 0)
