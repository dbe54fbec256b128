"""Threads in which an event loop runs functions that block: the handlers of synchronous consumers."""

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

_Answer = TypeVar("_Answer")
_Job = tuple[Callable[[], Any], contextvars.Context, asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class HandlerThreads:
    """At most `count_max` threads, started when they are needed. Belongs to the event loop.

    They are daemons: a handler that never returns does not keep its program from ending.
    """

    def __init__(self, count_max: int, name: str) -> None:
        self._count_max = count_max
        self._name = name
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads = 0
        self._busy = 0

    async def run(self, work: Callable[[], _Answer]) -> _Answer:
        """Return what the function returns, or raise what it raises; it sees the caller's context variables.

        A cancellation returns at once and leaves the function running.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[_Answer] = loop.create_future()
        if self._busy == self._threads < self._count_max:
            self._threads += 1
            threading.Thread(target=self._serve, name=f"{self._name}-{self._threads}", daemon=True).start()
        self._busy += 1
        self._jobs.put((work, contextvars.copy_context(), loop, answer))
        return await answer

    def close(self) -> None:
        """End each thread once it has nothing to do."""
        for _ in range(self._threads):
            self._jobs.put(None)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, context, loop, answer = job
            set_it: Callable[[asyncio.Future[Any], Any], None]
            value: Any
            try:
                set_it, value = _set_result, context.run(work)
            except BaseException as error:  # noqa: BLE001 - goes to the caller, an exit too
                set_it, value = _set_exception, error
            del job, work, context  # keeps no message while it waits
            self._tell(loop, set_it, value, answer)
            del value, answer, loop

    def _tell(
        self,
        loop: asyncio.AbstractEventLoop,
        set_it: Callable[["asyncio.Future[Any]", Any], None],
        value: object,
        answer: "asyncio.Future[Any]",
    ) -> None:
        def on_loop() -> None:
            self._busy -= 1
            if not answer.done():
                set_it(answer, value)

        try:
            loop.call_soon_threadsafe(on_loop)
        except RuntimeError:
            return  # the loop has ended, and nobody waits


def _set_result(answer: "asyncio.Future[Any]", value: object) -> None:
    answer.set_result(value)


def _set_exception(answer: "asyncio.Future[Any]", error: Any) -> None:  # noqa: ANN401 - an exception
    if isinstance(error, StopIteration):  # which a future cannot hold
        error = RuntimeError(f"the handler raised {error!r}")
    elif not isinstance(error, Exception):
        error = RuntimeError(f"the handler ended with {error!r}")
    answer.set_exception(error)
