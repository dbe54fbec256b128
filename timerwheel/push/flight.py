"""One request to an endpoint with a rate limit: tells the limit when it is sent, repeated and over.

Belongs to the event loop.
"""

from timerwheel.clock import Clock
from timerwheel.push.rate_limit import RateLimit


class Flight:
    """A request that counts from now on, until `end` has been called and its second is over."""

    def __init__(self, limit: RateLimit, clock: Clock) -> None:
        self._limit = limit
        self._clock = clock
        self._request = limit.begin()

    def sent(self) -> None:
        """Note that a part of it was sent."""
        self._limit.sent(self._request, self._clock.monotonic_ms())

    async def repeat(self) -> None:
        """Wait until the limit has room to send it once more: the endpoint may have counted it already."""
        self.end()
        while (wait_ms := self._limit.wait_ms(self._clock.monotonic_ms())) > 0:
            await self._clock.sleep_for(wait_ms)
        self._request = self._limit.begin()

    def end(self) -> None:
        """Note that its answer is there, or that it failed."""
        self._limit.end(self._request, self._clock.monotonic_ms())
