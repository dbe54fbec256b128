"""How many requests an endpoint gets in a second, as it counts them itself. Pure.

A request takes some time to arrive. If requests were counted when they begin, one that is slow to arrive
would come closer to those of the next second, and the endpoint would count too many. So:

1. A request counts from its beginning until a second after it can last have arrived: after its answer or its
   failure, or ARRIVAL_MS_MAX after the last byte of it was sent, whichever comes first.
2. What begins while others count leaves no more than the limit in any second that it arrives in, whatever
   limit the others began under.

The price: with answers that take L seconds, up to 1, the limit is reached at most 1 / (1 + L) of the time.
Times are monotonic milliseconds.
"""

from collections import deque
from math import ceil

SECOND_MS = 1_000
ARRIVAL_MS_MAX = 1_000
"""An endpoint that answers later than this has the request by then."""
_TICK_MS = 1  # times are rounded down, so what lies this far apart may be closer


class Request:
    """A request that counts."""

    __slots__ = ("ended", "sent_ms")

    def __init__(self) -> None:
        self.sent_ms: int | None = None
        self.ended = False


class RateLimit:
    """Counts the requests of one endpoint.

    A limit that is not a whole number is the same over a longer stretch: 0.2 is one request in five seconds,
    1.5 one in 667 ms. None means no limit.
    """

    def __init__(self, per_second: float | None, full_ms: int | None = None) -> None:
        """With `full_ms`, as many as are allowed may have arrived until then: before a restart, say."""
        self._under_way: set[Request] = set()
        self._sent: deque[Request] = deque()  # those of the above whose arrival is bounded, in order
        self._arrived: deque[int] = deque()  # when the others can last have arrived, in order
        self._set(per_second)
        if full_ms is not None:
            self._fill(full_ms)

    def change(self, per_second: float | None, now_ms: int) -> None:
        """Have another limit from now on. What counts already goes on counting.

        If there was none, nobody knows what arrived in the last second: the new one counts as used up.
        """
        was_none = self._per_second is None
        self._set(per_second)
        if was_none:
            self._fill(now_ms)

    def _fill(self, now_ms: int) -> None:
        if self._per_second is not None:
            self._arrived.extend([now_ms] * self._count)

    def _set(self, per_second: float | None) -> None:
        self._per_second = per_second
        self._count = max(int(per_second or 0), 1)
        self._stretch_ms = ceil(SECOND_MS * self._count / per_second) + _TICK_MS if per_second else 0

    def room(self, now_ms: int) -> int | None:
        """Return how many requests may begin now; None for any number."""
        if self._per_second is None:
            return None
        return max(self._count - self._counting(now_ms), 0)

    def wait_ms(self, now_ms: int) -> int:
        """Return after how long to ask again whether a request may begin; 0 if one may now."""
        if self.room(now_ms) != 0:
            return 0
        # So many must stop counting, and those that have arrived do so first.
        counting = self._counting(now_ms)
        beyond = counting - self._count
        if beyond < counting - len(self._under_way):
            return self._arrived[beyond] + self._stretch_ms - now_ms
        return self._stretch_ms

    def begin(self) -> Request:
        """Count a request from now on."""
        request = Request()
        self._under_way.add(request)
        return request

    def sent(self, request: Request, now_ms: int) -> None:
        """Note that a part of a request is sent, which may be its last."""
        if request.sent_ms is None and self._per_second is not None:
            self._sent.append(request)
        request.sent_ms = now_ms

    def end(self, request: Request, now_ms: int) -> None:
        """Note that a request has its answer, or failed; a second call changes nothing."""
        request.ended = True
        self._arrive(request, now_ms)

    def _arrive(self, request: Request, at_ms: int) -> None:
        if request in self._under_way:
            self._under_way.discard(request)
            if self._per_second is not None:
                self._arrived.append(max(at_ms, self._arrived[-1]) if self._arrived else at_ms)

    def _counting(self, now_ms: int) -> int:
        """Return how many count, and forget the others."""
        while self._sent and (self._sent[0].ended or (self._sent[0].sent_ms or 0) + ARRIVAL_MS_MAX <= now_ms):
            request = self._sent.popleft()
            self._arrive(request, (request.sent_ms or 0) + ARRIVAL_MS_MAX)
        # The last one is kept: a lower limit may count it again, since its stretch is longer.
        while len(self._arrived) > 1 and self._arrived[0] <= now_ms - self._stretch_ms:
            self._arrived.popleft()
        are_over = bool(self._arrived) and self._arrived[0] <= now_ms - self._stretch_ms
        return len(self._under_way) + len(self._arrived) - are_over
