"""The last attempts of each subscription, to find the reason of a failure.

1. They are in memory only: a restart begins with none.
2. Of one subscription ATTEMPTS_MAX are kept, of all ATTEMPTS_TOTAL_MAX, about 20 MB. Above that, the
   subscription whose last attempt is the oldest loses its attempts first.

Belongs to the event loop.
"""

from collections import OrderedDict, deque
from typing import Literal

import msgspec

from timerwheel.model import list_cursor
from timerwheel.model.list_cursor import number_key
from timerwheel.push.outcome import Outcome

ATTEMPTS_MAX = 50
ATTEMPTS_TOTAL_MAX = 20_000
_NEWEST = 1 << 62  # attempts are numbered as they are made, and sorted by how far they are from this


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt that ended at `at_ms`. Its number counts from 1; one sent again by hand has 0.

    `answer` is the beginning of what the endpoint answered. `next_attempt_ms` is None if there will be none:
    the message was delivered, or is a dead letter.
    """

    at_ms: int
    message_id: str
    attempt: int
    kind: Literal["delivered", "failed", "gone"]
    reason: str
    status: int | None
    answer: str
    latency_ms: int
    next_attempt_ms: int | None

    @classmethod
    def of(cls, outcome: Outcome, message_id: str, number: int, at_ms: int) -> "Attempt":
        """Describe an attempt without a next one."""
        return cls(
            at_ms=at_ms,
            message_id=message_id,
            attempt=number,
            kind=outcome.kind,
            reason=outcome.reason,
            status=outcome.status,
            answer=outcome.answer,
            latency_ms=outcome.latency_ms,
            next_attempt_ms=None,
        )


class AttemptLog:
    """The last attempts of all subscriptions."""

    def __init__(self, total_max: int = ATTEMPTS_TOTAL_MAX) -> None:
        self._total_max = total_max
        self._made = 0
        self._total = 0
        self._of: OrderedDict[str, deque[tuple[int, Attempt]]] = (
            OrderedDict()
        )  # the latest one to be called is last

    def add(self, subscription_id: str, attempt: Attempt) -> None:
        """Keep an attempt."""
        own = self._of.setdefault(subscription_id, deque(maxlen=ATTEMPTS_MAX))
        self._total += len(own) < ATTEMPTS_MAX
        self._made += 1
        own.append((self._made, attempt))
        self._of.move_to_end(subscription_id)
        while self._total > self._total_max:
            _, forgotten = self._of.popitem(last=False)
            self._total -= len(forgotten)

    def page(
        self, subscription_id: str, limit: int | None = None, cursor: str | None = None
    ) -> tuple[list[Attempt], str | None]:
        """Return attempts, newest first, and the cursor of those before them; IllegalCursorError."""
        own = self._of.get(subscription_id, ())
        page, cursor = list_cursor.page(own, lambda one: number_key(_NEWEST - one[0]), limit, cursor)
        return [attempt for _, attempt in page], cursor

    def forget(self, subscription_id: str) -> None:
        """Drop the attempts of a subscription that is deleted."""
        self._total -= len(self._of.pop(subscription_id, ()))
