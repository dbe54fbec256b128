"""Errors as the API answers them (RFC 9457)."""

import msgspec
from msgspec import UNSET, UnsetType


class ItemFault(msgspec.Struct, frozen=True):
    """What is wrong with one message of an array; `index` is its place, from 0."""

    index: int
    code: str
    detail: str


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """An error (RFC 9457); programs match on `code`.

    `errors` names every bad message of an array, `max_offset` where a queue ends that was read from behind
    its end, `free_ms` the next second with room.
    """

    type: str
    title: str
    status: int
    code: str
    detail: str
    errors: list[ItemFault] | UnsetType = UNSET
    max_offset: int | UnsetType = UNSET
    free_ms: int | UnsetType = UNSET
