"""For tests of programs that use timerwheel: a real service with a clock that the test moves."""
