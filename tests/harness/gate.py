"""Work in a thread of its own that waits until the test lets it go on."""

import threading
from collections.abc import Callable
from typing import Any

PATIENCE_S = 60


class Gate:
    """Stands in front of a function; `entered` says how many calls have come so far."""

    def __init__(self, work: Callable[..., Any]) -> None:
        self.work = work
        self.entered = 0
        self._lock, self._opened = threading.Lock(), threading.Event()

    def __call__(self, *args: Any) -> Any:
        with self._lock:
            self.entered += 1
        assert self._opened.wait(PATIENCE_S)
        return self.work(*args)

    def open(self) -> None:
        """Let all calls go on, from now on too."""
        self._opened.set()
