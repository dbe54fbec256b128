"""What becomes of a message whose attempt failed, or that waits for one: another attempt, or which end. Pure.

    its TTL is over                                              -> EXPIRED
    it has had its last attempt                                  -> LAST
    its next attempt would come after its TTL                    -> EXPIRED
    its next attempt would come later than the group allows      -> TOO_OLD
    else                                                         -> AGAIN

A first attempt is limited by the TTL alone.
"""

from collections.abc import Iterable
from enum import Enum

from timerwheel.groups.config import GroupConfig
from timerwheel.groups.leases import Lease
from timerwheel.model.limits import Limits


class Outlook(Enum):
    """See the module."""

    AGAIN = 1
    LAST = 2
    EXPIRED = 3
    TOO_OLD = 4


def attempts_max_of(config: GroupConfig, limits: Limits | None) -> int:
    """Return how many attempts a message has: its own number, or that of its group."""
    own = None if limits is None else limits.max_attempts
    return config.max_attempts if own is None else own


def outlook(config: GroupConfig, limits: Limits | None, attempt: int, age_ms: int, wait_ms: int) -> Outlook:
    """Return what becomes of a message after `attempt` failed ones; the next comes after `wait_ms`."""
    ttl_ms = None if limits is None else limits.ttl_ms
    if ttl_ms is not None and age_ms >= ttl_ms:
        return Outlook.EXPIRED
    if attempt >= attempts_max_of(config, limits):
        return Outlook.LAST
    if ttl_ms is not None and age_ms + wait_ms >= ttl_ms:
        return Outlook.EXPIRED
    if attempt and config.max_age_ms is not None and age_ms + wait_ms >= config.max_age_ms:
        return Outlook.TOO_OLD
    return Outlook.AGAIN


def sorted_out(
    leases: Iterable[tuple[Lease, Outlook]],
) -> tuple[list[Lease], dict[Outlook, list[Lease]]]:
    """Return the leases that get another attempt, and the others by what becomes of them."""
    again: list[Lease] = []
    endings: dict[Outlook, list[Lease]] = {}
    for lease, ending in leases:
        (again if ending is Outlook.AGAIN else endings.setdefault(ending, [])).append(lease)
    return again, endings


def reason_of(ending: Outlook, config: GroupConfig) -> str | None:
    """Return why a message ends so, None if that is its last attempt."""
    if ending is Outlook.EXPIRED:
        return "expired: it was not acknowledged within its TTL"
    if ending is Outlook.TOO_OLD:
        return f"too old: no other attempt within max_age_ms = {config.max_age_ms} of its delivery"
    return None
