"""What of the engine schedules need."""

from collections.abc import Sequence
from typing import Protocol

from timerwheel.clock import Clock
from timerwheel.errors import Fault
from timerwheel.model.messages import MessageView, Outgoing, Receipt
from timerwheel.settings import Settings
from timerwheel.state.config_table import Control, Put


class Keys(Protocol):
    """The deduplication keys, `engine.keys`."""

    async def id_of(self, topic: str, key: str) -> str:
        """The id of the message with a key; UnknownMessageError."""


class Sender(Protocol):
    """`engine.sender`."""

    def check(self, messages: Sequence[Outgoing]) -> list[Fault]:
        """What a send would be refused for."""

    async def send(self, messages: Sequence[Outgoing], puts: Sequence[Put] = ()) -> list[Receipt]:
        """Messages and changes of settings as one unit."""


class Messages(Protocol):
    """`engine.messages`."""

    async def get(self, message_id: str) -> MessageView:
        """Return a message and its current state."""


class Recalls(Protocol):
    """`engine.recalls`."""

    async def recall_key(self, topic: str, key: str) -> MessageView:
        """End the waiting message with a key."""


class Host(Protocol):
    """What of the engine schedules need."""

    @property
    def clock(self) -> Clock:
        """Its clock."""

    @property
    def settings(self) -> Settings:
        """Its settings."""

    @property
    def control(self) -> Control:
        """Its settings in the log."""

    @property
    def keys(self) -> Keys:
        """Its deduplication keys."""

    @property
    def sender(self) -> Sender:
        """What takes messages."""

    @property
    def messages(self) -> Messages:
        """What knows messages by their id."""

    @property
    def recalls(self) -> Recalls:
        """What ends messages that wait."""
