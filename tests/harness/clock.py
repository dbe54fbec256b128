"""The manual clock of `timerwheel.testing`, under the name that the tests of this project use."""

from timerwheel.testing.manual_clock import ManualClock

__all__ = ["ManualClock"]
