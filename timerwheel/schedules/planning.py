"""Which runs of a schedule to send now, and when to check again. Pure.

The next run is always sent ahead, as an ordinary delayed message, so the wheel times it. The planner wakes
only to keep one run ahead; of a dense schedule it sends all runs of the next AHEAD_MS, at most 60, at once:

    every 1 s     at 0 s send 1..60, wake at 30; at 30 s send 61..90, wake at 60; ...
    every 45 s    at 0 s send 45, wake at 30; at 30 s send 90, wake at 75; ...
    once a day    send tomorrow's, wake when it runs

A run is *missed* if it is due and was not sent: the service was down, or its disk full. After an outage the
runs that were sent ahead and are overdue count as missed too, because firing has not begun. By policy the
missed runs become

    all     each, but of those that were not sent the newest MISSED_RUNS_MAX
    once    the newest
    skip    the newest, if it is late by SKIP_GRACE_MS or less; else none

and unwanted overdue runs are revoked.

Invariant: `planned_until_ms` decreases only if the clock was stepped back (`Stored.rewound`). Of the runs
that are planned again then, the scheduler sends none whose key it has used.
"""

from collections.abc import Sequence
from typing import NamedTuple

from timerwheel.schedules.stored import Stored

AHEAD_MS = 60_000
LOOK_MS = 30_000
MISSED_RUNS_MAX = 1_000
SKIP_GRACE_MS = 60_000


class Step(NamedTuple):
    """What to do: revoke, then send, then check again at `wake_ms` (None: never, the schedule has ended).

    `revoke` and `send` are moments of runs; those to send increase. Then everything up to `planned_until_ms`
    is planned; this is stored in one unit with the messages.
    """

    revoke: list[int]
    send: list[int]
    planned_until_ms: int
    wake_ms: int | None


def plan(name: str, stored: Stored, now_ms: int, delay_ms_max: int, overdue: Sequence[int] = ()) -> Step:
    """Return the next step of a schedule that is not paused.

    No run is sent ahead by more than `delay_ms_max`. `overdue` are, after an outage, the runs that were sent
    ahead, are due and did not fire. About 10 µs per run.
    """
    past = _past(name, stored, now_ms)
    missed = [run_ms for run_ms in past if stored.spec.jittered(name, run_ms) <= now_ms]
    waiting = [run_ms for run_ms in past if stored.spec.jittered(name, run_ms) > now_ms]
    revoke, chosen = _by_policy(name, stored, now_ms, missed, overdue)
    ahead, wake_ms = _ahead(name, stored, now_ms, delay_ms_max)
    until_ms = max([stored.planned_until_ms, *ahead, *([now_ms] if past else [])])
    return Step(revoke, sorted(chosen + waiting) + ahead, until_ms, wake_ms)


def missed_runs(name: str, stored: Stored, now_ms: int, overdue: Sequence[int] = ()) -> list[int]:
    """Return when the runs were due that are missed and late by more than SKIP_GRACE_MS, oldest first.

    `overdue` are as for `plan`. A restart that takes seconds misses nothing; of a long outage the newest
    MISSED_RUNS_MAX are returned.
    """
    due = [stored.spec.jittered(name, run_ms) for run_ms in (*_past(name, stored, now_ms), *overdue)]
    return sorted(due_ms for due_ms in due if due_ms < now_ms - SKIP_GRACE_MS)


def overdue_runs(name: str, stored: Stored, now_ms: int) -> list[int]:
    """Return the runs sent ahead that are due now and may not have fired, as the planner was not running."""
    runs = stored.waiting(name, stored.planned_ms)
    return [run_ms for run_ms in runs if stored.spec.jittered(name, run_ms) <= now_ms]


def _past(name: str, stored: Stored, now_ms: int) -> list[int]:
    """Return the newest runs up to now that were not planned; with jitter some are due only later."""
    runs = stored.recurrence.newest(stored.planned_until_ms, now_ms, MISSED_RUNS_MAX)
    return [run_ms for run_ms in runs if stored.is_own(name, run_ms)]


def _by_policy(
    name: str, stored: Stored, now_ms: int, missed: list[int], overdue: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Decide what to revoke of the overdue runs and what to send of the missed ones."""
    if stored.spec.missed == "all":
        return [], missed
    wanted = [*missed, *overdue]
    if stored.spec.missed == "skip":
        first_ms = now_ms - SKIP_GRACE_MS
        wanted = [run_ms for run_ms in wanted if stored.spec.jittered(name, run_ms) >= first_ms]
    one = max(wanted, default=None)
    return [run_ms for run_ms in overdue if run_ms != one], [run_ms for run_ms in missed if run_ms == one]


def _ahead(name: str, stored: Stored, now_ms: int, delay_ms_max: int) -> tuple[list[int], int | None]:
    """Return the runs to send ahead, and when to check again."""
    runs: list[int] = []
    last_ms = stored.planned_until_ms
    for run_ms in stored.recurrence.runs_after(max(last_ms, now_ms)):
        due_ms = stored.spec.jittered(name, run_ms)
        if not stored.is_own(name, run_ms):
            continue  # the clock was stepped back to before the schedule began
        if last_ms > now_ms and run_ms > now_ms + AHEAD_MS:
            return runs, min(last_ms, max(run_ms - AHEAD_MS, now_ms + LOOK_MS))
        if due_ms > now_ms + delay_ms_max:
            return runs, due_ms - delay_ms_max
        runs.append(run_ms)
        last_ms = run_ms
    return runs, None
