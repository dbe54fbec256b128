"""The interface of span makers; `timerwheel.tracing.collector` opens one if the settings ask for it."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

from timerwheel.model.messages import Delivery, MessageView, Outgoing, Receipt
from timerwheel.push.dispatcher import Calls
from timerwheel.push.endpoint import Reply

Store = Callable[[Sequence[Outgoing]], Awaitable[list[Receipt]]]


class Traces(Protocol):
    """Makes spans for messages whose sender records its trace; `timerwheel.tracing.otel` implements it."""

    async def send(self, messages: Sequence[Outgoing], store: Store) -> list[Receipt]:
        """Call `store`, and return or raise what it does."""

    async def leased(self, deliveries: Iterable[Delivery], group: str) -> None:
        """Note that a worker is about to receive these messages."""

    def calls(self, calls: Calls) -> Calls:
        """Wrap the calls of push, to trace them."""

    async def call(self, message: MessageView, attempt: int, make: Callable[[], Awaitable[Reply]]) -> Reply:
        """Make a call of a task, and return its reply."""

    async def close(self) -> None:
        """Make no more spans; export the rest, if that does not take long."""
