"""Pages of a list that is sorted by a key, such as a name or a number. Pure.

The cursor is the key of the last item. So a page begins at the same place whatever was added or removed, and
an item that is there all the time is listed once. It means the same in every shard.
"""

import base64
import binascii
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from timerwheel.errors import IllegalCursorError
from timerwheel.model.admission import SYSTEM_TOPIC_LEVELS, SYSTEM_TOPIC_TIMER
from timerwheel.model.messages import LevelInfo, SlotInfo

T = TypeVar("T")
Key = tuple[str, ...]
_DIGITS = 20  # of a number in a cursor; `int` raises for one with thousands


def encode(key: Key) -> str:
    """Return the cursor behind the item with this key."""
    return base64.urlsafe_b64encode(msgspec.json.encode(key)).decode().rstrip("=")


def decode(cursor: str) -> Key:
    """Return the key in a cursor; IllegalCursorError."""
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        return msgspec.json.decode(raw, type=tuple[str, ...])
    except (binascii.Error, msgspec.DecodeError, ValueError) as error:
        raise IllegalCursorError(cursor) from error


def page(
    items: Iterable[T], key_of: Callable[[T], Key], limit: int | None, cursor: str | None
) -> tuple[list[T], str | None]:
    """Return the items of a page in order, and the cursor of the next one; IllegalCursorError.

    Without a limit these are all that follow the cursor.
    """
    items = sorted(items, key=key_of)
    begin = 0 if cursor is None else bisect_right(items, decode(cursor), key=key_of)
    found = items[begin:] if limit is None else items[begin : begin + limit]
    has_more = begin + len(found) < len(items)
    return found, encode(key_of(found[-1])) if has_more else None


_SYSTEM = (SYSTEM_TOPIC_TIMER, SYSTEM_TOPIC_LEVELS)


def name_key(name: str) -> Key:
    """Return the key of what has a name."""
    return (name,)


def number_key(number: int) -> Key:
    """Return the key of what has a number, from 0."""
    return (f"{number:0{_DIGITS}d}",)


def number_of(cursor: str) -> int:
    """Return the number in a cursor that `number_key` made; IllegalCursorError."""
    match decode(cursor):
        case (text,) if len(text) <= _DIGITS and text.isascii() and text.isdigit():
            return int(text)
    raise IllegalCursorError(cursor)


def level_key(level: LevelInfo) -> Key:
    """Return the key of a delay level: its number."""
    return number_key(level.level)


def slot_key(slot: SlotInfo) -> Key:
    """Return the key of a slot of the wheel: finest first, then by time."""
    return number_key(slot.end_ms - slot.start_ms) + number_key(slot.start_ms)


def topic_key(name: str) -> Key:
    """Return the key of a topic: by name, the service's own last."""
    return ("s", str(_SYSTEM.index(name))) if name in _SYSTEM else ("", name)
