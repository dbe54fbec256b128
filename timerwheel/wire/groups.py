"""Consumer groups on the wire; see `timerwheel.wire`."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from timerwheel.groups.config import (
    INVISIBLE_MS_MAX,
    REASON_CHARACTERS_MAX,
    RECEIVE_MAX,
    GroupConfig,
    Start,
    config_of,
)
from timerwheel.model.messages import DeadLetter, Delivery, GroupInfo, GroupQueueInfo, ReceiptResult
from timerwheel.wire.fields import Answer, Int64, Natural
from timerwheel.wire.messages import Message

WAIT_MS_MAX = 60_000

InvisibleMs = Annotated[int, Meta(ge=1, le=INVISIBLE_MS_MAX)]
CountMax = Annotated[int, Meta(ge=1, le=RECEIVE_MAX)]
# The answer repeats each receipt; those that the service gives have 32 characters.
Receipt = Annotated[str, Meta(max_length=128)]
Receipts = Annotated[list[Receipt], Meta(max_length=RECEIVE_MAX)]


class GroupPath(msgspec.Struct, frozen=True):
    """One group of one topic."""

    topic: str
    group: str


class DeadPath(msgspec.Struct, frozen=True):
    """The groups of one name, of whatever topic: they share their dead letters."""

    group: str


class Receive(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to receive, and the receipts to acknowledge first, those of the last round.

    With `create`, a group that is not there is created, with `tags` and `start`. Of one that is there, other
    tags and another start are refused.
    """

    max: CountMax = 1
    invisible_ms: InvisibleMs | UnsetType = UNSET
    wait_ms: Annotated[int, Meta(ge=0, le=WAIT_MS_MAX)] = 0
    tags: str | UnsetType = UNSET
    start: Start | UnsetType = UNSET
    create: bool = False
    ack: Receipts = []


class Held(Message, frozen=True, kw_only=True):
    """A message that a consumer holds by `receipt` until `invisible_until_ms`; `attempt` counts from 1."""

    receipt: str
    attempt: int
    invisible_until_ms: int

    @classmethod
    def from_delivery(cls, delivery: Delivery) -> "Held":
        """The wire's form of a delivery."""
        return cls.of(
            delivery.message,
            receipt=delivery.receipt,
            attempt=delivery.attempt,
            invisible_until_ms=delivery.invisible_until_ms,
        )


class Ack(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """These messages are done."""

    receipts: Receipts


class Nack(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """These messages are to come again, after one of the delays or the backoff of their attempt."""

    receipts: Receipts
    delay_ms: Natural | UnsetType = UNSET
    delay: Annotated[str, Meta(examples=["90s", "PT90S"])] | UnsetType = UNSET
    reason: Annotated[str, Meta(max_length=REASON_CHARACTERS_MAX)] | UnsetType = UNSET


class Extend(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """These messages are to be held for so long from now."""

    receipts: Receipts
    invisible_ms: InvisibleMs


class Settled(Answer, frozen=True):
    """What became of one receipt: `code` is receipt_ended or illegal_receipt if it is not ok."""

    receipt: str
    ok: bool
    code: str | None = None


class SettledAll(msgspec.Struct, frozen=True):
    """One result for each receipt, in order."""

    results: list[Settled]

    @classmethod
    def of(cls, results: list[ReceiptResult]) -> "SettledAll":
        """The wire's form of the results."""
        return cls([Settled(one.receipt, one.ok, one.code) for one in results])


class Received(msgspec.Struct, frozen=True, omit_defaults=True):
    """Messages, none if there are none, and a result for each receipt in `ack`, in order."""

    messages: list[Held]
    results: list[Settled] | UnsetType = UNSET


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A group now.

    `lag` messages it has not seen; `in_flight` are with consumers, `waiting` wait for their next attempt,
    `ready` can be received again, `parked` wait behind an earlier message with the same sharding key. The
    oldest of all these was delivered `oldest_age_ms` ago; null if there is none.
    """

    topic: str
    group: str
    config: GroupConfig
    ordered: bool
    queues: list[GroupQueueInfo]
    lag: int
    in_flight: int
    waiting: int
    ready: int
    parked: int
    dead_letters: int
    oldest_age_ms: int | None

    @classmethod
    def of(cls, info: GroupInfo) -> "Group":
        """The wire's form of what the engine tells."""
        return cls(**msgspec.structs.asdict(info) | {"config": config_of(info.config)})


class Groups(msgspec.Struct, frozen=True):
    """Groups by topic and name."""

    groups: list[Group]


class Rewind(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where to go on: exactly one of the four. `offsets` by queue; what is delivered from a time on."""

    to: Start | UnsetType = UNSET
    time_ms: Int64 | UnsetType = UNSET
    time: Annotated[str, Meta(examples=["2026-12-24T18:00:00+01:00"])] | UnsetType = UNSET
    offsets: dict[int, Natural] | UnsetType = UNSET


class StreamQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to stream: up to `max_in_flight` messages unacknowledged, or each acknowledged once it is sent."""

    max_in_flight: CountMax = 100
    invisible_ms: InvisibleMs | UnsetType = UNSET
    tags: str | UnsetType = UNSET
    start: Start | UnsetType = UNSET
    create: bool = False
    ack: Literal["manual", "auto"] = "manual"


class DeadQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """From which offset on, and how many."""

    first: Natural = msgspec.field(default=0, name="from")
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """A message that a group gave up, with where it came from and why."""

    offset: int
    reason: str
    attempts: int
    dead_ms: int
    origin_topic: str
    origin_id: str
    message: Message

    @classmethod
    def of(cls, letter: DeadLetter) -> "Letter":
        """The wire's form of a letter."""
        return cls(**msgspec.structs.asdict(letter) | {"message": Message.of(letter.message)})


class Letters(msgspec.Struct, frozen=True):
    """Dead letters, oldest first; `next_offset` is where the next page begins and null on the last."""

    letters: list[Letter]
    next_offset: int | None


class Chosen(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which dead letters: those at the offsets, or all there are now; exactly one of the two."""

    offsets: Annotated[list[Natural], Meta(max_length=RECEIVE_MAX)] | UnsetType = UNSET
    all: Literal[True] | UnsetType = UNSET


class ChosenOfTopics(Chosen, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As `Chosen`, of the groups on these topics. `all` needs `topics`; an empty list is refused."""

    topics: Annotated[list[str], Meta(min_length=1, max_length=RECEIVE_MAX)] | UnsetType = UNSET


class RedrivenCount(msgspec.Struct, frozen=True):
    """How many went back to their group, and how many stay since it is gone or full."""

    redriven: int
    left: int


class DroppedCount(msgspec.Struct, frozen=True):
    """How many were forgotten."""

    dropped: int
