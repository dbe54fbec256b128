"""Messages on the wire; see `timerwheel.wire`."""

import datetime as dt
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from timerwheel.model.instants import instant, instant_or_none
from timerwheel.model.limits import ATTEMPTS_MAX, TTL_MS_MAX
from timerwheel.model.messages import MessageView, Receipt, State
from timerwheel.model.properties import KEYS, TAGS
from timerwheel.wire.delays import Delays
from timerwheel.wire.fields import Answer, Json, Natural, text_or_bytes
from timerwheel.wire.paging import LIMIT_DEFAULT, Cursor, Limit, NextCursor

Kind = TypeVar("Kind")
DedupKey = Annotated[
    str, Meta(description="Deduplication key: a second send with it stores nothing", examples=["order-17"])
]
AfterRecall = Annotated[
    str, Meta(description="Id of the recalled message with this key, to send it again on purpose")
]


OnDuplicate = Annotated[
    Literal["return", "replace"],
    Meta(
        description="What to do if the key names a message: `return` (default) stores nothing, `replace` "
        "stores this one and recalls the other if it is still scheduled"
    ),
]
Queue = Annotated[int, Meta(ge=0, description="Queue of the topic; without it, the service chooses")]


Ttl = Annotated[str, Meta(description="As `ttl_ms`, as a length of time", examples=["10m", "1h30m", "PT10M"])]
TtlMs = Annotated[
    int,
    Meta(ge=1, le=TTL_MS_MAX, description="Groups get it no later than so many ms after its delivery"),
]
MaxAttempts = Annotated[
    int, Meta(ge=1, le=ATTEMPTS_MAX, description="Attempts of each group, in place of the group's setting")
]


class NewMessage(Delays, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A message to store. Give one of `body`, `body_base64` (bytes) and `json`, or none for an empty body.

    With `json` the property `CONTENT_TYPE` is `application/json`, unless another one is given.
    """

    topic: Annotated[str, Meta(description="1 to 127 characters of A-Z a-z 0-9 _ % | -", examples=["orders"])]
    body: str | UnsetType = UNSET
    body_base64: bytes | UnsetType = UNSET
    json: Json | UnsetType = UNSET
    properties: dict[str, str] | UnsetType = UNSET
    tags: str | UnsetType = UNSET
    keys: str | list[str] | UnsetType = UNSET
    queue: Queue | UnsetType = UNSET
    dedup_key: DedupKey | UnsetType = UNSET
    after_recall: AfterRecall | UnsetType = UNSET
    on_duplicate: OnDuplicate | UnsetType = UNSET
    ttl: Ttl | UnsetType = UNSET
    ttl_ms: TtlMs | UnsetType = UNSET
    max_attempts: MaxAttempts | UnsetType = UNSET


class RawQuery(Delays, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The query for a message whose body is the request's; any other parameter becomes a property."""

    tags: str | UnsetType = UNSET
    keys: str | UnsetType = UNSET
    dedup_key: DedupKey | UnsetType = UNSET
    after_recall: AfterRecall | UnsetType = UNSET
    on_duplicate: OnDuplicate | UnsetType = UNSET
    ttl: Ttl | UnsetType = UNSET
    ttl_ms: TtlMs | UnsetType = UNSET
    max_attempts: MaxAttempts | UnsetType = UNSET


class NewTime(Delays, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A new due time for a scheduled message: one delay field, or delay properties by RocketMQ's names."""

    properties: dict[str, str] | UnsetType = UNSET


class Accepted(Receipt, frozen=True):
    """The message is durable and due at `due_ms`.

    `duplicate` is true if it was stored earlier, under the same deduplication key. `replaced` is the id of
    the scheduled message that was recalled for this one.
    """


class SentPart(Answer, frozen=True):
    """A message of an array that was sent with `atomic=false`: its receipt, or why it was not stored."""

    id: str | None = None
    topic: str | None = None
    due_ms: int | None = None
    state: State | None = None
    duplicate: bool = False
    code: str | None = None
    detail: str | None = None


class SendQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether an array is stored as a whole or not at all; false lets each shard store its part by itself."""

    atomic: bool = True


class Message(Answer, frozen=True):
    """A message; fields that do not apply are left out."""

    id: str
    topic: str
    queue: int
    state: State
    due_ms: int
    enqueue_ms: int
    properties: dict[str, str]
    level: int = 0
    tags: str | None = None
    keys: list[str] = msgspec.field(default_factory=list)
    dedup_key: str | None = None
    body_text: str | None = msgspec.field(default=None, name="body")
    body_base64: bytes | None = None
    delivered_ms: int | None = None
    lateness_ms: int | None = None
    offset: int | None = None
    recalled_ms: int | None = None
    problem: str | None = None

    @property
    def body(self) -> bytes:
        """The body's bytes."""
        return (self.body_text or "").encode() if self.body_base64 is None else self.body_base64

    @property
    def text(self) -> str:
        """The body as UTF-8; raises UnicodeDecodeError if it is not."""
        return self.body.decode()

    def json(self) -> Any:  # noqa: ANN401 - any JSON value
        """Return the body as the JSON value that it holds; raises ValueError if it is not JSON."""
        return msgspec.json.decode(self.body)

    def as_(self, kind: type[Kind]) -> Kind:
        """Return the body's JSON as a value of this type, such as `Order` or `list[int]`.

        The type may be a msgspec Struct, a dataclass, a pydantic model, or of the standard library. Raises
        ValueError if the body is not JSON, or not of this type.
        """
        validate: Callable[[bytes], Kind] | None = getattr(kind, "model_validate_json", None)
        if validate is not None:
            return validate(self.body)
        return msgspec.json.decode(self.body, type=kind)

    @property
    def due(self) -> dt.datetime:
        """`due_ms` as an aware datetime."""
        return instant(self.due_ms)

    @property
    def enqueued(self) -> dt.datetime:
        """`enqueue_ms` as an aware datetime: when it was sent."""
        return instant(self.enqueue_ms)

    @property
    def delivered(self) -> dt.datetime | None:
        """`delivered_ms` as an aware datetime; None until it is delivered."""
        return instant_or_none(self.delivered_ms)

    @property
    def recalled(self) -> dt.datetime | None:
        """`recalled_ms` as an aware datetime; None unless it is recalled."""
        return instant_or_none(self.recalled_ms)

    @classmethod
    def of(cls, view: MessageView) -> "Message":
        """Convert a view: the body as text if it is UTF-8, else base64."""
        return Message(*fields_of(view))


def fields_of(view: MessageView) -> tuple[Any, ...]:
    """Return the values of the fields of `Message`, in their order.

    By place, since names would double what a page of messages costs.
    """
    text, body_base64 = text_or_bytes(view.body)
    tags = keys = dedup_key = None
    if properties := view.properties:
        tags, keys, dedup_key = properties.get(TAGS), properties.get(KEYS), properties.get("DEDUP_KEY")
    delivered_ms = view.delivered_ms
    return (
        view.id,
        view.topic,
        view.queue,
        view.state,
        view.due_ms,
        view.enqueue_ms,
        properties,
        view.level,
        tags,
        [] if keys is None else keys.split(),
        dedup_key,
        text,
        body_base64,
        delivered_ms,
        None if delivered_ms is None else delivered_ms - view.due_ms,
        view.queue_offset,
        view.recalled_ms,
        view.problem,
    )


class Pending(msgspec.Struct, frozen=True):
    """A page of messages; `cursor` requests the next one, and is null on the last.

    A page may have fewer messages than `limit`, or none, and not be the last one.
    """

    messages: list[Message]
    cursor: NextCursor


class PendingQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which messages: those that meet every condition. Without `state` and `key`, the scheduled ones."""

    topic: (
        Annotated[str, Meta(description="Needed for `delivered` and `recalled`, unless there is a key")]
        | UnsetType
    ) = UNSET
    state: (
        Annotated[
            str,
            Meta(
                description="`scheduled`, `delivered` or `recalled`, or several with commas between them. "
                "Without it: `scheduled`, or with `key` any",
                examples=["delivered,recalled"],
            ),
        ]
        | UnsetType
    ) = UNSET
    tag: Annotated[str, Meta(description="A tag, or `A || B`", examples=["vip"])] | UnsetType = UNSET
    key: (
        Annotated[str, Meta(description="The deduplication key, or one of the `keys`", examples=["4711"])]
        | UnsetType
    ) = UNSET
    from_ms: (
        Annotated[
            Natural,
            Meta(
                description="`from_ms` ≤ time < `until_ms`: when a scheduled message is due, a delivered one "
                "was delivered, a recalled one was recalled"
            ),
        ]
        | UnsetType
    ) = UNSET
    until_ms: Natural | UnsetType = UNSET
    due_from_ms: (
        Annotated[Natural, Meta(description="`due_from_ms` ≤ due < `due_to_ms`, in every state")] | UnsetType
    ) = UNSET
    due_to_ms: Natural | UnsetType = UNSET
    order: (
        Annotated[
            Literal["oldest", "newest"],
            Meta(
                description="Which come first; default `oldest`. Scheduled messages are listed in due order"
            ),
        ]
        | UnsetType
    ) = UNSET
    reserved: Annotated[
        bool,
        Meta(
            description="With `true`, also those of topics with a reserved name, such as `%RETRY%group`, "
            "which are else listed only by `topic` or `key`"
        ),
    ] = False
    limit: Limit = LIMIT_DEFAULT
    cursor: Cursor | UnsetType = UNSET


class MessagePath(msgspec.Struct, frozen=True):
    """One message."""

    id: str


class RecallQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """With `damaged`, a message whose record cannot be read is recalled too, unread."""

    damaged: bool = False


class KeyPath(msgspec.Struct, frozen=True):
    """The message with this deduplication key in this topic."""

    topic: str
    key: str
