"""The record cache: keeps records just written and those needed next in memory, so nobody waits for the disk.

A timer's record is where it was appended, perhaps months ago. The records of the next timers are read ahead,
in the order of their offsets and off the event loop, so a cold log makes no timer late. Records of new
deliveries are kept, too, so a consumer that keeps up never reads the log.

Records never change, so the cache is never out of date. The oldest make room for new ones.
"""

import contextlib
from collections import deque
from collections.abc import Sequence

import numpy as np

from timerwheel.clock import Clock
from timerwheel.runtime.threads import Threads
from timerwheel.store.errors import CorruptionError, StoreError
from timerwheel.store.log_reader import LogReader
from timerwheel.wheel.near import NearWheel

CACHE_BYTES_MAX = 16 << 20
AHEAD_MS = 300
AHEAD_RECORDS_MAX = 50_000
READ_INTERVAL_MS = 100


class RecordCache:
    """Caches records by log offset, up to `bytes_max`. Belongs to the event loop."""

    def __init__(self, log: LogReader, threads: Threads, bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._log = log
        self._threads = threads
        self.bytes_max = bytes_max
        self._bytes = 0
        self._records: dict[int, bytes] = {}
        self._order: deque[int] = deque()  # finding a dictionary's first key walks past all removed keys

    def keep(self, offsets: np.ndarray, records: Sequence[bytes | CorruptionError]) -> None:
        """Cache these records, except damaged ones; drops the oldest that no longer fit."""
        kept = self._records
        fresh = dict(zip(offsets.tolist(), records, strict=True))
        if {*map(type, records)} != {bytes} or not kept.keys().isdisjoint(fresh):
            fresh = {
                offset: record
                for offset, record in fresh.items()
                if offset not in kept and isinstance(record, bytes)
            }
        kept.update(fresh)
        self._order.extend(fresh)
        self._bytes += sum(map(len, fresh.values()))
        while self._bytes > self.bytes_max:
            self._bytes -= len(kept.pop(self._order.popleft()))

    def kept(self, offsets: np.ndarray) -> list[bytes | CorruptionError] | None:
        """Return the records at these offsets if all are cached."""
        found: list[bytes | CorruptionError | None] = list(map(self._records.get, offsets.tolist()))
        return None if None in found else found  # type: ignore[return-value]

    async def read(
        self, offsets: np.ndarray, sizes: np.ndarray, *, due: bool = False
    ) -> list[bytes | CorruptionError]:
        """Return the records at these offsets, an error for a damaged one; at once if all are cached.

        With `due`, the messages are due now: nothing else that is read holds up the others.
        """
        kept = self._records
        found: list[bytes | CorruptionError] = [kept.get(offset, b"") for offset in offsets.tolist()]
        missing = [place for place, record in enumerate(found) if not record]
        if missing:
            wanted = offsets[missing], sizes[missing]
            if due:
                read = await self._threads.read_due(self._log.read_many, *wanted)
            else:
                read = await self._threads.read(self._log.read_many, *wanted)
            for place, record in zip(missing, read, strict=True):
                found[place] = record
        return found

    async def fetch(self, offsets: np.ndarray, sizes: np.ndarray) -> None:
        """Read these records into the cache, as far as they take half of it.

        Best effort: a record that cannot be read now is read, or reported, when it is needed.
        """
        fit = int(np.searchsorted(np.cumsum(sizes.astype(np.int64)), self.bytes_max // 2, side="right"))
        wanted = np.array([offset not in self._records for offset in offsets[:fit].tolist()], bool)
        if not wanted.any():
            return
        offsets, sizes = offsets[:fit][wanted], sizes[:fit][wanted]
        with contextlib.suppress(OSError, StoreError):
            self.keep(offsets, await self._threads.read_due(self._log.read_many, offsets, sizes))


async def read_ahead(record_cache: RecordCache, near: NearWheel, clock: Clock) -> None:
    """Fetch the records that fall due next, a little at a time, until cancelled."""
    until_ms = 0
    while True:
        now_ms = clock.now_ms()
        from_ms, until_ms = max(now_ms, min(until_ms, now_ms + AHEAD_MS)), now_ms + AHEAD_MS
        entries = near.coming(from_ms, until_ms, AHEAD_RECORDS_MAX)
        await record_cache.fetch(entries["offset"], entries["size"])
        await clock.sleep_for(READ_INTERVAL_MS)
