"""The engine's threads: one writes the log, one the index, two read, two read what is due, one asks machines.

The event loop never waits for the disk: it passes the blocking call to one of these threads and awaits it.
With `inline=True` every call runs at once in the caller, which makes an engine deterministic for tests.

It does not use `concurrent.futures`: there, each call costs the loop 30 µs, three times as long as here,
mostly for futures that threads could wait for. Every write and every due message takes such a call.
"""

import asyncio
import functools
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

Job = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class Threads:
    """Named pools of threads; the jobs of one writer run in the order of the calls."""

    def __init__(self, *, inline: bool = False) -> None:
        self._log = None if inline else _Pool(1, "log")
        self._index = None if inline else _Pool(1, "index")
        self._readers = None if inline else _Pool(2, "reader")
        self._due = None if inline else _Pool(2, "due")
        self._asking = None if inline else _Pool(1, "asking")

    async def log(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call in the log thread."""
        return await _run(self._log, call, *args, **kwargs)

    async def index(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call in the index thread."""
        return await _run(self._index, call, *args, **kwargs)

    async def read(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call in a reader thread."""
        return await _run(self._readers, call, *args, **kwargs)

    async def read_due(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call that due messages wait for, or soon will, in a thread in which nothing else is read."""
        return await _run(self._due, call, *args, **kwargs)

    async def ask(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call that may wait for another machine, in a thread for which `close` does not wait."""
        return await _run(self._asking, call, *args, **kwargs)

    def close(self) -> None:
        """Wait for running jobs, and end the threads."""
        if self._asking is not None:
            self._asking.close(wait=False)
        for pool in (self._log, self._index, self._readers, self._due):
            if pool is not None:
                pool.close()


async def _run(pool: "_Pool | None", call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    if pool is None:
        return call(*args, **kwargs)
    found: T = await pool.run(functools.partial(call, *args, **kwargs))
    return found


class _Pool:
    """Threads that take jobs from one queue. The process may end while they work; their writes survive it."""

    def __init__(self, count: int, name: str) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}_{number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def run(self, call: Callable[[], Any]) -> "asyncio.Future[Any]":
        """Queue a call; the future gives its result. A call that is cancelled before its turn never runs."""
        if self._closed:
            raise RuntimeError("the threads have ended")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        self._jobs.put((call, loop, done))
        return done

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            _carry_out(*job)
            del job  # do not keep its objects alive until the next job

    def close(self, *, wait: bool = True) -> None:
        """End the threads after the jobs that are queued; and with `wait`, return when these are done."""
        self._closed = True
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads if wait else ():
            thread.join()


def _carry_out(call: Callable[[], Any], loop: asyncio.AbstractEventLoop, done: "asyncio.Future[Any]") -> None:
    if done.cancelled():
        return
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - the waiting task gets it
        _resolve_soon(loop, done, None, error)
    else:
        _resolve_soon(loop, done, result, None)


def _resolve_soon(
    loop: asyncio.AbstractEventLoop, done: "asyncio.Future[Any]", result: object, error: BaseException | None
) -> None:
    try:
        loop.call_soon_threadsafe(_resolve, done, result, error)
    except RuntimeError:
        assert loop.is_closed()  # nobody waits any more


def _resolve(done: "asyncio.Future[Any]", result: object, error: BaseException | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)
