"""How fast an endpoint is called: requests at once, and the pause after failures. Pure.

The *width* is the number of requests that may be in progress. It begins at one, grows by one with each
success, and falls back to one with the fifth failure in a row. From then on there is a pause before each
request that doubles from 1 s to 60 s, until one succeeds. So an endpoint that is down costs few attempts and
is not overrun when it is up again, and one that hangs from the start holds one connection.
"""

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
        if outcome.is_delivered:
            self.width = min(self.width + 1, width_max)
            self.resume_ms = 0
            return
        pause_ms = min(outcome.retry_after_ms or 0, PAUSE_MS_MAX)
        beyond = failures_in_row - FAILURES_IN_ROW
        if beyond >= 0:
            self.width = 1
            pause_ms = max(pause_ms, min(PAUSE_MS_MIN << min(beyond, 16), PAUSE_MS_MAX))
        self.resume_ms = max(self.resume_ms, now_ms + pause_ms)
