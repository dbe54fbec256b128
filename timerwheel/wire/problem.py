"""Errors as the API answers them (RFC 9457)."""

import msgspec

from timerwheel.wire.fields import Answer


class ItemFault(msgspec.Struct, frozen=True):
    """What is wrong with one message of an array; `index` is its place, from 0."""

    index: int
    code: str
    detail: str


class Problem(Answer, frozen=True, kw_only=True):
    """An error (RFC 9457); programs match on `code`.

    `errors` names every bad message of an array, `max_offset` where a queue ends that was read from behind
    its end, `free_ms` the next second with room.
    """

    type: str
    title: str
    status: int
    code: str
    detail: str
    errors: list[ItemFault] = msgspec.field(default_factory=list)
    max_offset: int | None = None
    free_ms: int | None = None
