"""Two threads against each other, in every order of their lines and always in the same one.

One call runs line by line; before each of its lines in turn, all of what another thread would do happens at
once. A thread may be stopped between any two lines, so a call that holds in all these orders holds, as far as
lines go, against that other thread.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


def each_order(modules: tuple[str, ...]) -> Iterator["Order"]:
    """One `Order` for each line that a call runs in these modules, until a call has fewer lines."""
    place = 0
    while True:
        order = Order(place, modules)
        yield order
        if not order.happened:
            return
        place += 1


class Order:
    """The other thread does its work before the line of this number, if that is reached (`happened`)."""

    def __init__(self, place: int, modules: tuple[str, ...]) -> None:
        self.place = place
        self.happened = False
        self._modules = modules
        self._lines = 0

    def run(self, call: Callable[[], Any], meanwhile: Callable[[], Any], lock: threading.Lock) -> Any:
        """What the call returns or raises; while it holds the lock, the other thread has to wait."""

        def trace(frame: FrameType, event: str, _argument: Any) -> Any:
            if frame.f_globals.get("__name__") not in self._modules:
                return None
            if event == "line" and not self.happened:
                if self._lines >= self.place and not lock.locked():
                    self.happened = True
                    sys.settrace(None)
                    meanwhile()
                    sys.settrace(trace)
                self._lines += 1
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            return call()
        finally:
            sys.settrace(before)
