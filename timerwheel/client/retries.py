"""Repeating a send: when it is safe, how long to pause, and the keys that make it safe.

    what came                                        stored?        repeated
    no connection; 429 or 503 with Retry-After       no             always
    no answer; 502, 503, 504 of something between    maybe          under an automatic key only
    any other answer                                 it says so     never

A caller's own `dedup_key` is the caller's: whether the answer says `duplicate` may mean something to it, so a
send that may have been stored is not repeated under it.
"""

import datetime as dt
import email.utils
import random
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from timerwheel.client.errors import ClientError, UnreachableError
from timerwheel.clock import Clock

SEND_RETRY_MS = 15_000
"""Long enough for another node to take over, see doc/cluster.md."""
PAUSE_MS = 100
PAUSE_MS_MAX = 2_000
KEY_PREFIX = "auto:"
_KEY_BYTES = 15
_ATTEMPT_MS_MIN = 1_000
_SECONDS_DIGITS_MAX = 9
_BETWEEN = frozenset({502, 503, 504})  # statuses of a proxy that got no answer either
_REFUSED = frozenset({429, 503})
_Answer = TypeVar("_Answer")


class AutomaticKeys:
    """Messages with a key each, unless one has a key of its own or none is wanted."""

    def __init__(self, messages: Sequence[dict[str, object]], *, wanted: bool) -> None:
        self.given = wanted and not any(_has_key(message) for message in messages)
        """Whether these keys are automatic."""
        self.messages = (
            [message | {"dedup_key": new_key()} for message in messages] if self.given else messages
        )


def new_key() -> str:
    """Return a key that no other send has."""
    return KEY_PREFIX + secrets.token_urlsafe(_KEY_BYTES)


def _has_key(message: dict[str, object]) -> bool:
    properties = message.get("properties")
    if isinstance(properties, dict) and "DEDUP_KEY" in properties:
        return True
    return not message.keys().isdisjoint(("dedup_key", "after_recall", "on_duplicate"))


class Retries:
    """Repeats attempts for `window_ms` from the first failure on; with 0, never."""

    def __init__(self, clock: Clock, window_ms: int) -> None:
        if window_ms < 0:
            raise ValueError(f"retry_ms = {window_ms}: must not be negative")
        self.window_ms = window_ms
        self._clock = clock

    async def run(
        self, attempt: Callable[[int], Awaitable[_Answer]], limit_ms: int, *, is_keyed: bool
    ) -> _Answer:
        """Return what an attempt returns, or raise what the last one raised.

        An attempt gets its time limit: `limit_ms`, or what is left of the window.
        """
        end_ms: int | None = None
        pause_ms = PAUSE_MS
        while True:
            try:
                return await attempt(limit_ms)
            except ClientError as error:
                now_ms = self._clock.monotonic_ms()
                end_ms = now_ms + self.window_ms if end_ms is None else end_ms
                wait_ms = max(round(pause_ms * random.uniform(0.5, 1.0)), error.retry_after_ms or 0)  # noqa: S311
                left_ms = end_ms - now_ms - wait_ms
                if left_ms <= 0 or not is_repeatable(error, is_keyed=is_keyed):
                    raise
            await self._clock.sleep_for(wait_ms)
            pause_ms = min(2 * pause_ms, PAUSE_MS_MAX)
            limit_ms = min(limit_ms, max(left_ms, _ATTEMPT_MS_MIN))


def is_repeatable(error: ClientError, *, is_keyed: bool) -> bool:
    """Whether the send may be repeated: nothing was stored, or its automatic key makes that harmless."""
    if isinstance(error, UnreachableError):
        return not error.final and (is_keyed or not error.connected)
    if error.code == "illegal_answer":
        return is_keyed and error.status in _BETWEEN
    return error.status in _REFUSED and error.retry_after_ms is not None


def retry_after_ms(text: str | None) -> int | None:
    """Return the header `Retry-After` in milliseconds from now; None if it is missing or malformed."""
    if text is None:
        return None
    if text.isascii() and text.isdecimal():
        return int(text) * 1000 if len(text) <= _SECONDS_DIGITS_MAX else None
    try:
        at = email.utils.parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    if at.tzinfo is None:  # a date without a zone, or with -0000, is in UTC
        at = at.replace(tzinfo=dt.UTC)
    return max(round((at - dt.datetime.now(dt.UTC)) / dt.timedelta(milliseconds=1)), 0)
