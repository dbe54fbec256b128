"""Limits on the calls of each token: a bucket that fills at the token's rate and holds one second's worth.

So a caller may call in bursts, but in any period no more than rate x seconds + one second's worth. Each
message of an array counts as a call. An array that is larger than the bucket is accepted, and later calls pay
for it: otherwise a token with a low rate could never send one.
"""

import math

import msgspec

from timerwheel.clock import Clock
from timerwheel.tokens import Token, Tokens

NEARLY_NONE = 1e-6  # of a call: the rounding error of sums of fractions


class _Bucket(msgspec.Struct):
    level: float
    seen_ms: int
    rate_per_s: float


class Rates:
    """The buckets of all tokens. Belongs to the event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._buckets: dict[str, _Bucket] = {}

    def take(self, token: Token) -> int:
        """Count one call; returns 0 if it may be served, else how many ms to wait."""
        rate = token.rate_per_s
        if rate is None:
            return 0
        now_ms = self._clock.monotonic_ms()
        holds = max(rate, 1.0)
        bucket = self._buckets.get(token.sha256)
        if bucket is None or bucket.rate_per_s != rate:
            bucket = self._buckets[token.sha256] = _Bucket(holds, now_ms, rate)
        bucket.level = min(holds, bucket.level + (now_ms - bucket.seen_ms) * rate / 1000)
        bucket.seen_ms = now_ms
        missing = 1 - NEARLY_NONE - bucket.level
        if missing > 0:
            return math.ceil(missing * 1000 / rate)
        bucket.level -= 1
        return 0

    def charge(self, token: Token, calls: int) -> None:
        """Count this many more calls for a call that was accepted."""
        bucket = self._buckets.get(token.sha256)
        if bucket is not None:
            bucket.level -= calls

    def keep(self, tokens: Tokens) -> None:
        """Remove the buckets of tokens that no longer exist."""
        known = {token.sha256 for token in tokens.all}
        self._buckets = {sha256: bucket for sha256, bucket in self._buckets.items() if sha256 in known}
