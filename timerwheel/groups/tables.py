"""All groups and dead-letter queues: finds whom a record is about and lets it take effect there.

What changed is noted in `changed` until the view's stage takes it, so that the index hears of changes only.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from timerwheel.admission import DEAD_PREFIX
from timerwheel.groups.state import DeadLetters, GroupState
from timerwheel.store.record import FLAG_ENDED, Kind

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
    """Part of the view; see `timerwheel.groups.state`."""

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

    def make(self, topic_id: int, name: str, changed: Changed) -> GroupState:
        """The group of this name, begun if it is new."""
        group = self.by_name.get(name)
        if group is None:
            topic, _, short = name.partition(SEPARATOR)
            group = GroupState(topic_id, topic, short)
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
            # Emptied, so that whoever has it in hand still finds nothing there to change.
            changed.items |= {(group.topic_id, key) for key in group.reset({})}

    def reset(self, name: str, cursors: dict[str, int], changed: Changed) -> None:
        """Set a group's cursors; it forgets what it holds."""
        group = self.by_name.get(name)
        if group is not None:
            keys = group.reset({int(queue): offset for queue, offset in cursors.items()})
            changed.groups.add(group.topic_id)
            changed.items |= {(group.topic_id, key) for key in keys}

    def advance(self, name: str, cursors: dict[str, int], changed: Changed) -> None:
        """Move cursors forward over messages that the group's filter leaves out."""
        group = self.by_name.get(name)
        if group is not None:
            for queue, offset in cursors.items():
                group.cursors[int(queue)] = max(group.cursors.get(int(queue), 0), offset)
            changed.groups.add(group.topic_id)

    def remove_dead(self, row: LeaseRow, topic_id: int, changed: Changed) -> None:
        """Let a record take effect that says that a dead letter was redriven or dropped."""
        self.dead_of(topic_id).remove(row.prior_due_ms)
        changed.dead.add(topic_id)

    def dead_of(self, topic_id: int) -> DeadLetters:
        """The dead-letter queue of this topic, begun if it is new."""
        return self.dead.setdefault(topic_id, DeadLetters())

    # ------------------------------------------------------------------ keeping them

    def writes(self, changed: Changed) -> Writes:
        """What the index has to be told of these changes."""
        groups = {number: self.by_topic_id.get(number) for number in changed.groups}
        items = {place: self.by_topic_id.get(place[0]) for place in changed.items}
        encode = msgspec.msgpack.encode
        return Writes(
            {n: None if g is None else encode((g.name, g.cursors)) for n, g in groups.items()},
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
            name, cursors = msgspec.msgpack.decode(raw, type=tuple[str, dict[int, int]])
            group = self.make(number, name, Changed())
            group.cursors = cursors
            group.restore(iter(by_group.get(number, ())))
        self.dead = {number: msgspec.msgpack.decode(raw, type=DeadLetters) for number, raw in dead}

    # ------------------------------------------------------------------ beside the log

    def dump(self) -> dict[str, Any]:
        """Everything as JSON values, groups by name: for the manifest of a log whose beginning is dropped."""
        return {
            name: [
                {str(queue): offset for queue, offset in group.cursors.items()},
                [(key, (group.pack(key) or b"").hex()) for key in group.items],
            ]
            for name, group in self.by_name.items()
        }

    def load(self, name: str, topic_id: int, dumped: Any, changed: Changed) -> None:  # noqa: ANN401 - see dump
        """One group of a dump."""
        cursors, items = dumped
        group = self.make(topic_id, name, changed)
        group.cursors = {int(queue): offset for queue, offset in cursors.items()}
        group.restore((key, bytes.fromhex(raw)) for key, raw in items)
        changed.items |= {(topic_id, key) for key in group.items}

    def __iter__(self) -> Iterator[GroupState]:
        """Every group."""
        return iter(list(self.by_name.values()))


def _effect(group: GroupState, row: LeaseRow) -> int | None:
    """Returns the key of the item that changed."""
    ended = bool(row.flags & FLAG_ENDED)
    if row.kind == Kind.TIMER and row.root == row.offset:
        return group.lease(row.queue, row.prior_due_ms, row.offset, row.due_ms, ended=ended)
    if row.kind == Kind.TIMER:
        return group.retime(row.root, row.offset, row.due_ms, ended=ended)
    if row.kind == Kind.MESSAGE:
        return group.came_back(row.root)
    if row.kind == Kind.CANCEL:
        return group.end(row.root)
    return group.hold(row.queue, row.prior_due_ms, row.due_ms, row.offset)
