"""A schedule as its owner defines it, its rules, and the messages of its runs. Pure."""

import re
from collections.abc import Mapping
from hashlib import blake2s
from typing import Literal

import msgspec

from timerwheel.model.admission import DELAY_PROPERTIES, SCHEDULE_KEY_PREFIX
from timerwheel.model.messages import Outgoing
from timerwheel.schedules.errors import (
    ScheduleBodyError,
    ScheduleError,
    ScheduleFieldError,
    SchedulePropertyError,
)
from timerwheel.schedules.recurrence import Recurrence

JITTER_MS_MAX = 86_400_000
BODY_BYTES_MAX = 256 * 1024  # it is kept as a setting, in memory and in base64, and settings are bounded
WAITING_RUNS_MAX = 10_000
NAME_PROPERTY = "SCHEDULE_NAME"
RUN_PROPERTY = "SCHEDULE_RUN_MS"
RUN_KEY_PROPERTY = "SCHEDULE_RUN_KEY"
RUN_KEY_CHARACTERS_MAX = 100
DELIVER_PROPERTY = "TIMER_DELIVER_MS"
DELAY_PROPERTY = "TIMER_DELAY_MS"
OWN_PROPERTIES = frozenset({NAME_PROPERTY, RUN_PROPERTY, RUN_KEY_PROPERTY}) | DELAY_PROPERTIES

Missed = Literal["skip", "once", "all"]

_match_name = re.compile(r"[A-Za-z0-9_.-]{1,127}").fullmatch
_STEPS = frozenset({".", ".."})


class ScheduleSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as its owner puts it; in JSON the body is base64.

    `envelope` is what another part of the service keeps with each run, as `Outgoing.envelope`.
    `missed` says how many messages replace the runs that the service could not send in time: none, one, or
    all.
    """

    topic: str
    body: bytes = b""
    properties: dict[str, str] = {}
    recurrence: Recurrence
    jitter_ms: int = 0
    missed: Missed = "once"
    paused: bool = False
    envelope: str = ""

    def check(self) -> "ScheduleSpec":
        """Return self if every field is legal; ScheduleError names the first that is not.

        Topic, body and properties must also pass admission, which the engine checks.
        """
        self.recurrence.check()
        if not 0 <= self.jitter_ms <= JITTER_MS_MAX:
            raise ScheduleFieldError("jitter_ms", f"{self.jitter_ms} is not from 0 to {JITTER_MS_MAX}")
        every_ms = self.recurrence.every_ms
        if every_ms is not None and self.jitter_ms > every_ms * WAITING_RUNS_MAX:
            raise ScheduleFieldError(
                "jitter_ms", f"{self.jitter_ms} is more than {WAITING_RUNS_MAX} times every_ms"
            )
        if self.missed not in ("skip", "once", "all"):
            raise ScheduleFieldError("missed", f"{self.missed!r} is not skip, once or all")
        if len(self.body) > BODY_BYTES_MAX:
            raise ScheduleBodyError("body", f"{len(self.body)} bytes are more than {BODY_BYTES_MAX}")
        own = sorted(OWN_PROPERTIES & self.properties.keys())
        if own:
            raise SchedulePropertyError("properties", f"{', '.join(own)}: only the schedule may set this")
        return self

    def jittered(self, name: str, run_ms: int) -> int:
        """Return when the message of a run is due: up to `jitter_ms` later, always the same for a run."""
        digest = blake2s(f"{name}:{run_ms}".encode(), digest_size=8).digest()
        return run_ms + int.from_bytes(digest, "big") % (self.jitter_ms + 1)

    def message(self, name: str, generation: int, run_ms: int, delay_ms: int | None = None) -> Outgoing:
        """Return the message of a run, under its own deduplication key.

        It is due at its time, or `delay_ms` after it was sent.
        """
        own = {NAME_PROPERTY: name, RUN_PROPERTY: str(run_ms)}
        if delay_ms is None:
            own[DELIVER_PROPERTY] = str(self.jittered(name, run_ms))
        else:
            own[DELAY_PROPERTY] = str(delay_ms)
        return self._outgoing(own, run_key(name, generation, run_ms))

    def message_now(self, name: str, key: str | None) -> Outgoing:
        """Return the message of a run on demand, which is delivered at once.

        Its content depends on nothing but the schedule and the key, so that it is the same when a caller
        repeats it.
        """
        own = {NAME_PROPERTY: name}
        if key is not None:
            own[RUN_KEY_PROPERTY] = key
        return self._outgoing(own, None if key is None else now_key(name, key))

    def _outgoing(self, properties: Mapping[str, str], key: str | None) -> Outgoing:
        return Outgoing(
            self.topic,
            self.body,
            {**self.properties, **properties},
            key,
            own=True,
            queue=0 if self.envelope else None,
            envelope=self.envelope,
        )


def check_name(name: str) -> str:
    """Return the name; ScheduleError unless it is 1 to 127 of `[A-Za-z0-9_.-]`, and no step in a path."""
    if name in _STEPS:
        raise ScheduleError("name", f"{name!r} is a step in a path, which browsers take out of the URL")
    if _match_name(name) is None:
        raise ScheduleError("name", f"{name[:128]!r} is not 1 to 127 characters of A-Z a-z 0-9 _ . -")
    return name


def run_key(name: str, generation: int, run_ms: int) -> str:
    """Return the deduplication key of a run; `generation` separates the runs before and after a change."""
    return f"{SCHEDULE_KEY_PREFIX}{name}:{generation}:{run_ms}"


def now_key(name: str, key: str) -> str:
    """Return the deduplication key of a run on demand; unlike that of a planned run it has no number."""
    return f"{SCHEDULE_KEY_PREFIX}{name}:now:{key}"


NEXT_RUNS_MAX = 1_000


class NextRun(msgspec.Struct, frozen=True):
    """One run to come, and when its message is due, jitter included."""

    run_ms: int
    due_ms: int


class MissedRuns(msgspec.Struct, frozen=True):
    """How many runs of a schedule were more than a minute late since the service started, and the last one.

    `missed` of the schedule says how many messages were sent in their place.
    """

    count: int
    last_ms: int | None


NO_MISSED_RUNS = MissedRuns(0, None)


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
    missed: MissedRuns = NO_MISSED_RUNS
