"""The history of one message as data: what happened to it and when, and its state in each group.

`timerwheel.history.log_steps` reads it from the log; `timerwheel.history.service` and
`timerwheel.history.directory` ask for it.
"""

from enum import StrEnum
from typing import NamedTuple

import msgspec

from timerwheel.model.messages import SlotInfo, State


class What(StrEnum):
    """What happened to a message."""

    SENT = "sent"
    BEGUN = "begun"  # sent as the half message of a transaction
    FORGOTTEN = "forgotten"  # it was sent, but retention has removed the first record
    RESCHEDULED = "rescheduled"
    MOVED = "moved"  # retention stored it again
    RECALLED = "recalled"
    COMMITTED = "committed"  # its transaction was; its delay counts from here
    ROLLED_BACK = "rolled_back"
    DUE = "due"
    DELIVERED = "delivered"
    PARKED = "parked"  # only earlier versions: held until an earlier message with its sharding key is done
    HANDED_OUT = "handed_out"  # only earlier versions stored leases
    EXTENDED = "extended"  # likewise
    GIVEN_BACK = "given_back"
    EXPIRED = "expired"  # an attempt was not acknowledged in time
    TTL_OVER = "ttl_over"  # the group is done with it: it was not acknowledged within its TTL
    CAME_BACK = "came_back"
    ACKNOWLEDGED = "acknowledged"
    DEAD_LETTERED = "dead_lettered"
    GIVEN_UP = "given_up"  # a group gave up a dead letter, which stays in place
    REDRIVEN = "redriven"
    DROPPED = "dropped"


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that happened, with the log offset and the segment file of its record.

    `at_ms` is in epoch milliseconds. `due_ms` is the new due time, or the time of the group's retry. The
    event `due` has no record.
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
    """The state of a message in a group."""

    NOT_RECEIVED = "not_received"
    PASSED_OVER = "passed_over"  # the filter excludes it, or the group was moved past it
    NOT_COMMITTED = "not_committed"  # a group of kind `offsets` has not committed an offset past it
    COMMITTED_PAST = "committed_past"
    PARKED = "parked"
    IN_FLIGHT = "in_flight"
    WAITING = "waiting"
    READY = "ready"
    ACKNOWLEDGED = "acknowledged"
    EXPIRED = "expired"  # its TTL was over
    DEAD_LETTER = "dead_letter"
    GIVEN_UP = "given_up"
    DROPPED = "dropped"
    UNKNOWN = "unknown"  # the log was not read to its end


class GroupPart(msgspec.Struct, frozen=True):
    """One group's part in the history: the message's state there, and the number of attempts."""

    group: str
    standing: Standing
    attempts: int


class MessageHistory(msgspec.Struct, frozen=True):
    """The history of one message; events are in the order in which they happened.

    While the message is scheduled, `slot` is its slot in the wheel, with the count of all timers there; None
    while its transaction is open. Then, and after a rollback, `due_ms` is HALF_DUE_MS. The log was read up to
    the offset `looked_until`, and to its end if `complete`. `problem` says what could not be read.
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


class GroupNow(NamedTuple):
    """The current state of a delivered message in one group.

    `passed` means that the message needs no first attempt, `excluded` that the group's filter leaves it out.
    `since` is the log offset from which records count: where the group was created or last rewound. A group
    `by_offset` is of kind `offsets`; there `passed` means that it has committed an offset past the message.
    """

    passed: bool
    excluded: bool
    since: int
    by_offset: bool = False


class Found(NamedTuple):
    """What the index and the service's memory know about a message.

    `current` is the log offset of its current record, `queue_offset` its place in the queue if it was
    delivered. `groups` has each group of the topic by its name. `slot` is the slot of a scheduled message.
    """

    message_id: str
    state: State
    current: int
    queue_offset: int | None
    groups: dict[str, GroupNow]
    slot: SlotInfo | None = None


class Question(NamedTuple):
    """Asks which offset in queue 0 of `topic` the message at `log_offset` has; the answer may be None."""

    topic: str
    log_offset: int
