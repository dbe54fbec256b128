"""Requests that are held until there is something to answer them with."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from timerwheel.rocketmq.request import Link

T = TypeVar("T")


class Held:
    """At most `count_max` requests. Event loop only."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._held: dict[asyncio.Future[Any], Link] = {}
        self._is_stopping = False

    @property
    def is_full(self) -> bool:
        """Whether no request can be held now."""
        return self._is_stopping or len(self._held) >= self._count_max

    async def wait(self, link: Link, work: Coroutine[Any, Any, T]) -> T | None:
        """Hold a request of this connection; returns what `work` returns, None if it was broken off."""
        task = asyncio.create_task(work)
        self._held[task] = link
        link.held(1)
        try:
            await asyncio.wait((task,))
        finally:
            task.cancel()
            link.held(-1)
            del self._held[task]
        return None if task.cancelled() else task.result()

    def closed(self, link: Link) -> None:
        """A connection was closed: its held requests end."""
        for task, holder in self._held.items():
            if holder is link:
                task.cancel()

    def stop(self) -> None:
        """End all held requests, and hold none any more."""
        self._is_stopping = True
        for task in self._held:
            task.cancel()
