"""Timers that no item has any more: of what a group held before it was rewound or deleted.

A rewind or a deletion takes effect with one unit, however much the group holds. Then these timers are ended
in steps. One that fires before its turn finds no item, and changes nothing. What a stop leaves of them is
ended at the next start.
"""

import logging
from collections.abc import Sequence

from timerwheel.errors import NotReadyError, OutcomeUnknownError
from timerwheel.groups.parts import GroupParts, stored_offset
from timerwheel.index.lookups import FAR_MS, IndexReader, Window
from timerwheel.state import lease_records
from timerwheel.state.groups import SEPARATOR, GroupState, Item, ItemState
from timerwheel.store.errors import NoSpaceError
from timerwheel.wheel.slot_table import Entries

logger = logging.getLogger("timerwheel")

STEP_TIMERS = 500
"""How many timers are ended together."""
_ALL = 1 << 62


async def end_timers(parts: GroupParts, group: GroupState, items: Sequence[Item]) -> None:
    """End the timers of these items, which the group no longer holds, as far as they are pending.

    If they cannot be stored, they are left, and a warning says so: the change that forgot them stands.
    """
    try:
        for at in range(0, len(items), STEP_TIMERS):
            await parts.core.clock.breathe()
            await _end_step(parts, group, items[at : at + STEP_TIMERS])
    except (NoSpaceError, NotReadyError, OutcomeUnknownError) as error:
        logger.warning("timers of what %s no longer holds stay until the next start: %s", group.name, error)


async def _end_step(parts: GroupParts, group: GroupState, items: Sequence[Item]) -> None:
    near, in_flight = parts.core.near, parts.core.in_flight
    entries = parts.entries(group, items)
    waits = (entries["due_ms"] >= near.until_ms) | near.contains_each(entries)
    left = [
        item
        for item, is_pending in zip(items, waits.tolist(), strict=True)
        if is_pending and item.offset not in in_flight
    ]
    if not left:
        return
    now_ms, name = parts.core.clock.now_ms(), group.name.encode()
    records = [lease_records.end(name, item, now_ms) for item in left]
    taken = in_flight.take(parts.entries(group, left))
    await stored_offset(taken.submit(records, [group.name] * len(left)))


async def end_left(parts: GroupParts) -> None:
    """End what earlier runs have left. Call it before anything fires."""
    state = parts.core.state
    for topic_id in state.internal_ids:
        topic = state.topics_by_id[topic_id]
        group = parts.tables.by_topic_id.get(topic_id) or GroupState(
            topic_id, *topic.name.split(SEPARATOR, 1)
        )
        if topic.pending > group.timed:
            await end_timers(parts, group, await _left_of(parts, topic_id))


async def _left_of(parts: GroupParts, topic_id: int) -> list[Item]:
    core, timer_of = parts.core, parts.tables.timer_of
    rows = core.state.unindexed_rows(0)

    def read() -> Entries:
        with core.index.read() as txn:
            return IndexReader.of(txn, rows).pending(Window(-1, -1, FAR_MS, topic_id=topic_id), _ALL)

    found = await core.threads.read(read)
    columns = (found[name].tolist() for name in ("queue", "root", "offset", "due_ms"))
    return [
        Item(queue, 0, ItemState.WAITING, root=root, offset=offset, due_ms=due_ms)
        for queue, root, offset, due_ms in zip(*columns, strict=True)
        if timer_of(topic_id, root) != offset
    ]
