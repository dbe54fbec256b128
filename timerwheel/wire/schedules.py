"""Recurring schedules on the wire; see `timerwheel.wire`."""

import datetime as dt
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from timerwheel.model.instants import instant_or_none
from timerwheel.model.properties import KEYS, TAGS
from timerwheel.schedules.recurrence import RepeatedHour, SkippedHour
from timerwheel.schedules.spec import NEXT_RUNS_MAX, RUN_KEY_CHARACTERS_MAX, Missed, NextRun, ScheduleInfo
from timerwheel.wire.fields import Answer, Int64, Json, Natural, text_or_bytes
from timerwheel.wire.paging import PagedCursor, PageQuery


class NewSchedule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to send and when: one of `cron`, `every_ms` and `every`."""

    topic: str
    body: str | UnsetType = UNSET
    body_base64: bytes | UnsetType = UNSET
    json: Json | UnsetType = UNSET
    properties: dict[str, str] | UnsetType = UNSET
    tags: str | UnsetType = UNSET
    keys: str | list[str] | UnsetType = UNSET
    cron: Annotated[str, Meta(examples=["30 9 * * 1-5", "@daily"])] | UnsetType = UNSET
    every_ms: Int64 | UnsetType = UNSET
    every: Annotated[str, Meta(examples=["15m"])] | UnsetType = UNSET
    zone: Annotated[str, Meta(examples=["Europe/Berlin"])] = "UTC"
    start_ms: Int64 | UnsetType = UNSET
    start: Annotated[str, Meta(examples=["2026-12-24T18:00:00+01:00"])] | UnsetType = UNSET
    end_ms: Int64 | UnsetType = UNSET
    end: str | UnsetType = UNSET
    jitter_ms: Natural = 0
    missed: Missed = "once"
    skipped_hour: SkippedHour = "auto"
    repeated_hour: RepeatedHour = "auto"
    paused: bool = False


class Schedule(Answer, frozen=True, kw_only=True):
    """A schedule; `next_run_ms` is null if it is paused or has ended.

    `missed_runs` of its runs were more than a minute late since the service started, the last of them due at
    `missed_last_ms`; both are left out if there were none.
    """

    name: str
    topic: str
    properties: dict[str, str]
    zone: str
    jitter_ms: int
    missed: Missed
    skipped_hour: SkippedHour
    repeated_hour: RepeatedHour
    paused: bool
    generation: int
    made_ms: int
    next_run_ms: int | None
    body_text: str | None = msgspec.field(default=None, name="body")
    body_base64: bytes | None = None
    tags: str | None = None
    keys: list[str] = msgspec.field(default_factory=list)
    cron: str | None = None
    every_ms: int | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    problem: str | None = None
    missed_runs: int = 0
    missed_last_ms: int | None = None

    @property
    def body(self) -> bytes:
        """The body's bytes."""
        return (self.body_text or "").encode() if self.body_base64 is None else self.body_base64

    @property
    def next_run(self) -> dt.datetime | None:
        """`next_run_ms` as an aware datetime; None if it is paused or has ended."""
        return instant_or_none(self.next_run_ms)

    @classmethod
    def of(cls, info: ScheduleInfo) -> "Schedule":
        """Convert the engine's form: the body as text if it is UTF-8, else as base64."""
        spec, recurrence = info.spec, info.spec.recurrence
        text, body_base64 = text_or_bytes(spec.body)
        keys = spec.properties.get(KEYS)
        return cls(
            name=info.name,
            topic=spec.topic,
            properties=spec.properties,
            zone=recurrence.zone,
            jitter_ms=spec.jitter_ms,
            missed=spec.missed,
            skipped_hour=recurrence.skipped_hour,
            repeated_hour=recurrence.repeated_hour,
            paused=spec.paused,
            generation=info.generation,
            made_ms=info.made_ms,
            next_run_ms=info.next_run_ms,
            body_text=text,
            body_base64=body_base64,
            tags=spec.properties.get(TAGS),
            keys=[] if keys is None else keys.split(),
            cron=recurrence.cron or None,
            every_ms=recurrence.every_ms or None,
            start_ms=recurrence.start_ms,
            end_ms=recurrence.end_ms,
            problem=info.problem or None,
            missed_runs=info.missed.count,
            missed_last_ms=info.missed.last_ms,
        )


class RunNow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run on demand. With a `key`, the caller's own name for it, it is sent once."""

    key: Annotated[str, Meta(min_length=1, max_length=RUN_KEY_CHARACTERS_MAX)] | UnsetType = UNSET


class Schedules(msgspec.Struct, frozen=True):
    """Schedules by name."""

    schedules: list[Schedule]
    cursor: PagedCursor = UNSET


class NextRuns(msgspec.Struct, frozen=True):
    """The next runs, in order; none if it is paused or has ended."""

    runs: list[NextRun]
    cursor: PagedCursor = UNSET


class RunsQuery(PageQuery, frozen=True, forbid_unknown_fields=True):
    """Which of the next runs; 10 by default."""

    count: Annotated[int, Meta(ge=1, le=NEXT_RUNS_MAX, description="The older name of limit")] | UnsetType = (
        UNSET
    )


class SchedulePath(msgspec.Struct, frozen=True):
    """One schedule."""

    name: str
