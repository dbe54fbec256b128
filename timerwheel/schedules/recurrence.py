"""When a schedule runs: by cron on the wall clock of a time zone, or at a fixed interval. Pure.

Cron is evaluated on plain local times (cronsim). This module then maps them to UTC, so that it decides about
the hours that daylight saving skips or repeats. One local time maps to

    once a day, as nearly always      its moment
    never: clocks skip it (a gap)     `run_after`: the first moment after the gap; `skip`: nothing
    twice: clocks repeat it           `first`: the first of the two; `both`: both

Invariants:
1. Runs are strictly increasing: everything at one moment, such as all times of one gap, is one run.
2. First moments never decrease with the local time, so only second moments have to wait their turn.
3. The cost of the next run does not depend on how long ago the recurrence began.

An interval is absolute time, so zones do not affect it.
"""

import datetime as dt
import functools
import re
from collections import deque
from collections.abc import Iterator
from itertools import takewhile
from typing import Literal
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

from timerwheel.schedules.errors import ScheduleError, ScheduleFieldError

EVERY_MS_MIN = 1_000
EVERY_MS_MAX = 36_525 * 86_400_000  # a hundred years
MOMENT_MS_MAX = 253_370_764_800_000  # the year 9999, the last that calendars here support
CRON_CHARACTERS_MAX = 256
CRON_FIELDS = 5

SkippedHour = Literal["auto", "run_after", "skip"]
RepeatedHour = Literal["auto", "first", "both"]

_ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
# Files beside the zones: the machine's own setting, copies that count leap seconds, and placeholders.
_match_file = re.compile(
    r"(right|posix)/.*|posixrules|localtime|Factory", re.DOTALL | re.IGNORECASE
).fullmatch
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_LOCAL_EPOCH = _EPOCH.replace(tzinfo=None)
_SECOND = dt.timedelta(seconds=1)
_LONGEST_REPEAT_S = 25 * 3_600
_MINUTE_MS = 60_000
_WIDEN = 4


class Recurrence(msgspec.Struct, frozen=True, kw_only=True):
    """Either `cron` or `every_ms`, within `start_ms` ≤ run < `end_ms` (epoch milliseconds).

    `cron` has the five fields of Debian's cron, or is one of @hourly, @daily, @weekly, @monthly, @yearly,
    and is read on the wall clock of `zone`, an IANA name. Intervals run at `start_ms` + k * `every_ms`;
    without a start they are aligned to the epoch, see `anchored`.

    `auto` does what Debian's cron does: if the hour field begins with `*` the job runs by elapsed time (a
    skipped hour is skipped, a repeated one is repeated), else once a day whatever the clocks do. (Debian
    counts a minute field that begins with `*` too; here only the hour field decides.)
    """

    cron: str | None = None
    every_ms: int | None = None
    zone: str = "UTC"
    start_ms: int | None = None
    end_ms: int | None = None
    skipped_hour: SkippedHour = "auto"
    repeated_hour: RepeatedHour = "auto"

    def check(self) -> "Recurrence":
        """Return self if every field is legal; ScheduleError names the first that is not."""
        if (self.cron is None) == (self.every_ms is None):
            raise ScheduleFieldError("cron", "set exactly one of cron and every_ms")
        if self.every_ms is not None and not EVERY_MS_MIN <= self.every_ms <= EVERY_MS_MAX:
            raise ScheduleFieldError(
                "every_ms", f"{self.every_ms} is not from {EVERY_MS_MIN} to {EVERY_MS_MAX}"
            )
        for field, moment_ms in (("start_ms", self.start_ms), ("end_ms", self.end_ms)):
            if moment_ms is not None and not 0 <= moment_ms <= MOMENT_MS_MAX:
                raise ScheduleFieldError(
                    field, f"{moment_ms} is not epoch milliseconds from 0 to {MOMENT_MS_MAX}"
                )
        if self.end_ms is not None and self.end_ms <= (self.start_ms or 0):
            raise ScheduleFieldError("end_ms", f"{self.end_ms} is not after start_ms = {self.start_ms or 0}")
        if self.skipped_hour not in ("auto", "run_after", "skip"):
            raise ScheduleFieldError("skipped_hour", f"{self.skipped_hour!r} is not auto, run_after or skip")
        if self.repeated_hour not in ("auto", "first", "both"):
            raise ScheduleFieldError("repeated_hour", f"{self.repeated_hour!r} is not auto, first or both")
        if _match_file(self.zone) is not None:
            raise _zone_error(self.zone)
        zone_of(self.zone)
        if self.cron is not None:
            fields_of(self.cron)
        return self

    def anchored(self, made_ms: int) -> "Recurrence":
        """Set the start: an interval without one counts from the moment its schedule was created."""
        if self.every_ms is None or self.start_ms is not None:
            return self
        return msgspec.structs.replace(self, start_ms=made_ms)

    def runs_after(self, after_ms: int) -> Iterator[int]:
        """Yield the runs after a moment, exclusive of it, strictly increasing, until `end_ms`.

        Lazy; about 10 µs per run, and the first one costs no more however far it is from the start. Raises
        ScheduleError, as `check` does.
        """
        end_ms = MOMENT_MS_MAX if self.end_ms is None else min(self.end_ms, MOMENT_MS_MAX)
        after_ms = max(after_ms, (self.start_ms or 0) - 1)
        if after_ms >= end_ms:
            return
        runs = self._interval_runs(after_ms) if self.cron is None else self._cron_runs(self.cron, after_ms)
        yield from takewhile(lambda run_ms: run_ms < end_ms, runs)

    def newest(self, after_ms: int, until_ms: int, count_max: int) -> list[int]:
        """Return the newest runs in `after_ms` < run ≤ `until_ms`, oldest first.

        It looks back over a window that grows until it holds enough runs, and does not walk through years.
        """
        width_ms = count_max * (self.every_ms or _MINUTE_MS)
        while True:
            low_ms = max(after_ms, until_ms - width_ms)
            # Only the newest are kept: a window that reaches into a dense month may hold many more.
            found = deque(takewhile(lambda run_ms: run_ms <= until_ms, self.runs_after(low_ms)), count_max)
            if len(found) == count_max or low_ms <= max(after_ms, (self.start_ms or 0) - 1):
                return list(found)
            width_ms *= _WIDEN

    def _interval_runs(self, after_ms: int) -> Iterator[int]:
        start_ms, every_ms = self.start_ms or 0, self.every_ms
        if every_ms is None:
            raise ScheduleFieldError("cron", "set exactly one of cron and every_ms")
        run_ms = start_ms + max((after_ms - start_ms) // every_ms + 1, 0) * every_ms
        while True:
            yield run_ms
            run_ms += every_ms

    def _cron_runs(self, cron: str, after_ms: int) -> Iterator[int]:
        """Yield strictly increasing moments of the local times that match."""
        zone, fields = zone_of(self.zone), fields_of(cron)
        by_elapsed_time = fields[1].startswith("*")
        skip = self.skipped_hour == "skip" or (self.skipped_hour == "auto" and by_elapsed_time)
        both = self.repeated_hour == "both" or (self.repeated_hour == "auto" and by_elapsed_time)
        after_s = last_s = after_ms // 1_000
        seconds: deque[int] = deque()  # second moments that are still in the future, in order
        for local in _matching(fields, after_s + _lowest_offset_s(zone, after_s)):
            moments = _moments_s(local, zone, skip_gap=skip)
            if not moments:
                continue
            while seconds and seconds[0] < moments[0]:
                last_s = seconds.popleft()
                yield last_s * 1_000
            if moments[0] > last_s:
                last_s = moments[0]
                yield last_s * 1_000
            if both and moments[-1] > max(after_s, moments[0]):
                seconds.append(moments[-1])
        yield from (second * 1_000 for second in seconds)


@functools.lru_cache(maxsize=1_024)
def zone_of(name: str) -> ZoneInfo:
    """Return the zone with this IANA name; ScheduleError if there is none."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        # The last is a folder of zones, such as America.
        raise _zone_error(name) from None


def _zone_error(name: str) -> ScheduleError:
    return ScheduleError("zone", f"{name[:64]!r} is not an IANA time zone such as Europe/Berlin")


@functools.lru_cache(maxsize=1_024)
def fields_of(cron: str) -> tuple[str, ...]:
    """Return the five fields of a cron text, aliases expanded; ScheduleError if it is wrong or never runs."""
    if len(cron) > CRON_CHARACTERS_MAX:
        raise ScheduleError("cron", f"is longer than {CRON_CHARACTERS_MAX} characters")
    text = cron.strip().lower()
    if text.startswith("@") and text not in _ALIASES:
        raise ScheduleError("cron", f"{cron!r} is not one of {', '.join(_ALIASES)}")
    fields = tuple(_ALIASES.get(text, cron).split())
    if len(fields) != CRON_FIELDS:
        raise ScheduleError(
            "cron",
            f"{cron!r} has {len(fields)} fields; give five: minute hour day-of-month month day-of-week",
        )
    try:
        next(CronSim(" ".join(fields), dt.datetime(2000, 1, 1)))  # noqa: DTZ001 - a plain local time
    except CronSimError as error:
        raise ScheduleError("cron", f"{cron!r} is not valid: {str(error).lower()}") from None
    except StopIteration:
        raise ScheduleError("cron", f"{cron!r} matches no day within 50 years") from None
    return fields


def _matching(fields: tuple[str, ...], after_local_s: int) -> Iterator[dt.datetime]:
    """Yield plain local times that match, after one given as seconds since the local 1970."""
    try:
        yield from CronSim(" ".join(fields), _LOCAL_EPOCH + after_local_s * _SECOND)
    except OverflowError:
        return  # the year 9999 is over


def _lowest_offset_s(zone: ZoneInfo, at_s: int) -> int:
    """Return the offset that gives the earliest local time that is still in the future.

    If clocks go back soon, local times that have passed occur again.
    """
    return min(_offset_s(zone, at_s), _offset_s(zone, at_s + _LONGEST_REPEAT_S))


def _offset_s(zone: ZoneInfo, at_s: int) -> int:
    offset = (_EPOCH + at_s * _SECOND).astimezone(zone).utcoffset() or dt.timedelta()
    return offset // _SECOND


def _moments_s(local: dt.datetime, zone: ZoneInfo, *, skip_gap: bool) -> tuple[int, ...]:
    """Return the epoch seconds at which clocks read a local time: one, two, or for a gap its end or none."""
    local_s = (local - _LOCAL_EPOCH) // _SECOND
    first, second = (
        (local.replace(tzinfo=zone, fold=fold).utcoffset() or dt.timedelta()) // _SECOND for fold in (0, 1)
    )
    if first == second:
        return (local_s - first,)
    if first > second:
        return (local_s - first, local_s - second)
    if skip_gap:
        return ()
    # In a gap fold 0 is the offset before it and fold 1 the one after it: the change lies between the two.
    before_s, from_s = local_s - second, local_s - first
    while from_s - before_s > 1:
        middle_s = (before_s + from_s) // 2
        if _offset_s(zone, middle_s) == first:
            before_s = middle_s
        else:
            from_s = middle_s
    return (from_s,)
