"""How many requests were answered, and how long that took: by the template of the route, never by its path.

So the number of series is bounded whatever clients ask for.
"""

from collections import Counter
from collections.abc import Awaitable, Callable

from aiohttp import hdrs, web

from timerwheel.measures import Histogram

BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
UNKNOWN = "unknown"
ABORTED = "aborted"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Traffic:
    """The counts of one application. Recorded on the event loop; any thread may read."""

    def __init__(self) -> None:
        self.in_progress = 0
        self.requests: Counter[tuple[str, str, str]] = Counter()  # by route, method and status
        self.seconds: dict[str, Histogram] = {}  # by route

    def count(self, route: str, method: str, status: str, seconds: float) -> None:
        """One request was answered, or given up."""
        self.requests[route, method if method in hdrs.METH_ALL else UNKNOWN, status] += 1
        histogram = self.seconds.get(route)
        if histogram is None:
            histogram = self.seconds[route] = Histogram(BOUNDS_S)
        histogram.observe(seconds)
