"""Traces: what is asked of whoever makes spans. There is none unless the setting `traces` asks for one."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Literal, Protocol

from timerwheel.clock import Clock
from timerwheel.errors import SettingsError
from timerwheel.message import Delivery, Outgoing, Receipt
from timerwheel.push.dispatcher import Calls

Store = Callable[[Sequence[Outgoing]], Awaitable[list[Receipt]]]


class Traces(Protocol):
    """Makes spans for messages whose sender records its trace; `timerwheel.otel` has the one there is."""

    async def send(self, messages: Sequence[Outgoing], store: Store) -> list[Receipt]:
        """What `store` answers and raises."""

    async def hand_out(self, deliveries: Iterable[Delivery], group: str) -> None:
        """A consumer is about to get these."""

    def calls(self, calls: Calls) -> Calls:
        """The same calls of push, traced."""

    async def close(self) -> None:
        """Make no more; what was made is passed on, if that does not take long."""


def open_traces(kind: Literal["off", "otlp"], clock: Clock) -> Traces | None:
    """What the setting asks for, None for off; SettingsError if the extra `otel` is not installed."""
    if kind == "off":
        return None
    try:
        from timerwheel.otel import to_collector  # noqa: PLC0415 - nothing of it is loaded unless it is wanted
    except ImportError as error:
        raise SettingsError(
            f"traces: {kind} needs packages that are not installed ({error}); "
            "install them with: pip install 'timerwheel[otel]'"
        ) from error
    return to_collector(clock)
