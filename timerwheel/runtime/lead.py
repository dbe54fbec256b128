"""Whether this process still leads, asked before anything is read for a caller.

What is stored asks the journal anyway. What is only read does not: a process that was replaced while it slept
would tell what was true before. So one of two things has to be certain when a call arrives:

1. The election has confirmed lately that it can have chosen no other process. This costs nothing.
2. Else the journal takes an empty run from this process now, so no other has claimed it. All who ask before
   it is stored share it, but for those who come when it is on its way already: they share the next one.

Then what is found is not older than the call, however long it takes.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from timerwheel.clock import Clock
from timerwheel.errors import NotReadyError

ASK_MS_MAX: Final = 2_000
"""How long a call waits for the journal; then it is refused."""


class Lead:
    """See the module. Belongs to the event loop."""

    def __init__(
        self, clock: Clock, until_ms: Callable[[], int], confirm: Callable[[], Awaitable[None]]
    ) -> None:
        """`until_ms` says until when, by `Clock.uptime_ms`, it is certain; `confirm` asks the journal."""
        self._clock = clock
        self.until_ms = until_ms
        self.confirm = confirm
        self._running: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    @property
    def is_certain(self) -> bool:
        """Whether no other process can lead by now; if not, `assure` may find out."""
        return self._clock.uptime_ms() < self.until_ms()

    async def assure(self) -> None:
        """Return if no other process leads; NotReadyError if that is not certain in time."""
        if self.is_certain:
            return
        if self._next is None:
            self._next = asyncio.create_task(self._ask(self._running))
            self._next.add_done_callback(_seen)
        asked = self._next
        await self._clock.wait_for(asked, ASK_MS_MAX)
        if not asked.done() or asked.cancelled() or asked.exception() is not None:
            raise NotReadyError(
                "the service is not ready: neither the election nor the journal confirms that this node "
                "leads; another one may"
            )

    async def _ask(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait((before,))
        self._running, self._next = self._next, None
        await self.confirm()


def _seen(asked: asyncio.Task[None]) -> None:
    """Note that an error is known: all who asked may have given up."""
    if not asked.cancelled():
        asked.exception()


async def _confirm_nothing() -> None:
    """There is no other process."""


def alone(clock: Clock) -> Lead:
    """Return the lead of a process that has no others beside it."""
    return Lead(clock, lambda: FOREVER_MS, _confirm_nothing)


FOREVER_MS: Final = 1 << 62
