"""The shapes in which clients see a schedule."""

from typing import NamedTuple

import msgspec

from timerwheel.schedules.spec import ScheduleSpec

NEXT_RUNS_MAX = 1_000


class Run(NamedTuple):
    """One future run: its moment, and when its message is due, including jitter; epoch milliseconds."""

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
