"""Cursors: where a group begins, and setting them later, which makes the group forget what it holds."""

import asyncio

from timerwheel.groups.config import GroupFieldError, Start
from timerwheel.groups.group_runtime import GroupRuntime
from timerwheel.groups.parts import GroupParts, stored_offset
from timerwheel.state import lease_records
from timerwheel.state.config_table import CONTROL_TOPIC, Put, encode_puts
from timerwheel.store.record import unit_of


async def cursors_for(
    parts: GroupParts,
    topic: str,
    *,
    to: Start | None = None,
    time_ms: int | None = None,
    offsets: dict[int, int] | None = None,
) -> dict[int, int]:
    """A cursor for each queue of a topic, or with `offsets` for those.

    Offsets are kept within the queues. Raises GroupFieldError for a queue that the topic does not have.
    """
    found: dict[int, int] = {}
    offsets = offsets or {}
    count = parts.queues.queues_of(topic)
    unknown = sorted(queue for queue in offsets if not 0 <= queue < count)
    if unknown:
        raise GroupFieldError(f"offsets: topic {topic!r} has no queue {unknown[0]}")
    for queue in range(count):
        low, high = parts.queues.queue_bounds(topic, queue)
        if to is not None:
            found[queue] = low if to == "head" else high
        elif time_ms is not None:
            found[queue] = await parts.queues.first_from(topic, queue, time_ms)
        elif queue in offsets:
            found[queue] = min(max(offsets[queue], low), high)
    return found


async def forget_items(parts: GroupParts, runtime: GroupRuntime, puts: list[Put]) -> None:
    """Store a change that makes the group forget what it holds, with the ends of its timers, as one unit."""
    async with runtime.leasing.turn:
        state = runtime.state
        while True:
            await runtime.leasing.settle()
            under_way = parts.core.in_flight.outcomes(
                item.offset for item in state.items.values() if item.timed
            )
            if not under_way:
                break
            await asyncio.wait(under_way)
        now_ms = parts.core.clock.now_ms()
        timed = [item for item in state.items.values() if item.timed]
        name = state.name.encode()
        unit = [lease_records.end(name, item, now_ms) for item in timed]
        topics = [state.name] * len(unit)
        taken = parts.core.in_flight.take(parts.entries(state, timed))
        records = unit_of([*unit, encode_puts(puts, now_ms)])
        leasing = runtime.leasing
        leasing.resetting = taken.submit(records, [*topics, CONTROL_TOPIC])
        try:
            await stored_offset(leasing.resetting)
            leasing.restart()
        finally:
            leasing.resetting = None
