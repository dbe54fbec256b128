"""How many requests of a subscription may begin: at most so many in any second. Pure."""

from collections import deque
from math import ceil

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
