r"""What consumer groups hold: derived from the log, record by record, like everything else in the view.

A group reads a topic's consume queues. Each queue has a *cursor*: what lies before it was taken. A message
that was taken and is not done with is an *item* of the group:

    (fresh) --lease--> LEASED --ack--> done
       |                 |  \
       |hold             |   `--nack--> WAITING --+
       v                 |                        | the wheel: its time has come
    PARKED --lease-->    `------------------------+--> READY --lease--> LEASED (next attempt)

LEASED and WAITING items have a timer of their own in the wheel, a TIMER record with FLAG_LEASE in the topic
`topic/group`. When it fires the item is READY; there is no other clock. A PARKED item waits behind an earlier
message with the same key; the items of one key form a *lane*, and only the first of a lane may be leased.

Invariants:
1. A message before the cursor is an item or done; one at or behind it is neither.
2. The timers that wait in the topic `topic/group` are those of the LEASED and WAITING items, one each.
3. `ready` has exactly the items that may be leased now, in the order in which they came back.

Belongs to the event loop (and to the recovering thread before the loop uses it).
"""

import struct
from collections.abc import Iterator
from enum import IntEnum

import msgspec

DEAD_QUEUE = 0xFFFF  # the queue number of items that were taken back from the dead-letter topic
OFFSET_BITS = 48
_ITEM = struct.Struct("<QQqqHB?")


class ItemState(IntEnum):
    """See the module's picture."""

    PARKED = 1
    LEASED = 2
    WAITING = 3
    READY = 4


_TIMED = frozenset({ItemState.LEASED, ItemState.WAITING})


class Item(msgspec.Struct, gc=False):
    """One message that a group is not done with; `root` and `offset` are of its lease or its HOLD record.

    `ended` once it was given back: the receipt of that lease is good no more, also when the message is READY.
    """

    queue: int
    queue_offset: int
    state: int
    attempt: int = 0
    root: int = 0
    offset: int = 0
    due_ms: int = 0
    lane: int = 0
    ended: bool = False

    @property
    def key(self) -> int:
        """Queue and queue offset as one number; orders items of one queue."""
        return self.queue << OFFSET_BITS | self.queue_offset

    @property
    def timed(self) -> bool:
        """Whether a timer of it waits in the wheel."""
        return self.state in _TIMED


class GroupState:
    """One group on one topic; `topic_id` is that of its leases' topic in the view."""

    def __init__(self, topic_id: int, topic: str, group: str) -> None:
        self.topic_id = topic_id
        self.topic = topic
        self.group = group
        self.cursors: dict[int, int] = {}
        self.items: dict[int, Item] = {}
        self.by_root: dict[int, Item] = {}
        self.ready: dict[int, None] = {}
        self.lanes: dict[int, list[int]] = {}  # not deques: those take 600 bytes more, and lanes are short
        self.counts: dict[int, int] = dict.fromkeys(ItemState, 0)

    @property
    def name(self) -> str:
        """`topic/group`: no client can send to a topic with a slash in its name."""
        return f"{self.topic}/{self.group}"

    # ------------------------------------------------------------------ what records say

    def hold(self, queue: int, queue_offset: int, lane: int, offset: int) -> int:
        """A message was taken that belongs to a lane; returns the item's key."""
        item = Item(queue, queue_offset, ItemState.PARKED, root=offset, offset=offset, lane=lane)
        self._pass(item)
        self.by_root[offset] = item
        self._insert(item)
        return item.key

    def lease(self, queue: int, queue_offset: int, offset: int, due_ms: int, *, ended: bool) -> int:
        """A message was given to a consumer, or with `ended` set to wait; returns the item's key."""
        item = self.items.get(queue << OFFSET_BITS | queue_offset)
        if item is None:
            item = Item(queue, queue_offset, ItemState.LEASED)
            self._pass(item)
            self._insert(item)
        else:
            self.by_root.pop(item.root, None)
            self._set(item, ItemState.LEASED)
        if ended:
            self._set(item, ItemState.WAITING)
        else:
            item.attempt += 1
        item.ended = ended
        item.root = item.offset = offset
        item.due_ms = due_ms
        self.by_root[offset] = item
        return item.key

    def retime(self, root: int, offset: int, due_ms: int, *, ended: bool) -> int | None:
        """The timer of a lease was replaced; returns the item's key, None if it is no longer held."""
        item = self.by_root.get(root)
        if item is None:
            return None
        item.offset, item.due_ms = offset, due_ms
        if ended:  # not cleared else: a timer that retention moves does not say it again
            item.ended = True
            self._set(item, ItemState.WAITING)
        return item.key

    def came_back(self, root: int) -> int | None:
        """The timer of a lease has fired; returns the item's key, None if it is no longer held."""
        item = self.by_root.get(root)
        if item is None:
            return None
        self._set(item, ItemState.READY)
        return item.key

    def end(self, root: int) -> int | None:
        """The message of a lease is done; returns the item's key, None if it is no longer held."""
        item = self.by_root.get(root)
        if item is None:
            return None
        self._remove(item)
        return item.key

    def reset(self, cursors: dict[int, int]) -> list[int]:
        """Go on from these cursors and forget every item; returns their keys."""
        keys = list(self.items)
        for item in list(self.items.values()):
            self._remove(item)
        self.cursors = dict(cursors)
        return keys

    # ------------------------------------------------------------------ keeping it

    def pack(self, key: int) -> bytes | None:
        """An item as the index keeps it; None if it is done."""
        item = self.items.get(key)
        if item is None:
            return None
        return _ITEM.pack(
            item.root, item.offset, item.due_ms, item.lane, item.attempt, item.state, item.ended
        )

    def restore(self, rows: Iterator[tuple[int, bytes]]) -> None:
        """Take items that the index kept: (key, packed)."""
        found: list[Item] = []
        for key, raw in rows:
            root, offset, due_ms, lane, attempt, state, ended = _ITEM.unpack(raw)
            queue, queue_offset = key >> OFFSET_BITS, key & (1 << OFFSET_BITS) - 1
            found.append(Item(queue, queue_offset, state, attempt, root, offset, due_ms, lane, ended))
        # A lane as it was: all but its first are PARKED, each held by its HOLD record. Not by queue offset: a
        # key's messages lie in several queues once the number of queues was changed.
        for item in sorted(found, key=lambda item: (item.state == ItemState.PARKED, item.root)):
            if item.lane:
                self.lanes.setdefault(item.lane, []).append(item.key)
        # In the order in which they came back.
        for item in sorted(found, key=lambda item: (item.due_ms, item.root)):
            self.items[item.key] = item
            self.counts[item.state] += 1
            self.by_root[item.root] = item
            self._offer(item)

    # ------------------------------------------------------------------ within

    def _pass(self, item: Item) -> None:
        if item.queue != DEAD_QUEUE and self.cursors.get(item.queue, 0) <= item.queue_offset:
            self.cursors[item.queue] = item.queue_offset + 1

    def _insert(self, item: Item) -> None:
        key = item.key
        self.items[key] = item
        self.counts[item.state] += 1
        if item.lane:
            self.lanes.setdefault(item.lane, []).append(key)
        self._offer(item)

    def _set(self, item: Item, state: ItemState) -> None:
        self.counts[item.state] -= 1
        self.counts[state] += 1
        item.state = state
        self._offer(item)

    def _offer(self, item: Item) -> None:
        """Put the item among the ready ones, or take it from there, as its state and its lane say."""
        key = item.key
        if item.state in _TIMED or (item.lane and self.lanes[item.lane][0] != key):
            self.ready.pop(key, None)
        else:
            self.ready[key] = None

    def _remove(self, item: Item) -> None:
        key = item.key
        del self.items[key]
        self.counts[item.state] -= 1
        self.by_root.pop(item.root, None)
        self.ready.pop(key, None)
        if item.lane:
            lane = self.lanes[item.lane]
            lane.remove(key)
            if lane:
                self._offer(self.items[lane[0]])
            else:
                del self.lanes[item.lane]


class DeadLetters(msgspec.Struct):
    """Which messages of a dead-letter queue were redriven or dropped: all before `low`, and `removed`."""

    low: int = 0
    removed: set[int] = set()

    def remove(self, queue_offset: int) -> None:
        """One was redriven or dropped."""
        if queue_offset >= self.low:
            self.removed.add(queue_offset)
            self._raise_low()

    def forget_before(self, queue_offset: int) -> None:
        """Retention has removed the messages before this one: nothing need be known of them."""
        if queue_offset > self.low:
            self.low = queue_offset
            self.removed = {offset for offset in self.removed if offset >= queue_offset}
            self._raise_low()

    def _raise_low(self) -> None:
        while self.low in self.removed:
            self.removed.discard(self.low)
            self.low += 1

    def has(self, queue_offset: int) -> bool:
        """Whether the message there is still a dead letter."""
        return queue_offset >= self.low and queue_offset not in self.removed
