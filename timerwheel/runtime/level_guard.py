"""No message of a delay level waits longer than its level says.

The clock was stepped back, or the table shortened, since it was stored: then it is delivered now, as by
RocketMQ's `correctDeliverTimestamp`.
"""

from timerwheel.runtime.core import Core
from timerwheel.runtime.firing import Firing
from timerwheel.runtime.message_reader import MessageReader


class LevelGuard:
    """Delivers level messages whose wait is too long. Belongs to the event loop."""

    def __init__(self, core: Core, messages: MessageReader, firing: Firing) -> None:
        self._settings = core.settings
        self._state = core.state
        self._near = core.near
        self._messages = messages
        self._firing = firing

    async def check(self) -> None:
        """Deliver now what is due later than now + its level's delay."""
        if not any(self._state.level_pending.values()):
            return
        step = self._settings.fire_records_max
        found, generation = await self._messages.overlong_levels()
        while len(found):
            if generation != self._state.generation:
                found, generation = await self._messages.overlong_levels()
            found = self._messages.still_waiting(found)
            part, found = found[:step], found[step:]
            for offset, due_ms in zip(part["offset"].tolist(), part["due_ms"].tolist(), strict=True):
                self._near.remove(offset, due_ms)
            await self._firing.fire(part, early=True)
