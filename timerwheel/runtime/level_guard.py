"""Enforces that no message of a delay level waits longer than its level says.

If the clock was stepped back or the level table was shortened since a message was stored, it is delivered
now, like RocketMQ's `correctDeliverTimestamp`.
"""

from timerwheel.runtime.core import Core
from timerwheel.runtime.firing import Firing
from timerwheel.runtime.message_reader import MessageReader


async def deliver_overlong(core: Core, messages: MessageReader, firing: Firing) -> None:
    """Deliver now the messages that are due later than now + their level's delay. Event loop only."""
    if not any(core.state.level_pending.values()):
        return
    step = core.settings.fire_records_max
    found, generation = await messages.overlong_levels()
    while len(found):
        if generation != core.state.generation:
            found, generation = await messages.overlong_levels()
        found = messages.still_waiting(found)
        part, found = found[:step], found[step:]
        core.near.remove_each(part)
        await firing.fire(part, early=True)
