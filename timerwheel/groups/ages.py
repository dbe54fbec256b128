"""The age of delivered messages, whatever is done to the wall clock while the service runs.

A message that is too old ends for a group, which cannot be undone. So a clock that is stepped forward must
not make it older: a step does not count for messages that were delivered before it. After a step back
messages seem younger, and live longer by that at most. A step while the service is down cannot be noticed.
"""

from timerwheel.clock import Clock

STEP_MS = 1_000
"""By so much the wall clock must gain on the monotonic one to have been stepped; it may drift by less."""


class Ages:
    """See the module. Belongs to the event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_ms = clock.now_ms() - clock.monotonic_ms()
        self._steps: list[tuple[int, int]] = []  # wall time before the step, milliseconds forward

    def look(self) -> None:
        """Notice a step; call this now and then, so that later deliveries are not taken for earlier ones."""
        now_ms = self._clock.now_ms()
        step_ms = now_ms - self._clock.monotonic_ms() - self._ahead_ms
        if abs(step_ms) >= STEP_MS:
            if step_ms > 0:
                self._steps.append((now_ms - step_ms, step_ms))
            self._ahead_ms += step_ms

    def age_ms(self, from_ms: int) -> int:
        """Return how long ago a message was delivered that was at this wall time."""
        self.look()
        now_ms = self._clock.now_ms()
        return now_ms - from_ms - sum(step for before_ms, step in self._steps if from_ms <= before_ms)
