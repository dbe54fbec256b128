"""The window of a stream: the messages that it sent and that are not settled yet.

A message leaves the window when it is acknowledged or given back by whatever request, when its lease is over,
or when its group is rewound or deleted. The calls that settle tell `Windows`, which tells the streams.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable

from timerwheel.clock import Clock
from timerwheel.model.messages import Delivery, ReceiptResult
from timerwheel.wire.groups import GroupPath


class Window:
    """The window of one stream. Belongs to the event loop."""

    def __init__(self, count_max: int, clock: Clock) -> None:
        self._count_max = count_max
        self._clock = clock
        self._until_ms: dict[str, int] = {}
        self._left: asyncio.Future[None] | None = None

    @property
    def room(self) -> int:
        """The number of messages that may be sent now."""
        now_ms = self._clock.now_ms()
        if len(self._until_ms) >= self._count_max:
            over = [receipt for receipt, until_ms in self._until_ms.items() if until_ms <= now_ms]
            self.leave(over)
        return self._count_max - len(self._until_ms)

    def enter(self, deliveries: Iterable[Delivery]) -> None:
        """These are about to be sent."""
        self._until_ms.update({one.receipt: one.invisible_until_ms for one in deliveries})

    def leave(self, receipts: Iterable[str]) -> None:
        """These are settled, if they were of this window."""
        before = len(self._until_ms)
        for receipt in receipts:
            self._until_ms.pop(receipt, None)
        if len(self._until_ms) < before:
            self._notify()

    def extend(self, receipts: Iterable[str], until_ms: int) -> None:
        """These are held until then, if they are of this window."""
        for receipt in receipts:
            if receipt in self._until_ms:
                self._until_ms[receipt] = until_ms

    def clear(self) -> None:
        """None is held any more."""
        self._until_ms.clear()
        self._notify()

    async def wait(self, wait_ms: int) -> None:
        """Until a message left, at most `wait_ms`."""
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
        """Tell this window what is settled in its group."""
        self._open[place].add(window)

    def close(self, place: GroupPath, window: Window) -> None:
        """No longer."""
        self._open[place].discard(window)
        if not self._open[place]:
            del self._open[place]

    def settled(self, place: GroupPath, results: Iterable[ReceiptResult]) -> None:
        """These were settled, or cannot be any more."""
        receipts = [one.receipt for one in results]
        for window in self._open.get(place, ()):
            window.leave(receipts)

    def extended(self, place: GroupPath, results: Iterable[ReceiptResult], until_ms: int) -> None:
        """Those that are ok are held until then, the others by nobody."""
        results = list(results)
        for window in self._open.get(place, ()):
            window.extend([one.receipt for one in results if one.ok], until_ms)
            window.leave([one.receipt for one in results if not one.ok])

    def cleared(self, place: GroupPath) -> None:
        """The group holds nothing any more."""
        for window in self._open.get(place, ()):
            window.clear()
