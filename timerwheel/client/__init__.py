"""The Python client: `Client`, what it returns, and what it raises.

The names are those of `timerwheel.client.client`.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from timerwheel.client.client import *  # noqa: F403 - its `__all__` is the list


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the name stands for
    """Import the client on first use: most commands of the command line do not need it."""
    client = importlib.import_module("timerwheel.client.client")
    if name not in client.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(client, name)
