"""What of the engine push needs."""

from typing import Any, Protocol

from timerwheel.clock import Clock
from timerwheel.control import Control
from timerwheel.groups.config import GroupConfig
from timerwheel.measures import Measures
from timerwheel.message import GroupInfo
from timerwheel.push.dispatcher import GroupCalls


class GroupAdministration(GroupCalls, Protocol):
    """What is asked of `engine.groups` besides what a dispatcher asks."""

    def info(self, topic: str, group: str) -> GroupInfo:
        """A group as it stands; UnknownGroupError."""

    def next_due_ms(self, topic: str, group: str) -> int | None:
        """When the next message of a group can be received; None if it waits for none."""

    async def put(self, topic: str, group: str, config: GroupConfig) -> Any:  # noqa: ANN401
        """Make a group, or change it."""

    async def delete(self, topic: str, group: str) -> Any:  # noqa: ANN401
        """Forget a group."""


class PushEngine(Protocol):
    """What is asked of the engine."""

    measures: Measures

    @property
    def clock(self) -> Clock:
        """Its clock."""

    @property
    def control(self) -> Control:
        """Its settings that live in the log."""

    @property
    def groups(self) -> GroupAdministration:
        """Its consumer groups."""
