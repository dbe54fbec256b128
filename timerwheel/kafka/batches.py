"""How large the batches of records are that go to a topic: smaller ones to a topic that refuses them.

The broker refuses a batch with more than the topic's `max.message.bytes`, and librdkafka knows one size for
all topics. So for a topic that has refused a batch, records are sent in groups: once a group is full, all has
to be delivered before the next one begins. The room of a group is halved until it fits. A record that has no
less than this room is in a batch of its own.
"""

from collections import Counter
from typing import Final

from timerwheel.clock import Clock
from timerwheel.kafka.translation import Produced

BATCH_BYTES: Final = 65_536
"""How large librdkafka makes batches; a record that has more is in one of its own."""
NARROW_MS: Final = 600_000
"""After so long a topic gets large batches again: its limit may have been raised."""


class Batches:
    """See the module. One thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rooms: dict[str, tuple[int, int]] = {}  # with the time until which it counts
        self._filled: Counter[str] = Counter()

    def room(self, topic: str) -> int:
        """Return how many bytes of a topic's records may be in a batch, unless one alone has more."""
        room, until_ms = self._rooms.get(topic, (BATCH_BYTES, 0))
        if room < BATCH_BYTES and self._clock.monotonic_ms() >= until_ms:
            del self._rooms[topic]
            return BATCH_BYTES
        return room

    def narrow(self, topic: str, room: int) -> None:
        """Have batches for a topic hold no more than this."""
        self._rooms[topic] = (room, self._clock.monotonic_ms() + NARROW_MS)

    def begins_with(self, record: Produced) -> bool:
        """Add a record to the group of its topic; returns whether new groups begin with it."""
        if record.topic not in self._rooms:
            return False
        size_bytes = self._filled[record.topic] + record.size_bytes
        begins = self._filled[record.topic] > 0 and size_bytes > self.room(record.topic)
        if begins:
            self._filled.clear()
            size_bytes = record.size_bytes
        self._filled[record.topic] = size_bytes
        return begins

    def clear(self) -> None:
        """Forget the groups of a transaction before."""
        self._filled.clear()
