"""A worker: takes messages of a group as fast as its handler settles them, and outlives restarts."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from timerwheel.client.errors import ClientError
from timerwheel.client.lease import Lease, is_passing
from timerwheel.clock import Clock
from timerwheel.wire.groups import Held

Handler = Callable[[Lease], Awaitable[None]]
Take = Callable[[int], Awaitable[list[Lease]]]

logger = logging.getLogger(__name__)


class Consumer:
    """Runs `handler` on what `take` gets, at most `concurrency` at a time.

    A message is acknowledged when its handler returns, given back when it raises, unless the handler did
    either itself. Nothing is taken that no handler is free for.
    """

    def __init__(self, take: Take, handler: Handler, clock: Clock, concurrency: int, retry_ms: int) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency = {concurrency}: must be at least 1")
        self._take = take
        self._handler = handler
        self._clock = clock
        self._concurrency = concurrency
        self._retry_ms = retry_ms
        self._running: set[asyncio.Task[None]] = set()
        self._away = False

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set: then what runs is waited for. A cancellation cancels the handlers too."""
        stopped = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                free = self._concurrency - len(self._running)
                if free:
                    await self._begin(free, stopped)
                else:
                    await asyncio.wait({*self._running, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if self._running:
                await asyncio.wait(self._running)
        finally:
            for task in (stopped, *self._running):
                task.cancel()
            await asyncio.gather(stopped, *self._running, return_exceptions=True)

    async def _begin(self, free: int, stopped: "asyncio.Task[bool]") -> None:
        """Take messages and start their handlers; return empty-handed when stopped."""
        taking = asyncio.create_task(self._taken(free))
        try:
            await asyncio.wait({taking, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not taking.done():
                taking.cancel()
                await asyncio.gather(taking, return_exceptions=True)
        if taking.cancelled():
            return
        for lease in taking.result():
            task = asyncio.create_task(self._work(lease))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _taken(self, free: int) -> list[Lease]:
        try:
            leases = await self._take(free)
        except ClientError as error:
            if not is_passing(error):
                raise
            self._tell(error)
            await self._clock.sleep_for(self._retry_ms)
            return []
        if self._away:
            self._away = False
            logger.info("the service answers again")
        return leases

    def _tell(self, error: ClientError) -> None:
        """One line for an outage, however long it is and whatever it makes come again."""
        level = logging.DEBUG if self._away else logging.WARNING
        text = "nothing can be received or settled, trying again every %d ms: %s"
        logger.log(level, text, self._retry_ms, error)
        self._away = True

    async def _work(self, lease: Lease) -> None:
        """One message. Whatever goes wrong, it is retried and ends no other message."""
        try:
            async with lease:
                _refuse_damaged(lease.message)
                await self._handler(lease)
        except Exception as error:
            if isinstance(error, ClientError) and is_passing(error):
                self._tell(error)
            else:
                logger.exception("message %s, attempt %d, will be retried", lease.message.id, lease.attempt)


def _refuse_damaged(message: Held) -> None:
    """A message that the service cannot read has no body, which is not an empty one: it is no handler's."""
    if message.problem is not None:
        raise ClientError(None, "corruption", message.problem)
