"""The engine's threads: one that writes the log, one that writes the index, two that read.

The event loop never waits for the disk; it hands the blocking call to one of these and awaits it. With
`inline=True` every call runs at once in the caller, which makes an engine deterministic for tests.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Threads:
    """Named pools; jobs of one writer run in the order given."""

    def __init__(self, *, inline: bool = False) -> None:
        self._log = None if inline else ThreadPoolExecutor(1, "log")
        self._index = None if inline else ThreadPoolExecutor(1, "index")
        self._readers = None if inline else ThreadPoolExecutor(2, "reader")

    async def log(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run in the log writer."""
        return await _run(self._log, call, *args, **kwargs)

    async def index(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run in the index writer."""
        return await _run(self._index, call, *args, **kwargs)

    async def read(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run in a reader."""
        return await _run(self._readers, call, *args, **kwargs)

    def close(self) -> None:
        """Wait for what runs and end the threads."""
        for pool in (self._log, self._index, self._readers):
            if pool is not None:
                pool.shutdown()


async def _run(pool: ThreadPoolExecutor | None, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    if pool is None:
        return call(*args, **kwargs)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(pool, lambda: call(*args, **kwargs))
