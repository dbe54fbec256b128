"""Messages on the wire; see `timerwheel.wire`."""

from typing import Annotated, Self

import msgspec
from msgspec import UNSET, Meta, UnsetType

from timerwheel.model.messages import MessageView, State
from timerwheel.wire.delays import Delays
from timerwheel.wire.fields import Natural

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


class PendingQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which waiting messages: `due_from_ms` ≤ due < `due_to_ms`."""

    topic: str | UnsetType = UNSET
    due_from_ms: Natural | UnsetType = UNSET
    due_to_ms: Natural | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    cursor: str | UnsetType = UNSET


class MessagePath(msgspec.Struct, frozen=True):
    """One message."""

    id: str


class KeyPath(msgspec.Struct, frozen=True):
    """The message that a deduplication key of a topic stands for."""

    topic: str
    key: str
