"""What the service asks of a maker of spans; `timerwheel.tracing.collector` opens one if that is wanted."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

from timerwheel.model.messages import Delivery, Outgoing, Receipt
from timerwheel.push.dispatcher import Calls

Store = Callable[[Sequence[Outgoing]], Awaitable[list[Receipt]]]


class Traces(Protocol):
    """Makes spans for messages whose sender records its trace; `timerwheel.tracing.otel` implements it."""

    async def send(self, messages: Sequence[Outgoing], store: Store) -> list[Receipt]:
        """What `store` answers and raises."""

    async def hand_out(self, deliveries: Iterable[Delivery], group: str) -> None:
        """A consumer is about to get these."""

    def calls(self, calls: Calls) -> Calls:
        """The same calls of push, traced."""

    async def close(self) -> None:
        """Make no more; what was made is passed on, if that does not take long."""
