"""Reads time in one place: wall-clock milliseconds for due times, monotonic ones for durations."""

import asyncio
import contextlib
import ctypes
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol
from weakref import WeakKeyDictionary

CLOCK_STEP_MS = 1_000
"""What the wall clock gains or loses on the monotonic one when it is stepped; less is drift."""


class Clock(Protocol):
    """The engine's view of time; `tests/harness/clock.py` has a manual one."""

    def now_ms(self) -> int:
        """Wall clock, milliseconds since the epoch. May step back or forward."""

    def monotonic_ms(self) -> int:
        """Milliseconds that never step, with an arbitrary origin."""

    def uptime_ms(self) -> int:
        """Milliseconds since the machine started: they go on while it sleeps, unlike `monotonic_ms`."""

    async def wait_until(self, due_ms: int | None, wake: asyncio.Event) -> None:
        """Return when the wall clock reads `due_ms`, when `wake` is set, or early after a step.

        Clear `wake` before: it may be set when the time has come.
        """

    async def sleep_for(self, duration_ms: int) -> None:
        """Return after `duration_ms` of monotonic time."""

    async def wait_for(self, arrived: asyncio.Future[None], duration_ms: int) -> None:
        """Return when the future is done or after `duration_ms` of monotonic time."""

    async def breathe(self) -> None:
        """Between two steps of long work: let every other task that is ready run once."""


class SystemClock:
    """The machine's clocks."""

    LONGEST_SLEEP_MS = 500  # so that a stepped wall clock is noticed within this time
    LOOP_TIMER_MS = 1  # so coarse are timers of event loops; the alarm rings before they do

    def now_ms(self) -> int:
        """Wall milliseconds, rounded down: a message is never seen as due before its time."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Monotonic milliseconds."""
        return time.monotonic_ns() // 1_000_000

    def uptime_ms(self) -> int:
        """Milliseconds since the machine started, those in which it slept among them."""
        return time.clock_gettime_ns(_UPTIME_CLOCK) // 1_000_000

    async def wait_until(self, due_ms: int | None, wake: asyncio.Event) -> None:
        """Wait for the event, until the due time, at most `LONGEST_SLEEP_MS` at once."""
        longest_s = self.LONGEST_SLEEP_MS / 1000
        wait_s = longest_s if due_ms is None else min(longest_s, due_ms / 1000 - time.time())
        if wait_s <= 0 or wake.is_set():
            return
        # Not `wait_for`: in Python 3.11 it swallows a cancellation that comes together with the event.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s + self.LOOP_TIMER_MS / 1000):
                with alarm(due_ms, wake.set) if due_ms is not None else contextlib.nullcontext():
                    await wake.wait()

    async def sleep_for(self, duration_ms: int) -> None:
        """Sleep a duration."""
        await asyncio.sleep(duration_ms / 1000)

    async def wait_for(self, arrived: asyncio.Future[None], duration_ms: int) -> None:
        """Wait on the future, at most the duration."""
        await asyncio.wait((arrived,), timeout=duration_ms / 1000)

    async def breathe(self) -> None:
        """Wait for a turn of the loop in which no other long work takes a step.

        If all took their steps in the same turn, a short request would wait for as many steps as there are
        long ones, and again in each turn that it needs.
        """
        loop = asyncio.get_running_loop()
        waiting = _waiting.get(loop)
        if waiting is None:
            waiting = _waiting[loop] = deque()
        turn = loop.create_future()
        waiting.append(turn)
        if len(waiting) == 1:
            loop.call_soon(_give_turn, waiting)
        await turn


_waiting: "WeakKeyDictionary[asyncio.AbstractEventLoop, deque[asyncio.Future[None]]]" = WeakKeyDictionary()
"""For each loop the long work that waits for its next step, in order."""


def _give_turn(waiting: deque[asyncio.Future[None]]) -> None:
    """Let the first that still waits take its step; the next turn of the loop does so for the others."""
    while waiting:
        turn = waiting.popleft()
        if not turn.done():
            turn.set_result(None)
            break
    if waiting:
        waiting[0].get_loop().call_soon(_give_turn, waiting)


# Other systems than Linux have no such clock; their monotonic one may stop while the machine sleeps.
_UPTIME_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

_CLOCK_REALTIME = 0
_TFD_TIMER_ABSTIME = 1
_TFD_TIMER_CANCEL_ON_SET = 2


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def _timer(due_ms: int) -> int:
    """Return a descriptor that becomes readable when the wall clock reaches `due_ms` or is set; OSError."""
    if _libc is None:
        raise OSError("this system has no timerfd")
    fd: int = _libc.timerfd_create(_CLOCK_REALTIME, os.O_NONBLOCK | os.O_CLOEXEC)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "timerfd_create")
    spec = _TimerSpec(_Timespec(0, 0), _Timespec(due_ms // 1000, due_ms % 1000 * 1_000_000))
    if _libc.timerfd_settime(fd, _TFD_TIMER_ABSTIME | _TFD_TIMER_CANCEL_ON_SET, ctypes.byref(spec), None):
        os.close(fd)
        raise OSError(ctypes.get_errno(), "timerfd_settime")
    return fd


@contextlib.contextmanager
def alarm(due_ms: int, ring: Callable[[], None]) -> Iterator[None]:
    """Call `ring` when the wall clock reaches `due_ms` or is set within the block, possibly several times.

    `due_ms` is greater than 0. On systems without timerfd, `ring` is never called.
    """
    try:
        fd = _timer(due_ms)
    except OSError:
        yield
        return
    loop = asyncio.get_running_loop()
    loop.add_reader(fd, ring)
    try:
        yield
    finally:
        loop.remove_reader(fd)
        os.close(fd)
