"""Writes units to the log: a small write is carried out by the kernel, any other by the log thread.

    append -> CommitLog.begin -> [kernel] -> the ring's descriptor is readable -> CommitLog.end
           -> CommitLog.append in the log thread, if `begin` cannot take it or the thread has something to do

Either way one write is under way at a time, and calls for the log thread wait for a write of the kernel.
"""

import asyncio
import logging

from timerwheel.clock import Clock
from timerwheel.runtime.threads import Threads
from timerwheel.store.log import Appended, Begun, CommitLog

logger = logging.getLogger(__name__)


class LogWriter:
    """See the module. Belongs to the event loop; one append at a time."""

    def __init__(self, log: CommitLog, threads: Threads, clock: Clock, *, sync: bool) -> None:
        self.threads = threads
        self._log = log
        self._clock = clock
        self._sync = sync
        self._watched = -1
        self._ended: asyncio.Future[None] | None = None  # done when the ring has something

    async def append(self, units: list[list[bytes]]) -> Appended:
        """As `CommitLog.append`."""
        if self._sync and self.threads.log_rests():
            begun = self._log.begin(units)
            if begun is not None:
                done = await self._end(begun)
                if done is not None:
                    return done
        return await self.threads.log(self._log.append, units, sync=self._sync, now_ms=self._clock.now_ms())

    async def _end(self, begun: Begun) -> Appended | None:
        loop = asyncio.get_running_loop()
        if self._watched < 0:
            assert self._log.ring is not None
            self._watched = self._log.ring.fd
            loop.add_reader(self._watched, self._notice)
        self._ended = loop.create_future()
        async with self.threads.log_turn:
            await self._ended
            done = self._log.end(begun)
            if self._log.ring_refused is not None:
                reason = self._log.ring_refused
                logger.warning("the kernel no longer writes the log (%s): a thread does", reason)
            return done

    def _notice(self) -> None:
        """Wake the append whose write has ended.

        A loop may report the end of the write before once more, after the next one has begun.
        """
        ring = self._log.ring
        if self._ended is not None and not self._ended.done() and ring is not None and ring.has_ended:
            self._ended.set_result(None)

    async def written(self) -> None:
        """Wait until no write of the kernel is under way."""
        if self._ended is not None and not self._ended.done():
            await asyncio.wait((self._ended,))

    def close(self) -> None:
        """Watch the ring no longer; the log closes it, after a write in flight."""
        if self._watched >= 0:
            asyncio.get_running_loop().remove_reader(self._watched)
            self._watched = -1
