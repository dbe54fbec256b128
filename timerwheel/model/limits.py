"""The limits that a message may set itself: for how long groups try it, and how often. Pure.

They are properties, `TIMER_TTL_MS` and `TIMER_MAX_ATTEMPTS`; see
`timerwheel.state.limited_records` for the records that have them.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from timerwheel.errors import AdmissionError

TTL_PROPERTY = "TIMER_TTL_MS"
ATTEMPTS_PROPERTY = "TIMER_MAX_ATTEMPTS"
LIMIT_PROPERTIES = frozenset({TTL_PROPERTY, ATTEMPTS_PROPERTY})
TTL_MS_MAX = 3_650 * 86_400_000
"""Longest time to live of a message: ten years."""
ATTEMPTS_MAX = 1_000
"""Most attempts that a message or a group may ask for."""

_MAXIMA = {TTL_PROPERTY: TTL_MS_MAX, ATTEMPTS_PROPERTY: ATTEMPTS_MAX}
_match_number = re.compile(r"[0-9]{1,15}").fullmatch
_SHOWN_CHARACTERS = 40


class Limits(NamedTuple):
    """What limits the attempts at a message, which consumers can have since `from_ms`."""

    from_ms: int
    ttl_ms: int | None = None
    max_attempts: int | None = None


def limit_of(properties: Mapping[str, str], name: str) -> int | None:
    """Return the limit of this name; None if there is none, or no number within its bounds."""
    text = properties.get(name, "")
    if _match_number(text) is None or not 1 <= int(text) <= _MAXIMA[name]:
        return None
    return int(text)


def check_limits(properties: Mapping[str, str]) -> None:
    """Raise AdmissionError illegal_property for a limit that is not a whole number from 1 to its maximum."""
    for name in LIMIT_PROPERTIES & properties.keys():
        text = properties[name]
        if limit_of(properties, name) is None:
            shown = repr(text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}...")
            detail = f"{name} = {shown}: must be a whole number from 1 to {_MAXIMA[name]}"
            raise AdmissionError("illegal_property", detail)
