"""Conditions on what a change finds: the tag of the state that its sender has seen, or that there is none.

A tag covers what a change of the resource can change, and no counts, which move by themselves. The part that
makes the change calls `check` in the step of the loop in which it also takes the timer, or under the lock
under which it stores the change. So nothing comes between the two. Pure.
"""

from collections.abc import Callable
from hashlib import blake2s
from typing import Any

import msgspec

from timerwheel.errors import PreconditionFailedError
from timerwheel.model.messages import MessageView, Receipt, State

_TAG_BYTES = 12
_encode = msgspec.json.Encoder(order="deterministic").encode


def tag_of(*parts: Any) -> str:  # noqa: ANN401 - whatever msgspec encodes
    """Return the tag of a state that these values describe; equal values have equal tags."""
    return blake2s(_encode(parts), digest_size=_TAG_BYTES).hexdigest()


def message_tag(state: State, due_ms: int) -> str:
    """Return the tag of a message; the rest of it never changes."""
    return tag_of(state, due_ms)


def view_tag(view: MessageView | Receipt) -> str:
    """Return the tag of a message that was read or changed."""
    return message_tag(view.state, view.due_ms)


class Precondition(msgspec.Struct, frozen=True):
    """What a change asks of the resource. The default asks nothing.

    `tags` are those of which the resource must have one; None asks for none. With `exists` it must be there,
    whatever its tag, with `is_new` it must not.
    """

    tags: frozenset[str] | None = None
    exists: bool = False
    is_new: bool = False

    def check(self, tag: Callable[[], str] | None) -> None:
        """Raise PreconditionFailedError unless the resource is as asked; `tag` is None if it is not there."""
        if self.is_new and tag is not None:
            raise PreconditionFailedError("it exists already")
        if tag is None and (self.exists or self.tags is not None):
            raise PreconditionFailedError("it does not exist")
        if self.tags is not None and tag is not None and (current := tag()) not in self.tags:
            raise PreconditionFailedError(f'it has changed: its ETag is "{current}" now')


ALWAYS = Precondition()
