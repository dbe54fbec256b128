"""What goes over the wire: the same types validate requests, shape answers and describe both in OpenAPI.

Times and durations are milliseconds, bodies are text or base64. Requests refuse unknown fields and wrong
types; a field that may be left out is not the same as one that is null.
"""

from typing import Annotated, Literal, Self

import msgspec
from msgspec import UNSET, Meta, UnsetType

from timerwheel.model.messages import LevelInfo, MessageView, QueuePage, SlotInfo, State, TopicInfo

INT64_MAX = 2**63 - 1
Int64 = Annotated[int, Meta(ge=-INT64_MAX - 1, le=INT64_MAX)]
Natural = Annotated[int, Meta(ge=0, le=INT64_MAX)]


class Delays(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """When to deliver: at most one of the five, and none beside a delay property in `properties`."""

    delay_ms: Int64 | UnsetType = UNSET
    delay: Annotated[str, Meta(examples=["90s", "1h30m", "PT90S"])] | UnsetType = UNSET
    deliver_at_ms: Int64 | UnsetType = UNSET
    deliver_at: Annotated[str, Meta(examples=["2026-12-24T18:00:00+01:00"])] | UnsetType = UNSET
    delay_level: Int64 | UnsetType = UNSET


AfterRecall = Annotated[
    str, Meta(description="Id of the recalled message under this key: the same is sent again on purpose")
]


class NewMessage(Delays, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A message to store: `body` as text or `body_base64` as bytes, neither is an empty body."""

    topic: Annotated[str, Meta(description="1 to 127 of A-Z a-z 0-9 _ % | -", examples=["orders"])]
    body: str | UnsetType = UNSET
    body_base64: bytes | UnsetType = UNSET
    properties: dict[str, str] | UnsetType = UNSET
    tags: str | UnsetType = UNSET
    keys: str | list[str] | UnsetType = UNSET
    dedup_key: (
        Annotated[str, Meta(description="Stored once under this key", examples=["order-17"])] | UnsetType
    ) = UNSET
    after_recall: AfterRecall | UnsetType = UNSET


class RawQuery(Delays, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a query says of a message whose body is the request's; any other name is a property."""

    tags: str | UnsetType = UNSET
    keys: str | UnsetType = UNSET
    dedup_key: (
        Annotated[str, Meta(description="Stored once under this key", examples=["order-17"])] | UnsetType
    ) = UNSET
    after_recall: AfterRecall | UnsetType = UNSET


class NewTime(Delays, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A new due time for a waiting message: one delay field, or delay properties by RocketMQ's names."""

    properties: dict[str, str] | UnsetType = UNSET


class Accepted(msgspec.Struct, frozen=True):
    """The message is stored for good and falls due at `due_ms`.

    `duplicate` is there if it was stored before, under the same deduplication key.
    """

    id: str
    topic: str
    due_ms: int
    state: State
    duplicate: bool | UnsetType = UNSET


class Message(msgspec.Struct, frozen=True):
    """A message as it stands; fields that do not apply are left out."""

    id: str
    topic: str
    queue: int
    state: State
    due_ms: int
    enqueue_ms: int
    properties: dict[str, str]
    level: int | UnsetType = UNSET
    tags: str | UnsetType = UNSET
    keys: list[str] | UnsetType = UNSET
    dedup_key: str | UnsetType = UNSET
    body: str | UnsetType = UNSET
    body_base64: bytes | UnsetType = UNSET
    delivered_ms: int | UnsetType = UNSET
    lateness_ms: int | UnsetType = UNSET
    offset: int | UnsetType = UNSET
    recalled_ms: int | UnsetType = UNSET
    problem: str | UnsetType = UNSET

    @classmethod
    def of(cls, view: MessageView, **more: object) -> Self:
        """The wire's form of a view: text when the body is UTF-8, else base64. `more` is a subclass's."""
        body: str | UnsetType = UNSET
        body_base64: bytes | UnsetType = UNSET
        try:
            body = view.body.decode()
        except UnicodeDecodeError:
            body_base64 = view.body
        properties = view.properties
        keys = properties.get("KEYS")
        # By place, in the order of the fields: names would double what a page of messages costs.
        return cls(
            view.id,
            view.topic,
            view.queue,
            view.state,
            view.due_ms,
            view.enqueue_ms,
            properties,
            view.level or UNSET,
            properties.get("TAGS", UNSET),
            UNSET if keys is None else keys.split(),
            properties.get("DEDUP_KEY", UNSET),
            body,
            body_base64,
            UNSET if view.delivered_ms is None else view.delivered_ms,
            UNSET if view.delivered_ms is None else view.delivered_ms - view.due_ms,
            UNSET if view.queue_offset is None else view.queue_offset,
            UNSET if view.recalled_ms is None else view.recalled_ms,
            UNSET if view.problem is None else view.problem,
            **more,
        )


class Pending(msgspec.Struct, frozen=True):
    """Waiting messages in due order; `cursor` asks for the next page and is null on the last."""

    messages: list[Message]
    cursor: str | None


class Delivered(msgspec.Struct, frozen=True):
    """Delivered messages of one queue; `next_offset` is where the next read goes on."""

    messages: list[Message]
    next_offset: int
    min_offset: int
    max_offset: int

    @classmethod
    def of(cls, page: QueuePage) -> "Delivered":
        """The wire's form of a page, without its messages."""
        return cls([], page.next_offset, page.min_offset, page.max_offset)


class Topics(msgspec.Struct, frozen=True):
    """All topics."""

    topics: list[TopicInfo]


class TopicChanges(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What of a topic is to change."""

    ordered: bool


class Slots(msgspec.Struct, frozen=True):
    """Slots in use, earliest first."""

    slots: list[SlotInfo]


class Levels(msgspec.Struct, frozen=True):
    """The delay levels."""

    levels: list[LevelInfo]


class Health(msgspec.Struct, frozen=True):
    """How the service is."""

    status: str


class Readiness(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether the service works; `refusing` says why it takes no new messages although it does."""

    status: str
    refusing: str | UnsetType = UNSET


class ItemFault(msgspec.Struct, frozen=True):
    """What is wrong with one message of an array; `index` is its place, from 0."""

    index: int
    code: str
    detail: str


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """An error (RFC 9457); programs match on `code`.

    `errors` names every bad message of an array, `max_offset` where a queue ends that was read from behind
    its end, `free_ms` the next second with room.
    """

    type: str
    title: str
    status: int
    code: str
    detail: str
    errors: list[ItemFault] | UnsetType = UNSET
    max_offset: int | UnsetType = UNSET
    free_ms: int | UnsetType = UNSET


class PendingQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which waiting messages: `due_from_ms` ≤ due < `due_to_ms`."""

    topic: str | UnsetType = UNSET
    due_from_ms: Natural | UnsetType = UNSET
    due_to_ms: Natural | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    cursor: str | UnsetType = UNSET


class ReadQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where to read (-1: what comes from now on), how much, and how long to wait when there is nothing."""

    offset: Annotated[int, Meta(ge=-1, le=INT64_MAX)] = 0
    max: Annotated[int, Meta(ge=1, le=1000)] = 32
    wait_ms: Annotated[int, Meta(ge=0, le=60_000)] = 0


class SlotsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which slots: of one level or all, those that start in `from_ms` ≤ start < `to_ms`."""

    level: Literal["second", "minute", "hour", "day"] | UnsetType = UNSET
    from_ms: Natural = 0
    to_ms: Natural = INT64_MAX


class NoQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No query parameters are taken."""


class ReadinessQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"purpose": "for"}):
    """What one would use the service for: `send` asks whether new messages are taken, too."""

    purpose: Literal["send"] | UnsetType = UNSET


class MessagePath(msgspec.Struct, frozen=True):
    """One message."""

    id: str


class TopicPath(msgspec.Struct, frozen=True):
    """One topic; `%`, `|` and other special characters percent-encoded."""

    topic: str


class KeyPath(msgspec.Struct, frozen=True):
    """The message that a deduplication key of a topic stands for."""

    topic: str
    key: str


class QueuePath(msgspec.Struct, frozen=True):
    """One queue of a topic."""

    topic: str
    queue: Annotated[int, Meta(ge=0, le=65_535)]
