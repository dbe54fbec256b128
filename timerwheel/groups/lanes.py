"""Order by sharding key: of each key's messages one is in work, and the rest are parked behind it.

In memory only, pure: after a start the messages are looked at again, and parked again.
"""


class Lanes:
    """The keys of one group's messages on an ordered topic, as numbers.

    Invariant: a lane's first message is in work, or may be leased now, or fails its attempts and waits. So an
    item of the group that has a lane is the first of it.
    """

    def __init__(self) -> None:
        self._lanes: dict[int, list[int]] = {}  # not deques: those take 600 bytes more, and lanes are short
        self._parked: set[int] = set()

    def __contains__(self, lane: int) -> bool:
        """Whether a message of this lane is in work, or may be leased."""
        return lane in self._lanes

    @property
    def parked(self) -> int:
        """How many messages are parked."""
        return len(self._parked)

    def join(self, lane: int, key: int, *, behind: bool = False) -> bool:
        """A message of a lane was seen; whether it is the first, and `behind` no other in work."""
        queue = self._lanes.get(lane)
        if queue is None and not behind:
            self._lanes[lane] = [key]
            return True
        if queue is None:
            queue = self._lanes[lane] = []
        queue.append(key)
        self._parked.add(key)
        return False

    def done(self, lane: int, key: int) -> int | None:
        """The first message of a lane is done; returns the next, which is the first now."""
        queue = self._lanes.get(lane)
        if queue is None:
            return None
        if queue[0] == key:
            del queue[0]
        if not queue:
            del self._lanes[lane]
            return None
        if queue[0] not in self._parked:
            return None
        self._parked.discard(queue[0])
        return queue[0]

    def clear(self) -> None:
        """Forget all of them."""
        self._lanes.clear()
        self._parked.clear()
