"""Timers in flight: out of firing's reach while the records that end or replace them are being stored.

A timer has at most one operation in flight. It leaves the near wheel and goes in flight in one step of the
loop; then its records are stored. A failure puts it back. So a second operation, a firing or another caller,
finds it gone or waits for the outcome and looks again.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from timerwheel.runtime.group_commit import GroupCommit
from timerwheel.wheel.near import NearWheel
from timerwheel.wheel.slot_table import ENTRY_DTYPE, Entries


class InFlight:
    """The timers with an operation in progress, by the offset of their record.

    Belongs to the event loop. `near_changed` is set when timers return to the near wheel.
    """

    def __init__(self, near: NearWheel, near_changed: asyncio.Event, commit: GroupCommit) -> None:
        self._near = near
        self._near_changed = near_changed
        self._commit = commit
        self._outcomes: dict[int, asyncio.Future[None]] = {}

    def __contains__(self, offset: int) -> bool:
        """Whether an operation on this timer is in progress."""
        return offset in self._outcomes

    def __len__(self) -> int:
        return len(self._outcomes)

    def offsets(self) -> np.ndarray:
        """Return the offsets of all timers in flight."""
        return np.fromiter(self._outcomes, np.uint64, len(self._outcomes))

    def outcome(self, offset: int) -> asyncio.Future[None] | None:
        """Return the future to await before looking at this timer again; None if it is not in flight."""
        return self._outcomes.get(offset)

    def outcomes(self, offsets: Iterable[int]) -> set[asyncio.Future[None]]:
        """Return the futures to await before looking at these timers again."""
        return {self._outcomes[offset] for offset in offsets if offset in self._outcomes}

    def hold(self, entries: Entries) -> "Held":
        """Put timers in flight that are in no near wheel; `release` must follow."""
        offsets = entries["offset"].tolist()
        outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._outcomes.update(dict.fromkeys(offsets, outcome))
        return Held(self._outcomes, offsets, outcome)

    def take(self, entries: Entries) -> "Taken":
        """Take pending timers out of the near wheel, in flight; `submit` or `put_back` must follow."""
        held = self.hold(entries)
        self._near.remove_each(entries)
        return Taken(self, self._commit, entries, held)

    def put_back(self, entries: Entries) -> None:
        """Return taken timers to the near wheel."""
        for place in range(len(entries)):
            self._near.put_back(entries[place : place + 1])
        self._near_changed.set()


class Held:
    """Timers in flight until `release`."""

    def __init__(
        self,
        outcomes: dict[int, asyncio.Future[None]],
        offsets: Sequence[int],
        outcome: asyncio.Future[None],
    ) -> None:
        self._outcomes = outcomes
        self._offsets = offsets
        self._outcome = outcome

    def release(self) -> None:
        """The operation is over, whatever came of it; a second call does nothing."""
        for offset in self._offsets:
            self._outcomes.pop(offset, None)
        if not self._outcome.done():
            self._outcome.set_result(None)


class Taken:
    """Timers that were taken out of the near wheel and are in flight."""

    def __init__(self, in_flight: InFlight, commit: GroupCommit, entries: Entries, held: Held) -> None:
        self._in_flight = in_flight
        self._commit = commit
        self._entries = entries
        self._held = held
        self._is_queued = False

    def put_back(self) -> None:
        """Return the timers unchanged: they stay pending. Does nothing once their records are queued."""
        if not self._is_queued:
            self._put_back()

    def _put_back(self) -> None:
        self._in_flight.put_back(self._entries)
        self._held.release()

    def submit(
        self,
        records: list[bytes],
        topics: Sequence[str],
        on_effect: Callable[[], None] | None = None,
        dues_ms: Sequence[int] = (),
    ) -> asyncio.Future[int]:
        """Queue the unit that ends or replaces these timers; the future is done when they are released.

        It gives the log offset of the unit's first record, or fails as `GroupCommit.submit` does; then the
        timers stay pending. The caller may drop the future: the timers are released in any case.
        """
        return self.follow(self._commit.submit(records, topics, on_effect, dues_ms))

    def follow(self, stored: asyncio.Future[int]) -> asyncio.Future[int]:
        """The unit that ends or replaces these timers is queued, as `stored`; returns what `submit` does."""
        self._is_queued = True
        finished: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def finish(done: asyncio.Future[int]) -> None:
            error = None if done.cancelled() else done.exception()
            if done.cancelled() or error is not None:
                self._put_back()
            else:
                self._held.release()
            if finished.done():
                return
            if error is not None:
                finished.set_exception(error)
                finished.exception()  # marks the error as retrieved, waiter or not
            elif not done.cancelled():
                finished.set_result(done.result())

        stored.add_done_callback(finish)
        return finished


def entry(  # noqa: PLR0913 - one for each field
    *, due_ms: int, root: int, offset: int, size: int, topic: int, queue: int = 0, delay_level: int = 0
) -> Entries:
    """Build the wheel entry of one timer."""
    made = np.zeros(1, ENTRY_DTYPE)
    made["due_ms"], made["root"], made["offset"] = due_ms, root, offset
    made["size"], made["topic"], made["queue"], made["delay_level"] = size, topic, queue, delay_level
    return made
