"""The Python client: `Client`, `SyncClient` and `App`, what they return, and what they raise.

The names are those of the modules `client`, `sync_client` and `app` in this package.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from timerwheel.client.app import *  # noqa: F403 - as below
    from timerwheel.client.client import *  # noqa: F403 - its `__all__` is the list
    from timerwheel.client.sync_client import *  # noqa: F403 - as above

_MODULES = ("timerwheel.client.client", "timerwheel.client.sync_client", "timerwheel.client.app")


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the name stands for
    """Import the client on first use: most commands of the command line do not need it."""
    for module in map(importlib.import_module, _MODULES):
        if name in module.__all__:
            return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
