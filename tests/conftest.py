"""What holds for every layer."""

import signal

from hypothesis import settings

settings.register_profile("any machine", deadline=None)  # what is slow shows in the benchmark
settings.load_profile("any machine")


def pytest_configure() -> None:
    """Let Ctrl-C reach the processes of tests: a shell starts what runs in its background with it ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
