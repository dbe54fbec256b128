"""Looks up names so that one slow name server does not delay everyone else.

A look-up blocks a thread until the system gives up, which can be half a minute. So:

1. A name is looked up once at a time, however many ask.
2. A name whose last look-up failed or was slow goes to a few separate threads, where only such names wait.
"""

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

from timerwheel.clock import Clock

SLOW_MS = 1_000
THREADS_MAX = 32
SLOW_THREADS_MAX = 16
SLOW_NAMES_MAX = 10_000

LookUp = Callable[..., list[tuple[Any, Any, int, str, tuple[Any, ...]]]]


class PooledResolver(AbstractResolver):
    """The system's resolver in our own threads. Belongs to one event loop."""

    def __init__(self, clock: Clock, look_up: LookUp = socket.getaddrinfo) -> None:
        self._clock = clock
        self._look_up = look_up
        self._pool = ThreadPoolExecutor(THREADS_MAX, "names")
        self._slow_pool = ThreadPoolExecutor(SLOW_THREADS_MAX, "slow-names")
        self._slow: dict[str, None] = {}
        self._asked: dict[tuple[str, int, int], asyncio.Task[list[ResolveResult]]] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return every address of a host; OSError if there is none. Others may wait for the same answer."""
        key = (host, port, int(family))
        task = self._asked.get(key)
        if task is None:
            task = self._asked[key] = asyncio.create_task(self._ask(host, port, family))
            task.add_done_callback(lambda done: self._answered(key, done))
        return await asyncio.shield(task)

    def _answered(self, key: tuple[str, int, int], done: "asyncio.Task[list[ResolveResult]]") -> None:
        del self._asked[key]
        if not done.cancelled():
            done.exception()  # the caller may have left; then nobody sees a failure, which is fine

    async def _ask(self, host: str, port: int, family: socket.AddressFamily) -> list[ResolveResult]:
        pool = self._slow_pool if host in self._slow else self._pool
        began_ms = self._clock.monotonic_ms()
        self._note(host, slow=True)  # slow, until it has answered in time
        loop = asyncio.get_running_loop()
        infos = await loop.run_in_executor(
            pool, lambda: self._look_up(host, port, type=socket.SOCK_STREAM, family=family)
        )
        self._note(host, slow=self._clock.monotonic_ms() - began_ms > SLOW_MS)
        return [_result(host, port, info[0], info[2], info[4]) for info in infos]

    def _note(self, host: str, *, slow: bool) -> None:
        self._slow.pop(host, None)
        if slow:
            self._slow[host] = None
            if len(self._slow) > SLOW_NAMES_MAX:
                del self._slow[next(iter(self._slow))]

    async def close(self) -> None:
        """Forget pending callers; threads that are stuck end when the system lets them."""
        tasks = list(self._asked.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._slow_pool.shutdown(wait=False, cancel_futures=True)


def _result(host: str, port: int, family: int, protocol: int, address: tuple[Any, ...]) -> ResolveResult:
    numeric = str(address[0])
    if family == socket.AF_INET6 and address[3] and "%" not in numeric:
        numeric += f"%{address[3]}"
    return ResolveResult(
        hostname=host,
        host=numeric,
        port=port,
        family=family,
        proto=protocol,
        flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
    )
