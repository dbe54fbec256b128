"""Purging: a group is done with all messages before some queue offsets, whatever it holds of them.

The messages themselves are hidden before that, so the group passes over those that are fresh. What is left
are leases, items, parked messages and redriven dead letters. If this is broken off, the group finds that the
messages of its items are gone once their retries fall due.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from timerwheel.groups.group_runtime import GroupRuntime
from timerwheel.groups.leases import Lease
from timerwheel.groups.leasing import pending_of
from timerwheel.groups.parts import GroupParts, stored_offset
from timerwheel.state.groups import DEAD_QUEUE, OFFSET_BITS, GroupState

STEP_MESSAGES = 500
_OFFSETS = (1 << OFFSET_BITS) - 1


def is_before(key: int, ends: Mapping[int, int]) -> bool:
    """Whether a message lies before the end of its queue, or is a redriven dead letter."""
    queue = key >> OFFSET_BITS
    return queue == DEAD_QUEUE or key & _OFFSETS < ends.get(queue, 0)


def count_held(state: GroupState, ends: Mapping[int, int]) -> int:
    """Count the items of a group that a purge up to these queue offsets would end."""
    return sum(is_before(key, ends) for key in state.items)


async def end_held(parts: GroupParts, runtime: GroupRuntime, ends: Mapping[int, int]) -> None:
    """End leases and items of messages before these queue offsets; NoSpaceError, NotReadyError and so on."""
    leasing = runtime.leasing
    async with leasing.turn:
        while held := _held(runtime, ends):
            under_way: set[asyncio.Future[Any]] = set()
            for at in range(0, len(held), STEP_MESSAGES):
                await parts.core.clock.breathe()
                free, busy = _free(parts, runtime, held[at : at + STEP_MESSAGES])
                under_way |= busy
                if free:
                    await stored_offset(leasing.end(free))
            under_way = {outcome for outcome in under_way if not outcome.done()}
            if under_way:
                await asyncio.wait(under_way)
        leasing.chooser.drop_before(ends)


def _held(runtime: GroupRuntime, ends: Mapping[int, int]) -> list[int]:
    keys = runtime.leasing.leases.by_key.keys() | runtime.state.items.keys()
    return sorted(key for key in keys if is_before(key, ends))


def _free(
    parts: GroupParts, runtime: GroupRuntime, keys: list[int]
) -> tuple[list[Lease], set[asyncio.Future[Any]]]:
    """Return what can be ended in this step of the loop, and the outcomes to wait for of the rest."""
    leasing, items = runtime.leasing, runtime.state.items
    free: list[Lease] = []
    under_way: set[asyncio.Future[Any]] = set()
    for key in keys:
        lease, item = leasing.leases.by_key.get(key), items.get(key)
        timer = parts.core.in_flight.outcome(item.offset) if item is not None and item.timed else None
        if key in leasing.busy:
            under_way.add(leasing.busy[key])
        elif timer is not None:
            under_way.add(timer)
        elif lease is not None:
            free.append(lease)
        elif item is not None:
            free.append(pending_of(item))
    return free, under_way
