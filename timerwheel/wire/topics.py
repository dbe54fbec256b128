"""Topics, their queues and what was delivered there; see `timerwheel.wire`."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from timerwheel.model.messages import QueuePage, TopicInfo
from timerwheel.settings import TOPIC_QUEUES_MAX
from timerwheel.wire.fields import INT64_MAX
from timerwheel.wire.messages import Message
from timerwheel.wire.paging import PagedCursor, PageQuery


class Delivered(msgspec.Struct, frozen=True):
    """Delivered messages of one queue; the next read continues at `next_offset`."""

    messages: list[Message]
    next_offset: int
    min_offset: int
    max_offset: int

    @classmethod
    def of(cls, page: QueuePage) -> "Delivered":
        """Convert a page, without its messages."""
        return cls([], page.next_offset, page.min_offset, page.max_offset)


class TopicsQuery(PageQuery, frozen=True, forbid_unknown_fields=True):
    """Which page of the topics, and whether those that belong to the service are among them."""

    reserved: Annotated[
        bool,
        Meta(description="With `false`, without topics that have a reserved name, such as `%DLQ%group`"),
    ] = True


class Topics(msgspec.Struct, frozen=True):
    """Topics by name, the service's own last."""

    topics: list[TopicInfo]
    cursor: PagedCursor = UNSET


class TopicChanges(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of a topic to change, at least one; `queues` can only grow.

    With more queues, sharding keys can move to other queues. On an ordered topic that has messages, this
    needs `move_keys`, because later messages of a key can then overtake earlier ones. `to_kafka` has the
    messages that are delivered from now on go to Kafka, or keeps all of them here.
    """

    ordered: bool | UnsetType = UNSET
    queues: Annotated[int, Meta(ge=1, le=TOPIC_QUEUES_MAX)] | UnsetType = UNSET
    move_keys: bool = False
    to_kafka: bool | UnsetType = UNSET


class NewPurge(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to take away of a topic, at least one of `scheduled` and `delivered`; a dry run only counts."""

    scheduled: bool = False
    delivered: bool = False
    dry_run: bool = False


class ReadQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where to read from (-1: only new messages), how many at most, and how long to wait for the first."""

    offset: Annotated[int, Meta(ge=-1, le=INT64_MAX)] = 0
    max: Annotated[int, Meta(ge=1, le=1000)] = 32
    wait_ms: Annotated[int, Meta(ge=0, le=60_000)] = 0


class DeleteQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether to only say what would be deleted, and how long to wait for the end of the deletion."""

    dry_run: bool = False
    wait_ms: Annotated[int, Meta(ge=0, le=5_000)] = 1_000


class TopicPath(msgspec.Struct, frozen=True):
    """One topic; `%`, `|` and other special characters percent-encoded."""

    topic: str


class QueuePath(msgspec.Struct, frozen=True):
    """One queue of a topic."""

    topic: str
    queue: Annotated[int, Meta(ge=0, le=65_535)]
