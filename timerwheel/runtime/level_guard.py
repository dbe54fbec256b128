"""Enforces that no message of a delay level waits longer than its level says.

If the clock was stepped back or the level table was shortened since a message was stored, the guard delivers
it now, like RocketMQ's `correctDeliverTimestamp`.
"""

from timerwheel.runtime.core import Core
from timerwheel.runtime.firing import Firing
from timerwheel.runtime.message_reader import MessageReader


class LevelGuard:
    """Delivers level messages that would wait too long. Belongs to the event loop."""

    def __init__(self, core: Core, messages: MessageReader, firing: Firing) -> None:
        self._settings = core.settings
        self._state = core.state
        self._near = core.near
        self._messages = messages
        self._firing = firing

    async def check(self) -> None:
        """Deliver now the messages that are due later than now + their level's delay."""
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
