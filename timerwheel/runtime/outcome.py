"""The outcome of a call's writes when the log fails in the middle of the call.

A write that never reached the log is not stored. One that was in progress may be stored: only the next start
finds out. A call with several writes, one after the other, may have stored the first ones.

The middleware (`timerwheel.api.middleware`) opens `one_call`; group commit notes the writes of the call
there. Event loop only.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from timerwheel.errors import NotReadyError, OutcomeUnknownError, TimerwheelError
from timerwheel.store.errors import IndexBusyError, LogFailedError, NoSpaceError, WriteUnknownError

NOTED_MAX = 64
"""Number of noted writes after which a call forgets the finished ones."""


class Writes:
    """The writes of one call."""

    def __init__(self) -> None:
        self._stored: list[asyncio.Future[int]] = []
        self._some_may_be = False
        self._over = False

    def note(self, stored: asyncio.Future[int]) -> None:
        """Note a queued write, unless the call is over: work that it started may go on for long."""
        if self._over:
            return
        if len(self._stored) >= NOTED_MAX:  # a stream is one call for days
            self._some_may_be = self.may_be_stored
            self._stored = [one for one in self._stored if not one.done()]
        self._stored.append(stored)

    def end(self) -> None:
        """End the call: later writes are not noted."""
        self._over = True
        self._stored.clear()

    @property
    def may_be_stored(self) -> bool:
        """Whether any write of the call is stored, or may be."""
        return self._some_may_be or any(map(_may_be_stored, self._stored))


CALL: ContextVar[Writes | None] = ContextVar("CALL", default=None)


@contextmanager
def one_call() -> Iterator[None]:
    """Wrap a call: an error that says "not stored" leaves the block only if that is true."""
    writes = Writes()
    token = CALL.set(writes)
    try:
        yield
    except (NotReadyError, LogFailedError, NoSpaceError, IndexBusyError) as error:
        if not writes.may_be_stored:
            raise
        raise OutcomeUnknownError(str(error)) from error
    finally:
        CALL.reset(token)
        writes.end()


def failure_of(error: LogFailedError) -> TimerwheelError:
    """Translate the error for the caller that requested the write."""
    if isinstance(error, WriteUnknownError):
        return OutcomeUnknownError(f"the service has failed: {error}")
    return NotReadyError(f"the service has failed: {error}")


def _may_be_stored(stored: asyncio.Future[int]) -> bool:
    if not stored.done() or stored.cancelled():
        return True
    error = stored.exception()
    return error is None or isinstance(error, WriteUnknownError)
