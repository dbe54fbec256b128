"""Waking at a wall-clock time to within a tenth of a millisecond.

The timers of event loops know whole milliseconds of a monotonic clock, so half a millisecond is lost on
average. Linux has timers of the wall clock that are files (timerfd_create(2)); elsewhere, and when no file
can be opened, there is no alarm. Python has them from 3.13 on; before that they are called through ctypes.
"""

import asyncio
import contextlib
import ctypes
import os
import sys
from collections.abc import Callable, Iterator

_CLOCK_REALTIME = 0
_TFD_TIMER_ABSTIME = 1
_TFD_TIMER_CANCEL_ON_SET = 2


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def _timer(due_ms: int) -> int:
    """A file that can be read when the wall clock reads `due_ms` or is set; OSError."""
    if _libc is None:
        raise OSError("this system has no timers that are files")
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
    """Within the block, `ring` is called when the wall clock reads `due_ms` or is set, perhaps several times.

    `due_ms` is later than 0. Where there is no alarm it is never called.
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
