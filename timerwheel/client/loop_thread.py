"""The event loop of a synchronous client: one thread runs it, any number of threads wait for calls on it.

1. The thread starts with the first call, and ends with `close`, with the last reference, or with the
   interpreter. It is a daemon: a program that forgot to close its client ends all the same.
2. A caller that is interrupted, by Ctrl-C for example, cancels its call and waits until that has ended.
3. A forked child has none of the parent's threads. It begins with a thread and connections of its own;
   those of the parent are neither used nor closed.
4. A call carries the context variables of its caller, so that the current span is that of the caller.
"""

import asyncio
import contextlib
import contextvars
import os
import socket
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future, wait
from typing import Any, Generic, Protocol, TypeVar

from timerwheel.client.connection import keep_forever
from timerwheel.client.errors import UnreachableError

_Answer = TypeVar("_Answer")
CLOSE_S = 5.0
"""How long the end of a client may take, in seconds."""
_END: Any = object()
_LoopEndedError = RuntimeError  # what a closed loop raises for `call_soon_threadsafe`


class Resources(Protocol):
    """What lives on the loop: a client."""

    def open(self) -> None:
        """Open it; called on the loop."""

    async def close(self) -> None:
        """Close it."""

    def forget(self) -> None:
        """Drop what belongs to the parent of this process."""


class Portal:
    """A way from threads to an event loop; `start` says to which."""

    def start(self, call: "Call[Any]") -> None:
        """Start a call on the loop. RuntimeError if the loop has ended."""
        raise NotImplementedError

    def run(self, work: Coroutine[Any, Any, _Answer]) -> _Answer:
        """Return what the coroutine returns, or raise what it raises. RuntimeError after `close`.

        An interruption, at whatever moment, cancels it, and is raised once it has ended.
        """
        call = Call(work)
        try:
            self.start(call)
            wait([call.outcome])
        except BaseException:
            call.abandon()
            raise
        return call.result()

    def iterate(self, items: AsyncIterator[_Answer]) -> Iterator[_Answer]:
        """Yield the items. Keeps no reference to one that it has yielded."""
        try:
            found = [self.run(_next(items))]
            while found[0] is not _END:
                yield found.pop()
                found.append(self.run(_next(items)))
        finally:
            with contextlib.suppress(RuntimeError, UnreachableError):  # the client may be closed by now
                self.run(_close(items))


class RunningLoop(Portal):
    """An event loop that somebody else runs."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def start(self, call: "Call[Any]") -> None:
        """Start a call."""
        try:
            call.start_on(self._loop)
        except _LoopEndedError:
            raise RuntimeError("the event loop has ended") from None


class LoopThread(Portal):
    """Runs coroutines for threads that wait for them."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._lock = threading.Lock()
        self._running: _Running | None = None
        self._end: weakref.finalize[Any, Any] | None = None
        self._closed = False
        _all.add(self)

    def open(self) -> None:
        """Allow calls, after `close` too."""
        self._closed = False

    def start(self, call: "Call[Any]") -> None:
        """Start a call. RuntimeError if the client is closed."""
        self._started().start(call)

    def close(self) -> None:
        """End the thread: running calls fail with `UnreachableError`, later ones with RuntimeError."""
        with self._lock:
            self._closed = True
            end, self._end, self._running = self._end, None, None
        if end is not None:
            end()

    def forget(self) -> None:
        """Begin again, in a forked child."""
        self._lock = threading.Lock()
        if self._running is not None:
            keep_forever(self._running)
            self._running = None
        if self._end is not None:
            self._end.detach()
            self._end = None
        self._resources.forget()

    def _started(self) -> "_Running":
        with self._lock:
            if self._closed:
                raise RuntimeError("the client is closed")
            if self._running is None:
                self._running = _Running(self._resources)
                self._end = weakref.finalize(self, self._running.end)
            return self._running


class _Loop(asyncio.SelectorEventLoop):
    """An event loop that can look up names while the interpreter exits, when no thread pool does any work."""

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:  # noqa: ANN401 - as its base
        """Look the name up in a thread of its own."""
        answer = self.create_future()

        def look_up() -> None:
            try:
                found = socket.getaddrinfo(host, port, **_without_none(options))
            except OSError as error:
                self.call_soon_threadsafe(_give, answer.set_exception, error, answer)
            else:
                self.call_soon_threadsafe(_give, answer.set_result, found, answer)

        threading.Thread(target=look_up, name="timerwheel-resolver", daemon=True).start()
        return await answer


def _without_none(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _give(set_it: Callable[[Any], None], value: object, answer: "asyncio.Future[Any]") -> None:
    if not answer.done():
        set_it(value)


class _Running:
    """A loop in its thread, from the start to the end."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._loop = _Loop()
        self._waiting: set[Future[Any]] = set()
        self._thread = threading.Thread(target=self._serve, name="timerwheel-client", daemon=True)
        self._thread.start()
        self._loop.call_soon_threadsafe(resources.open)

    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def start(self, call: "Call[Any]") -> None:
        if self.is_current():
            raise RuntimeError("this would wait for itself: the thread is that of the client's event loop")
        self._waiting.add(call.outcome)
        call.outcome.add_done_callback(self._waiting.discard)
        try:
            call.start_on(self._loop)
        except _LoopEndedError:  # between the look at it and the call
            self._waiting.discard(call.outcome)
            raise RuntimeError("the client is closed") from None

    def end(self) -> None:
        """Close the client, cancel what still runs, and end the thread."""
        if self.is_current():  # the last reference was dropped by the loop itself
            self._loop.create_task(self._finish())
            return
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._begin_to_finish)
            self._thread.join(CLOSE_S)

    def _begin_to_finish(self) -> None:
        self._finishing = self._loop.create_task(self._finish())

    async def _finish(self) -> None:
        try:
            async with asyncio.timeout(CLOSE_S / 2):
                await self._resources.close()
        except TimeoutError:
            pass
        finally:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            self._loop.stop()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()
            # Calls that came too late to start; later ones find the loop closed.
            for outcome in list(self._waiting):
                if not outcome.done():
                    outcome.set_exception(CancelledError())


class Call(Generic[_Answer]):
    """A coroutine for a loop, as the thread that waits for it has it."""

    def __init__(self, work: Coroutine[Any, Any, _Answer]) -> None:
        self.outcome: Future[_Answer] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._work = work
        self._context = contextvars.copy_context()
        self._task: asyncio.Task[_Answer] | None = None

    def start_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have the loop start it; RuntimeError if that is closed."""
        self._loop = loop  # before it starts: from here on an interruption has to wait for its end
        try:
            loop.call_soon_threadsafe(self._start)
        except _LoopEndedError:
            self._loop = None
            raise

    def wait(self) -> None:
        """Wait until it has ended, if it was started; an interruption cancels it and is then raised."""
        if self._loop is None:
            self._work.close()
            return
        try:
            wait([self.outcome])
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Cancel it, and wait until it has ended, if it was started."""
        if self._loop is None:
            self._work.close()
            return
        self.call_soon(self._cancel)
        wait([self.outcome])

    def result(self) -> _Answer:
        """Return what it returned, or raise what it raised."""
        try:
            return self.outcome.result()
        except CancelledError:
            raise UnreachableError(None, "unreachable", "the client was closed during the call") from None

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a function on the loop, unless that has ended, or the call was never started."""
        if self._loop is not None:
            with contextlib.suppress(_LoopEndedError):
                self._loop.call_soon_threadsafe(function)

    def _start(self) -> None:
        if self.outcome.done():
            return
        assert self._loop is not None
        self._task = self._loop.create_task(self._work, context=self._context)
        self._task.add_done_callback(self._finish)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        elif not self.outcome.done():  # it never started
            self._work.close()
            self.outcome.set_exception(CancelledError())

    def _finish(self, task: "asyncio.Task[_Answer]") -> None:
        self._task = None
        if task.cancelled():
            self.outcome.set_exception(CancelledError())
        elif (error := task.exception()) is not None:
            self.outcome.set_exception(error)
        else:
            self.outcome.set_result(task.result())


async def _next(items: AsyncIterator[_Answer]) -> _Answer:
    return await anext(items, _END)


async def _close(items: AsyncIterator[Any]) -> None:
    close = getattr(items, "aclose", None)
    if close is not None:
        await close()


_all: "weakref.WeakSet[LoopThread]" = weakref.WeakSet()


def _forget_all() -> None:
    for one in list(_all):
        one.forget()


os.register_at_fork(after_in_child=_forget_all)
