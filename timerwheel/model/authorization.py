"""For whom work is done, asked where nothing can change in between: under the lock of what is changed.

A caller's topic is checked when its request comes. What has a name of its own, a schedule or a subscription,
may be deleted and made anew for another topic before the request's turn comes; so it is looked at again then.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_MAY: ContextVar[Callable[[str], bool] | None] = ContextVar("may", default=None)


@contextmanager
def limited_to(may: Callable[[str], bool]) -> Iterator[None]:
    """Within the block, and in tasks begun there, work is for somebody who may know these topics only."""
    before = _MAY.set(may)
    try:
        yield
    finally:
        _MAY.reset(before)


def permitted(topic: str) -> bool:
    """Whether whoever the work is for may know this topic."""
    may = _MAY.get()
    return may is None or may(topic)
