"""The shapes that the engine takes and gives: what a client sends and what the service answers.

Pure data. Times are epoch milliseconds of the wall clock, bodies are bytes, properties are strings.
"""

import datetime as dt
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Literal, NamedTuple

import msgspec

from timerwheel.model.instants import instant


class State(StrEnum):
    """The state of a message; the legal transitions are scheduled → delivered and scheduled → recalled."""

    SCHEDULED = "scheduled"
    DELIVERED = "delivered"
    RECALLED = "recalled"


class Outgoing(msgspec.Struct, frozen=True, gc=False):
    """A message as a client sends it; tags, keys and delays are properties (RocketMQ's names).

    With a `dedup_key` it is stored once: see `timerwheel.index.dedup`; `after_recall` is the id of the
    recalled message that it follows under that key. `after_ms` and `at_ms` are TIMER_DELAY_MS and
    TIMER_DELIVER_MS as numbers, which are faster to read; at most one of them is set, and neither with a key.
    Only the service sets `own`, for a run of a schedule, whose key has its own domain.

    `queue` is the queue of the topic that it goes to; without it the service chooses one. `envelope` is what
    another protocol keeps with the message: stored as the property ENVELOPE_PROPERTY, which does not count.
    Only the service sets `to_reserved`: the topic is one of its own, that of a task queue or of traces.
    `plain` are the properties as the log stores them, with the envelope, instead of `properties`: JSON whose
    names `admission.are_plain` allows, within the limits. Then a delay is a number, and there is no key.
    A delay counts from `from_ms`, if that is in the past, instead of from now.

    With `replaces` the message is stored in any case: it takes the key, and the place of the message that
    the key names, if that is still scheduled.
    """

    topic: str
    body: bytes
    properties: dict[str, str] = {}
    dedup_key: str | None = None
    after_ms: int | None = None
    at_ms: int | None = None
    after_recall: str | None = None
    own: bool = False
    queue: int | None = None
    envelope: str = ""
    from_ms: int | None = None
    replaces: bool = False
    to_reserved: bool = False
    plain: bytes = b""

    @property
    def spelled(self) -> dict[str, str]:
        """Return all properties, including the delay; a new dict unless there is nothing to add."""
        if self.after_ms is not None:
            return {**self.properties, "TIMER_DELAY_MS": str(self.after_ms)}
        if self.at_ms is not None:
            return {**self.properties, "TIMER_DELIVER_MS": str(self.at_ms)}
        return self.properties


class Alike(msgspec.Struct, frozen=True, gc=False):
    """Messages for one queue of a topic, without delays and keys: each is `Outgoing` with `plain` set.

    `bodies` and `plain` have the same length, and there is at least one message.
    """

    topic: str
    queue: int
    bodies: Sequence[bytes]
    plain: Sequence[bytes]

    def __len__(self) -> int:
        """The number of messages."""
        return len(self.bodies)

    def separate(self) -> list[Outgoing]:
        """Return the messages one by one."""
        topic, queue = self.topic, self.queue
        return [
            Outgoing(topic, body, queue=queue, plain=plain)
            for body, plain in zip(self.bodies, self.plain, strict=True)
        ]


class Receipt(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The answer to a send or a reschedule: durable, and due at `due_ms`. Its JSON is the wire's `Accepted`.

    `duplicate` says that nothing was stored, because the same message was sent before under its deduplication
    key. `replaced` is the id of the scheduled message that was recalled for this one.
    """

    id: str
    topic: str
    due_ms: int
    state: State
    duplicate: bool = False
    replaced: str | None = None

    @property
    def due(self) -> dt.datetime:
        """`due_ms` as an aware datetime."""
        return instant(self.due_ms)


class OpenTransaction(msgspec.Struct, frozen=True):
    """A transaction that is neither committed nor rolled back; its sender is asked at `next_check_ms`."""

    id: str
    topic: str
    began_ms: int
    checks: int
    next_check_ms: int


class OpenPage(msgspec.Struct, frozen=True):
    """Open transactions, oldest first; pass `cursor` back for the next page, None at the end.

    A page may have fewer than were asked for, or none, and not be the last one.
    """

    transactions: list[OpenTransaction]
    cursor: str | None


class MessageView(msgspec.Struct, frozen=True):
    """A message and its current state.

    `queue_offset` and `delivered_ms` are set once it is delivered, `recalled_ms` once recalled. `envelope` is
    that of `Outgoing`.
    """

    id: str
    topic: str
    queue: int
    state: State
    due_ms: int
    level: int
    enqueue_ms: int
    properties: dict[str, str]
    body: bytes
    delivered_ms: int | None = None
    queue_offset: int | None = None
    recalled_ms: int | None = None
    problem: str | None = None
    envelope: str = ""

    @property
    def lateness_ms(self) -> int | None:
        """Milliseconds from due to delivered, or None while it is scheduled."""
        return None if self.delivered_ms is None else self.delivered_ms - self.due_ms


class Delivery(msgspec.Struct, frozen=True):
    """A message leased to a worker of a group: acknowledge it by `receipt` before `invisible_until_ms`.

    `attempt` counts from 1.
    """

    message: MessageView
    receipt: str
    attempt: int
    invisible_until_ms: int


class ReceiptResult(msgspec.Struct, frozen=True):
    """The result for one receipt: `code` is receipt_ended or illegal_receipt if it is not ok."""

    receipt: str
    ok: bool
    code: str | None = None


class GroupQueueInfo(msgspec.Struct, frozen=True):
    """The position of a group in one queue: from `cursor` on it has not seen `lag` messages."""

    queue: int
    cursor: int
    max_offset: int
    lag: int


class GroupCounts(NamedTuple):
    """Message counts of one group, as in `GroupInfo`."""

    topic: str
    group: str
    lag: int
    in_flight: int
    waiting: int
    ready: int
    parked: int


class GroupInfo(msgspec.Struct, frozen=True):
    """A group and its current counts.

    `in_flight` messages are leased, `waiting` messages wait for their retry, `ready` messages can be received
    again, `parked` messages wait behind an earlier one with the same key. Nobody receives any while its topic
    is `paused`.
    """

    topic: str
    group: str
    config: Any
    ordered: bool
    queues: list[GroupQueueInfo]
    lag: int
    in_flight: int
    waiting: int
    ready: int
    parked: int
    dead_letters: int
    oldest_age_ms: int | None = None
    paused: bool = False


class DeadLetter(msgspec.Struct, frozen=True):
    """A message that a group gave up, with its origin and the reason."""

    message: MessageView
    offset: int
    origin_topic: str
    origin_id: str
    reason: str
    attempts: int
    dead_ms: int


class DeadPage(msgspec.Struct, frozen=True):
    """Dead letters of a group, oldest first; pass `next_offset` back for more, None at the end."""

    letters: list[DeadLetter]
    next_offset: int | None


class PendingPage(msgspec.Struct, frozen=True):
    """Pending messages in due order; pass `cursor` back for the next page, None at the end."""

    messages: list[MessageView]
    cursor: str | None


class QueuePage(msgspec.Struct, frozen=True):
    """Delivered messages of one queue from an offset on."""

    messages: list[MessageView]
    next_offset: int
    min_offset: int
    max_offset: int


class QueueInfo(msgspec.Struct, frozen=True):
    """One consume queue: readable offsets are `min_offset` ≤ offset < `max_offset`."""

    queue: int
    min_offset: int
    max_offset: int


class TopicInfo(msgspec.Struct, frozen=True):
    """One topic: `visible` delivered messages kept, `pending` ones scheduled. System topics have no queues.

    Of its `queue_count` queues, `queues` has those that a message went to.

    Of an `ordered` topic, a group has no more than one message of each sharding key in flight. No consumer
    gets messages of a topic that is `paused`. A topic that is `ending` is being deleted: its queues are
    empty for all readers, and `pending` falls to 0. `to_kafka` says whether delivered messages go to the
    Kafka topic of this name: null until a record of Kafka names the topic, false if that is not allowed.
    """

    topic: str
    queues: list[QueueInfo]
    visible: int
    pending: int
    system: bool = False
    ordered: bool = False
    queue_count: int = 0
    ending: bool = False
    paused: bool = False
    to_kafka: bool | None = None


class EndingGroup(msgspec.Struct, frozen=True):
    """A group that goes with its topic; `left` are the messages that it is not done with."""

    group: str
    left: int


class TopicDeletion(msgspec.Struct, frozen=True):
    """The deletion of a topic: `state` is "planned" in a dry run, "ending" while it goes on, then "deleted".

    `pending` messages are scheduled or belong to open transactions, `visible` are delivered and kept. They
    go, and so do these groups, schedules and subscriptions, by name or id.
    """

    topic: str
    state: Literal["planned", "ending", "deleted"]
    pending: int
    visible: int
    groups: list[EndingGroup]
    schedules: list[str]
    subscriptions: list[str]


class PurgedGroup(msgspec.Struct, frozen=True):
    """A group whose topic was purged, and how many of the purged messages it was not done with."""

    group: str
    dropped: int


class TopicPurged(msgspec.Struct, frozen=True):
    """What a purge of a topic took away; in a dry run what it would take away.

    `scheduled` messages were recalled, `delivered` ones are hidden from all readers. `missed` were scheduled
    when it began and fell due in between: they are delivered.
    """

    topic: str
    dry_run: bool
    scheduled: int = 0
    delivered: int = 0
    missed: int = 0
    groups: list[PurgedGroup] = []


class LevelInfo(msgspec.Struct, frozen=True):
    """One delay level of the operator's table."""

    level: int
    text: str
    delay_ms: int
    pending: int
    next_due_ms: int | None


class SlotInfo(msgspec.Struct, frozen=True):
    """One slot of the wheel: due times in `start_ms` ≤ due < `end_ms`."""

    level: str
    start_ms: int
    end_ms: int
    count: int


class WheelLevelInfo(msgspec.Struct, frozen=True):
    """One level of the wheel: slot width, slots in use, messages in them."""

    level: str
    slot_ms: int
    slots: int
    count: int
    first_ms: int | None
    last_ms: int | None


class SetAsideInfo(msgspec.Struct, frozen=True):
    """A quarantined message: due, but unreadable. It stays pending, and the next start retries it."""

    id: str
    due_ms: int
    log_offset: int
    reason: str


class WheelInfo(msgspec.Struct, frozen=True):
    """A summary of the wheel: scheduled messages, and the `leases` of consumer groups that it times too.

    Levels and slots count both.
    """

    now_ms: int
    pending: int
    overdue: int
    next_due_ms: int | None
    levels: list[WheelLevelInfo]
    set_aside: list[SetAsideInfo]
    leases: int = 0
