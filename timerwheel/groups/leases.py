"""The leases of one group: who has what for how long. In memory only, pure.

A lease that is lost means that its message is delivered again, which at-least-once allows. So none is in
the log, and a crash makes visible what was in flight.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from timerwheel.model.limits import Limits
from timerwheel.state.groups import ItemKey

STALE_ENDS = 64
KEY_DIGITS = 16
"""Hex digits of a receipt, at its beginning, that hold its message's key."""


UNREAD = Limits(0)


class Lease(msgspec.Struct, gc=False):
    """An attempt at a message: `key` is its queue and queue offset, as in `Item.key`.

    `run` and `number` tell its receipt from every other: the run of the service that gave it out, and a
    number within the run. `end_ms` is monotonic. `lane` is the number of its sharding key on an ordered
    topic, else 0. `receipt` is empty unless this run gave it out. `limits` are those of its message, None if
    it has none of its own, UNREAD if nobody has looked. `mark` is the CRC of the first record of its message,
    0 if that could not be read, None if an earlier version leased it.
    """

    key: int
    attempt: int
    run: int
    number: int
    end_ms: int = 0
    lane: int = 0
    receipt: str = ""
    limits: Limits | None = None
    mark: int | None = None

    @property
    def is_of_nobody(self) -> bool:
        """Whether no consumer was given the message: it is leased to be ended."""
        return not self.run and not self.receipt

    @property
    def identity(self) -> int:
        """What no other lease has, of any group and run."""
        return self.run << 32 | self.number

    def is_named_by(self, named: "Lease") -> bool:
        """Whether what a receipt says is this lease, and the group was not rewound since."""
        return (named.number, named.run, named.attempt) == (self.number, self.run, self.attempt)

    @property
    def queue(self) -> int:
        """The queue of its message."""
        return ItemKey.queue(self.key)

    @property
    def queue_offset(self) -> int:
        """The offset of its message in that queue."""
        return ItemKey.offset(self.key)


class Leases:
    """See the module. Adding, removing and extending cost the same however many there are.

    Invariant: a lease in `by_key` is in the bucket of its `end_ms`, or was returned by `expired` since.
    """

    def __init__(self) -> None:
        self.by_key: dict[int, Lease] = {}
        self._buckets: dict[int, dict[int, None]] = {}  # end_ms -> keys
        self._ends: list[int] = []  # a heap of every end_ms in _buckets, and of some that were there

    def __len__(self) -> int:
        return len(self.by_key)

    def __iter__(self) -> Iterator[Lease]:
        return iter(self.by_key.values())

    def add(self, lease: Lease) -> None:
        """One more; there is none of this message yet."""
        self.by_key[lease.key] = lease
        self._bucket(lease.end_ms)[lease.key] = None

    def add_all(self, leases: Sequence[Lease], end_ms: int) -> None:
        """Add leases that all end at this time."""
        keys = [lease.key for lease in leases]
        self.by_key.update(zip(keys, leases, strict=True))
        if keys:
            self._bucket(end_ms).update(dict.fromkeys(keys))

    def of_receipt(self, receipt: str) -> Lease | None:
        """The lease for which this run gave out this receipt: one that it made needs no check of its tag."""
        try:
            lease = self.by_key.get(int(receipt[:KEY_DIGITS], 16))
        except ValueError:
            return None
        return lease if lease is not None and lease.receipt == receipt else None

    def remove_all(self, leases: Iterable[Lease]) -> None:
        """Remove the leases of these messages, whichever those are now."""
        take, buckets = self.by_key.pop, self._buckets
        for named in leases:
            lease = take(named.key, None)
            if lease is None:
                continue
            bucket = buckets.get(lease.end_ms)
            if bucket is not None and bucket.pop(lease.key, 0) is None and not bucket:
                del buckets[lease.end_ms]

    def remove(self, key: int) -> Lease | None:
        """Its message is done, or waits for another attempt; None if there is none."""
        lease = self.by_key.pop(key, None)
        if lease is not None:
            self._take(lease)
        return lease

    def extend(self, lease: Lease, end_ms: int) -> None:
        """It ends at another time."""
        self._take(lease)
        lease.end_ms = end_ms
        self._bucket(end_ms)[lease.key] = None

    def clear(self) -> None:
        """Forget all of them."""
        self.by_key.clear()
        self._buckets.clear()
        self._ends.clear()

    @property
    def next_end_ms(self) -> int | None:
        """When the next one ends; None if there is none."""
        while self._ends and self._ends[0] not in self._buckets:
            heapq.heappop(self._ends)
        return self._ends[0] if self._ends else None

    def expired(self, now_ms: int, count_max: int) -> list[Lease]:
        """Up to so many that have ended, earliest first; each once, unless it is extended after that."""
        found: list[Lease] = []
        while len(found) < count_max and (end_ms := self.next_end_ms) is not None and end_ms <= now_ms:
            bucket = self._buckets[end_ms]
            while bucket and len(found) < count_max:
                key = next(iter(bucket))
                del bucket[key]
                found.append(self.by_key[key])
            if not bucket:
                del self._buckets[end_ms]
        return found

    def _bucket(self, end_ms: int) -> dict[int, None]:
        bucket = self._buckets.get(end_ms)
        if bucket is None:
            bucket = self._buckets[end_ms] = {}
            if len(self._ends) > 2 * len(self._buckets) + STALE_ENDS:
                self._ends = list(self._buckets)  # or those would stay that lie behind one that goes on
                heapq.heapify(self._ends)
            else:
                heapq.heappush(self._ends, end_ms)
        return bucket

    def _take(self, lease: Lease) -> None:
        bucket = self._buckets.get(lease.end_ms)
        if bucket is not None and bucket.pop(lease.key, 0) is None and not bucket:
            del self._buckets[lease.end_ms]
