"""Consumer groups on the wire; see `timerwheel.wire`."""

import datetime as dt
import re
from collections.abc import Container
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from timerwheel.errors import IllegalCursorError
from timerwheel.groups.config import (
    INVISIBLE_MS_MAX,
    NO_TERMS,
    REASON_CHARACTERS_MAX,
    RECEIVE_MAX,
    GroupConfig,
    GroupTerms,
    Start,
    config_of,
)
from timerwheel.groups.dead_letter_filter import DeadLetterFilter
from timerwheel.model.instants import instant
from timerwheel.model.listing import ALWAYS, Times
from timerwheel.model.messages import DeadLetter, Delivery, GroupInfo, ReceiptResult
from timerwheel.wire.fields import Answer, Int64, Natural, given
from timerwheel.wire.messages import Message, fields_of
from timerwheel.wire.paging import LIMIT_DEFAULT, Cursor, Limit, NextCursor, PagedCursor

WAIT_MS_MAX = 60_000
_OFFSET = re.compile(r"[0-9]{1,18}", re.ASCII)

InvisibleMs = Annotated[int, Meta(ge=1, le=INVISIBLE_MS_MAX)]
CountMax = Annotated[int, Meta(ge=1, le=RECEIVE_MAX)]
# The answer repeats each receipt; those that the service gives have 68 characters, fewer in earlier versions.
Receipt = Annotated[str, Meta(max_length=128)]
Receipts = Annotated[list[Receipt], Meta(max_length=RECEIVE_MAX)]


class GroupPath(msgspec.Struct, frozen=True):
    """One group of one topic."""

    topic: str
    group: str


class DeadPath(msgspec.Struct, frozen=True):
    """All groups with this name, on any topic: they share their dead letters."""

    group: str


class Receive(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to receive, and the receipts of the previous round to acknowledge first.

    With `create`, a missing group is created with `tags` and `start`. If the group exists with other tags or
    another start, the call is refused.
    """

    max: CountMax = 1
    invisible_ms: InvisibleMs | UnsetType = UNSET
    wait_ms: Annotated[int, Meta(ge=0, le=WAIT_MS_MAX)] = 0
    tags: str | UnsetType = UNSET
    start: Start | UnsetType = UNSET
    create: bool = False
    ack: Receipts = []


class Held(Message, frozen=True, kw_only=True):
    """A message leased to a consumer until `invisible_until_ms`, under `receipt`; `attempt` counts from 1."""

    receipt: str
    attempt: int
    invisible_until_ms: int

    @property
    def invisible_until(self) -> dt.datetime:
        """`invisible_until_ms` as an aware datetime."""
        return instant(self.invisible_until_ms)

    @classmethod
    def from_delivery(cls, delivery: Delivery) -> "Held":
        """Convert a delivery."""
        return cls(
            *fields_of(delivery.message),
            receipt=delivery.receipt,
            attempt=delivery.attempt,
            invisible_until_ms=delivery.invisible_until_ms,
        )


class Ack(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The messages to acknowledge."""

    receipts: Receipts


class Nack(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The messages to return. They are redelivered after one of the delays, by default the backoff.

    With `dead_letter` they are not: they are dead letters now, whatever attempts they have left.
    """

    receipts: Receipts
    delay_ms: Natural | UnsetType = UNSET
    delay: Annotated[str, Meta(examples=["90s", "PT90S"])] | UnsetType = UNSET
    reason: Annotated[str, Meta(max_length=REASON_CHARACTERS_MAX)] | UnsetType = UNSET
    dead_letter: bool = False


class Extend(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The messages whose leases to extend to `invisible_ms` from now."""

    receipts: Receipts
    invisible_ms: InvisibleMs


class Settled(ReceiptResult, Answer, frozen=True):
    """The result for one receipt: `code` is receipt_ended or illegal_receipt if it is not ok."""


class SettledAll(msgspec.Struct, frozen=True):
    """One result for each receipt, in order."""

    results: list[Settled]

    @classmethod
    def of(cls, results: list[ReceiptResult]) -> "SettledAll":
        """Convert the results."""
        return cls([Settled(one.receipt, one.ok, one.code) for one in results])


class Received(msgspec.Struct, frozen=True, omit_defaults=True):
    """The messages, if any, and a result for each receipt in `ack`, in order."""

    messages: list[Held]
    results: list[Settled] | UnsetType = UNSET


class Group(GroupInfo, frozen=True):
    """The current state of a group.

    It has not received `lag` messages yet; `in_flight` are leased, `waiting` wait for their next attempt,
    `ready` can be received again, `parked` wait behind an earlier message with the same sharding key. The
    oldest of all these was delivered `oldest_age_ms` ago; null if there is none.
    """

    config: GroupConfig
    oldest_age_ms: int | None

    @classmethod
    def of(cls, info: GroupInfo) -> "Group":
        """Convert the engine's form."""
        return cls(**msgspec.structs.asdict(info) | {"config": config_of(info.config)})


class Groups(msgspec.Struct, frozen=True):
    """Groups, sorted by topic and name."""

    groups: list[Group]
    cursor: PagedCursor = UNSET


class Rewind(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where to continue; give exactly one. A time means the first message delivered at it or later."""

    to: Start | UnsetType = UNSET
    time_ms: Int64 | UnsetType = UNSET
    time: Annotated[str, Meta(examples=["2026-12-24T18:00:00+01:00"])] | UnsetType = UNSET
    offsets: dict[int, Natural] | UnsetType = UNSET


class StreamQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to stream: at most `max_in_flight` unacknowledged messages, or acknowledging each as it is sent."""

    max_in_flight: CountMax = 100
    invisible_ms: InvisibleMs | UnsetType = UNSET
    tags: str | UnsetType = UNSET
    start: Start | UnsetType = UNSET
    create: bool = False
    ack: Literal["manual", "auto"] = "manual"


def terms_of(asked: Receive | StreamQuery) -> GroupTerms:
    """Return what a consumer asks of its group."""
    if asked.tags is UNSET and asked.start is UNSET and not asked.create:
        return NO_TERMS
    return GroupTerms(given(asked.tags), given(asked.start), asked.create)


class LetterConditions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which dead letters: those that meet every given condition."""

    reason: Annotated[str, Meta(description="A part of the reason, in any case")] | UnsetType = UNSET
    key: (
        Annotated[str, Meta(description="The deduplication key, or one of the `keys`", examples=["4711"])]
        | UnsetType
    ) = UNSET
    from_ms: Annotated[Natural, Meta(description="`from_ms` ≤ `dead_ms` < `until_ms`")] | UnsetType = UNSET
    until_ms: Natural | UnsetType = UNSET

    def wanted(self, topics: Container[str] | None) -> DeadLetterFilter:
        """The conditions, together with the topics of the groups; IllegalFilterError."""
        died = Times(
            ALWAYS.from_ms if self.from_ms is UNSET else self.from_ms,
            ALWAYS.until_ms if self.until_ms is UNSET else self.until_ms,
        )
        return DeadLetterFilter(
            topics=topics, reason=given(self.reason), key=given(self.key), died=died
        ).check()


class DeadQuery(LetterConditions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which dead letters, where to begin, and how many at most. `from` is an offset; give it or `cursor`."""

    first: Natural = msgspec.field(default=0, name="from")
    limit: Limit = LIMIT_DEFAULT
    cursor: Cursor | UnsetType = UNSET

    @property
    def begin(self) -> int:
        """The first offset of the page; IllegalCursorError."""
        if self.cursor is UNSET:
            return self.first
        if _OFFSET.fullmatch(self.cursor) is None:
            raise IllegalCursorError(self.cursor)
        return int(self.cursor)


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """A message that a group gave up on, with its origin and the reason."""

    offset: int
    reason: str
    attempts: int
    dead_ms: int
    origin_topic: str
    origin_id: str
    message: Message

    @classmethod
    def of(cls, letter: DeadLetter) -> "Letter":
        """Convert a dead letter."""
        return cls(**msgspec.structs.asdict(letter) | {"message": Message.of(letter.message)})


class Letters(msgspec.Struct, frozen=True):
    """Dead letters, oldest first. `next_offset` says the same as `cursor`, as an offset."""

    letters: list[Letter]
    next_offset: int | None
    cursor: NextCursor = None


class Chosen(LetterConditions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which dead letters: those at the offsets, or all. Give exactly one of the two.

    Conditions go with either: of those, only the letters that meet them are meant.
    """

    offsets: Annotated[list[Natural], Meta(max_length=RECEIVE_MAX)] | UnsetType = UNSET
    all: Literal[True] | UnsetType = UNSET


class ChosenOfTopics(Chosen, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Like `Chosen`, for the groups on these topics. `all` needs `topics`; an empty list is refused."""

    topics: Annotated[list[str], Meta(min_length=1, max_length=RECEIVE_MAX)] | UnsetType = UNSET


class RedrivenCount(msgspec.Struct, frozen=True):
    """How many went back to their group, and how many were left because the group is deleted or full."""

    redriven: int
    left: int


class DroppedCount(msgspec.Struct, frozen=True):
    """How many were dropped."""

    dropped: int
