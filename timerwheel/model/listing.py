"""What a listing of messages asks for, and where a page of it ends. Pure.

    scheduled   in due order; a page ends behind a due time and a root               `1a2b.3c4d`
    ended       in the order in which they ended; a page ends at a log offset         `e3c4d`
    by key      in the order in which they were sent; a page ends behind a root       `k3c4d`

A listing of scheduled and ended messages has the scheduled ones first. So one that ends while it is listed is
in one of the two parts, or in both.
"""

import re
from typing import NamedTuple

import msgspec

from timerwheel.errors import IllegalCursorError
from timerwheel.model.messages import MessageView, State
from timerwheel.model.properties import TAGS
from timerwheel.model.tags import IllegalFilterError, TagFilter

FAR = 1 << 62
"""After every time and every log offset."""
KEY_CHARACTERS_MAX = 16_384
_OFFSET = re.compile(r"[ek]([0-9a-f]{1,16})", re.ASCII)


class Times(NamedTuple):
    """Times with `from_ms` ≤ time < `until_ms`."""

    from_ms: int = 0
    until_ms: int = FAR

    def has(self, time_ms: int | None) -> bool:
        """Whether a time lies in it."""
        return time_ms is not None and self.from_ms <= time_ms < self.until_ms

    def overlaps(self, first_ms: int, last_ms: int) -> bool:
        """Whether a time from `first_ms` to `last_ms` may lie in it."""
        return first_ms < self.until_ms and last_ms >= self.from_ms

    def within(self, other: "Times") -> "Times":
        """Return the times that lie in both."""
        return Times(max(self.from_ms, other.from_ms), min(self.until_ms, other.until_ms))


ALWAYS = Times()


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """The messages that meet every given condition.

    `at` is the time of the state: when a scheduled message is due, when a delivered one was delivered, when a
    recalled one was recalled. `due` is when it is or was due.
    """

    topic: str | None = None
    states: frozenset[State] = frozenset(State)
    tags: TagFilter = TagFilter(None)
    key: str | None = None
    at: Times = ALWAYS
    due: Times = ALWAYS
    newest: bool = False
    reserved: bool = False
    """Whether messages of reserved topics are listed though neither topic nor key asks for them."""

    def check(self) -> "Listing":
        """Return itself; IllegalFilterError for what cannot be listed."""
        if self.key is not None:
            if not self.key or len(self.key) > KEY_CHARACTERS_MAX:
                raise IllegalFilterError(f"key must have 1 to {KEY_CHARACTERS_MAX} characters")
        elif self.ended and self.topic is None:
            raise IllegalFilterError(
                "give a topic or a key: only scheduled messages are listed for all topics at once"
            )
        elif self.newest and State.SCHEDULED in self.states:
            raise IllegalFilterError(
                "scheduled messages are listed in due order, so order=newest needs a key, or "
                "state=delivered,recalled"
            )
        return self

    @property
    def ended(self) -> frozenset[State]:
        """The wanted states that do not change any more."""
        return self.states - {State.SCHEDULED}

    def admits(self, view: MessageView) -> bool:
        """Whether a message that has the key has everything else that is wanted."""
        if view.state not in self.states or not self.tags.passes(view.properties.get(TAGS)):
            return False
        return self.at.has(time_of(view)) and self.due.has(view.due_ms)


def time_of(view: MessageView) -> int | None:
    """Return the time of a message's state."""
    if view.state is State.SCHEDULED:
        return view.due_ms
    return view.delivered_ms if view.state is State.DELIVERED else view.recalled_ms


def ended_cursor(offset: int) -> str:
    """Return the cursor of a listing of ended messages that goes on at a log offset."""
    return f"e{offset:x}"


def key_cursor(root: int) -> str:
    """Return the cursor of a listing by key that goes on behind a root."""
    return f"k{root:x}"


def offset_in(cursor: str, letter: str) -> int:
    """Return the log offset in such a cursor; IllegalCursorError."""
    found = _OFFSET.fullmatch(cursor)
    if found is None or cursor[0] != letter:
        raise IllegalCursorError(cursor)
    return int(found[1], 16)


def is_of_ended(cursor: str | None) -> bool:
    """Whether a cursor belongs to the part of a listing that has the ended messages."""
    # A due time may begin with an `e`, but a point follows it.
    return cursor is not None and cursor.startswith("e") and "." not in cursor
