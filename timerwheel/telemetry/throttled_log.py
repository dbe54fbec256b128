"""Throttles a recurring problem in the log: logged when it begins, then once a minute, and when it ends.

    met() -> 1      log it                  met() -> 0     not now
    met() -> 117    log it: 117 times since the last line
    over() -> 61000 log that it is over     over() -> None nothing was logged, or there was no problem

A problem that comes and goes is not logged more often than that either.
"""

import logging

from timerwheel.clock import Clock

LOG_EACH_MS = 60_000


class ThrottledLog:
    """One kind of problem with one thing. Belongs to the event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_ms: int | None = None
        self._logged_ms: int | None = None
        self._times = 0
        self._is_known = False

    def met(self) -> int:
        """Note the problem; returns how often it occurred since the last log line if one is due, else 0."""
        now_ms = self._clock.monotonic_ms()
        if self._began_ms is None:
            self._began_ms = now_ms
        self._times += 1
        if self._logged_ms is not None and now_ms - self._logged_ms < LOG_EACH_MS:
            return 0
        times, self._times = self._times, 0
        self._logged_ms, self._is_known = now_ms, True
        return times

    def warning(self, logger: logging.Logger, text: str, *args: object) -> None:
        """Note the problem, and log it as a warning if a line is due."""
        _warn(self.met(), logger, text, args)

    def over(self) -> int | None:
        """Note the end of the problem, if any; returns its length in milliseconds if that must be logged."""
        began_ms, self._began_ms = self._began_ms, None
        was_known, self._is_known = self._is_known, False
        if began_ms is None or not was_known:
            return None
        return self._clock.monotonic_ms() - began_ms


def _warn(times: int, logger: logging.Logger, text: str, args: tuple[object, ...]) -> None:
    """Log a warning that says how often the problem occurred since the last one; nothing for no times."""
    if times:
        again = f" ({times} times since the last report)" if times > 1 else ""
        text_with_times = f"{text}%s"
        logger.warning(text_with_times, *args, again)


class Troubles:
    """A `ThrottledLog` for each of many things, by name. Forgets those with the oldest problems."""

    def __init__(self, clock: Clock, names_max: int) -> None:
        self._clock = clock
        self._names_max = names_max
        self._by_name: dict[str, ThrottledLog] = {}

    def met(self, name: str) -> int:
        """Note the problem of one thing; returns what `ThrottledLog.met` does."""
        trouble = self._by_name.pop(name, None) or ThrottledLog(self._clock)
        self._by_name[name] = trouble
        if len(self._by_name) > self._names_max:
            del self._by_name[next(iter(self._by_name))]
        return trouble.met()

    def warning(self, name: str, logger: logging.Logger, text: str, *args: object) -> None:
        """Note the problem of one thing, and log it as a warning if a line is due."""
        _warn(self.met(name), logger, text, args)
