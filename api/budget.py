"""The bytes of requests and answers that are held in memory at one time, and their limit.

Charged are bodies as they arrive, until their request is answered, and answers of more than FREE_BYTES until
the client has read them. Smaller answers are bounded by the number of connections: on each of them nothing
more is begun before the client has read what was written.
"""

from aiohttp import web

from timerwheel.errors import TimerwheelError
from timerwheel.present import PAGE_BYTES_MAX

FREE_BYTES = 1 << 16
SHARE = 8


class OverloadedError(TimerwheelError):
    """There is no room for the bytes of this request or its answer; others free it soon."""

    code = "overloaded"


class Budget:
    """Of one application. Event loop only; any thread may read the numbers."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0
        self.most_bytes = 0  # since somebody set it back
        self.refused = 0

    def take(self, size_bytes: int) -> None:
        """Charge so many bytes; raises OverloadedError and charges nothing if that is too many."""
        if self.used_bytes + size_bytes > self.bytes_max:
            self.refused += 1
            raise OverloadedError(
                f"requests and answers in progress have {self.used_bytes} bytes, and in_progress_size_max = "
                f"{self.bytes_max} leaves no room for {size_bytes} more; try again, or ask for less at once"
            )
        self.used_bytes += size_bytes
        self.most_bytes = max(self.most_bytes, self.used_bytes)

    def check(self) -> None:
        """Raise OverloadedError if nothing more may be begun: for what cannot be refused once it is done."""
        if self.used_bytes >= self.bytes_max:
            self.take(1)

    def force(self, size_bytes: int) -> None:
        """Charge what cannot be refused any more."""
        self.used_bytes += size_bytes
        self.most_bytes = max(self.most_bytes, self.used_bytes)

    @property
    def page_bytes(self) -> int:
        """How much to take at once of what cannot be refused later: several together overdraw by little."""
        return min(max((self.bytes_max - self.used_bytes) // SHARE, FREE_BYTES), PAGE_BYTES_MAX)

    def give(self, size_bytes: int) -> None:
        """These bytes are held no longer."""
        self.used_bytes -= size_bytes


class Charge:
    """What one request has taken of the budget."""

    __slots__ = ("budget", "size_bytes")

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.size_bytes = 0

    def take(self, size_bytes: int) -> None:
        """Take more; raises OverloadedError."""
        self.budget.take(size_bytes)
        self.size_bytes += size_bytes

    def force(self, size_bytes: int) -> None:
        """Take what cannot be refused any more."""
        self.budget.force(size_bytes)
        self.size_bytes += size_bytes

    def give_all(self) -> None:
        """Give back what was taken."""
        self.budget.give(self.size_bytes)
        self.size_bytes = 0


KEY = web.RequestKey("charge", Charge)
"""Of each request that came through `api.requests`."""
