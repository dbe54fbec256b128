"""The wheel, the delay levels and health; see `timerwheel.wire`."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from timerwheel.model.messages import LevelInfo, SlotInfo
from timerwheel.wire.cluster import Role
from timerwheel.wire.fields import INT64_MAX, Natural
from timerwheel.wire.paging import PagedCursor, PageQuery


class Slots(msgspec.Struct, frozen=True):
    """Slots in use, those of the finest level first, each level by time."""

    slots: list[SlotInfo]
    cursor: PagedCursor = UNSET


class Peak(msgspec.Struct, frozen=True):
    """The next second in which most messages fall due, null if none is scheduled."""

    peak: SlotInfo | None


class Levels(msgspec.Struct, frozen=True):
    """The delay levels."""

    levels: list[LevelInfo]
    cursor: PagedCursor = UNSET


class FigureHistory(msgspec.Struct, frozen=True):
    """Points of the figures of the service, oldest first, as a list for each figure.

    A point covers the `span_ms` before its `at_ms`; `pending` is at its end. The lateness is that of the
    messages that fired within it, and null if none did.
    """

    now_ms: int
    at_ms: list[int]
    span_ms: list[int]
    accepted: list[int]
    fired: list[int]
    recalled: list[int]
    pending: list[int]
    lateness_ms_p50: list[float | None]
    lateness_ms_p99: list[float | None]


class HistoryQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The length of a point: `second` for the last 15 minutes, `minute` for the last 24 hours."""

    step: Literal["second", "minute"] = "second"


class Health(msgspec.Struct, frozen=True):
    """The health of the process."""

    status: str


class ShardReadiness(msgspec.Struct, frozen=True):
    """A shard: who serves it, null while nobody does, and what this node does in it."""

    shard: int
    role: Literal["leader", "standby", "waiting"]
    leader: str | None


class Readiness(msgspec.Struct, frozen=True, omit_defaults=True):
    """The service's status; `role` is among nodes; `refusing` says why it takes no new messages.

    `refusing_code` is the code that a send is refused with. `set_aside` says what to do about due messages
    that cannot be read. A service in shards says who serves each.
    """

    status: str
    role: Role | UnsetType = UNSET
    refusing: str | UnsetType = UNSET
    shards: list[ShardReadiness] | UnsetType = UNSET
    set_aside: str | UnsetType = UNSET
    refusing_code: Literal["disk_reserve", "no_space"] | UnsetType = UNSET


class SlotsQuery(PageQuery, frozen=True, forbid_unknown_fields=True):
    """Which slots: of one level or all, those that start in `from_ms` ≤ start < `to_ms`."""

    level: Literal["second", "minute", "hour", "day"] | UnsetType = UNSET
    from_ms: Natural = 0
    to_ms: Natural = INT64_MAX


class ReadinessQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"purpose": "for"}):
    """The purpose of the check: `send` also asks whether new messages are accepted."""

    purpose: Literal["send"] | UnsetType = UNSET
