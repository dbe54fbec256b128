"""Recent sends, so that a send which a client repeats is stored once.

A client gives each message a new id when it sends it, and repeats a send that was not answered in time, two
times by default, under the same id. The ids of sends in progress and of the last `WINDOW_MS` are kept,
`COUNT_MAX` of them at most; a repeat that comes later, or after a restart, is stored again. A deduplication
key over HTTP has no such limit.

Over remoting a program that sends one message object twice uses one id for both, and wants both stored.
`timerwheel.rocketmq.repeats` tells these from repeats by their content and by whether the first was answered.
Here the id alone decides.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from timerwheel.model.messages import Receipt

WINDOW_MS: Final = 120_000
COUNT_MAX: Final = 100_000

Name = tuple[str, str]
"""The topic of a message, and the id that its client gave it."""
Outcome = asyncio.Future[Sequence[Receipt]]
"""The receipts of messages that are stored together."""


class RecentSends:
    """See the module. Event loop only."""

    def __init__(self, monotonic_ms: Callable[[], int]) -> None:
        self._monotonic_ms = monotonic_ms
        self._in_progress: dict[Name, tuple[Outcome, int]] = {}  # with the place among the receipts
        self._stored: dict[Name, Receipt] = {}
        self._ages: deque[tuple[int, Name]] = deque()  # of the stored ones: when they were stored

    def __len__(self) -> int:
        """Return how many sends are known."""
        return len(self._in_progress) + len(self._stored)

    async def once(self, names: Sequence[Name], begin: Callable[[list[int]], Outcome]) -> list[Receipt]:
        """Store those messages that are new; returns a receipt for each, raises what storing them raises.

        `begin` gets the places of the new ones and begins to store them, which no caller that goes away ends.
        If that fails nothing of them is known, and a repeat stores them.
        """
        self._forget_old()
        new: dict[Name, int] = {}
        for place, name in enumerate(names):
            if name not in self._stored and name not in self._in_progress:
                new.setdefault(name, place)
        if new:
            outcome = begin(list(new.values()))
            for place, name in enumerate(new):
                self._in_progress[name] = outcome, place
            outcome.add_done_callback(lambda outcome: self._ended(outcome, new))
        found = [self._stored.get(name) or self._in_progress[name] for name in names]
        return [one if isinstance(one, Receipt) else (await asyncio.shield(one[0]))[one[1]] for one in found]

    def _ended(self, outcome: Outcome, names: dict[Name, int]) -> None:
        for name in names:
            del self._in_progress[name]
        if outcome.cancelled() or outcome.exception() is not None:
            return
        now_ms = self._monotonic_ms()
        for name, receipt in zip(names, outcome.result(), strict=True):
            self._stored[name] = receipt
            self._ages.append((now_ms, name))

    def _forget_old(self) -> None:
        """Forget what is older than the window, or too much."""
        old_ms = self._monotonic_ms() - WINDOW_MS
        while self._ages and (self._ages[0][0] <= old_ms or len(self._ages) > COUNT_MAX):
            del self._stored[self._ages.popleft()[1]]
