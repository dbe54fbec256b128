"""The trace context that travels with a message, as its properties `traceparent` and `tracestate`. Pure.

    headers or properties of a send -> properties in the log -> received messages, headers of a push

1. It is the sender's from end to end: the service passes it on and adds nothing to it.
2. What is kept is well-formed by W3C Trace Context, level 2, so it can be used as a header unchanged.
3. No message is refused because of its context: a context that is malformed or does not fit is dropped.
"""

import re
from collections.abc import Mapping

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
CONTEXT_PROPERTIES = frozenset({TRACEPARENT, TRACESTATE})
TRACESTATE_BYTES_MAX = 512

_SAMPLED = 1
_NO_VERSION, _VERSION = "ff", "00"
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16
_MEMBERS_MAX = 32
_LONG_MEMBER_BYTES = 128
_match_parent = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?").fullmatch
_match_member = re.compile(r"([a-z0-9][a-z0-9_*/@-]{0,255})=[ -+\--<>-~]{0,255}[!-+\--<>-~]").fullmatch


def context_of(given: Mapping[str, str]) -> dict[str, str]:
    """Return the context among properties or headers, as properties; empty if none is well-formed.

    A `tracestate` alone means nothing, and a malformed one is dropped without effect on `traceparent`.
    """
    parent = _parent(given.get(TRACEPARENT))
    if parent is None:
        return {}
    context = {TRACEPARENT: parent}
    state = _state(given.get(TRACESTATE, ""))
    if state:
        context[TRACESTATE] = state
    return context


def has_context(properties: Mapping[str, str]) -> bool:
    """Tell whether there is a trace context among the properties."""
    return not CONTEXT_PROPERTIES.isdisjoint(properties)


def without_context(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the other properties."""
    if not has_context(properties):
        return dict(properties)
    return {name: value for name, value in properties.items() if name not in CONTEXT_PROPERTIES}


def is_sampled(properties: Mapping[str, str]) -> bool:
    """Tell whether the sender records its trace."""
    parent = _parent(properties.get(TRACEPARENT))
    return parent is not None and bool(int(parent[-2:], 16) & _SAMPLED)


def _parent(text: str | None) -> str | None:
    """Parse a `traceparent`; of a later version, keep what this version knows."""
    if text is None or (found := _match_parent(text)) is None:
        return None
    version, trace, span, flags, more = found.groups()
    if version == _NO_VERSION or trace == _NO_TRACE or span == _NO_SPAN:
        return None
    if version == _VERSION and more is not None:
        return None
    return f"{_VERSION}-{trace}-{span}-{flags}"


def _state(text: str) -> str:
    """Return a `tracestate` of at most TRACESTATE_BYTES_MAX, empty if one of its members is malformed.

    If it is longer, long members are dropped first, then the last ones, which are the oldest.
    """
    members = [member for part in text.split(",") if (member := part.strip(" \t"))]
    if len(members) > _MEMBERS_MAX:
        return ""
    keys = {found[1] for member in members if (found := _match_member(member)) is not None}
    if len(keys) < len(members):  # one is malformed, or a key is repeated
        return ""
    if len(",".join(members)) > TRACESTATE_BYTES_MAX:
        members = [member for member in members if len(member) <= _LONG_MEMBER_BYTES]
    while len(state := ",".join(members)) > TRACESTATE_BYTES_MAX:
        members.pop()
    return state
