"""The shapes in which clients see a schedule."""

import msgspec

from timerwheel.schedules.spec import ScheduleSpec

NEXT_RUNS_MAX = 1_000


class NextRun(msgspec.Struct, frozen=True):
    """One run to come, and when its message is due, jitter included."""

    run_ms: int
    due_ms: int


class ScheduleInfo(msgspec.Struct, frozen=True):
    """A schedule and its current state.

    `next_run_ms` is None if it is paused or has ended; `problem` says what blocks it, if anything does.
    """

    name: str
    spec: ScheduleSpec
    generation: int
    made_ms: int
    next_run_ms: int | None
    problem: str | None
