"""Counts and durations of requests by the template of their route, never by their path.

This bounds the number of series, whatever clients ask for.
"""

from collections import Counter
from collections.abc import Sequence

from aiohttp import hdrs, web

from timerwheel.runtime.counters import Histogram

BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
UNKNOWN = "unknown"
ABORTED = "aborted"


class _Seen:
    """The requests of one template."""

    __slots__ = ("answers", "seconds")

    def __init__(self) -> None:
        self.answers: Counter[tuple[str, int | None]] = Counter()  # by method and status
        self.seconds = Histogram(BOUNDS_S)


class Traffic:
    """The counts of one application. Recorded on the event loop; any thread may read."""

    def __init__(self) -> None:
        self.in_progress = 0
        self._by_route: dict[web.AbstractRoute, _Seen] = {}  # finding the template takes longer
        self._by_template: dict[str, _Seen] = {}

    def count(self, route: web.AbstractRoute, method: str, status: int | None, seconds: float) -> None:
        """Count one request; without a status it was aborted."""
        self.count_all(route, method, status, [seconds])

    def count_all(
        self, route: web.AbstractRoute, method: str, status: int | None, seconds: Sequence[float]
    ) -> None:
        """Count requests that were answered together."""
        seen = self._by_route.get(route) or self._add(route)
        seen.answers[method if method in hdrs.METH_ALL else UNKNOWN, status] += len(seconds)
        for each in seconds:
            seen.seconds.observe(each)

    def _add(self, route: web.AbstractRoute) -> _Seen:
        seen = self._by_template.setdefault(template(route), _Seen())
        if route.resource is not None:  # else aiohttp made it for a request that matches no route
            self._by_route[route] = seen
        return seen

    def requests(self) -> dict[tuple[str, str, str], int]:
        """The number of requests by route, method and status."""
        return {
            (name, method, ABORTED if status is None else str(status)): count
            for name, seen in list(self._by_template.items())
            for (method, status), count in list(seen.answers.items())
        }

    def seconds(self) -> dict[str, Histogram]:
        """The durations by route."""
        return {name: seen.seconds for name, seen in list(self._by_template.items())}


def template(route: web.AbstractRoute) -> str:
    """The path of a route with the names of its parameters in braces."""
    return UNKNOWN if route.resource is None else route.resource.canonical
