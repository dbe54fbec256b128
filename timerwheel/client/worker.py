"""A worker: receives messages of a group as fast as its handler finishes them, and survives outages."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from timerwheel.client.errors import ClientError
from timerwheel.client.lease import Lease, Patience, is_passing, is_rate_limited, pause_after
from timerwheel.clock import Clock
from timerwheel.groups.config import RECEIVE_MAX
from timerwheel.wire.groups import Held

Handler = Callable[[Lease], Awaitable[None]]
Take = Callable[[int, Sequence[Lease]], Awaitable[list[Lease]]]
"""Acknowledges the given leases and takes up to that many messages."""
Ack = Callable[[Sequence[Lease]], Awaitable[None]]

logger = logging.getLogger(__name__)


class Consumer:
    """Runs `handler` on the messages from `take`, at most `concurrency` at a time.

    A message is acknowledged when its handler returns and returned when it raises, unless the handler did
    either itself. Messages are taken only for free handlers.

    An acknowledgement is sent with the call that takes the next message. While such a call waits for
    messages, acknowledgements are sent separately. After an outage they are sent again while the lease lasts,
    and so are those that a limited rate refused, when the service says; see `Patience`.
    """

    def __init__(
        self, take: Take, ack: Ack, handler: Handler, clock: Clock, concurrency: int, retry_ms: int
    ) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency = {concurrency}: must be at least 1")
        self._take = take
        self._ack = ack
        self._handler = handler
        self._clock = clock
        self._concurrency = concurrency
        self._retry_ms = retry_ms
        self._running: set[asyncio.Task[None]] = set()
        self._done: list[Lease] = []
        self._acking: asyncio.Task[None] | None = None
        self._stopped: asyncio.Task[bool] | None = None
        self._patience = Patience(clock)
        self._taking = False
        self._in_outage = False

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set, then wait for running handlers. A cancellation cancels them too."""
        stopped = self._stopped = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                free = self._concurrency - len(self._running)
                if free:
                    await self._begin(free, stopped)
                else:
                    await asyncio.wait({*self._running, stopped}, return_when=asyncio.FIRST_COMPLETED)
            while self._running:
                await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
                await self._ack_done()  # one that hangs holds no acknowledgement up
            if self._acking is not None:
                await asyncio.wait([self._acking])
            await self._ack_done()
            if self._done:
                text = "stopped without having acknowledged %d messages, which may be received again"
                logger.warning(text, len(self._done))
        finally:
            tasks = [stopped, *self._running, *([] if self._acking is None else [self._acking])]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _begin(self, free: int, stopped: "asyncio.Task[bool]") -> None:
        """Receive messages and start their handlers; return with none when stopped."""
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
            lease.handled_until(stopped)
            task = asyncio.create_task(self._work(lease))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _taken(self, free: int) -> list[Lease]:
        done, self._done = self._done[:RECEIVE_MAX], self._done[RECEIVE_MAX:]
        self._taking = True
        try:
            leases = await self._take(free, done)
        except ClientError as error:
            self._done = [*_unanswered(done, error), *self._done]
            if not is_passing(error):
                raise
            self._log_outage(error)
            await self._clock.sleep_for(pause_after(error, self._retry_ms))
            return []
        except asyncio.CancelledError:
            self._done = [*_unanswered(done), *self._done]
            raise
        finally:
            self._taking = False
        if self._in_outage:
            self._in_outage = False
            logger.info("the service answers again")
        return leases

    def _finish(self, lease: Lease) -> None:
        """Acknowledge with the next receive, or now if one is waiting for messages."""
        self._done.append(lease)
        self._patience = Patience(self._clock, self._stopped)
        if self._taking and self._acking is None:
            self._acking = asyncio.create_task(self._ack_done())
            self._acking.add_done_callback(self._acked)

    def _acked(self, _task: asyncio.Task[None]) -> None:
        self._acking = None

    async def _ack_done(self) -> None:
        """Acknowledge in separate calls, as soon as a limited rate allows.

        During an outage, or once it is in vain to wait for the rate, leave the rest for the next receive.
        """
        while self._done:
            done, self._done = self._done[:RECEIVE_MAX], self._done[RECEIVE_MAX:]
            try:
                await self._ack(done)
            except ClientError as error:
                self._done = [*_unanswered(done, error), *self._done]
                if is_rate_limited(error):
                    self._log_outage(error)
                    if await self._patience.wait(pause_after(error), self._done):
                        continue
                elif is_passing(error):
                    self._log_outage(error)
                else:
                    logger.exception("%d messages could not be acknowledged", len(done))
                return

    def _log_outage(self, error: ClientError) -> None:
        """Log an outage once, however long it lasts and however many redeliveries it causes."""
        level = logging.DEBUG if self._in_outage else logging.WARNING
        text = "cannot receive or acknowledge; retrying every %d ms: %s"
        logger.log(level, text, self._retry_ms, error)
        self._in_outage = True

    async def _work(self, lease: Lease) -> None:
        """Handle one message. Any failure leads to a retry, and does not affect other messages."""
        try:
            await self._handle(lease)
        except Exception as error:  # of the handler, which may raise anything
            if isinstance(error, ClientError) and is_passing(error):
                self._log_outage(error)
            else:
                logger.exception("message %s, attempt %d, will be retried", lease.message.id, lease.attempt)

    async def _handle(self, lease: Lease) -> None:
        try:
            _refuse_damaged(lease.message)
            await self._handler(lease)
        except BaseException as error:
            if not (lease.settled or lease.lost):
                await lease.failed(error)
            raise
        if not (lease.settled or lease.lost):
            self._finish(lease)


def _unanswered(leases: Sequence[Lease], error: ClientError | None = None) -> list[Lease]:
    """Return the leases to be acknowledged again, as a call that did so failed; `error` is its answer."""
    again = [lease for lease in leases if not (lease.settled or lease.lost)]
    if error is None or not is_rate_limited(error):
        for lease in again:
            lease.ack_unanswered = True
    return again


def _refuse_damaged(message: Held) -> None:
    """Raise for a message that the service could not read: its body is missing, not empty."""
    if message.problem is not None:
        raise ClientError(None, "corruption", message.problem)
