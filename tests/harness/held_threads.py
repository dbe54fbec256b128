"""The threads of `asyncio.to_thread`, which count their calls and can be held up."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

LIMIT_S = 60  # only keeps a failure from hanging


class HeldThreads(ThreadPoolExecutor):
    """One thread; calls wait until the gate is open."""

    def __init__(self) -> None:
        super().__init__(1)
        self.calls = 0
        self.gate = threading.Event()

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.calls += 1
        return super().submit(self._run, call, *args, **kwargs)

    def _run(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.gate.wait(LIMIT_S)
        return call(*args, **kwargs)
