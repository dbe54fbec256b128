"""How long ago something was stored, whatever is done to the wall clock.

What is too old ends for good: a message for a group, a segment, a deduplication key. So what was stored is
judged by how long ago that was, and not by what the clock says now.

Invariants:
1. A step of the wall clock while the service runs makes nothing older than it is, but for CLOCK_STEP_MS.
   What was stored before a step forward is as old as without it, also once the clock is set right. After a
   step back, a time that the clock reads again is that of the second reading, so something may seem younger,
   by the step at most.
2. What has a time stamp that the clock has not reached yet, as from a start at which the clock was ahead, is
   as old as the records that follow it in the log (`LogAges`). So no stamp holds anything up until its time.
3. Every age grows by the monotonic clock. What is kept for some time, and no longer, goes once the service
   has run for that long, also if the machine slept in between: sleep counts as a step, since nobody could
   read what was delivered.

While the service is down, time is what the clock says at the next start, or once a clock that was behind
then is set: a step of that time looks like time that passed, and steps are forgotten. Belongs to
the event loop.
"""

from typing import NamedTuple

from timerwheel.clock import CLOCK_STEP_MS, Clock
from timerwheel.state.state import LogState
from timerwheel.store.log import CommitLog

STEPS_MAX = 100
"""Steps that are remembered; the times before and after the first of more become one."""
_EVER = 1 << 62


class _Era(NamedTuple):
    """Between two steps the wall clock is ahead of the monotonic one by the same; monotonic bounds."""

    ahead_ms: int
    from_ms: int
    until_ms: int = _EVER


class Ages:
    """The ages of time stamps of this process and of those before it; see the module."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._looked_ms = clock.monotonic_ms()
        self._eras = [_Era(clock.now_ms() - self._looked_ms, -_EVER)]
        self._forgotten_ms = -_EVER  # what the clock had read at the latest before the first step

    def look(self) -> None:
        """Notice a step; call this each second, so that what came before it and what after it is known."""
        mono_ms = self._clock.monotonic_ms()
        ahead_ms = self._clock.now_ms() - mono_ms
        if abs(ahead_ms - self._eras[-1].ahead_ms) >= CLOCK_STEP_MS:
            self._eras[-1] = self._eras[-1]._replace(until_ms=mono_ms)
            # The step was at some time since the last look: the eras overlap.
            self._eras.append(_Era(ahead_ms, self._looked_ms))
            if self.remembered > STEPS_MAX:
                first, second = self._eras[:2]
                self._eras[:2] = [_Era(min(first.ahead_ms, second.ahead_ms), -_EVER, second.until_ms)]
                read_ms = (era.ahead_ms + era.until_ms for era in (first, second))
                self._forgotten_ms = max(self._forgotten_ms, *read_ms)
        self._looked_ms = mono_ms

    @property
    def remembered(self) -> int:
        """How many steps are remembered."""
        return len(self._eras) - 1

    def age_ms(self, stamp_ms: int) -> int:
        """Return how long ago the clock read this; negative if it is still to read it.

        If it has read it several times, that is how long ago it did last. A time that it has skipped was
        written before the start, and is judged by what the clock says now.
        """
        self.look()
        mono_ms = self._looked_ms
        for era in reversed(self._eras):
            at_ms = stamp_ms - era.ahead_ms
            if era.from_ms <= at_ms <= min(era.until_ms, mono_ms) + CLOCK_STEP_MS:
                return max(mono_ms - at_ms, 0)
        age_ms = mono_ms - (stamp_ms - self._eras[-1].ahead_ms)
        if age_ms >= 0 and stamp_ms <= self._forgotten_ms:
            return mono_ms - self._eras[0].until_ms
        return age_ms

    def unstepped_now_ms(self, within_ms: int) -> int:
        """Return what the clock would read now without its steps forward in the last `within_ms`.

        What has a stamp `within_ms` before that, or a later one, is not older than `within_ms`.
        """
        self.look()
        since_ms = self._looked_ms - within_ms
        return self._looked_ms + min(era.ahead_ms for era in self._eras if era.until_ms >= since_ms)


class LogAges:
    """The ages of segments, and of the time stamps of their records."""

    def __init__(self, ages: Ages, state: LogState, log: CommitLog) -> None:
        self._ages = ages
        self._state = state
        self._log = log

    def of_segments(self) -> dict[int, int]:
        """Return how long ago the newest record of each segment was stored at least, by base, newest first.

        The log is in the order of time. So where stamps are not, as the clock was stepped back, a segment is
        older than the first record that follows it and has a stamp that may be right. The last segment has no
        age: it may be written to.
        """
        found: dict[int, int] = {}
        next_ms, next_age_ms = _EVER, 0
        for base in reversed(self._log.bases):
            segment = self._state.segments.get(base)
            stamp_ms = 0 if segment is None else segment.last_store_ms
            own_ms = self._ages.age_ms(stamp_ms) if stamp_ms else -1  # no stamp: nothing in it can be read
            if not found:
                found[base] = 0
            elif own_ms < 0:
                found[base] = next_age_ms
            else:
                found[base] = own_ms if stamp_ms <= next_ms else min(own_ms, next_age_ms)
            if own_ms >= 0:
                next_ms, next_age_ms = stamp_ms, own_ms
        return found

    def age_ms(self, stamp_ms: int) -> int:
        """Return how long ago at least a record was stored that has this stamp; never negative.

        If the clock is still to read it, the record is in one of the segments with such stamps.
        """
        own_ms = self._ages.age_ms(stamp_ms)
        if own_ms >= 0:
            return own_ms
        segments = self._state.segments
        ages = (
            age_ms
            for base, age_ms in self.of_segments().items()
            if base in segments and segments[base].last_store_ms >= stamp_ms
        )
        return next(ages, _EVER)  # gone with its segment
