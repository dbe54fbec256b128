"""A delayed-message service on a timing wheel, and its client: `from timerwheel import Client`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from timerwheel.client import Client

__all__ = ["Client"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the name stands for
    """Import the client when it is asked for: most of the package does without it."""
    if name != "Client":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from timerwheel.client import Client  # noqa: PLC0415 - see above

    return Client
