"""Repeats the topic check of a caller under the lock of the thing that is changed.

A caller's topic is checked when its request arrives. But a schedule or a subscription has its own name: it
may be deleted and created again for another topic before the request gets its turn. So its topic is checked
once more then.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_MAY: ContextVar[Callable[[str], bool] | None] = ContextVar("may", default=None)


@contextmanager
def limited_to(may: Callable[[str], bool]) -> Iterator[None]:
    """Within the block, and in tasks begun there, work is for a caller that may see these topics only."""
    before = _MAY.set(may)
    try:
        yield
    finally:
        _MAY.reset(before)


def permitted(topic: str) -> bool:
    """Tell whether the current caller may see this topic."""
    may = _MAY.get()
    return may is None or may(topic)
