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
_NO_WORD = re.compile(r"Invalid enum value '[^']{0,64}' - at `\$(\[(\d+|\.\.\.)\])?\.(?P<name>\w+)`")
_LENGTHS = frozenset({"delay", "ttl", "timeout", "every"})


def with_hint(detail: str, kind: Any) -> str:  # noqa: ANN401 - a type
    """Return a detail about a field of `kind`, with a hint if there is one: the field that may be meant."""
    length = _NO_LENGTH.fullmatch(detail)
    if length is not None and length["name"] in _LENGTHS:
        return f'{detail}; write "5s", or give milliseconds as {length["name"]}_ms'
    word = _NO_WORD.fullmatch(detail)
    if word is not None and (words := _words_of(kind, word["name"])):
        return f"{detail}; give {', '.join(words[:-1])} or {words[-1]}"
    found = _UNKNOWN.fullmatch(detail)
    if found is None or _AT_TOP.fullmatch(found["place"]) is None or not _is_struct(kind):
        return detail
    known = [field.encode_name for field in msgspec.structs.fields(kind)]
    other = OTHER_NAMES.get(found["name"])
    meant = [other] if other in known else get_close_matches(found["name"], known, n=1)
    if meant:
        return f"{detail}; did you mean `{meant[0]}`?"
    return f"{detail}; it has {', '.join(known) or 'none'}"


def _words_of(kind: Any, name: str) -> list[str]:  # noqa: ANN401 - a type
    """Return the words that a field takes; none if it takes others."""
    types = {one.encode_name: one.type for one in msgspec.structs.fields(kind)} if _is_struct(kind) else {}
    return _words_in(msgspec.inspect.type_info(types[name])) if name in types else []


def _words_in(found: msgspec.inspect.Type) -> list[str]:
    if isinstance(found, msgspec.inspect.Metadata):  # it has a description
        return _words_in(found.type)
    if isinstance(found, msgspec.inspect.UnionType):  # it may be left out
        return [word for one in found.types for word in _words_in(one)]
    return [str(one) for one in found.values] if isinstance(found, msgspec.inspect.LiteralType) else []


def _is_struct(kind: Any) -> bool:  # noqa: ANN401 - a type
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)
