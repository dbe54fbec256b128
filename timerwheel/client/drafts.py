"""What a client sends: messages and their due times, in the shape of the API's JSON."""

import datetime as dt
from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from timerwheel.client.bodies import Body, content_of

_MS = dt.timedelta(milliseconds=1)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class When(TypedDict, total=False):
    """When to deliver; give at most one. With none, the message is delivered at once."""

    delay: str | dt.timedelta
    """`"90s"`, `"1h30m"`, `"PT90S"` or a timedelta."""
    delay_ms: int
    deliver_at: dt.datetime | str
    """An aware datetime, or RFC 3339 with zone."""
    deliver_at_ms: int
    delay_level: int


WHEN_FIELDS = tuple(When.__annotations__)


class SendOptions(When, total=False):
    """What a message may have besides topic and body; `properties` go by RocketMQ's names.

    `queue` is the queue of the topic that it goes to, by default one that the service chooses. With a
    `dedup_key` it is stored once: a repeated send gets the first receipt, marked as a duplicate. After
    a recall the key is free for another message; to send the same one again, give the id of the recalled
    message as `after_recall`. With `on_duplicate="replace"` the message is stored in any case, and the one
    that the key names is recalled if it is still scheduled: `replaced` in the receipt.
    """

    properties: dict[str, str]
    tags: str
    keys: str | list[str]
    queue: int
    dedup_key: str
    after_recall: str
    on_duplicate: Literal["return", "replace"]
    ttl: str | dt.timedelta
    """How long after its delivery groups may get it: `"10m"`, `"PT10M"` or a timedelta."""
    ttl_ms: int
    max_attempts: int
    """Attempts of each group, in place of the group's setting."""
    json: Any
    """The body as any JSON value, None included; leave out `body`. `msgspec.Raw` is JSON already."""


class _Addressed(TypedDict):
    topic: str


class Draft(_Addressed, SendOptions, total=False):
    """One message of `send_many`; without `body` and `json` its body is empty."""

    body: Body


def draft_content(draft: Mapping[str, Any]) -> dict[str, object]:
    """Return the JSON of a `Draft`."""
    content: dict[str, object] = {
        "topic": draft["topic"],
        **when_content(draft),
        **content_of(draft),
    }
    for name in ("properties", "tags", "keys", "queue", "dedup_key", "after_recall", "on_duplicate"):
        if name in draft:
            content[name] = draft[name]
    for name in ("ttl", "ttl_ms", "max_attempts"):
        if name in draft:
            value = draft[name]
            is_length = isinstance(value, dt.timedelta)
            content["ttl_ms" if is_length else name] = length_ms(value) if is_length else value
    return content


def when_content(when: Mapping[str, object]) -> dict[str, object]:
    """Return the JSON of `When`; raises ValueError for a datetime without a time zone."""
    content: dict[str, object] = {}
    for name in WHEN_FIELDS:
        if name not in when:
            continue
        value = when[name]
        if isinstance(value, dt.timedelta):
            content["delay_ms"] = length_ms(value)
        elif isinstance(value, dt.datetime):
            content["deliver_at_ms"] = time_ms(value, name)
        else:
            content[name] = value
    return content


def shift_content(shift: str | dt.timedelta | None) -> dict[str, object]:
    """Return the JSON of a shift of due times."""
    if shift is None:
        return {}
    return {"shift_ms": length_ms(shift)} if isinstance(shift, dt.timedelta) else {"shift": shift}


def range_content(
    options: Mapping[str, Any], start: str, end: str, fields: tuple[str, str] | None = None
) -> dict[str, Any]:
    """Return the JSON of two bounds in time, which are datetimes, or epoch milliseconds in the `fields`.

    These are named as the bounds, with `_ms`, unless given. Raises ValueError for a bound that is given
    twice, or that has no time zone.
    """
    content: dict[str, Any] = {}
    for name, field in zip((start, end), fields or (f"{start}_ms", f"{end}_ms"), strict=True):
        if name in options and field in options:
            raise ValueError(f"give {name} or {field}, not both")
        if name in options:
            content[field] = time_ms(options[name], name)
        elif field in options:
            content[field] = options[field]
    return content


def length_ms(length: dt.timedelta | int) -> int:
    """Return a length in milliseconds, rounded up."""
    return length if isinstance(length, int) else -(-length // _MS)


def time_ms(time: dt.datetime | int, name: str) -> int:
    """Return a datetime as epoch milliseconds, rounded up; raises ValueError without a time zone."""
    if isinstance(time, int):
        return time
    if time.tzinfo is None:
        raise ValueError(f"{name} needs a time zone: use datetime(..., tzinfo=...) or .astimezone()")
    return -((_EPOCH - time) // _MS)
