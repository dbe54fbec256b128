"""The Python client: `Client`, what it returns, and what it raises."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from timerwheel.client.client import (
        BEGINNING,
        DEFAULT_URL,
        END,
        AddressError,
        Client,
        ClientError,
        ConflictError,
        DeadLetter,
        Delivery,
        DeniedError,
        Draft,
        Exponential,
        Group,
        GroupConfig,
        ItemFault,
        Ladder,
        Lease,
        LeaseEndedError,
        LevelSlots,
        Message,
        MessageHistory,
        NotFoundError,
        OutcomeUnknownError,
        RecallCount,
        RecallResult,
        ReceiptResult,
        SendOptions,
        Sent,
        Tick,
        Topic,
        UnreachableError,
        Wheel,
        When,
        processing,
    )

__all__ = [
    "BEGINNING",
    "DEFAULT_URL",
    "END",
    "AddressError",
    "Client",
    "ClientError",
    "ConflictError",
    "DeadLetter",
    "Delivery",
    "DeniedError",
    "Draft",
    "Exponential",
    "Group",
    "GroupConfig",
    "ItemFault",
    "Ladder",
    "Lease",
    "LeaseEndedError",
    "LevelSlots",
    "Message",
    "MessageHistory",
    "NotFoundError",
    "OutcomeUnknownError",
    "RecallCount",
    "RecallResult",
    "ReceiptResult",
    "SendOptions",
    "Sent",
    "Tick",
    "Topic",
    "UnreachableError",
    "Wheel",
    "When",
    "processing",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the name stands for
    """Import the client on first use: most commands of the command line do not need it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from timerwheel.client import client  # noqa: PLC0415 - see above

    return getattr(client, name)
