"""A delayed-message service on a timing wheel. Its clients: `from timerwheel import Client, SyncClient`."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from timerwheel.client import App, Client, Reject, Retry, SyncClient

__all__ = ["App", "Client", "Reject", "Retry", "SyncClient"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the name stands for
    """Import the client when it is asked for: most of the package does without it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("timerwheel.client"), name)
