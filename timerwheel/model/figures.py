"""The figures of a service over time: a point for each second of some minutes and each minute of a day. Pure.

1. Memory is bounded: SECONDS_MAX and MINUTES_MAX points, about 1 MB together.
2. Points are in order of time. When the wall clock steps back, the points that are then in the future go.
3. A point covers the `span_ms` before its `at_ms`. Its quantiles are those of its own messages alone.
4. Points that were kept over a restart are as if they had stayed: while the service was down there are none.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import sub
from typing import NamedTuple

import msgspec

SECONDS_MAX = 15 * 60
MINUTES_MAX = 24 * 60
MINUTE_MS = 60_000
SECONDS_MS = SECONDS_MAX * 1_000
MINUTES_MS = MINUTES_MAX * MINUTE_MS


class Totals(NamedTuple):
    """What has been counted since the engine started; `lateness` has a count for each of its bounds."""

    accepted: int
    fired: int
    recalled: int
    lateness: Sequence[int]


class Point(msgspec.Struct, frozen=True):
    """What happened in the `span_ms` before `at_ms`, and the pending messages at its end.

    The lateness is None if no message fired because it was due.
    """

    at_ms: int
    span_ms: int
    accepted: int
    fired: int
    recalled: int
    pending: int
    lateness_ms_p50: float | None
    lateness_ms_p99: float | None


class Figures:
    """Keeps the points of one service, across engines."""

    def __init__(self, lateness_bounds_ms: Sequence[float]) -> None:
        self._bounds = lateness_bounds_ms
        self.seconds: deque[Point] = deque(maxlen=SECONDS_MAX)
        self.minutes: deque[Point] = deque(maxlen=MINUTES_MAX)
        self._before: tuple[int, Totals] | None = None  # at the last point
        self._minute: tuple[int, Totals] | None = None  # at the last full minute
        self._is_new = False  # whether the next totals are the first of an engine

    @property
    def newest(self) -> Point | None:
        """The newest second."""
        return self.seconds[-1] if self.seconds else None

    def restart(self) -> None:
        """Forget the totals: those of another engine begin at 0. The points stay."""
        self._before = self._minute = None
        self._is_new = True

    def take(self, now_ms: int, totals: Totals, pending: int) -> None:
        """Add the point of what happened since the last call, and that of a minute that is over.

        The first call for an engine adds none: what it has counted by then is in the next point.
        """
        if self._before is not None and now_ms <= self._before[0]:
            self._step_back(now_ms)
        if self._before is None or self._minute is None:
            begun = Totals(0, 0, 0, [0] * len(totals.lateness)) if self._is_new else totals
            self._before = self._minute = (now_ms, begun)
            self._is_new = False
            return
        self.seconds.append(self._point(self._before, now_ms, totals, pending))
        self._before = (now_ms, totals)
        if now_ms // MINUTE_MS > self._minute[0] // MINUTE_MS:
            self.minutes.append(self._point(self._minute, now_ms, totals, pending))
            self._minute = (now_ms, totals)

    def bring_back(self, seconds: Iterable[Point], minutes: Iterable[Point], now_ms: int) -> None:
        """Put points of an earlier process first; those that are too old or in the future are left out."""
        for points, earlier, span_ms in (
            (self.seconds, seconds, SECONDS_MS),
            (self.minutes, minutes, MINUTES_MS),
        ):
            end_ms = points[0].at_ms if points else now_ms + 1
            kept = [point for point in earlier if now_ms - span_ms < point.at_ms < end_ms]
            room = (points.maxlen or 0) - len(points)
            points.extendleft(reversed(kept[max(len(kept) - room, 0) :]))

    def _step_back(self, now_ms: int) -> None:
        for points in (self.seconds, self.minutes):
            while points and points[-1].at_ms >= now_ms:
                points.pop()
        self._before = self._minute = None

    def _point(self, before: tuple[int, Totals], now_ms: int, totals: Totals, pending: int) -> Point:
        at_ms, was = before
        late = list(map(sub, totals.lateness, was.lateness))
        known = any(late)
        return Point(
            at_ms=now_ms,
            span_ms=now_ms - at_ms,
            accepted=totals.accepted - was.accepted,
            fired=totals.fired - was.fired,
            recalled=totals.recalled - was.recalled,
            pending=pending,
            lateness_ms_p50=quantile(self._bounds, late, 0.5) if known else None,
            lateness_ms_p99=quantile(self._bounds, late, 0.99) if known else None,
        )


def columns(points: Iterable[Point]) -> dict[str, list[float | None]]:
    """Return points as a list for each of their fields."""
    names = Point.__struct_fields__
    rows = [msgspec.structs.astuple(point) for point in points]
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float:
    """Compute a quantile as Prometheus does: values are assumed to be spread evenly between two bounds.

    0.0 without values.
    """
    upto = list(accumulate(counts))
    if not upto[-1]:
        return 0.0
    rank = share * upto[-1]
    place = bisect_left(upto, rank)
    if place >= len(bounds):
        return float(bounds[-1])
    low = bounds[place - 1] if place else 0
    inside = (rank - (upto[place] - counts[place])) / counts[place]
    return low + (bounds[place] - low) * inside
