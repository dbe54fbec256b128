r"""The state of consumer groups, derived from the log record by record, like all state.

A group reads a topic's consume queues. For each queue it keeps the set of messages that need no first
attempt any more: those it acknowledged, those its filter leaves out, and those it holds for another attempt.
This is a set of queue offsets (`OffsetSet`); the end of the range that begins at 0 is the group's *cursor*.
Leases are not in the log but in memory (`timerwheel.groups.leases`), so to the log a leased message is still
fresh.

A message that failed an attempt is an *item* of the group until it is done:

    fresh --ACK--> done
      |
      | RETRY: given back, or not acknowledged in time
      v                                                        CANCEL
    WAITING --the wheel: the retry is due--> READY --RETRY--> WAITING ... ------> done

A WAITING item has a timer of its own in the wheel, a TIMER record with FLAG_LEASE in the topic `topic/group`;
its first record, a *retry*, has the number of the attempt that failed. When it fires the item is READY; there
is no other clock. A redriven dead letter is a retry of attempt 0.

The items of one sharding key form a *lane*, and only the first of a lane may be leased. In logs of this
version a lane has one item at most, whose HOLD record names the key.

Earlier versions kept leases in the log. An item with such a lease is LEASED until its timer fires; one that
waited behind an earlier message with its key is PARKED. Such a lease or HOLD record moved the cursor past
everything before it.

Invariants:
1. An item's offset is in the group's set, so it is not taken for a fresh message.
2. The LEASED and WAITING items have one timer each in the topic `topic/group`. Other timers wait there only
   after a rewind or a deletion, until they are ended (`timerwheel.groups.forgotten`).
3. `ready` has exactly the items that may be leased now, in the order in which they became ready.

Belongs to the event loop (and to the recovering thread before the loop uses it).
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from timerwheel.model.admission import DEAD_PREFIX, RETRY_PREFIX
from timerwheel.state.offset_set import OffsetSet
from timerwheel.store.record import FLAG_ENDED, Kind
from timerwheel.store.table import ROW_DTYPE, Rows

DEAD_QUEUE = 0xFFFF  # the queue number of items that were taken back from the dead-letter topic
OFFSET_BITS = 48
_OFFSET_MASK = (1 << OFFSET_BITS) - 1
_ITEM = struct.Struct("<QQqqHB?")


class ItemKey:
    """The number of a message in a group: its queue and queue offset. Those of a queue are in its order."""

    @staticmethod
    def of(queue: int, queue_offset: int) -> int:
        """Return the key of the message at this place."""
        return queue << OFFSET_BITS | queue_offset

    @staticmethod
    def queue(key: int) -> int:
        """Return the queue of the message."""
        return key >> OFFSET_BITS

    @staticmethod
    def offset(key: int) -> int:
        """Return the queue offset of the message."""
        return key & _OFFSET_MASK


class ItemState(IntEnum):
    """See the module's picture."""

    PARKED = 1
    LEASED = 2
    WAITING = 3
    READY = 4


_TIMED = frozenset({ItemState.LEASED, ItemState.WAITING})


class Item(msgspec.Struct, gc=False):
    """A message that failed `attempt` attempts; `root` is its retry's first record and `offset` its last.

    Before the first retry, both are those of its HOLD record. `ended` means that it was given back, so the
    receipt of that attempt is no longer valid. `lent` means that it is READY and leased; the log does not
    have this.
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
    lent: bool = False

    @property
    def key(self) -> int:
        """Return queue and queue offset as one number."""
        return ItemKey.of(self.queue, self.queue_offset)

    @property
    def timed(self) -> bool:
        """Whether it has a timer in the wheel."""
        return self.state in _TIMED


class GroupState:
    """One group on one topic; `topic_id` is that of its leases' topic."""

    def __init__(self, topic_id: int, topic: str, group: str) -> None:
        self.topic_id = topic_id
        self.topic = topic
        self.group = group
        self.passed: dict[int, OffsetSet] = {}
        self.since = 0  # where in the log the group was made or last rewound
        self.items: dict[int, Item] = {}
        self.by_root: dict[int, Item] = {}
        self.ready: dict[int, None] = {}
        self.lanes: dict[int, list[int]] = {}  # not deques: those take 600 bytes more, and lanes are short
        self.counts: dict[int, int] = dict.fromkeys(ItemState, 0)
        self.lent = 0

    @property
    def name(self) -> str:
        """`topic/group`: no client can send to a topic with a slash in its name."""
        return f"{self.topic}/{self.group}"

    @property
    def cursors(self) -> dict[int, int]:
        """Return, for each queue, the first offset that the group may not have received."""
        return {queue: passed.low for queue, passed in self.passed.items()}

    @property
    def timed(self) -> int:
        """Return how many items have a timer in the wheel."""
        return self.counts[ItemState.LEASED] + self.counts[ItemState.WAITING]

    def passed_of(self, queue: int) -> OffsetSet:
        """Return the offsets of a queue that need no first attempt, created if the queue is new."""
        passed = self.passed.get(queue)
        if passed is None:
            passed = self.passed[queue] = OffsetSet()
        return passed

    def first_fresh(self, queue: int, low: int) -> int:
        """Return the first offset of a queue, from `low` on, that needs a first attempt."""
        passed = self.passed.get(queue)
        return low if passed is None else passed.next_gap(low)

    def fresh(self, queue: int, low: int, end: int) -> tuple[int, int]:
        """Return `first_fresh`, and how many offsets before `end` need a first attempt."""
        at, passed = self.first_fresh(queue, low), self.passed.get(queue)
        done = passed.count(at) if passed is not None and at < passed.end else 0
        return at, end - at - done

    # ------------------------------------------------------------------ what records say

    def ack(self, queue: int, first: int, end: int) -> None:
        """The messages in [first, end) of a queue are done, or excluded by the filter."""
        self.passed_of(queue).add(first, end)

    def retry(
        self, queue: int, queue_offset: int, attempt: int, offset: int, due_ms: int, *, ended: bool
    ) -> int:
        """An attempt failed, and the next one is due at `due_ms`; returns the item's key."""
        key = self.lease(queue, queue_offset, offset, due_ms, ended=True, alone=True)
        item = self.items[key]
        item.attempt, item.ended = attempt, ended
        return key

    def hold(self, queue: int, queue_offset: int, lane: int, offset: int, *, alone: bool = False) -> int:
        """A message joins a lane; returns the item's key. With `alone`, earlier messages are not affected."""
        item = Item(queue, queue_offset, ItemState.PARKED, root=offset, offset=offset, lane=lane)
        self._pass(item, alone=alone)
        self.by_root[offset] = item
        self._insert(item)
        return item.key

    def lease(
        self,
        queue: int,
        queue_offset: int,
        offset: int,
        due_ms: int,
        *,
        ended: bool,
        alone: bool = False,
    ) -> int:
        """A message was leased, or with `ended` waits for its retry; returns the item's key."""
        item = self.items.get(ItemKey.of(queue, queue_offset))
        if item is None:
            item = Item(queue, queue_offset, ItemState.LEASED)
            self._pass(item, alone=alone)
            self._insert(item)
        else:
            self.by_root.pop(item.root, None)
            self._take_back(item)
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
        """The timer of an item was replaced; returns the item's key, None if it is no longer held."""
        item = self.by_root.get(root)
        if item is None:
            return None
        item.offset, item.due_ms = offset, due_ms
        if ended:  # never cleared: a timer that retention moves does not repeat the flag
            item.ended = True
            self._set(item, ItemState.WAITING)
        return item.key

    def ready_again(self, root: int) -> int | None:
        """The timer of an item has fired; returns the item's key, None if it is no longer held."""
        item = self.by_root.get(root)
        if item is None:
            return None
        self._set(item, ItemState.READY)
        return item.key

    def end(self, root: int) -> int | None:
        """The message of an item is done; returns the item's key, None if it is no longer held."""
        item = self.by_root.get(root)
        if item is None:
            return None
        self._remove(item)
        return item.key

    def done_with(self, queues: Iterable[int]) -> dict[int, OffsetSet]:
        """Return for each of these queues the offsets that the group is done with, so without items."""
        held: dict[int, list[int]] = {}
        for key in sorted(self.items):
            held.setdefault(ItemKey.queue(key), []).append(ItemKey.offset(key))
        return {queue: self.passed[queue].without(held.get(queue, ())) for queue in queues}

    @property
    def redriven(self) -> list[int]:
        """Return the keys of the items that were taken back from the dead-letter topic."""
        return [key for key in self.items if ItemKey.queue(key) == DEAD_QUEUE]

    def reset(self, cursors: Mapping[int, int | list[int]]) -> list[int]:
        """Continue from these cursors, or packed sets, without any item; returns the keys of the removed.

        All at once, as it is one step of the loop: a group may hold hundreds of thousands.
        """
        keys = list(self.items)
        if self.lent:
            for item in self.items.values():
                item.lent = False
        self.items.clear()
        self.by_root.clear()
        self.ready.clear()
        self.lanes.clear()
        self.counts = dict.fromkeys(ItemState, 0)
        self.lent = 0
        self.passed = {queue: OffsetSet.unpack(offset) for queue, offset in cursors.items()}
        return keys

    # ------------------------------------------------------------------ who has it, which no record says

    def lend(self, item: Item) -> None:
        """Lease this READY item."""
        if not item.lent:
            item.lent = True
            self.lent += 1
            self._offer(item)

    def give_back(self, item: Item) -> None:
        """Release this item: it is ready again, after all others."""
        self._take_back(item)
        if self.items.get(item.key) is item:
            self._offer(item)

    def _take_back(self, item: Item) -> None:
        if item.lent:
            item.lent = False
            self.lent -= 1

    # ------------------------------------------------------------------ keeping it

    def pack(self, key: int) -> bytes | None:
        """Pack an item for the index; None if it is done."""
        item = self.items.get(key)
        if item is None:
            return None
        return _ITEM.pack(
            item.root, item.offset, item.due_ms, item.lane, item.attempt, item.state, item.ended
        )

    def restore(self, rows: Iterator[tuple[int, bytes]]) -> None:
        """Load items from the index: (key, packed)."""
        found: list[Item] = []
        for key, raw in rows:
            root, offset, due_ms, lane, attempt, state, ended = _ITEM.unpack(raw)
            queue, queue_offset = ItemKey.queue(key), ItemKey.offset(key)
            found.append(Item(queue, queue_offset, state, attempt, root, offset, due_ms, lane, ended))
        # A lane as it was: all but its first are PARKED, each held by its HOLD record. Not by queue offset: a
        # key's messages lie in several queues once the number of queues was changed.
        for item in sorted(found, key=lambda item: (item.state == ItemState.PARKED, item.root)):
            if item.lane:
                self.lanes.setdefault(item.lane, []).append(item.key)
        # In the order in which they became ready.
        for item in sorted(found, key=lambda item: (item.due_ms, item.root)):
            self.items[item.key] = item
            self.counts[item.state] += 1
            self.by_root[item.root] = item
            self._offer(item)

    # ------------------------------------------------------------------ within

    def _pass(self, item: Item, *, alone: bool) -> None:
        if item.queue != DEAD_QUEUE:
            self.passed_of(item.queue).add(item.queue_offset if alone else 0, item.queue_offset + 1)

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
        """Add the item to the ready ones or remove it, depending on its state and its lane."""
        key = item.key
        if item.lent or item.state in _TIMED or (item.lane and self.lanes[item.lane][0] != key):
            self.ready.pop(key, None)
        else:
            self.ready[key] = None

    def _remove(self, item: Item) -> None:
        key = item.key
        del self.items[key]
        self._take_back(item)
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
    """The messages of a dead-letter queue that were redriven or dropped: all before `low`, and `removed`."""

    low: int = 0
    removed: set[int] = set()

    def remove(self, queue_offset: int) -> None:
        """One dead letter was redriven or dropped."""
        if queue_offset >= self.low:
            self.removed.add(queue_offset)
            self._raise_low()

    def forget_before(self, queue_offset: int) -> None:
        """Retention has removed the messages before this one, so their offsets can be forgotten."""
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


SEPARATOR = "/"


def is_internal(topic: str) -> bool:
    """Whether a topic's records are the service's own: retries of a group, or settings."""
    return SEPARATOR in topic


def group_topic(topic: str, group: str) -> str:
    """Return the internal topic of a group."""
    return topic + SEPARATOR + group


def dead_topic(group: str) -> str:
    """Return the topic of a group's dead letters."""
    return DEAD_PREFIX + group


def retry_topic(group: str) -> str:
    """Return the topic of the messages that consumers of a group of kind `offsets` sent back."""
    return RETRY_PREFIX + group


class LeaseRow(NamedTuple):
    """The fields of a record with FLAG_LEASE, as in the record table."""

    offset: int
    root: int
    due_ms: int
    prior_due_ms: int
    queue: int
    kind: int
    flags: int
    rolls: int

    @property
    def queue_offset(self) -> int:
        """Return the message's queue offset, in HOLD, ACK, a first record, and a CANCEL without origin."""
        return self.prior_due_ms

    @property
    def end_offset(self) -> int:
        """Return one past the last message of an ACK."""
        return self.due_ms

    @property
    def attempt(self) -> int:
        """Return the attempt that failed, in the first record of a retry; 0 in records of leases."""
        return self.rolls

    @property
    def retry_follows(self) -> bool:
        """Return whether a retry of the message follows this HOLD; not so in logs of earlier versions."""
        return self.rolls > 0

    @property
    def key_hash(self) -> int:
        """Return the hash of the sharding key in a HOLD."""
        return self.due_ms


_pick = itemgetter(*map(list(ROW_DTYPE.fields or ()).index, LeaseRow._fields))


def lease_rows(rows: Rows) -> Iterator[LeaseRow]:
    """Yield the rows of a record table (`ROW_DTYPE`) as lease rows."""
    return map(LeaseRow._make, map(_pick, rows.tolist()))


class Changed(msgspec.Struct):
    """What the index lacks: groups by topic id, items by (topic id, key), dead-letter queues."""

    groups: set[int] = set()
    items: set[tuple[int, int]] = set()
    dead: set[int] = set()

    def add(self, other: "Changed") -> None:
        """Merge another one into this."""
        self.groups |= other.groups
        self.items |= other.items
        self.dead |= other.dead


class Writes(NamedTuple):
    """Rows for the index; None removes one."""

    groups: dict[int, bytes | None]
    items: dict[tuple[int, int], bytes | None]
    dead: dict[int, bytes]


class GroupTables:
    """The groups of a log; part of the log state."""

    def __init__(self) -> None:
        self.by_topic_id: dict[int, GroupState] = {}
        self.by_name: dict[str, GroupState] = {}
        self.of_topic: dict[str, list[GroupState]] = {}
        self.dead: dict[int, DeadLetters] = {}

    def apply(self, row: LeaseRow, topic_id: int, changed: Changed) -> None:
        """Apply a record with FLAG_LEASE."""
        group = self.by_topic_id.get(topic_id)
        if group is None:
            return  # a lease of a group that was deleted
        if row.kind == Kind.ACK:
            group.ack(row.queue, row.queue_offset, row.end_offset)
            changed.groups.add(topic_id)
            return
        key = _effect(group, row)
        if key is not None:
            changed.items.add((topic_id, key))
        if row.root == row.offset:
            changed.groups.add(topic_id)

    def timer_of(self, topic_id: int, root: int) -> int | None:
        """Return the offset of the pending timer of an item, None if it has none."""
        group = self.by_topic_id.get(topic_id)
        item = None if group is None else group.by_root.get(root)
        return item.offset if item is not None and item.timed else None

    def make(self, topic_id: int, name: str, changed: Changed, since: int = 0) -> GroupState:
        """Return the group of this name, created if it is new, by the record at `since`."""
        group = self.by_name.get(name)
        if group is None:
            topic, _, short = name.partition(SEPARATOR)
            group = GroupState(topic_id, topic, short)
            group.since = since
            self.by_name[name] = self.by_topic_id[topic_id] = group
            self.of_topic.setdefault(topic, []).append(group)
            changed.groups.add(topic_id)
        return group

    def drop(self, name: str, changed: Changed) -> None:
        """Remove a group with everything it holds."""
        group = self.by_name.pop(name, None)
        if group is not None:
            del self.by_topic_id[group.topic_id]
            self.of_topic[group.topic].remove(group)
            changed.groups.add(group.topic_id)
            # Emptied, so that callers that still hold it find nothing to change.
            changed.items |= {(group.topic_id, key) for key in group.reset({})}

    def reset(
        self, name: str, cursors: Mapping[str, int | list[int]], changed: Changed, since: int = 0
    ) -> None:
        """Set a group's cursors, by the record at `since`, and drop everything it holds."""
        group = self.by_name.get(name)
        if group is not None:
            keys = group.reset({int(queue): offset for queue, offset in cursors.items()})
            group.since = since
            changed.groups.add(group.topic_id)
            changed.items |= {(group.topic_id, key) for key in keys}

    def advance(self, name: str, cursors: dict[str, int], changed: Changed) -> None:
        """Move cursors forward over messages that the group's filter leaves out."""
        group = self.by_name.get(name)
        if group is not None:
            for queue, offset in cursors.items():
                if offset:
                    group.ack(int(queue), 0, offset)
            changed.groups.add(group.topic_id)

    def remove_dead(self, row: LeaseRow, topic_id: int, changed: Changed) -> None:
        """Apply the record that a dead letter was redriven or dropped."""
        self.dead_of(topic_id).remove(row.queue_offset)
        changed.dead.add(topic_id)

    def dead_of(self, topic_id: int) -> DeadLetters:
        """Return the dead-letter queue of this topic, created if it is new."""
        return self.dead.setdefault(topic_id, DeadLetters())

    # ------------------------------------------------------------------ keeping them

    def writes(self, changed: Changed) -> Writes:
        """Return the rows that the index must write for these changes."""
        groups = {number: self.by_topic_id.get(number) for number in changed.groups}
        items = {place: self.by_topic_id.get(place[0]) for place in changed.items}
        encode = msgspec.msgpack.encode
        return Writes(
            {n: None if g is None else encode(_row(g)) for n, g in groups.items()},
            {place: None if group is None else group.pack(place[1]) for place, group in items.items()},
            {number: encode(self.dead[number]) for number in changed.dead},
        )

    def restore(
        self,
        groups: Iterable[tuple[int, bytes]],
        items: Iterable[tuple[int, int, bytes]],
        dead: Iterable[tuple[int, bytes]],
    ) -> None:
        """Load what the index has; rows of items are (topic id, key, packed)."""
        by_group: dict[int, list[tuple[int, bytes]]] = {}
        for number, key, raw in items:
            by_group.setdefault(number, []).append((key, raw))
        for number, raw in groups:
            # A program before continued indexes of earlier formats, whose rows have no `since`.
            name, passed, *since = msgspec.msgpack.decode(raw)
            group = self.make(number, name, Changed(), *since)
            group.passed = {queue: OffsetSet.unpack(packed) for queue, packed in passed.items()}
            group.restore(iter(by_group.get(number, ())))
        self.dead = {number: msgspec.msgpack.decode(raw, type=DeadLetters) for number, raw in dead}

    # ------------------------------------------------------------------ beside the log

    def dump(self) -> dict[str, Any]:
        """Return all groups as JSON values by name, for the manifest of a log whose beginning is dropped."""
        return {
            name: [
                {str(queue): passed.pack() for queue, passed in group.passed.items()},
                [(key, (group.pack(key) or b"").hex()) for key in group.items],
                group.since,
            ]
            for name, group in self.by_name.items()
        }

    def load(self, name: str, topic_id: int, dumped: Any, changed: Changed) -> None:  # noqa: ANN401 - see dump
        """Load one group of a dump."""
        passed, items, *since = dumped
        group = self.make(topic_id, name, changed)
        group.since = since[0] if since else 0
        group.passed = {int(queue): OffsetSet.unpack(packed) for queue, packed in passed.items()}
        group.restore((key, bytes.fromhex(raw)) for key, raw in items)
        changed.items |= {(topic_id, key) for key in group.items}

    def __iter__(self) -> Iterator[GroupState]:
        """Iterate over every group."""
        return iter(list(self.by_name.values()))


def _row(group: GroupState) -> tuple[str, dict[int, int | list[int]], int]:
    return group.name, {queue: passed.pack() for queue, passed in group.passed.items()}, group.since


def _effect(group: GroupState, row: LeaseRow) -> int | None:
    """Apply a record to a group; returns the key of the item that changed."""
    ended = bool(row.flags & FLAG_ENDED)
    if row.kind == Kind.TIMER and row.root == row.offset:
        if row.attempt:
            place = (row.queue, row.queue_offset)
            return group.retry(*place, row.attempt, row.offset, row.due_ms, ended=ended)
        return group.lease(row.queue, row.queue_offset, row.offset, row.due_ms, ended=ended)
    if row.kind == Kind.TIMER:
        return group.retime(row.root, row.offset, row.due_ms, ended=ended)
    if row.kind == Kind.MESSAGE:
        return group.ready_again(row.root)
    if row.kind == Kind.CANCEL:
        return group.end(row.root)
    return group.hold(row.queue, row.queue_offset, row.key_hash, row.offset, alone=row.retry_follows)
