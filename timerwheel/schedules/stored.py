"""A schedule as it is stored among the settings: its definition, and how far it has been planned. Pure.

    put, resumed   a new generation; `leaving` = what the one before sent ahead; this is recalled; planned
    planned        `planned_until_ms` grows, in one unit with the messages of the runs
    rewound        the clock was stepped back: `planned_until_ms` is again the present, and `sent_ahead` says
                   what was planned beyond it
    begun again    the clock was ahead when it was put: as put now
    paused         as put, but nothing is planned
    deleted        `deleted` is set; then `leaving` is recalled, then the setting removed

A change is stored together with the runs that it revokes. So the next start finishes what a crash
interrupted, and a schedule that was stopped does not fire once more.
"""

import contextlib
from collections.abc import Iterator
from functools import partial
from itertools import takewhile
from operator import ge
from typing import Any

import msgspec

from timerwheel.schedules.errors import ScheduleError
from timerwheel.schedules.recurrence import Recurrence
from timerwheel.schedules.spec import ScheduleSpec, run_key

EARLIER_MAX = 8


class Leaving(msgspec.Struct, frozen=True):
    """Runs that were sent ahead and must be recalled: their topic, generation and moments."""

    topic: str
    generation: int
    runs: list[int]

    def keys(self, name: str) -> list[str]:
        """Return their deduplication keys."""
        return [run_key(name, self.generation, run_ms) for run_ms in self.runs]


class Earlier(msgspec.Struct, frozen=True):
    """A generation before this one, which may have delivered runs after the one moment up to the other."""

    topic: str
    generation: int
    after_ms: int
    until_ms: int

    def key(self, name: str, run_ms: int) -> str:
        """Return the deduplication key that a run had in it."""
        return run_key(name, self.generation, run_ms)


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """One value of the table `schedule`; all times are epoch milliseconds.

    `made_ms` is when the recurrence was put: an interval without a start counts from it. The runs of this
    generation are those after `since_ms` that fall due after `begun_ms`. Those up to `planned_until_ms` were
    sent, or skipped by policy; the clock then read `planned_at_ms`. Those due at `planned_ms` have fired.
    `sent_ahead` has the pairs (`planned_at_ms`, `planned_until_ms`) from before the clock was stepped back.
    `earlier` has the last EARLIER_MAX generations before. Runs of theirs may have been delivered that are due
    after `begun_ms`: if they fired before they could be recalled, or if the clock was stepped back.
    """

    spec: ScheduleSpec
    generation: int
    made_ms: int
    since_ms: int
    begun_ms: int
    planned_until_ms: int
    planned_ms: int
    planned_at_ms: int = 0
    sent_ahead: list[tuple[int, int]] = []
    earlier: list[Earlier] = []
    leaving: Leaving | None = None
    deleted: bool = False

    @classmethod
    def begin(
        cls, name: str, spec: ScheduleSpec, old: "Stored | None", generation: int, now_ms: int
    ) -> "Stored":
        """Start a new generation, in place of the old one if there is one.

        Runs begin after now. Runs that the old generation has sent and that jitter still delays are not lost:
        the new generation begins before them.
        """
        leaving = None if old is None else old.leave(name, now_ms, all_overdue=spec.paused)
        kept = leaving.runs if leaving is not None and not spec.paused else []
        since_ms = min([now_ms, *(run_ms - 1 for run_ms in kept)])
        same = old is not None and old.spec.recurrence == spec.recurrence
        return cls(
            spec=spec,
            generation=generation,
            made_ms=min(old.made_ms, now_ms) if old is not None and same else now_ms,
            since_ms=since_ms,
            begun_ms=now_ms,
            planned_until_ms=since_ms,
            planned_ms=now_ms,
            leaving=leaving,
            earlier=[] if old is None else old.with_earlier(),
        )

    def leave(self, name: str, now_ms: int, *, all_overdue: bool) -> Leaving | None:
        """Return the runs sent ahead that are not due; with `all_overdue` also those that may be unfired."""
        if self.spec.paused:
            return None
        runs = self.waiting(name, min(now_ms, self.planned_ms) if all_overdue else now_ms)
        return Leaving(self.spec.topic, self.generation, runs) if runs else None

    def with_earlier(self) -> list[Earlier]:
        """Return this generation, unless it has sent nothing, behind those before it."""
        if self.sent_until_ms <= self.since_ms:
            return self.earlier
        this = Earlier(self.spec.topic, self.generation, self.since_ms, self.sent_until_ms)
        return [*self.earlier, this][-EARLIER_MAX:]

    def is_ahead(self, now_ms: int) -> bool:
        """Whether the clock was ahead when it was put: nothing would run until the clock is there again."""
        return max(self.begun_ms, self.made_ms) > now_ms

    @classmethod
    def decode(cls, value: Any) -> "Stored":  # noqa: ANN401 - a JSON value
        """Decode a setting; msgspec.ValidationError if this module did not write it."""
        return msgspec.convert(value, cls)

    def encode(self) -> Any:  # noqa: ANN401 - a JSON value
        """Encode a setting; the body becomes base64."""
        return msgspec.to_builtins(self)

    def rewound(self, now_ms: int) -> "Stored":
        """Return what is planned by a clock that may have been stepped back since; self if that is the same.

        A schedule that was planned while the clock was ahead would otherwise send nothing until the clock is
        there again. The runs up to `sent_until_ms` may have been sent: their keys tell.
        """
        at_ms = max(self.planned_at_ms, self.planned_ms)  # older versions stored only the latter
        until_ms = max(now_ms, self.since_ms)
        if now_ms >= at_ms or until_ms >= self.planned_until_ms:
            return self
        return msgspec.structs.replace(
            self,
            planned_until_ms=until_ms,
            planned_ms=min(now_ms, self.planned_ms),
            planned_at_ms=now_ms,
            sent_ahead=[*self.sent_ahead, (at_ms, self.planned_until_ms)],
        )

    def planned(self, until_ms: int, now_ms: int) -> "Stored":
        """Return the schedule, now planned up to `until_ms`."""
        sent_ahead = [one for one in self.sent_ahead if one[1] > until_ms]
        return msgspec.structs.replace(
            self, planned_until_ms=until_ms, planned_at_ms=now_ms, sent_ahead=sent_ahead
        )

    def is_own(self, name: str, run_ms: int) -> bool:
        """Return whether a moment of the recurrence is a run of this generation."""
        return self.spec.jittered(name, run_ms) > self.begun_ms

    @property
    def sent_until_ms(self) -> int:
        """Up to when runs may have been sent."""
        return max([self.planned_until_ms, *(until_ms for _, until_ms in self.sent_ahead)])

    @property
    def recurrence(self) -> Recurrence:
        """With its start."""
        return self.spec.recurrence.anchored(self.made_ms)

    def waiting(self, name: str, after_ms: int) -> list[int]:
        """Return the runs planned in this generation that fall due after a moment.

        The last one is known as it was sent, even if new zone data moves it, or the zone no longer exists.
        """
        planned: set[int] = set()
        for at_ms, until_ms in [(after_ms, self.planned_until_ms), *self.sent_ahead]:
            if until_ms <= self.since_ms:
                continue
            planned.add(until_ms)
            with contextlib.suppress(ScheduleError):
                runs = self._runs_from(max(after_ms, at_ms))
                planned.update(takewhile(partial(ge, until_ms), runs))
        return sorted(run_ms for run_ms in planned if self._is_due_after(name, run_ms, after_ms))

    def due_after(self, name: str, after_ms: int, after_run_ms: int = 0) -> Iterator[int]:
        """Yield the runs of this generation that fall due after a moment, sent ahead or not, in order.

        Those up to `after_run_ms` are left out: with jitter they may be due later than runs behind them.
        """
        runs = self._runs_from(after_ms, after_run_ms)
        return (run_ms for run_ms in runs if self._is_due_after(name, run_ms, after_ms))

    def _runs_from(self, after_ms: int, after_run_ms: int = 0) -> Iterator[int]:
        first_ms = max(self.since_ms, after_ms - self.spec.jitter_ms - 1, after_run_ms)
        return self.recurrence.runs_after(first_ms)

    def _is_due_after(self, name: str, run_ms: int, after_ms: int) -> bool:
        return self.is_own(name, run_ms) and self.spec.jittered(name, run_ms) > after_ms
