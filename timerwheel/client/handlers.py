"""What an `App` does with one message: the arguments of its handler, and what each outcome means.

returns                     acknowledged
raises Retry                redelivered after the given delay, by default the group's backoff
raises Reject               a dead letter at once
body of another shape       a dead letter at once: it never fits
raises anything else        redelivered after the group's backoff; a dead letter after the last attempt
"""

import asyncio
import datetime as dt
import inspect
import typing
from collections.abc import Callable
from typing import Any

from timerwheel.client.handler_threads import HandlerThreads
from timerwheel.client.lease import Lease, give_back
from timerwheel.client.loop_thread import Portal
from timerwheel.client.sync_client import SyncLease
from timerwheel.wire.groups import Held
from timerwheel.wire.messages import Message

_LEASES = (Lease, SyncLease)
_MESSAGES = (Held, Message)
_ARGUMENTS_MAX = 2


class Retry(Exception):  # noqa: N818 - an outcome, not a fault
    """Raised by a handler: deliver this message again, after `delay` or by default the group's backoff.

    `delay` is a timedelta or text such as "5m".
    """

    def __init__(self, reason: str = "", *, delay: str | dt.timedelta | None = None) -> None:
        super().__init__(reason or "to be retried")
        self.delay = delay


class Reject(Exception):  # noqa: N818 - an outcome, not a fault
    """Raised by a handler: this message can never be handled. It becomes a dead letter with this reason."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "rejected")


class Handler:
    """A function that handles messages, asynchronous or not, and the types of its parameters.

    The first parameter gets what its annotation says: a lease, `Message`, `str`, `bytes`, or the body's JSON
    as any other type, as `Message.as_` has it; a second one gets the lease. Without an annotation it gets the
    lease: a `Lease` for an asynchronous function, a `SyncLease` for another.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        """Raises TypeError for a function with more than two parameters that must be given."""
        self.function = function
        self.is_async = inspect.iscoroutinefunction(function)
        hints = typing.get_type_hints(function)
        self._kinds = [
            hints.get(name, _LEASES[0])
            for name, parameter in inspect.signature(function).parameters.items()
            if parameter.kind in {parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD}
            and parameter.default is parameter.empty
        ]
        if len(self._kinds) > _ARGUMENTS_MAX:
            raise TypeError(f"{function.__qualname__}: a handler takes the message and its lease, not more")

    async def handle(self, lease: Lease, threads: HandlerThreads, portal: Portal) -> None:
        """Handle one message; raises what the handler raises. Settles it for `Retry` and `Reject`."""
        try:
            try:
                arguments = [self._argument(kind, lease, portal) for kind in self._kinds]
            except ValueError as error:
                raise Reject(f"the body does not fit: {error}") from error
            if self.is_async:
                await self._awaited(arguments)
            else:
                await threads.run(lambda: self.function(*arguments))
        except Retry as outcome:
            await give_back(lease, delay=outcome.delay, reason=str(outcome))
        except Reject as outcome:
            await give_back(lease, dead_letter=True, reason=str(outcome))
            raise

    async def _awaited(self, arguments: list[object]) -> None:
        """Await a handler. One that exits or is cancelled from within has failed, as in a thread."""
        try:
            await self.function(*arguments)
        except (SystemExit, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise  # the worker stops
            raise RuntimeError(f"the handler ended with {error!r}") from error

    def _argument(self, kind: Any, lease: Lease, portal: Portal) -> object:  # noqa: ANN401 - an annotation
        if kind in _LEASES:
            return lease if self.is_async else SyncLease(portal, lease)
        if kind in _MESSAGES:
            return lease.message
        if kind is str:
            return lease.text
        return lease.body if kind is bytes else lease.as_(kind)
