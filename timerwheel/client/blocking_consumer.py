"""Consuming from a thread: handlers run in threads of their own, the caller waits and may be interrupted."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import wait

from timerwheel.client.handler_threads import HandlerThreads
from timerwheel.client.lease import Lease
from timerwheel.client.loop_thread import Call, Portal

_STOP_LOOK_S = 0.1
"""How often a caller's stop event is looked at, in seconds."""

Consume = Callable[[Callable[[Lease], Awaitable[None]], asyncio.Event], Awaitable[None]]
"""Consumes with a handler until the event is set."""


def run_consumer(
    loop: Portal,
    consume: Consume,
    handle: Callable[[Lease], object],
    concurrency: int,
    stop: threading.Event | None,
) -> None:
    """Consume until `stop` is set, then wait for running handlers; the first Ctrl-C does the same.

    A second Ctrl-C does not wait: the messages of handlers that still run are redelivered.
    """
    stopping = asyncio.Event()

    async def work() -> None:
        threads = HandlerThreads(concurrency, "timerwheel-handler")

        async def in_thread(lease: Lease) -> None:
            await threads.run(lambda: handle(lease))

        try:
            await consume(in_thread, stopping)
        finally:
            threads.close()

    call = Call(work())
    try:
        loop.start(call)
        _wait(call, stopping, stop)
    except BaseException:
        call.call_soon(stopping.set)
        call.wait()
        raise
    call.result()


def _wait(call: Call[None], stopping: asyncio.Event, stop: threading.Event | None) -> None:
    if stop is not None:
        while not wait([call.outcome], _STOP_LOOK_S).done and not stop.is_set():
            pass
        call.call_soon(stopping.set)
    wait([call.outcome])
