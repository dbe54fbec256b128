"""What a service says of itself as it happens: the events of `/v1/live`.

It sends them from `timerwheel.api.service.live`, and clients read them by `timerwheel.client.watching`.
"""

import msgspec


class Tick(msgspec.Struct, frozen=True):
    """The service at one moment; `measures` has what it did since its start, and how late it is.

    `refusing` says why no new messages are taken, if so.

    Names that end in `_total` are counts since the start; `lateness_ms_p50` and `lateness_ms_p99` are of the
    last minute.
    """

    now_ms: int
    status: str
    pending: int
    measures: dict[str, float]
    refusing: str | None = None


class LevelSlots(msgspec.Struct, frozen=True):
    """Slots in use of one level of the wheel as (start_ms, count), earliest first; `later` wait in others."""

    level: str
    slots: list[tuple[int, int]]
    later: int


class Wheel(msgspec.Struct, frozen=True):
    """What waits in which slot, leases of groups included; `overdue` in slots that are over."""

    now_ms: int
    levels: list[LevelSlots]
    overdue: int = 0
