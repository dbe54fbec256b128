"""What a recall in bulk is asked and what it answers: shapes, and the matching of records. Pure."""

from collections.abc import Callable

import msgspec
import orjson

from timerwheel.model.admission import KEY_PROPERTY
from timerwheel.model.messages import State
from timerwheel.model.tags import IllegalFilterError, TagFilter
from timerwheel.store.record import HEADER_SIZE, decode_header

Matches = Callable[[bytes], bool]


class RecallResult(msgspec.Struct, frozen=True):
    """What became of one id: recalled if `code` is None, else why not; `state` is None if it is not known."""

    id: str
    code: str | None
    state: State | None


class RecallFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which waiting messages: those that meet every condition given, and one must be.

    `tag` is a tag or `A || B`; `key_prefix` begins the deduplication key or one of the KEYS;
    due_from ≤ due < due_to.
    """

    topic: str | None = None
    tag: str | None = None
    key_prefix: str | None = None
    due_from_ms: int | None = None
    due_to_ms: int | None = None


class RecallCount(msgspec.Struct, frozen=True):
    """How many matched, and what became of them; in a dry run nothing did.

    `missed` fired during the call or cannot be read: matched = recalled + missed.
    """

    matched: int
    recalled: int
    missed: int


def matcher(condition: RecallFilter) -> Matches | None:
    """Whether a record matches by what its properties say; None if they do not matter.

    Raises IllegalFilterError for a condition that names nothing, and for tags that cannot be read.
    """
    tags = None if condition.tag is None else TagFilter.parse(condition.tag).tags
    prefix = condition.key_prefix
    if prefix == "":
        raise IllegalFilterError("key_prefix is empty: give the beginning of a key, or leave it out")
    if tags is None and prefix is None:
        if condition.topic is None and condition.due_from_ms is None and condition.due_to_ms is None:
            raise IllegalFilterError("a recall by condition names a topic, a tag, a key prefix or due times")
        return None

    def matches(data: bytes) -> bool:
        header = decode_header(data)
        at = HEADER_SIZE + header.topic_len
        raw = data[at : at + header.properties_len]
        properties = orjson.loads(raw) if raw else {}
        if tags is not None and properties.get("TAGS") not in tags:
            return False
        keys = (properties.get(KEY_PROPERTY, ""), *properties.get("KEYS", "").split())
        return prefix is None or any(key.startswith(prefix) for key in keys)

    return matches
