"""Limits the bytes of requests and answers that are in memory at the same time.

Bodies are charged as they arrive, until their request is answered, and answers over FREE_BYTES until the
client has read them. Smaller answers are bounded by the number of connections, because a connection handles
its next request only after the client has read the previous answer.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from aiohttp import web

from timerwheel.errors import TimerwheelError
from timerwheel.settings import Settings

FREE_BYTES = 1 << 16
SHARE = 8


class OverloadedError(TimerwheelError):
    """There is no room for the bytes of this request or its response; other requests free some soon."""

    code = "overloaded"


class Budget:
    """The budget of one application in one direction. Event loop only; any thread may read the numbers."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0
        self.most_bytes = 0  # since the last reset
        self.refused = 0
        self._takers = 0

    def take(self, size_bytes: int) -> None:
        """Charge this many bytes; raises OverloadedError and charges nothing if there is no room."""
        if self.used_bytes + size_bytes > self.bytes_max:
            self.refused += 1
            raise OverloadedError(
                f"no room for {size_bytes} more bytes: requests in progress hold {self.used_bytes} "
                f"of {self.bytes_max} bytes, half of in_progress_size_max; try again later, or ask "
                "for less"
            )
        self.used_bytes += size_bytes
        self.most_bytes = max(self.most_bytes, self.used_bytes)

    def force(self, size_bytes: int) -> None:
        """Charge bytes that can no longer be refused."""
        self.used_bytes += size_bytes
        self.most_bytes = max(self.most_bytes, self.used_bytes)

    @contextmanager
    def taking(self) -> Iterator[int]:
        """Yield the number of bytes that the block may take when they can no longer be refused.

        Raises OverloadedError if there is no room now. Several takers at a time overdraw only a little.
        """
        if self.used_bytes >= self.bytes_max:
            self.take(1)
        self._takers += 1
        try:
            yield max((self.bytes_max - self.used_bytes) // (SHARE + self._takers), FREE_BYTES)
        finally:
            self._takers -= 1

    def give(self, size_bytes: int) -> None:
        """Release these bytes."""
        self.used_bytes -= size_bytes


class Budgets(NamedTuple):
    """Two halves, for requests and responses, so that unread responses do not keep requests out."""

    requests: Budget
    answers: Budget

    @classmethod
    def of(cls, settings: Settings) -> "Budgets":
        """Split `in_progress_bytes_max` in two; an empty half always fits the largest allowed request."""
        half = settings.in_progress_bytes_max // 2
        return cls(Budget(max(half, settings.request_bytes_max)), Budget(half))


class Charge:
    """The bytes that one request holds of the budgets."""

    __slots__ = ("_answer_bytes", "_request_bytes", "budgets")

    def __init__(self, budgets: Budgets) -> None:
        self.budgets = budgets
        self._request_bytes = 0
        self._answer_bytes = 0

    def take(self, size_bytes: int) -> None:
        """Charge more for the request; raises OverloadedError."""
        self.budgets.requests.take(size_bytes)
        self._request_bytes += size_bytes

    def take_answer(self, size_bytes: int, *, force: bool) -> None:
        """Charge more for the response; raises OverloadedError unless it can no longer be refused."""
        answers = self.budgets.answers
        (answers.force if force else answers.take)(size_bytes)
        self._answer_bytes += size_bytes

    def give_answer(self) -> None:
        """Release what was charged for the response so far."""
        self.budgets.answers.give(self._answer_bytes)
        self._answer_bytes = 0

    def keep_until(self, work: asyncio.Future[Any]) -> None:
        """Release what was charged for the request when this work on it is done, which its client left."""
        size_bytes, self._request_bytes = self._request_bytes, 0
        work.add_done_callback(lambda _: self.budgets.requests.give(size_bytes))

    def give_all(self) -> None:
        """Release all that was charged."""
        self.give_answer()
        self.budgets.requests.give(self._request_bytes)
        self._request_bytes = 0


KEY = web.RequestKey("charge", Charge)
"""Every request that came through `timerwheel.api.middleware` has one."""
