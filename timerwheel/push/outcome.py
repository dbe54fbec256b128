"""The outcome of one attempt to deliver, derived from the answer. Pure."""

import datetime as dt
import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Literal

import msgspec

ACK_HEADER = "timerwheel-ack"
ACK_WITHIN_HEADER = "timerwheel-ack-within"
LATER = "later"
ACK_WITHIN_MS_MIN = 1_000
ACK_WITHIN_MS_MAX = 12 * 3_600_000
"""The longest time that an answer can ask for to acknowledge later; an extension may ask for as much."""
RETRY_AFTER_MS_MIN = 1_000
RETRY_AFTER_MS_MAX = 86_400_000

_ACCEPTED = 202
_GONE = 410
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MS = dt.timedelta(milliseconds=1)
_SECONDS = re.compile(r"[0-9]+")
_SECONDS_DIGITS_MAX = 9  # longer ones exceed the limit anyway


class Outcome(msgspec.Struct, frozen=True):
    """One attempt: delivered (2xx), gone (410: never call again), or failed.

    `status` is None if there was no complete answer, and `answer` is the beginning of what came.
    `retry_after_ms` is the receiver's wish, within bounds.
    """

    kind: Literal["delivered", "failed", "gone"]
    reason: str
    status: int | None = None
    retry_after_ms: int | None = None
    latency_ms: int = 0
    answer: str = ""

    @property
    def is_delivered(self) -> bool:
        """Whether the receiver took it."""
        return self.kind == "delivered"

    @property
    def is_gone(self) -> bool:
        """Whether the receiver must not be called again."""
        return self.kind == "gone"

    def shown(self) -> "Outcome":
        """Return it as an outcome of an attempt that can only be acknowledged by its answer."""
        return self


class Taken(Outcome, frozen=True):
    """A delivered message that is not acknowledged yet: its receiver does that by a call of its own.

    It asks for so long to do it; None if it does not say.
    """

    ack_within_ms: int | None = None

    def shown(self) -> Outcome:
        """Return it without what it asks for."""
        return Outcome(self.kind, self.reason, self.status, self.retry_after_ms, self.latency_ms, self.answer)


def failed(reason: str) -> Outcome:
    """Return the outcome of an attempt without a complete answer."""
    return Outcome("failed", reason)


def classify(status: int, headers: Mapping[str, str], now_ms: int) -> Outcome:
    """Return the outcome of an answer. A redirect is a failure: its target was never checked or agreed on."""
    reason = f"HTTP {status}"
    if status == _ACCEPTED and headers.get(ACK_HEADER, "").strip().lower() == LATER:
        within_ms = later_ms(headers.get(ACK_WITHIN_HEADER))
        return Taken("delivered", f"{reason}: later", status, ack_within_ms=within_ms)
    if 200 <= status < 300:  # noqa: PLR2004 - the class of success
        return Outcome("delivered", reason, status)
    if status == _GONE:
        return Outcome("gone", reason, status)
    if 300 <= status < 400:  # noqa: PLR2004 - the class of redirects
        reason += ": redirects are not followed"
    return Outcome("failed", reason, status, retry_after_ms(headers.get("Retry-After"), now_ms))


def retry_after_ms(text: str | None, now_ms: int) -> int | None:
    """Return the wait that a Retry-After header asks for, clamped to its bounds; None if it is malformed.

    It is a number of seconds or an HTTP date; a date in the past asks for the minimum.
    """
    if text is None:
        return None
    text = text.strip()
    if _SECONDS.fullmatch(text):
        digits = text.lstrip("0")
        wanted_ms = int(digits or "0") * 1_000 if len(digits) <= _SECONDS_DIGITS_MAX else RETRY_AFTER_MS_MAX
    else:
        try:
            at = parsedate_to_datetime(text)
        except (ValueError, OverflowError):
            return None
        # The form of asctime has no zone; HTTP dates are all in GMT.
        at = at.replace(tzinfo=dt.UTC) if at.tzinfo is None else at
        wanted_ms = (at - _EPOCH) // _MS - now_ms
    return min(max(wanted_ms, RETRY_AFTER_MS_MIN), RETRY_AFTER_MS_MAX)


def later_ms(text: str | None) -> int | None:
    """Return the time to acknowledge later that a header asks for in seconds, clamped to its bounds.

    None if there is none, or it is malformed.
    """
    digits = "" if text is None else text.strip()
    if not _SECONDS.fullmatch(digits):
        return None
    digits = digits.lstrip("0") or "0"
    wanted_ms = int(digits) * 1_000 if len(digits) <= _SECONDS_DIGITS_MAX else ACK_WITHIN_MS_MAX
    return min(max(wanted_ms, ACK_WITHIN_MS_MIN), ACK_WITHIN_MS_MAX)
