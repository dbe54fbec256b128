"""Limits on the calls of each token: a bucket that fills at the token's rate and holds one second's worth.

So a caller may call in bursts, but in any period no more than rate x seconds + one second's worth. Each
message of an array counts as a call. An array that is larger than the bucket is accepted, and later calls pay
for it: otherwise a token with a low rate could never send one.

A node in front of shards looks for what has a name in each shard, with the caller's token, before it makes
the call to the one that has it. The two are one call of the client, and have the id of its request in common:
else a token with a low rate could never make such a call. So a look-up counts, and one call with the same id
after it does not.
"""

import math

import msgspec

from timerwheel.clock import Clock
from timerwheel.tokens import Token, Tokens

NEARLY_NONE = 1e-6  # of a call: the rounding error of sums of fractions
LOOKED_UP_MAX = 10_000
"""How many look-ups are remembered whose call has not come; the oldest is forgotten."""


class _Bucket(msgspec.Struct):
    level: float
    seen_ms: int
    rate_per_s: float


class Rates:
    """The buckets of all tokens. Belongs to the event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._buckets: dict[str, _Bucket] = {}
        self._looked_up: dict[tuple[str, str], None] = {}

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

    def take_look_up(self, token: Token, request_id: str) -> int:
        """Count a look-up by name, as `take`, and the call of the same request with it."""
        if token.rate_per_s is None or self.has_looked_up(token, request_id):
            return 0
        wait_ms = self.take(token)
        if not wait_ms:
            self._looked_up[token.sha256, request_id] = None
            if len(self._looked_up) > LOOKED_UP_MAX:
                del self._looked_up[next(iter(self._looked_up))]
        return wait_ms

    def has_looked_up(self, token: Token, request_id: str) -> bool:
        """Whether a call was counted with the look-up before it; it is so once."""
        return self._looked_up.pop((token.sha256, request_id), self) is None

    def charge(self, token: Token, calls: int) -> None:
        """Count this many more calls for a call that was accepted."""
        bucket = self._buckets.get(token.sha256)
        if bucket is not None:
            bucket.level -= calls

    def keep(self, tokens: Tokens) -> None:
        """Remove what is known of tokens that no longer exist."""
        known = {token.sha256 for token in tokens.all}
        self._buckets = {sha256: bucket for sha256, bucket in self._buckets.items() if sha256 in known}
        self._looked_up = {looked: None for looked in self._looked_up if looked[0] in known}
