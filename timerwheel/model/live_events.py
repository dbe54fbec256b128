"""What a service says of itself as it happens: the events of `/v1/live`.

It sends them from `timerwheel.api.service.live`, and clients read them by `timerwheel.client.client`.
"""

import msgspec

from timerwheel.model.figures import Point


class Tick(msgspec.Struct, frozen=True):
    """The service at one moment; `measures` has its counters since the start, and its lateness.

    `refusing` says why it takes no new messages, if so.

    `second` is the newest point of the figures of the service (`GET /v1/live/history`), if it has one.

    Names that end in `_total` count since the start; `lateness_ms_p50` and `lateness_ms_p99` are of the last
    minute.
    """

    now_ms: int
    status: str
    pending: int
    measures: dict[str, float]
    refusing: str | None = None
    second: Point | None = None


class LevelSlots(msgspec.Struct, frozen=True):
    """Slots in use of one level as (start_ms, count), earliest first; `later` counts the others.

    Slots that start before `moved_until_ms` have cascaded into the next finer level; 0 for the finest, whose
    slots fire.
    """

    level: str
    slots: list[tuple[int, int]]
    later: int
    moved_until_ms: int = 0


class Wheel(msgspec.Struct, frozen=True):
    """The counts of slots, including leases of groups; `overdue` counts those in slots that have ended."""

    now_ms: int
    levels: list[LevelSlots]
    overdue: int = 0
