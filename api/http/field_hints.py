"""Hints in errors about fields: what somebody who wrote an unknown one, or a number, may have meant. Pure."""

import re
from difflib import get_close_matches
from typing import Any

import msgspec

_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>[^`]{1,64})`(?P<place>.*)", re.DOTALL)
_AT_TOP = re.compile(r"( - at `\$\[(\d+|\.\.\.)\]`)?")
# Names that other services have for what this one calls otherwise.
OTHER_NAMES = {
    "wait": "wait_ms",
    "timezone": "zone",
    "tz": "zone",
    "visibility_timeout": "invisible_ms",
    "not_before": "deliver_at",
    "notBefore": "deliver_at",
    "eta": "deliver_at",
    "scheduleTime": "deliver_at",
    "schedule_time": "deliver_at",
    "delay_seconds": "delay",
    "DelaySeconds": "delay",
    "countdown": "delay",
    "payload": "json",
    "data": "json",
    "message": "body",
    "maxRetries": "retries",
    "failureCallback": "failure_callback",
    "deduplication_id": "dedup_key",
    "max_messages": "max",
}


_NO_LENGTH = re.compile(r"Expected `str`, got `(int|float)` - at `\$(\[(\d+|\.\.\.)\])?\.(?P<name>\w+)`")
_LENGTHS = frozenset({"delay", "ttl", "timeout", "every"})


def with_hint(detail: str, kind: Any) -> str:  # noqa: ANN401 - a type
    """Return a detail about a field of `kind`, with a hint if there is one: the field that may be meant."""
    length = _NO_LENGTH.fullmatch(detail)
    if length is not None and length["name"] in _LENGTHS:
        return f'{detail}; write "5s", or give milliseconds as {length["name"]}_ms'
    found = _UNKNOWN.fullmatch(detail)
    if found is None or _AT_TOP.fullmatch(found["place"]) is None or not _is_struct(kind):
        return detail
    known = [field.encode_name for field in msgspec.structs.fields(kind)]
    other = OTHER_NAMES.get(found["name"])
    meant = [other] if other in known else get_close_matches(found["name"], known, n=1)
    return f"{detail}; did you mean `{meant[0]}`?" if meant else f"{detail}; it has {', '.join(known)}"


def _is_struct(kind: Any) -> bool:  # noqa: ANN401 - a type
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)
