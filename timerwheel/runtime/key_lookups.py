"""Look-ups of deduplication keys in the index: those of all callers of a moment share one read.

A look-up costs a hand-over to a thread, a transaction and a search in each run of keys, of a hundred keys
hardly more than of one. While a read is under way, the keys of other callers gather for the next.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

from timerwheel.index import dedup
from timerwheel.runtime.threads import Threads
from timerwheel.state.dedup_key import KeyEntry
from timerwheel.store.index import Index

SHARED_MAX: Final = 100
"""Most keys of a caller that shares a read: others would have to wait for more."""

_Entries = dict[bytes, KeyEntry]
_Caller = tuple[Sequence[bytes], "asyncio.Future[_Entries]"]


class KeyLookups:
    """Finds the entries of keys that the index has. Belongs to the event loop."""

    def __init__(self, index: Index, threads: Threads) -> None:
        self._index = index
        self._threads = threads
        self._waiting: list[_Caller] = []
        self._is_reading = False
        self._reading: asyncio.Task[_Entries] | None = None  # so that it is not collected before its end

    async def find(self, digests: Sequence[bytes]) -> _Entries:
        """Return the entries of those of these keys that the index has by now, or gets while it is read."""
        if len(digests) > SHARED_MAX:
            return await self._threads.read(self._find, digests)
        if self._is_reading:
            done: asyncio.Future[_Entries] = asyncio.get_running_loop().create_future()
            self._waiting.append((digests, done))
            return await done
        self._is_reading = True
        try:
            return await self._threads.read(self._find, digests)
        finally:
            self._go_on()

    def _go_on(self) -> None:
        """Begin a read for all who came during the last one."""
        callers, self._waiting = self._waiting, []
        self._is_reading = bool(callers)
        if callers:
            wanted = list(dict.fromkeys(digest for digests, _ in callers for digest in digests))
            self._reading = asyncio.ensure_future(self._threads.read(self._find, wanted))
            self._reading.add_done_callback(partial(self._answer, callers))

    def _answer(self, callers: Sequence[_Caller], reading: "asyncio.Task[_Entries]") -> None:
        self._go_on()
        for digests, done in callers:
            if done.done():  # its caller was cancelled
                continue
            if reading.cancelled():
                done.cancel()
            elif (error := reading.exception()) is not None:
                done.set_exception(error)
            else:
                found = reading.result()
                done.set_result({digest: found[digest] for digest in digests if digest in found})

    def _find(self, digests: Sequence[bytes]) -> _Entries:
        with self._index.read() as txn:
            return dedup.find(txn, digests)
