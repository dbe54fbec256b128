"""What a node with too little disk does about the lead of its journal. Pure: time and figures are passed in.

    short      less than `disk_reserve` is free, or a copy could not be written; over once a quarter more is
               free, and nothing has failed since
    aside      a short node is not chosen while another one has room, whether that one leads or stands by
    hand-over  a leader that has been short for SHORT_MS lets another lead, if each that could be chosen has
               room and is caught up: the group chooses, so one that is far behind is waited for

Nodes do not swap endlessly: one that says it is short is not handed the lead, and each hands over at most
once in HAND_OVER_MS_MIN. A node that was chosen and has no room even to open its copy serves nobody: for it
neither time counts, nor how far the others are.

A node that has not said whether it has room, as one of an older version, is not handed the lead.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple

from timerwheel.runtime.election import Node

SPARE_BYTES: Final = 8 << 20
"""A standby copies nothing more when less would be free: it needs this to keep what it has, and to lead."""
AGAIN_BYTES: Final = 2 * SPARE_BYTES
"""Once so much is free, a node that had no room tries again at once."""
AGAIN_MS: Final = 60_000
"""It tries again after this time in any case: a quota does not show in what is free."""
SHORT_MS: Final = 5_000
"""How long a leader is short before it hands over."""
HAND_OVER_MS_MIN: Final = 60_000
"""Between two times that a node hands over for lack of room."""
CAUGHT_UP_RUNS: Final = 1_000
"""A standby that lacks no more runs of the journal is caught up: it copies them within a second or so."""


class Room:
    """Whether there is room on the disk of a node; there is until something says otherwise."""

    def __init__(self) -> None:
        self.is_short = False
        self._has_failed = False

    def measured(self, free_bytes: int, reserve_bytes: int) -> None:
        """Take note of the free bytes."""
        enough = max(reserve_bytes, SPARE_BYTES)
        if self._has_failed or free_bytes < enough:
            self.is_short = True
        elif free_bytes >= enough + enough // 4:
            self.is_short = False

    def failed(self) -> None:
        """Take note that something could not be written, whatever was measured."""
        self._has_failed = self.is_short = True

    def worked(self) -> None:
        """Take note that the copy could be written again; the next measurement tells."""
        self._has_failed = False


class Part(Enum):
    """What a node does at the moment."""

    STANDS_BY = "stands by"
    LEADS = "leads"
    CANNOT_LEAD = "is to lead, and has no room to"


class Step(NamedTuple):
    """What a node is to do: stand aside, and if it leads, hand over first."""

    is_aside: bool
    hands_over: bool


class Standing:
    """See the module. `decide` is asked every second or so."""

    def __init__(self) -> None:
        self.is_aside = False
        self._hands_over = False
        self._short_ms: int | None = None
        self._again_ms: int | None = None

    def decide(self, now_ms: int, part: Part, *, is_short: bool, others: Sequence[Node] | None) -> Step:
        """Return what to do now; `others` are None while that is not known, or need not be."""
        if part is Part.STANDS_BY:
            self._hands_over = False
        if not is_short:
            self._short_ms = None
        elif self._short_ms is None:
            self._short_ms = now_ms
        if self._hands_over:  # once begun, it goes on
            self.is_aside = True
        elif not is_short:
            self.is_aside = False
        elif others is not None:
            self._weigh(now_ms, part, others)
        return Step(self.is_aside, self._hands_over)

    def _weigh(self, now_ms: int, part: Part, others: Sequence[Node]) -> None:
        """Decide for a node that is short."""
        if part is Part.LEADS:
            lasts_ms = now_ms - (now_ms if self._short_ms is None else self._short_ms)
            is_due = lasts_ms >= SHORT_MS and (self._again_ms is None or now_ms >= self._again_ms)
            self.is_aside = is_due and may_lead_next(others)
        else:
            self.is_aside = somebody_has_room(others)
        self._hands_over = self.is_aside and part is not Part.STANDS_BY
        if self._hands_over:
            self._again_ms = now_ms + HAND_OVER_MS_MIN


def somebody_has_room(others: Sequence[Node]) -> bool:
    """Whether another node has room, and leads or could be chosen."""
    return any(one.has_room and not one.is_aside for one in others)


def may_lead_next(others: Sequence[Node]) -> bool:
    """Whether any of the others could be chosen, and each of those has room and is caught up."""
    chosen = [one for one in others if not one.is_aside]
    return bool(chosen) and all(
        one.has_room is True and one.behind is not None and one.behind <= CAUGHT_UP_RUNS for one in chosen
    )
