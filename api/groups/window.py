"""The window of a stream: the messages that it sent and that are not settled yet.

A message leaves the window when it is acknowledged or given back by whatever request, when its lease is over,
or when its group is rewound or deleted, or it is purged. The calls that settle, and the engine's groups, call
`Windows`, which calls the streams.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Set

from timerwheel.clock import Clock
from timerwheel.engine import Engine
from timerwheel.model.messages import Delivery, ReceiptResult
from timerwheel.wire.groups import GroupPath


class Window:
    """The window of one stream. Belongs to the event loop."""

    def __init__(self, count_max: int, clock: Clock) -> None:
        self._count_max = count_max
        self._clock = clock
        self._until_ms: dict[str, int] = {}  # monotonic: a step of the wall clock moves no lease
        self._left: asyncio.Future[None] | None = None

    @property
    def room(self) -> int:
        """Return how many messages may be sent now."""
        now_ms = self._clock.monotonic_ms()
        if len(self._until_ms) >= self._count_max:
            over = [receipt for receipt, until_ms in self._until_ms.items() if until_ms <= now_ms]
            self.leave(over)
        return self._count_max - len(self._until_ms)

    def enter(self, deliveries: Iterable[Delivery]) -> None:
        """Add messages that are about to be sent."""
        behind_ms = self._clock.monotonic_ms() - self._clock.now_ms()
        self._until_ms.update({one.receipt: one.invisible_until_ms + behind_ms for one in deliveries})

    def leave(self, receipts: Iterable[str]) -> None:
        """Remove messages of this window that were acknowledged or returned."""
        before = len(self._until_ms)
        for receipt in receipts:
            self._until_ms.pop(receipt, None)
        if len(self._until_ms) < before:
            self._notify()

    def extend(self, receipts: Iterable[str], invisible_ms: int) -> None:
        """Note that messages of this window are leased for so long from now."""
        until_ms = self._clock.monotonic_ms() + invisible_ms
        for receipt in receipts:
            if receipt in self._until_ms:
                self._until_ms[receipt] = until_ms

    @property
    def receipts(self) -> Set[str]:
        """Return the receipts of its messages."""
        return self._until_ms.keys()

    def clear(self) -> None:
        """Remove all messages."""
        self._until_ms.clear()
        self._notify()

    async def wait(self, wait_ms: int) -> None:
        """Wait until a message leaves, at most `wait_ms`."""
        self._left = asyncio.get_running_loop().create_future()
        await self._clock.wait_for(self._left, wait_ms)
        self._left = None

    def _notify(self) -> None:
        if self._left is not None and not self._left.done():
            self._left.set_result(None)


class Windows:
    """The windows of all streams, by group. Belongs to the event loop."""

    def __init__(self) -> None:
        self._open: dict[GroupPath, set[Window]] = defaultdict(set)

    def open(self, place: GroupPath, window: Window) -> None:
        """Register a window for the messages of its group."""
        self._open[place].add(window)

    def close(self, place: GroupPath, window: Window) -> None:
        """Unregister a window."""
        self._open[place].discard(window)
        if not self._open[place]:
            del self._open[place]

    def settled(self, place: GroupPath, results: Iterable[ReceiptResult]) -> None:
        """Remove messages that were acknowledged or returned, or whose receipts are invalid."""
        receipts = [one.receipt for one in results]
        for window in self._open.get(place, ()):
            window.leave(receipts)

    def extended(self, place: GroupPath, results: Iterable[ReceiptResult], invisible_ms: int) -> None:
        """Note that the successful ones are leased for so long from now, and remove the others."""
        results = list(results)
        for window in self._open.get(place, ()):
            window.extend([one.receipt for one in results if one.ok], invisible_ms)
            window.leave([one.receipt for one in results if not one.ok])

    def follow(self, engine: Engine) -> None:
        """Notice what ends the receipts of a group of this engine in any protocol: a rewind, a purge."""
        engine.groups.on_ended.append(lambda topic, group: self._look_over(engine, GroupPath(topic, group)))

    def _look_over(self, engine: Engine, place: GroupPath) -> None:
        for window in self._open.get(place, ()):
            window.leave(engine.groups.ended(place.topic, place.group, window.receipts))

    def cleared(self, place: GroupPath) -> None:
        """Remove all messages of a group."""
        for window in self._open.get(place, ()):
            window.clear()
