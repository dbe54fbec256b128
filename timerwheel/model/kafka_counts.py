"""What the bridge to Kafka has done since the start, and where it is. Pure."""

from enum import StrEnum
from typing import NamedTuple

import msgspec


class BridgeState(StrEnum):
    """The state of one side of the bridge."""

    CONNECTING = "connecting"
    WORKING = "working"
    WAITING = "waiting"
    """Something is wrong; it tries again by itself."""
    FENCED = "fenced"
    """Another process with a copy of the data produces; this one does not any more."""


class Lag(NamedTuple):
    """A partition of the inlet: the next offset to take, and how many offsets follow up to its end."""

    next: int
    behind: int


class KafkaCounts(msgspec.Struct):
    """Written on the event loop; any thread may read.

    Of the inlet, records by what became of them, where `repeated` had the TIMER_KEY of an earlier one;
    offsets that Kafka deleted before they were taken (`inlet_lost`); and the lag by partition. Of the outlet,
    messages in committed transactions: `sent` to their topic, or `not_sent` but to the topic of rejected
    records; those that retention removed first (`lost`); and how many delivered ones have not gone out
    (`behind`).
    """

    inlet_state: BridgeState = BridgeState.CONNECTING
    outlet_state: BridgeState = BridgeState.CONNECTING
    scheduled: int = 0
    recalls: int = 0
    rejected: int = 0
    repeated: int = 0
    inlet_lost: int = 0
    inlet: dict[int, Lag] = {}
    sent: int = 0
    not_sent: int = 0
    lost: int = 0
    transactions: int = 0
    behind: int = 0
