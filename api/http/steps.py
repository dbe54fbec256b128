"""Work on many things of one request, in steps: others have their turn in between."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from timerwheel.clock import Clock

AT_ONCE = 500
"""Items of one step, which takes some milliseconds."""
Key = TypeVar("Key")
Made = TypeVar("Made")


async def made_of(clock: Clock, keys: Sequence[Key], make: Callable[[Key], Made | None]) -> list[Made]:
    """Return what `make` makes of the keys, in order, without None."""
    found: list[Made] = []
    for first in range(0, len(keys), AT_ONCE):
        if first:
            await clock.breathe()
        found += [one for key in keys[first : first + AT_ONCE] if (one := make(key)) is not None]
    return found
