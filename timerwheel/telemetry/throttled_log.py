"""A trouble that is met again and again, for the log: told when it begins, each minute then, and at its end.

    met() -> 1      tell it                 met() -> 0     not now
    met() -> 117    tell it: 117 times since it was told last
    over() -> 61000 tell that it is over    over() -> None nobody was told, or there was none

One that comes and goes is not told more often than that either.
"""

from timerwheel.clock import Clock

TOLD_EACH_MS = 60_000


class ThrottledLog:
    """One kind of trouble with one thing. Belongs to the event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_ms: int | None = None
        self._told_ms: int | None = None
        self._times = 0
        self._is_known = False

    def met(self) -> int:
        """It was met; how often since it was told last if it is to be told now, else 0."""
        now_ms = self._clock.monotonic_ms()
        if self._began_ms is None:
            self._began_ms = now_ms
        self._times += 1
        if self._told_ms is not None and now_ms - self._told_ms < TOLD_EACH_MS:
            return 0
        times, self._times = self._times, 0
        self._told_ms, self._is_known = now_ms, True
        return times

    def over(self) -> int | None:
        """It is over, if there was any; how many milliseconds it lasted if that is to be told."""
        began_ms, self._began_ms = self._began_ms, None
        was_known, self._is_known = self._is_known, False
        if began_ms is None or not was_known:
            return None
        return self._clock.monotonic_ms() - began_ms


class Troubles:
    """The same with many things, by name. Of those that were met longest ago nothing is known any more."""

    def __init__(self, clock: Clock, names_max: int) -> None:
        self._clock = clock
        self._names_max = names_max
        self._by_name: dict[str, ThrottledLog] = {}

    def met(self, name: str) -> int:
        """As of one."""
        trouble = self._by_name.pop(name, None) or ThrottledLog(self._clock)
        self._by_name[name] = trouble
        if len(self._by_name) > self._names_max:
            del self._by_name[next(iter(self._by_name))]
        return trouble.met()
