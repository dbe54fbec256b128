"""The outcomes of a subscription's attempts since the service started."""

import math
from array import array
from typing import NamedTuple

import msgspec

from timerwheel.push.outcome import Outcome

LATENCIES_MAX = 1_000
FAILURES_IN_ROW = 5
"""After this many failures without a success an endpoint counts as failing."""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The state of an endpoint. It fails since the first of FAILURES_IN_ROW or more failures in a row."""

    failing_since_ms: int | None = None
    failures_in_row: int = 0
    last_status: int | None = None
    last_error: str | None = None
    last_attempt_ms: int | None = None
    next_attempt_ms: int | None = None


class StatsView(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription in numbers; latencies are of the last LATENCIES_MAX attempts, None before any."""

    delivered: int
    failed: int
    in_flight: int
    failures_in_row: int
    last_status: int | None
    last_error: str | None
    last_attempt_ms: int | None
    latency_p50_ms: int | None
    latency_p99_ms: int | None


class SubscriptionCounts(NamedTuple):
    """One subscription's attempts, by topic and id."""

    topic: str
    id: str
    delivered: int
    failed: int
    failures_in_row: int

    @property
    def is_failing(self) -> bool:
        """Tell whether its endpoint is failing."""
        return self.failures_in_row >= FAILURES_IN_ROW


class Stats:
    """Counters and a window of latencies; at most 8 KB."""

    def __init__(self) -> None:
        self.delivered = 0
        self.failed = 0
        self.failures_in_row = 0
        self.last_error: str | None = None
        self._since_ms = 0  # of the failures in a row
        self._last_status: int | None = None
        self._last_attempt_ms: int | None = None
        self._latencies_ms = array("q")
        self._next = 0

    def record(self, outcome: Outcome, now_ms: int) -> None:
        """Count an attempt that ended at `now_ms`."""
        if outcome.is_delivered:
            self.delivered += 1
            self.failures_in_row = 0
        else:
            self.failed += 1
            self.failures_in_row += 1
            if self.failures_in_row == 1:
                self._since_ms = now_ms
            self.last_error = outcome.reason
        self._last_status = outcome.status
        self._last_attempt_ms = now_ms
        if len(self._latencies_ms) < LATENCIES_MAX:
            self._latencies_ms.append(outcome.latency_ms)
        else:
            self._latencies_ms[self._next] = outcome.latency_ms
            self._next = (self._next + 1) % LATENCIES_MAX

    def health(self, next_attempt_ms: int | None = None) -> Health:
        """Return the current state of the endpoint."""
        failing = self.failures_in_row >= FAILURES_IN_ROW
        return Health(
            failing_since_ms=self._since_ms if failing else None,
            failures_in_row=self.failures_in_row,
            last_status=self._last_status,
            last_error=self.last_error,
            last_attempt_ms=self._last_attempt_ms,
            next_attempt_ms=next_attempt_ms if failing else None,
        )

    def view(self, in_flight: int) -> StatsView:
        """Return the current statistics."""
        ordered = sorted(self._latencies_ms)
        return StatsView(
            delivered=self.delivered,
            failed=self.failed,
            in_flight=in_flight,
            failures_in_row=self.failures_in_row,
            last_status=self._last_status,
            last_error=self.last_error,
            last_attempt_ms=self._last_attempt_ms,
            latency_p50_ms=_quantile(ordered, 0.5),
            latency_p99_ms=_quantile(ordered, 0.99),
        )


def _quantile(ordered: list[int], share: float) -> int | None:
    """Return the smallest value such that at least this share of all values is not above it."""
    return ordered[math.ceil(share * len(ordered)) - 1] if ordered else None
