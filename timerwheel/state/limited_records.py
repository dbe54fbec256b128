"""Which records limit the attempts at their message, and how. Pure.

A record whose properties set a limit has FLAG_LIMITED, so that all others need not be looked into. Records of
versions that knew no limits have no flag: there the properties mean nothing.
"""

from collections.abc import Mapping

import orjson

from timerwheel.model.limits import ATTEMPTS_PROPERTY, LIMIT_PROPERTIES, TTL_PROPERTY, Limits, limit_of
from timerwheel.store.record import FLAG_LIMITED, FLAGS_AT, decode, decode_header


def flag_of(properties: Mapping[str, str]) -> int:
    """Return FLAG_LIMITED if these properties set a limit, else 0."""
    return 0 if LIMIT_PROPERTIES.isdisjoint(properties) else FLAG_LIMITED


def is_limited(record: bytes) -> bool:
    """Whether a message sets limits of its own."""
    return bool(record[FLAGS_AT] & FLAG_LIMITED)


def limits_of(record: bytes) -> Limits:
    """Return the limits of a delivered message, which count from its delivery.

    A value that admission would refuse limits nothing. Schedules stored by earlier versions may have one.
    """
    from_ms = decode_header(record).store_ms
    if not is_limited(record):
        return Limits(from_ms)
    properties = orjson.loads(decode(record).properties or b"{}")
    return Limits(from_ms, limit_of(properties, TTL_PROPERTY), limit_of(properties, ATTEMPTS_PROPERTY))
