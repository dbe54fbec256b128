"""Recent sends, so that a send which a client repeats is stored once.

A client gives each message a new id when it sends it, and repeats a send that was not answered in time, two
times by default, under the same id. The ids of the last `WINDOW_MS` are kept, `COUNT_MAX` of them at most;
a repeat that comes later, or after a restart, is stored again. A deduplication key over HTTP has no such
limit.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from timerwheel.model.messages import Receipt

WINDOW_MS: Final = 120_000
COUNT_MAX: Final = 100_000

Name = tuple[str, str]
"""The topic of a message, and the id that its client gave it."""
Outcome = asyncio.Future[Sequence[Receipt]]


class Sent(NamedTuple):
    """One of the messages that were stored together, and the receipts of all of them."""

    outcome: Outcome
    place: int
    began_ms: int


class RecentSends:
    """See the module. Event loop only."""

    def __init__(self, monotonic_ms: Callable[[], int]) -> None:
        self._monotonic_ms = monotonic_ms
        self._known: dict[Name, Sent] = {}

    def __len__(self) -> int:
        """Return how many sends are known."""
        return len(self._known)

    async def once(self, names: Sequence[Name], begin: Callable[[list[int]], Outcome]) -> list[Receipt]:
        """Store those messages that are new; returns a receipt for each, raises what storing them raises.

        `begin` gets the places of the new ones and begins to store them, which no caller that goes away ends.
        If that fails nothing of them is known, and a repeat stores them.
        """
        now_ms = self._monotonic_ms()
        self._forget_old(now_ms)
        new: dict[Name, int] = {}
        for place, name in enumerate(names):
            if not self._knows(name):
                new.setdefault(name, place)
        if new:
            outcome = begin(list(new.values()))
            for place, name in enumerate(new):
                self._known.pop(name, None)  # one that failed: the dict is in order of age
                self._known[name] = Sent(outcome, place, now_ms)
            outcome.add_done_callback(self._ended(new))
        found = [self._known[name] for name in names]
        self._forget_old(now_ms)
        return [(await asyncio.shield(one.outcome))[one.place] for one in found]

    def _knows(self, name: Name) -> bool:
        sent = self._known.get(name)
        return sent is not None and not _failed(sent.outcome)

    def _ended(self, names: Iterable[Name]) -> Callable[[Outcome], None]:
        def ended(outcome: Outcome) -> None:
            if _failed(outcome):
                for name in names:
                    if (known := self._known.get(name)) is not None and known.outcome is outcome:
                        del self._known[name]

        return ended

    def _forget_old(self, now_ms: int) -> None:
        """Forget what is older than the window, or too much: the dict is in order of age."""
        while self._known:
            name, sent = next(iter(self._known.items()))
            if sent.began_ms > now_ms - WINDOW_MS and len(self._known) <= COUNT_MAX:
                return
            del self._known[name]


def _failed(outcome: Outcome) -> bool:
    return outcome.cancelled() or (outcome.done() and outcome.exception() is not None)
