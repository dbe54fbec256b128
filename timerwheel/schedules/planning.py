"""Which runs of a schedule to send now, and when to look again. Pure.

The next run is always sent ahead, as an ordinary delayed message, so the wheel times it. The planner wakes
only to keep one ahead; a dense schedule gets all runs of the coming AHEAD_MS, at most 60, in one go:

    every 1 s     at 0 s send 1..60, wake at 30; at 30 s send 61..90, wake at 60; ...
    every 45 s    at 0 s send 45, wake at 30; at 30 s send 90, wake at 75; ...
    once a day    send tomorrow's, wake when it runs

A run is *missed* if it is due and was not sent: the service was down, or its disk full. After an outage the
runs that were sent ahead and are overdue count as missed, too, since firing has not begun. By policy these
come to

    all     each, but of those that were not sent the newest MISSED_RUNS_MAX
    once    the newest
    skip    the newest, if it is late by SKIP_GRACE_MS or less; else none

and overdue runs that are not wanted are revoked.

Invariant: `planned_until_ms` never decreases, so a clock that steps back plans nothing twice.
"""

from collections.abc import Sequence
from typing import NamedTuple

from timerwheel.schedules.stored import Stored

AHEAD_MS = 60_000
LOOK_MS = 30_000
MISSED_RUNS_MAX = 1_000
SKIP_GRACE_MS = 60_000


class Step(NamedTuple):
    """What to do: revoke, then send, then look again at `wake_ms` (None: never, the schedule has ended).

    `revoke` and `send` are moments of runs, those to send increasing. Then all up to `planned_until_ms` is
    planned; it is stored in one unit with what is sent.
    """

    revoke: list[int]
    send: list[int]
    planned_until_ms: int
    wake_ms: int | None


def plan(name: str, stored: Stored, now_ms: int, delay_ms_max: int, overdue: Sequence[int] = ()) -> Step:
    """The next step of a schedule that is not paused.

    Nothing of the future is sent ahead by more than `delay_ms_max`. `overdue` are, after an outage, the runs
    that were sent ahead, are due and did not fire. About 10 µs a run.
    """
    past = _past(name, stored, now_ms)
    missed = [run_ms for run_ms in past if stored.spec.jittered(name, run_ms) <= now_ms]
    waiting = [run_ms for run_ms in past if stored.spec.jittered(name, run_ms) > now_ms]
    revoke, chosen = _by_policy(name, stored, now_ms, missed, overdue)
    ahead, wake_ms = _ahead(name, stored, now_ms, delay_ms_max)
    until_ms = max([stored.planned_until_ms, *ahead, *([now_ms] if past else [])])
    return Step(revoke, sorted(chosen + waiting) + ahead, until_ms, wake_ms)


def overdue_runs(name: str, stored: Stored, now_ms: int) -> list[int]:
    """The runs sent ahead that are due now and may not have fired, since the planner was not there."""
    runs = stored.waiting(name, stored.planned_ms)
    return [run_ms for run_ms in runs if stored.spec.jittered(name, run_ms) <= now_ms]


def _past(name: str, stored: Stored, now_ms: int) -> list[int]:
    """The newest runs up to now that were not planned; with jitter some are due only later."""
    runs = stored.recurrence.newest(stored.planned_until_ms, now_ms, MISSED_RUNS_MAX)
    return [run_ms for run_ms in runs if stored.spec.jittered(name, run_ms) > stored.begun_ms]


def _by_policy(
    name: str, stored: Stored, now_ms: int, missed: list[int], overdue: Sequence[int]
) -> tuple[list[int], list[int]]:
    """What to revoke of the overdue and what to send of the missed."""
    if stored.spec.missed == "all":
        return [], missed
    wanted = [*missed, *overdue]
    if stored.spec.missed == "skip":
        first_ms = now_ms - SKIP_GRACE_MS
        wanted = [run_ms for run_ms in wanted if stored.spec.jittered(name, run_ms) >= first_ms]
    one = max(wanted, default=None)
    return [run_ms for run_ms in overdue if run_ms != one], [run_ms for run_ms in missed if run_ms == one]


def _ahead(name: str, stored: Stored, now_ms: int, delay_ms_max: int) -> tuple[list[int], int | None]:
    """The runs to send ahead, and when to look again."""
    runs: list[int] = []
    last_ms = stored.planned_until_ms
    for run_ms in stored.recurrence.runs_after(max(last_ms, now_ms)):
        due_ms = stored.spec.jittered(name, run_ms)
        if due_ms <= stored.begun_ms:
            continue  # the clock was stepped back to before the schedule began
        if last_ms > now_ms and run_ms > now_ms + AHEAD_MS:
            return runs, min(last_ms, max(run_ms - AHEAD_MS, now_ms + LOOK_MS))
        if due_ms > now_ms + delay_ms_max:
            return runs, due_ms - delay_ms_max
        runs.append(run_ms)
        last_ms = run_ms
    return runs, None
