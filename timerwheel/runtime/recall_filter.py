"""The requests and results of a bulk recall, and the matching of records. Pure."""

from collections.abc import Callable

import msgspec
import orjson

from timerwheel.model.admission import KEY_PROPERTY
from timerwheel.model.messages import State
from timerwheel.model.properties import KEYS, TAGS
from timerwheel.model.tags import IllegalFilterError, TagFilter
from timerwheel.store.record import HEADER_SIZE, decode_header

Matches = Callable[[bytes], bool]


class RecallResult(msgspec.Struct, frozen=True):
    """The result for one id: done if `code` is None, else why not; `state` is None if unknown.

    `due_ms` is the new due time of one that was rescheduled.
    """

    id: str
    code: str | None
    state: State | None
    due_ms: int | None = None


class RecallFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects the scheduled messages that meet every given condition; at least one must be given.

    `tag` is a tag or `A || B`; `key_prefix` begins the deduplication key or one of the KEYS; due_from ≤ due <
    due_to. Without a topic, messages of reserved topics are left out unless `reserved`, as in a listing.
    """

    topic: str | None = None
    tag: str | None = None
    key_prefix: str | None = None
    due_from_ms: int | None = None
    due_to_ms: int | None = None
    reserved: bool = False
    """Not a condition: whether messages of reserved topics are selected though no topic is given."""


class RecallCount(msgspec.Struct, frozen=True):
    """How many messages matched, and how many were recalled; none in a dry run.

    `missed` fired during the call or cannot be read: matched = recalled + missed.
    """

    matched: int
    recalled: int
    missed: int


class RescheduleCount(msgspec.Struct, frozen=True):
    """How many messages matched, and how many were rescheduled; none in a dry run.

    `missed` fired during the call or cannot be read. `refused` stay as they are: matched is the sum.
    """

    matched: int
    rescheduled: int
    missed: int
    refused: int


def matcher(condition: RecallFilter) -> Matches | None:
    """Return a test of a record's properties; None if the condition does not need them.

    Raises IllegalFilterError for a condition that names nothing, and for tags that cannot be parsed.
    """
    tags = None if condition.tag is None else TagFilter.parse(condition.tag).tags
    prefix = condition.key_prefix
    if prefix == "":
        raise IllegalFilterError("key_prefix is empty; give the beginning of a key, or leave it out")
    if tags is None and prefix is None:
        if condition.topic is None and condition.due_from_ms is None and condition.due_to_ms is None:
            raise IllegalFilterError("give at least one condition: a topic, tags, a key prefix or due times")
        return None

    def matches(data: bytes) -> bool:
        header = decode_header(data)
        at = HEADER_SIZE + header.topic_len
        raw = data[at : at + header.properties_len]
        properties = orjson.loads(raw) if raw else {}
        if tags is not None and properties.get(TAGS) not in tags:
            return False
        keys = (properties.get(KEY_PROPERTY, ""), *properties.get(KEYS, "").split())
        return prefix is None or any(key.startswith(prefix) for key in keys)

    return matches
