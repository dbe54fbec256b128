r"""What the log says of consumer groups: derived from it, record by record, like all state.

A group reads a topic's consume queues. Of each queue it knows which messages need no first attempt any more:
those it acknowledged, those its filter leaves out, and those it holds for another attempt. This is a set of
queue offsets (`OffsetSet`); the stretch from 0 on is the group's *cursor*. Leases are not in the log: they
live in memory (`timerwheel.groups.leases`), and a message that is leased is to the log one that nobody took.

What failed an attempt is an *item* of the group until it is done:

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

Earlier versions kept leases in the log. An item whose lease was there is LEASED until its timer fires; one
that waited behind an earlier message with its key is PARKED. Such a lease or HOLD record moved the cursor
past all that lay before it.

Invariants:
1. An item's offset is in the group's set, so that nobody takes it for a fresh one.
2. The timers that wait in the topic `topic/group` are those of the LEASED and WAITING items, one each.
3. `ready` has exactly the items that may be leased now, in the order in which they became ready.

Belongs to the event loop (and to the recovering thread before the loop uses it).
"""

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from timerwheel.model.admission import DEAD_PREFIX
from timerwheel.state.offset_set import OffsetSet
from timerwheel.store.record import FLAG_ENDED, Kind
from timerwheel.store.table import ROW_DTYPE, Rows

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
    """A message that failed `attempt` attempts; `root` is its retry's first record and `offset` its last.

    Before there is a retry they are of its HOLD record. `ended` if it was given back: the receipt of that
    attempt is good no more. `lent` while it is READY and somebody has it: not from the log.
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
        """Queue and queue offset as one number; orders items of one queue."""
        return self.queue << OFFSET_BITS | self.queue_offset

    @property
    def timed(self) -> bool:
        """Whether a timer of it waits in the wheel."""
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
        """Of each queue the first offset that the group may not have seen."""
        return {queue: passed.low for queue, passed in self.passed.items()}

    def passed_of(self, queue: int) -> OffsetSet:
        """What of a queue needs no first attempt, begun if it is new."""
        passed = self.passed.get(queue)
        if passed is None:
            passed = self.passed[queue] = OffsetSet()
        return passed

    # ------------------------------------------------------------------ what records say

    def ack(self, queue: int, first: int, end: int) -> None:
        """The messages from one queue offset up to another are done, or not for this group."""
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
        """A message is of a lane; returns the item's key. `alone` if that says nothing of earlier ones."""
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
        """A message was given to a consumer, or with `ended` set to wait; returns the item's key."""
        item = self.items.get(queue << OFFSET_BITS | queue_offset)
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
        self.passed = {queue: OffsetSet.unpack(offset) for queue, offset in cursors.items()}
        return keys

    # ------------------------------------------------------------------ who has it, which no record says

    def lend(self, item: Item) -> None:
        """Somebody has this READY item: nobody else may."""
        if not item.lent:
            item.lent = True
            self.lent += 1
            self._offer(item)

    def give_back(self, item: Item) -> None:
        """Nobody has this item any more: it is as ready as it was, last of all."""
        self._take_back(item)
        if self.items.get(item.key) is item:
            self._offer(item)

    def _take_back(self, item: Item) -> None:
        if item.lent:
            item.lent = False
            self.lent -= 1

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
        """Put the item among the ready ones, or take it from there, as its state and its lane say."""
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


SEPARATOR = "/"


def is_internal(topic: str) -> bool:
    """Whether a topic's records are the service's own: leases of a group, or settings."""
    return SEPARATOR in topic


def group_topic(topic: str, group: str) -> str:
    """The topic in which the leases of a group lie."""
    return topic + SEPARATOR + group


def dead_topic(group: str) -> str:
    """The topic that takes a group's dead letters."""
    return DEAD_PREFIX + group


class LeaseRow(NamedTuple):
    """What a record with FLAG_LEASE says, as the record table has it."""

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
        """Where the message lies in its queue: in HOLD, ACK, a first record, a CANCEL without origin."""
        return self.prior_due_ms

    @property
    def end_offset(self) -> int:
        """One past the last message of an ACK."""
        return self.due_ms

    @property
    def attempt(self) -> int:
        """Which attempt failed, in the first record of a retry; 0 in records of leases."""
        return self.rolls

    @property
    def key_hash(self) -> int:
        """The hash of the sharding key that a HOLD keeps its message for."""
        return self.due_ms


_pick = itemgetter(*map(list(ROW_DTYPE.fields or ()).index, LeaseRow._fields))


def lease_rows(rows: Rows) -> Iterator[LeaseRow]:
    """Rows of a record table (`ROW_DTYPE`), as lease rows."""
    return map(LeaseRow._make, map(_pick, rows.tolist()))


class Changed(msgspec.Struct):
    """What the index does not have yet: groups by topic id, items by (topic id, key), dead-letter queues."""

    groups: set[int] = set()
    items: set[tuple[int, int]] = set()
    dead: set[int] = set()

    def add(self, other: "Changed") -> None:
        """Take over another's."""
        self.groups |= other.groups
        self.items |= other.items
        self.dead |= other.dead


class Writes(NamedTuple):
    """Rows for the index; None removes one."""

    groups: dict[int, bytes | None]
    items: dict[tuple[int, int], bytes | None]
    dead: dict[int, bytes]


class GroupTables:
    """Part of the log state; see `timerwheel.state.groups`."""

    def __init__(self) -> None:
        self.by_topic_id: dict[int, GroupState] = {}
        self.by_name: dict[str, GroupState] = {}
        self.of_topic: dict[str, list[GroupState]] = {}
        self.dead: dict[int, DeadLetters] = {}

    def apply(self, row: LeaseRow, topic_id: int, changed: Changed) -> None:
        """Let a record with FLAG_LEASE take effect."""
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
        """The offset of the timer that waits for a lease, None if none does."""
        group = self.by_topic_id.get(topic_id)
        item = None if group is None else group.by_root.get(root)
        return item.offset if item is not None and item.timed else None

    def make(self, topic_id: int, name: str, changed: Changed, since: int = 0) -> GroupState:
        """The group of this name, begun if it is new, by the record at `since`."""
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
        """Forget a group and all that it holds."""
        group = self.by_name.pop(name, None)
        if group is not None:
            del self.by_topic_id[group.topic_id]
            self.of_topic[group.topic].remove(group)
            changed.groups.add(group.topic_id)
            # Emptied, so that callers that still hold it find nothing to change.
            changed.items |= {(group.topic_id, key) for key in group.reset({})}

    def reset(self, name: str, cursors: dict[str, int], changed: Changed, since: int = 0) -> None:
        """Set a group's cursors, by the record at `since`; it forgets what it holds."""
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
        """Let a record take effect that says that a dead letter was redriven or dropped."""
        self.dead_of(topic_id).remove(row.queue_offset)
        changed.dead.add(topic_id)

    def dead_of(self, topic_id: int) -> DeadLetters:
        """The dead-letter queue of this topic, begun if it is new."""
        return self.dead.setdefault(topic_id, DeadLetters())

    # ------------------------------------------------------------------ keeping them

    def writes(self, changed: Changed) -> Writes:
        """What the index has to write for these changes."""
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
        """Take what the index kept; rows of items are (topic id, key, packed)."""
        by_group: dict[int, list[tuple[int, bytes]]] = {}
        for number, key, raw in items:
            by_group.setdefault(number, []).append((key, raw))
        for number, raw in groups:
            name, passed, *since = msgspec.msgpack.decode(raw)
            group = self.make(number, name, Changed(), *since)
            group.passed = {queue: OffsetSet.unpack(packed) for queue, packed in passed.items()}
            group.restore(iter(by_group.get(number, ())))
        self.dead = {number: msgspec.msgpack.decode(raw, type=DeadLetters) for number, raw in dead}

    # ------------------------------------------------------------------ beside the log

    def dump(self) -> dict[str, Any]:
        """Everything as JSON values, groups by name: for the manifest of a log whose beginning is dropped."""
        return {
            name: [
                {str(queue): passed.pack() for queue, passed in group.passed.items()},
                [(key, (group.pack(key) or b"").hex()) for key in group.items],
                group.since,
            ]
            for name, group in self.by_name.items()
        }

    def load(self, name: str, topic_id: int, dumped: Any, changed: Changed) -> None:  # noqa: ANN401 - see dump
        """One group of a dump."""
        passed, items, *since = dumped
        group = self.make(topic_id, name, changed)
        group.since = since[0] if since else 0
        group.passed = {int(queue): OffsetSet.unpack(packed) for queue, packed in passed.items()}
        group.restore((key, bytes.fromhex(raw)) for key, raw in items)
        changed.items |= {(topic_id, key) for key in group.items}

    def __iter__(self) -> Iterator[GroupState]:
        """Every group."""
        return iter(list(self.by_name.values()))


def _row(group: GroupState) -> tuple[str, dict[int, int | list[int]], int]:
    return group.name, {queue: passed.pack() for queue, passed in group.passed.items()}, group.since


def _effect(group: GroupState, row: LeaseRow) -> int | None:
    """Returns the key of the item that changed."""
    ended = bool(row.flags & FLAG_ENDED)
    if row.kind == Kind.TIMER and row.root == row.offset:
        if row.attempt:
            place = (row.queue, row.queue_offset)
            return group.retry(*place, row.attempt, row.offset, row.due_ms, ended=ended)
        return group.lease(row.queue, row.queue_offset, row.offset, row.due_ms, ended=ended)
    if row.kind == Kind.TIMER:
        return group.retime(row.root, row.offset, row.due_ms, ended=ended)
    if row.kind == Kind.MESSAGE:
        return group.came_back(row.root)
    if row.kind == Kind.CANCEL:
        return group.end(row.root)
    return group.hold(row.queue, row.queue_offset, row.key_hash, row.offset, alone=bool(row.attempt))
