"""The story of one message as data: what happened to it and when, and where it stands with each group.

`timerwheel.history.telling` reads it from the log; `timerwheel.history.service` and
`timerwheel.history.directory` ask for it.
"""

from enum import StrEnum
from typing import NamedTuple

import msgspec

from timerwheel.model.messages import SlotInfo, State


class What(StrEnum):
    """What happened to a message."""

    SENT = "sent"
    FORGOTTEN = "forgotten"  # it was sent; what was stored then is no longer kept
    RESCHEDULED = "rescheduled"
    MOVED = "moved"  # retention stored it again
    RECALLED = "recalled"
    DUE = "due"
    DELIVERED = "delivered"
    PARKED = "parked"  # a group keeps it behind an earlier one of its sharding key
    HANDED_OUT = "handed_out"
    EXTENDED = "extended"
    GIVEN_BACK = "given_back"
    CAME_BACK = "came_back"
    ACKNOWLEDGED = "acknowledged"
    DEAD_LETTERED = "dead_lettered"
    GIVEN_UP = "given_up"  # a dead letter that a group gave up stays the dead letter that it is
    REDRIVEN = "redriven"
    DROPPED = "dropped"


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that happened, and the record that says so: its log offset and its segment's file.

    `due_ms` is when the message is due from then on, or comes back to the group. `due` itself has no record.
    """

    at_ms: int
    what: What
    offset: int | None = None
    segment: str | None = None
    group: str | None = None
    attempt: int | None = None
    due_ms: int | None = None
    lateness_ms: int | None = None
    queue_offset: int | None = None
    reason: str | None = None


class Standing(StrEnum):
    """Where a message stands with a group."""

    NOT_RECEIVED = "not_received"
    PASSED_OVER = "passed_over"  # left out by the filter, or the group was set to go on behind it
    PARKED = "parked"
    IN_FLIGHT = "in_flight"
    WAITING = "waiting"
    READY = "ready"
    ACKNOWLEDGED = "acknowledged"
    DEAD_LETTER = "dead_letter"
    GIVEN_UP = "given_up"
    DROPPED = "dropped"
    UNKNOWN = "unknown"  # the log was not looked through to its end


class GroupPart(msgspec.Struct, frozen=True):
    """One group's part in the story."""

    group: str
    standing: Standing
    attempts: int


class MessageHistory(msgspec.Struct, frozen=True):
    """One message from its sending on; events are in the order in which they happened.

    While it waits, `slot` is its place in the wheel, with all that wait there. The log was looked through up
    to the offset `looked_until`; not to its end unless `complete`. `problem` says what could not be read.
    """

    id: str
    topic: str
    queue: int
    state: State
    due_ms: int
    enqueue_ms: int
    level: int
    size_bytes: int
    events: list[Event]
    groups: list[GroupPart]
    looked_until: int
    complete: bool
    slot: SlotInfo | None = None
    problem: str | None = None


class Found(NamedTuple):
    """What the index and the memory of the service tell of a message.

    `current` is the log offset of its newest record, `queue_offset` its place if it was delivered; `cursors`
    has for each group of the topic where it goes on in that queue; `slot` is where it waits.
    """

    message_id: str
    state: State
    current: int
    queue_offset: int | None
    cursors: dict[str, int]
    slot: SlotInfo | None = None


class Question(NamedTuple):
    """Which queue offset does the message at this log offset have in queue 0 of the topic? None: none."""

    topic: str
    log_offset: int
