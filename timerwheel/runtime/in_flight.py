"""Changing timers that wait: out of firing's reach while the records that end or replace them are stored.

A timer leaves the near wheel and goes in flight in one step of the loop; then its records are stored. What
fails puts it back. So whoever comes second, a firing or another caller, finds it gone or waits for the
outcome. Belongs to the event loop.
"""

import asyncio
from collections.abc import Callable, Sequence

import numpy as np

from timerwheel.runtime.group_commit import GroupCommit
from timerwheel.wheel.near import NearWheel
from timerwheel.wheel.slot_table import ENTRY_DTYPE, Entries


class Timers:
    """Takes timers from the near wheel for those who change them."""

    def __init__(
        self,
        near: NearWheel,
        in_flight: dict[int, asyncio.Future[None]],
        commit: GroupCommit,
        wake: asyncio.Event,
    ) -> None:
        self._near = near
        self._in_flight = in_flight
        self._commit = commit
        self._wake = wake

    def take(self, entries: Entries) -> "Taken":
        """Take these timers, which wait and are not in flight; `submit` or `put_back` must follow."""
        outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        offsets = entries["offset"].tolist()
        self._in_flight.update(dict.fromkeys(offsets, outcome))
        near = entries[entries["due_ms"] < self._near.until_ms]
        for offset, due_ms in zip(near["offset"].tolist(), near["due_ms"].tolist(), strict=True):
            self._near.remove(offset, due_ms)
        return Taken(self, entries, outcome)

    def submit(
        self,
        records: Sequence[bytes],
        topics: Sequence[str],
        on_effect: Callable[[], None] | None,
        dues_ms: Sequence[int],
    ) -> asyncio.Future[int]:
        """Queue a unit for the log."""
        return self._commit.submit(records, topics, on_effect, dues_ms)

    def release(self, entries: Entries, outcome: asyncio.Future[None], *, back: bool) -> None:
        """Let go of timers; with `back` they wait on."""
        if back:
            for place in range(len(entries)):
                self._near.put_back(entries[place : place + 1])
            self._wake.set()
        for offset in entries["offset"].tolist():
            self._in_flight.pop(offset, None)
        if not outcome.done():
            outcome.set_result(None)


class Taken:
    """Timers that are in flight."""

    def __init__(self, timers: Timers, entries: Entries, outcome: asyncio.Future[None]) -> None:
        self._timers = timers
        self._entries = entries
        self._outcome = outcome

    def put_back(self) -> None:
        """Nothing was changed: they wait on."""
        self._timers.release(self._entries, self._outcome, back=True)

    def submit(
        self,
        records: Sequence[bytes],
        topics: Sequence[str],
        on_effect: Callable[[], None] | None = None,
        dues_ms: Sequence[int] = (),
    ) -> asyncio.Future[int]:
        """Queue the unit that ends or replaces them now; the future is done when they are let go.

        It gives the log offset of the unit's first record, or fails as `GroupCommit.submit` does; then they
        wait on. It may be dropped: the timers are let go all the same.
        """
        stored = self._timers.submit(records, topics, on_effect, dues_ms)
        finished: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def finish(done: asyncio.Future[int]) -> None:
            error = None if done.cancelled() else done.exception()
            self._timers.release(self._entries, self._outcome, back=done.cancelled() or error is not None)
            if finished.done():
                return
            if error is not None:
                finished.set_exception(error)
                finished.exception()  # seen, also if nobody waits for it any more
            elif not done.cancelled():
                finished.set_result(done.result())

        stored.add_done_callback(finish)
        return finished


def entry(  # noqa: PLR0913 - one for each field
    *, due_ms: int, root: int, offset: int, size: int, topic: int, queue: int = 0, level: int = 0
) -> Entries:
    """One timer as the wheel has it."""
    made = np.zeros(1, ENTRY_DTYPE)
    made["due_ms"], made["root"], made["offset"] = due_ms, root, offset
    made["size"], made["topic"], made["queue"], made["level"] = size, topic, queue, level
    return made
