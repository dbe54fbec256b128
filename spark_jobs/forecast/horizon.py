"""The time span of a forecast. Pure."""

from typing import NamedTuple

from timerwheel.wheel.geometry import DAY_MS, SECOND_MS

WITHIN_MAX_MS = 31 * DAY_MS  # bounds what the driver holds: 8 bytes for each second


class Horizon(NamedTuple):
    """The seconds of a forecast: epoch seconds in `from_s` ≤ second < `from_s` + `seconds`."""

    from_s: int
    seconds: int

    @property
    def from_ms(self) -> int:
        """Where the first second begins."""
        return self.from_s * SECOND_MS

    @property
    def until_ms(self) -> int:
        """Where the last second ends."""
        return (self.from_s + self.seconds) * SECOND_MS


def horizon_of(now_ms: int, within_ms: int) -> Horizon:
    """The span of so many milliseconds from the current second on, rounded up to whole seconds."""
    assert 0 < within_ms <= WITHIN_MAX_MS
    return Horizon(now_ms // SECOND_MS, -(-within_ms // SECOND_MS))
