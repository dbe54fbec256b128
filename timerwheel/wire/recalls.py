"""Recall in bulk on the wire; see `timerwheel.wire`."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from timerwheel.wire.delays import Delays
from timerwheel.wire.fields import Answer, Int64, Natural

ID_CHARACTERS_MAX = 128  # the answer repeats each id; those that the service gives have 24

Reserved = Annotated[
    bool,
    Meta(
        description="With `true`, also those of topics with a reserved name, such as `%RETRY%group`, "
        "which are else selected only by `topic`. Not a condition by itself"
    ),
]


class NewRecall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Either `ids`, or conditions that a scheduled message must meet: `due_from_ms` ≤ due < `due_to_ms`."""

    ids: list[Annotated[str, Meta(max_length=ID_CHARACTERS_MAX)]] | UnsetType = UNSET
    topic: str | UnsetType = UNSET
    tags: Annotated[str, Meta(examples=["paid || shipped"])] | UnsetType = UNSET
    key_prefix: str | UnsetType = UNSET
    due_from_ms: Natural | UnsetType = UNSET
    due_to_ms: Natural | UnsetType = UNSET
    reserved: Reserved | UnsetType = UNSET
    dry_run: bool | UnsetType = UNSET


class NewTimes(Delays, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Messages as for a recall, and one new time: a delay field for all, or a shift from each one's own."""

    ids: list[Annotated[str, Meta(max_length=ID_CHARACTERS_MAX)]] | UnsetType = UNSET
    topic: str | UnsetType = UNSET
    tags: Annotated[str, Meta(examples=["paid || shipped"])] | UnsetType = UNSET
    key_prefix: str | UnsetType = UNSET
    due_from_ms: Natural | UnsetType = UNSET
    due_to_ms: Natural | UnsetType = UNSET
    reserved: Reserved | UnsetType = UNSET
    shift_ms: Int64 | UnsetType = UNSET
    shift: Annotated[str, Meta(examples=["+2h", "-30m"])] | UnsetType = UNSET
    dry_run: bool | UnsetType = UNSET


class RescheduleOutcome(Answer, frozen=True):
    """The result for one id: rescheduled to `due_ms` if it is ok, else `code` says why not."""

    id: str
    ok: bool
    code: str | None = None
    due_ms: int | None = None


class RescheduledIds(msgspec.Struct, frozen=True):
    """The outcome of each id, in order, and how many were rescheduled."""

    results: list[RescheduleOutcome]
    rescheduled: int


class RescheduledWhere(msgspec.Struct, frozen=True):
    """How many matched. `missed` ones fired during the call or cannot be read; `refused` ones stay as before.

    A dry run reschedules none.
    """

    matched: int
    rescheduled: int
    missed: int
    refused: int
    dry_run: bool


class RecallOutcome(Answer, frozen=True):
    """The result for one id: recalled if it is ok, else `code` says why not."""

    id: str
    ok: bool
    code: str | None = None


class RecalledIds(msgspec.Struct, frozen=True):
    """The outcome of each id, in order, and how many were recalled."""

    results: list[RecallOutcome]
    recalled: int


class RecalledWhere(msgspec.Struct, frozen=True):
    """How many matched. `missed` ones fired during the call or cannot be read. A dry run recalls none."""

    matched: int
    recalled: int
    missed: int
    dry_run: bool
