"""How fast an endpoint is called: requests at once, the pause after failures, requests in a second. Pure.

The *width* is the number of requests that may be in progress. It begins at one, grows by one with each
success, and falls back to one with the fifth failure in a row. From then on there is a pause before each
request that doubles from 1 s to 60 s, until one succeeds. So an endpoint that is down costs few attempts and
is not overrun when it is up again, and one that hangs from the start holds one connection.
"""

from collections import deque
from math import ceil

from timerwheel.push.outcome import Outcome
from timerwheel.push.stats import FAILURES_IN_ROW

PAUSE_MS_MIN, PAUSE_MS_MAX = 1_000, 60_000


class Pace:
    """The pace of one endpoint; times are monotonic milliseconds."""

    def __init__(self) -> None:
        self.width = 1
        self.resume_ms = 0

    def steer(self, outcome: Outcome, failures_in_row: int, width_max: int, now_ms: int) -> None:
        """Widen, narrow or pause, depending on the outcome of a request, which these failures include."""
        if outcome.kind == "delivered":
            self.width = min(self.width + 1, width_max)
            self.resume_ms = 0
            return
        pause_ms = min(outcome.retry_after_ms or 0, PAUSE_MS_MAX)
        beyond = failures_in_row - FAILURES_IN_ROW
        if beyond >= 0:
            self.width = 1
            pause_ms = max(pause_ms, min(PAUSE_MS_MIN << min(beyond, 16), PAUSE_MS_MAX))
        self.resume_ms = max(self.resume_ms, now_ms + pause_ms)


SECOND_MS = 1_000


class RateLimit:
    """Remembers when requests began. In no stretch of a second do more begin than `per_second`.

    A limit that is not a whole number is the same over a longer stretch: 0.2 is one request in five seconds,
    1.5 one in 667 ms. None is no limit, and remembers nothing. Times are monotonic milliseconds.
    """

    def __init__(self, per_second: float | None) -> None:
        self._begun: deque[int] = deque()
        self.change(per_second)

    def change(self, per_second: float | None) -> None:
        """Have another limit from now on; what began already counts."""
        self._per_second = per_second
        self._count = max(int(per_second or 0), 1)
        self._stretch_ms = ceil(SECOND_MS * self._count / per_second) if per_second else 0

    def room(self, now_ms: int) -> int | None:
        """Return how many requests may begin now; None for any number."""
        if self._per_second is None:
            return None
        while self._begun and self._begun[0] <= now_ms - self._stretch_ms:
            self._begun.popleft()
        return max(self._count - len(self._begun), 0)

    def wait_ms(self, now_ms: int) -> int:
        """Return after how long a request may begin; 0 for now."""
        if self.room(now_ms) != 0:
            return 0
        return self._begun[-self._count] + self._stretch_ms - now_ms

    def begin(self, now_ms: int, count: int) -> None:
        """Note that so many requests begin now."""
        if self._per_second is not None:
            self._begun.extend([now_ms] * count)
